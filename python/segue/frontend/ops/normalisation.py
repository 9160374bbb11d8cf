# ===- normalisation.py - layer norm, rms norm, softmax ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Normalisations, kept whole so that derivative and kernels can be good ones."""

from __future__ import annotations

import math
from typing import Sequence

import torch

from ..writer import Value
from .table import NodeBuilder, Unsupported, lowers, normalised


def _rows(b: NodeBuilder, x: Value, normalized_shape: Sequence[int],
          parameters: Sequence[Value | None]) -> tuple[Value, list[Value | None]]:
    """`x` and the parameters with the normalised dimensions made one."""
    kept = x.shape[: x.rank - len(normalized_shape)]
    extent = math.prod(normalized_shape)
    flat = [None if p is None else b.reshape(p, (extent,)) for p in parameters]
    return b.reshape(x, kept + (extent,)), flat


@lowers("aten.layer_norm.default")
def layer_norm(b: NodeBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None = None,
               bias: Value | None = None, eps: float = 1e-05, cudnn_enable: bool = True) -> Value:
    rows, (weight, bias) = _rows(b, x, normalized_shape, (weight, bias))
    return b.reshape(b.layer_norm(rows, weight, bias, eps)[0], x.shape)


@lowers("aten.rms_norm.default")
def rms_norm(b: NodeBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None = None,
             eps: float | None = None) -> Value:
    rows, (weight,) = _rows(b, x, normalized_shape, (weight,))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return b.reshape(b.rms_norm(rows, weight, eps), x.shape)


@lowers("aten.group_norm.default")
def group_norm(b: NodeBuilder, x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
               eps: float = 1e-05, cudnn_enabled: bool = True) -> Value:
    groups = b.reshape(x, (x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
    result = b.reshape(b.layer_norm(groups, None, None, eps)[0], x.shape)
    channels = (x.shape[1],) + (1,) * (x.rank - 2)
    if weight is not None:
        result = b.binary("mul", result, b.reshape(weight, channels))
    return result if bias is None else b.binary("add", result, b.reshape(bias, channels))


@lowers("aten.batch_norm.default")
def batch_norm(b: NodeBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
               running_var: Value | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool) -> Value:
    if training:
        raise Unsupported("batch norm in training mode changes its buffers; call module.eval() first")
    assert running_mean is not None and running_var is not None, "PyTorch asks for the statistics where it trains none"
    channels = (x.shape[1],) + (1,) * (x.rank - 2)
    scale = b.writer.unary("rsqrt", b.binary("add", running_var, b.constant(eps, (), running_var.dtype)))
    result = b.binary("sub", x, b.reshape(running_mean, channels))
    result = b.binary("mul", result, b.reshape(scale, channels))
    if weight is not None:
        result = b.binary("mul", result, b.reshape(weight, channels))
    return result if bias is None else b.binary("add", result, b.reshape(bias, channels))


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_by_statistics(b: NodeBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value,
                             running_var: Value, momentum: float, eps: float) -> list[Value | None]:
    """Lowers what batch_norm becomes in a graph that wrote to a tensor."""
    return [batch_norm(b, x, weight, bias, running_mean, running_var, False, momentum, eps, False), None, None]


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm_training(b: NodeBuilder, *_: object) -> Value:
    raise Unsupported("batch norm in training mode changes its buffers; call module.eval() first")


@lowers("aten.softmax.int", "aten._softmax.default")
def softmax(b: NodeBuilder, x: Value, dim: int, *_: object) -> Value:
    x = b.cast(x, b.dtype)
    return b.softmax(x, normalised(dim, x.rank)) if x.rank else b.constant(1.0, (), b.dtype)


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(b: NodeBuilder, x: Value, dim: int, *_: object) -> Value:
    x = b.cast(x, b.dtype)
    return b.softmax(x, normalised(dim, x.rank), log=True) if x.rank else b.constant(0.0, (), b.dtype)


