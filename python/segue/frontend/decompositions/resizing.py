# ===- resizing.py - images of another size, without aliases --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Resizing with `antialias=True`: a product with a matrix of weights along each of two dimensions.

An element of the result is a mean over a window that is as wide as the filter, and wider by the factor by which the image becomes
smaller. Windows and weights are PyTorch's, in its element type, so that they end at the same elements.
"""

from __future__ import annotations

from typing import Sequence

import torch

from .approximations import OfTensor
from .table import Attempt, writes

aten = torch.ops.aten


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    a, d = -0.5, x.abs()
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, (((d - 5) * d + 8) * d - 4) * a
    return torch.where(d < 1, near, torch.where(d < 2, far, 0.0))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < 3, torch.special.sinc(x) * torch.special.sinc(x / 3), 0.0)


#: The filters of PyTorch's operators, and how far they reach.
_FILTERS: dict[str, tuple[OfTensor, int]] = {"bilinear": (_triangle, 1), "bicubic": (_cubic, 2), "lanczos": (_lanczos, 3)}


def _weights(name: str, size: int, wanted: int, align_corners: bool, scale: float | None, like: torch.Tensor) -> torch.Tensor:
    """The weights of all elements for each of the result, [wanted, size]."""
    function, reach = _FILTERS[name]
    if align_corners:
        step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else size / wanted
    widened = max(step, 1.0)
    element, result = (torch.arange(n, device=like.device).to(like.dtype) for n in (size, wanted))
    center = (step * (result + 0.5)).unsqueeze(1)
    first = torch.trunc(center - reach * widened + 0.5).clamp(min=0)
    end = torch.trunc(center + reach * widened + 0.5)
    weights = function((element - center + 0.5) * (1 / widened))
    weights = torch.where((element >= first) & (element < end), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)


def _matrices(name: str, image: Sequence[int], wanted: Sequence[int], align_corners: bool, scales: Sequence[float | None],
              like: torch.Tensor) -> list[torch.Tensor]:
    return [_weights(name, size, count, align_corners, scale, like) for size, count, scale in zip(image, wanted, scales, strict=True)]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _enter(name: str) -> None:
    @writes(getattr(aten, f"_upsample_{name}2d_aa").default)
    def resized(x: torch.Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None,
                scales_w: float | None = None) -> Attempt[torch.Tensor]:
        if not x.is_floating_point():
            return NotImplemented
        rows, columns = _matrices(name, x.shape[2:], output_size, align_corners, (scales_h, scales_w), _wide(x))
        return (rows @ (_wide(x) @ columns.T)).to(x.dtype)

    @writes(getattr(aten, f"_upsample_{name}2d_aa_backward").default)
    def resized_backward(grad: torch.Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
                         scales_h: float | None = None, scales_w: float | None = None) -> torch.Tensor:
        rows, columns = _matrices(name, input_size[2:], output_size, align_corners, (scales_h, scales_w), _wide(grad))
        return (rows.T @ (_wide(grad) @ columns)).to(grad.dtype)


for _name in _FILTERS:
    if hasattr(aten, f"_upsample_{_name}2d_aa_backward"):
        _enter(_name)
