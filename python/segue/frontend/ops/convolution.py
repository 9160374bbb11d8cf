# ===- convolution.py - convolutions and their gradients ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Convolutions over one to three dimensions, transposed ones, and their gradients.

One dimension is two, the first of which is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch

from ..writer import Value, tensor_type
from .table import NodeBuilder, Unsupported, lowers


@dataclass
class _Window:
    """How a weight slides over images, per dimension: two or three, the first added where PyTorch has one."""

    strides: list[int]
    low: list[int]
    high: list[int]
    dilations: list[int]
    groups: int

    def text(self) -> str:
        return (f"strides {self.strides} low {self.low} high {self.high} dilations {self.dilations} "
                f"groups {self.groups}")

    def output(self, image: Sequence[int], weight: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result."""
        places = [(image[2 + i] + self.low[i] + self.high[i] - (weight[2 + i] - 1) * self.dilations[i] - 1)
                  // self.strides[i] + 1 for i in range(len(self.strides))]
        return (image[0], weight[0], *places)


def _window(weight: Value, stride: int | Sequence[int], padding: int | Sequence[int] | str,
            dilation: int | Sequence[int], groups: int) -> _Window:
    dims = weight.rank - 2
    if not weight.is_float:
        raise Unsupported("a convolution of integers")
    if weight.dtype == torch.float64:
        raise Unsupported("a convolution in float64")

    def spread(values: int | Sequence[int], neutral: int) -> list[int]:
        values = [values] if isinstance(values, int) else list(values)
        values = values * dims if len(values) == 1 else values
        return [neutral] * _added(dims) + values

    dilations = spread(dilation, 1)
    if isinstance(padding, str):  # "same" or "valid"
        # An odd number of elements has the larger half behind.
        extents = [1] * _added(dims) + list(weight.shape[2:])
        total = [(k - 1) * d if padding == "same" else 0 for k, d in zip(extents, dilations)]
        low, high = [n // 2 for n in total], [n - n // 2 for n in total]
    else:
        low = high = spread(padding, 0)
    return _Window(spread(stride, 1), low, high, dilations, groups)


def _added(dims: int) -> int:
    """How many dimensions of 1 stand before those of PyTorch."""
    return 1 if dims == 1 else 0


def _planes(b: NodeBuilder, x: Value, rank: int) -> Value:
    """`x` with a batch, if a weight of `rank` meets one image, and two or three dimensions of places."""
    shape = (1,) * (rank - x.rank) + x.shape
    return b.reshape(x, (*shape[:2], *(1,) * _added(rank - 2), *shape[2:]))


def _emit(b: NodeBuilder, name: str, x: Value, y: Value, window: _Window, shape: tuple[int, ...],
          bias: Value | None = None) -> Value:
    """A convolution ("") or one of its gradients, on planes; the result has the element type of `x`."""
    head = f"{x.name}, {y.name}" + (f" bias {bias.name} : {bias.type}" if bias is not None else "")
    operands = [v for v in (x, y, bias) if v is not None]
    tail = f"{x.type}, {y.type} -> {tensor_type(shape, x.dtype)}"
    return b.emit(f"conv{len(window.strides)}d{name}", f"{head} {window.text()}", tail, [(shape, x.dtype)], operands)[0]


@lowers("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.conv1d.padding", "aten.conv2d.padding",
        "aten.conv3d.padding")
def conv(b: NodeBuilder, x: Value, weight: Value, bias: Value | None = None, stride: int | Sequence[int] = 1,
         padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Value:
    window = _window(weight, stride, padding, dilation, groups)
    image, kernel = _planes(b, x, weight.rank), _planes(b, weight, weight.rank)
    shape = window.output(image.shape, kernel.shape)
    return b.reshape(_emit(b, "", image, kernel, window, shape, bias), b.shape)


@lowers("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(b: NodeBuilder, x: Value, weight: Value, bias: Value | None = None, stride: int | Sequence[int] = 1,
                   padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1,
                   dilation: int | Sequence[int] = 1) -> Value:
    """The gradient of the convolution that makes `x` of the result, for its input."""
    window = _window(weight, stride, padding, dilation, groups)
    image, kernel = _planes(b, x, weight.rank), _planes(b, weight, weight.rank)
    places = b.shape[len(b.shape) - weight.rank + 2 :]
    shape = (image.shape[0], kernel.shape[1] * groups, *(1,) * _added(weight.rank - 2), *places)
    if window.output(shape, kernel.shape) != image.shape:
        raise Unsupported(f"output_padding={output_padding}, which is not below the stride")
    y = b.reshape(_emit(b, "_input_grad", image, kernel, window, shape), b.shape)
    return y if bias is None else b.binary("add", y, b.reshape(bias, (*bias.shape, *(1,) * len(places))))


@lowers("aten.convolution.default")
def convolution(b: NodeBuilder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
                padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int],
                groups: int) -> Value:
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


@lowers("aten.convolution_backward.default")
def convolution_backward(b: NodeBuilder, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None,
                         stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                         output_padding: Sequence[int], groups: int,
                         output_mask: Sequence[bool]) -> list[Value | None]:
    window = _window(weight, stride, padding, dilation, groups)
    grad, image, kernel = (_planes(b, v, weight.rank) for v in (grad, x, weight))
    for_input, for_weight, for_bias = output_mask
    of_bias = b.reduce("sum", grad, [0, *range(2, grad.rank)]) if for_bias else None
    of_input = _emit(b, "" if transposed else "_input_grad", grad, kernel, window, image.shape) if for_input else None
    small, large = (image, grad) if transposed else (grad, image)
    of_weight = _emit(b, "_weight_grad", small, large, window, kernel.shape) if for_weight else None
    return [None if of_input is None else b.reshape(of_input, x.shape),
            None if of_weight is None else b.reshape(of_weight, weight.shape), of_bias]
