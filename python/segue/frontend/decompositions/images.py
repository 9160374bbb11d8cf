# ===- images.py - images that are read at any place ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Images and volumes that are read at places between their elements."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F

from .approximations import OfTensor
from .table import replaces, writes

aten = torch.ops.aten

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _among(x: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Coordinates from -1 to 1 as places among `size` elements."""
    return (x + 1) * ((size - 1) / 2) if align_corners else ((x + 1) * size - 1) / 2


def _padded(x: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Places outside as those of which the elements are read."""
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        x = _reflected(x, low, span) if span else torch.zeros_like(x)
    return x if padding == ZEROS else x.clamp(0, size - 1)


def _reflected(x: torch.Tensor, low: float, span: float) -> torch.Tensor:
    x = (x - low).abs()
    rest, turns = torch.fmod(x, span), torch.floor(x / span)
    return torch.where(torch.fmod(turns, 2.0) == 0, rest, span - rest) + low


def _cubic_weights(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the four elements around a place, for the part of it behind the second."""
    a = -0.75
    near: OfTensor = lambda d: ((a + 2) * d - (a + 3)) * d * d + 1  # noqa: E731
    far: OfTensor = lambda d: ((a * d - 5 * a) * d + 8 * a) * d - 4 * a  # noqa: E731
    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _taps(x: torch.Tensor, size: int, mode: int, padding: int,
          align_corners: bool) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """The elements of a dimension that are read for each place, with their weights; None stands for 1."""
    x = _among(x, size, align_corners)
    if mode == CUBIC:  # each element is padded by itself
        first = torch.floor(x)
        return [(_padded(first + k, size, padding, align_corners), w) for k, w in enumerate(_cubic_weights(x - first), -1)]
    x = _padded(x, size, padding, align_corners)
    if mode == NEAREST:
        return [(torch.round(x), None)]
    first = torch.floor(x)
    return [(first, 1 - (x - first)), (first + 1, x - first)]


def _sampled(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    sizes, places = x.shape[2:], grid.shape[1:-1]
    flat = x.reshape(x.shape[0], x.shape[1], math.prod(sizes))
    taps = [_taps(grid[..., len(sizes) - 1 - k], n, mode, padding, align_corners) for k, n in enumerate(sizes)]
    total: torch.Tensor | None = None
    for corner in itertools.product(*taps):
        inside: torch.Tensor | None = None
        index: torch.Tensor | None = None
        weight: torch.Tensor | None = None
        for (place, factor), n in zip(corner, sizes):
            within, at = (place >= 0) & (place <= n - 1), place.clamp(0, n - 1).to(torch.int64)
            inside = within if inside is None else inside & within
            index = at if index is None else index * n + at
            weight = factor if weight is None or factor is None else weight * factor
        assert inside is not None and index is not None, "an image has dimensions"
        index = index.reshape(x.shape[0], 1, -1).expand(-1, x.shape[1], -1)
        part = flat.gather(2, index).reshape(*x.shape[:2], *places)
        part = torch.where(inside.unsqueeze(1), part, 0.0)
        part = part if weight is None else part * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None, "each place has elements around it"
    return total


@writes(aten.grid_sampler_3d.default, aten.grid_sampler_2d.default)
@replaces(torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d)
def grid_sampler(x: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int,
                 align_corners: bool | None) -> torch.Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _sampled(x.to(wide), grid.to(wide), interpolation_mode, padding_mode, bool(align_corners)).to(x.dtype)


@replaces(F.grid_sample)
def grid_sample(input: torch.Tensor, grid: torch.Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> torch.Tensor:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    if mode not in modes or padding_mode not in paddings or mode == "bicubic" and input.dim() != 4:
        return F.grid_sample(input, grid, mode, padding_mode, align_corners)  # which says what is wrong
    return grid_sampler(input, grid, modes.index(mode), paddings.index(padding_mode), align_corners)
