# ===- pooling.py - maxima and means over windows --------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Pools over one to three dimensions, and their gradients.

A window is taken a dimension at a time: slices of the padded image, as many as the window is wide, are combined
element by element. Both maxima and sums may be taken so, and 3 + 3 slices are fewer than 3 x 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import torch
from torch.types import Number

from ..writer import Value
from .integers import truncated_division
from .table import NodeBuilder, lowers


@dataclass
class _Pool:
    """A window over one dimension of an image."""

    dim: int
    extent: int
    size: int
    stride: int
    padding: int
    dilation: int
    places: int

    @property
    def padded(self) -> int:
        """Returns how long the dimension must be for all windows."""
        return max((self.places - 1) * self.stride + (self.size - 1) * self.dilation + 1, self.extent + self.padding)

    def counts(self, include_pad: bool) -> list[int]:
        """Returns what the sum of each window is divided by: with `ceil_mode` the last may reach beyond the padding."""
        first = [i * self.stride - self.padding for i in range(self.places)]
        if include_pad:
            return [min(f + self.size, self.extent + self.padding) - f for f in first]
        return [min(f + self.size, self.extent) - max(f, 0) for f in first]


def _pools(b: NodeBuilder, image: Sequence[int], places: Sequence[int], kernel: int | Sequence[int],
           stride: int | Sequence[int], padding: int | Sequence[int], dilation: int | Sequence[int] = 1) -> list[_Pool]:
    dims = _dims_of(kernel, image)

    def spread(values: int | Sequence[int]) -> list[int]:
        values = [values] if isinstance(values, int) else list(values)
        return values * dims if len(values) == 1 else values

    kernel, stride = spread(kernel), spread(stride) if stride not in ([], ()) else spread(kernel)
    return [_Pool(len(image) - dims + i, image[len(image) - dims + i], *each, places[len(places) - dims + i])
            for i, each in enumerate(zip(kernel, stride, spread(padding), spread(dilation)))]


def _dims_of(kernel: int | Sequence[int], image: Sequence[int]) -> int:
    # One number stands for all dimensions; images are C x places, or with a batch.
    return len(kernel) if not isinstance(kernel, int) and len(kernel) > 1 else 1 if len(image) < 4 else 2


def _padded(b: NodeBuilder, x: Value, pool: _Pool, value: Number) -> Value:
    low, high = [0] * x.rank, [0] * x.rank
    low[pool.dim], high[pool.dim] = pool.padding, pool.padded - pool.extent - pool.padding
    return b.pad(x, low, high, value)


def _slices(b: NodeBuilder, x: Value, pool: _Pool) -> list[Value]:
    """Element `k` of every window along one dimension, for each k."""
    last = (pool.places - 1) * pool.stride + 1
    return [b.slice_dim(x, pool.dim, k * pool.dilation, k * pool.dilation + last, pool.stride) for k in range(pool.size)]


# --- maxima -----------------------------------------------------------------------------------


def _places(b: NodeBuilder, x: Value, dims: int) -> Value:
    """Where each element is in the flattened image; in 32 bits, if that does, as elements are."""
    image = x.shape[-dims:]
    count = math.prod(image)
    return b.broadcast_to(b.reshape(b.iota(0, (count,), torch.int32 if count < 1 << 31 else torch.int64), image), x.shape)


def _larger(b: NodeBuilder, x: Value, place: Value | None, value: Value, at: Value | None,
            is_padded: bool = False) -> tuple[Value, Value | None]:
    """The larger of two elements and its place: the first of equal ones, and the last NaN."""
    better = b.binary("or", b.compare("gt", value, x), b.compare("ne", value, value))
    if place is not None and at is not None:
        if is_padded:  # what is added around the image is never the place, even of minus infinities
            none = b.constant(0, (), place.dtype)
            better = b.binary("or", better, b.binary("and", b.compare("lt", place, none), b.compare("ge", at, none)))
        place = b.select(better, at, place)
    return b.select(better, value, x), place


def _maxima(b: NodeBuilder, x: Value, pools: Sequence[_Pool], places: bool) -> tuple[Value, Value | None]:
    """The maximum of each window, and where it is in the flattened image."""
    place = _places(b, x, len(pools)) if places else None
    least = -math.inf if x.is_float else torch.iinfo(x.dtype).min
    for pool in reversed(pools):
        values = _slices(b, _padded(b, x, pool, least), pool)
        found: Sequence[Value | None] = [None] * pool.size
        if place is not None:
            found = _slices(b, _padded(b, place, pool, -1), pool)
        x, place = values[0], found[0]
        for value, at in zip(values[1:], found[1:]):
            x, place = _larger(b, x, place, value, at, any(p.padded != p.extent for p in pools))
    return x, None if place is None else b.cast(place, torch.int64)


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(b: NodeBuilder, x: Value, kernel_size: int | Sequence[int], stride: int | Sequence[int] = (),
                          padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1,
                          ceil_mode: bool = False) -> list[Value | None]:
    pools = _pools(b, x.shape, b.shape, kernel_size, stride, padding, dilation)
    return [*_maxima(b, x, pools, 1 in b.used)]


@lowers("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")
def max_pool(b: NodeBuilder, x: Value, kernel_size: int | Sequence[int], stride: int | Sequence[int] = (),
             padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False) -> Value:
    return _maxima(b, x, _pools(b, x.shape, b.shape, kernel_size, stride, padding, dilation), False)[0]


@lowers("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default")
def max_pool_backward(b: NodeBuilder, grad: Value, x: Value, kernel_size: int | Sequence[int],
                      stride: int | Sequence[int], padding: int | Sequence[int], dilation: int | Sequence[int],
                      ceil_mode: bool, indices: Value) -> Value:
    return _scattered(b, grad, x, indices, _dims_of(kernel_size, x.shape))


@lowers("aten.adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(b: NodeBuilder, grad: Value, x: Value, indices: Value) -> Value:
    return _scattered(b, grad, x, indices, 2)


@lowers("aten.adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(b: NodeBuilder, grad: Value, x: Value, indices: Value) -> Value:
    return _scattered(b, grad, x, indices, 3)


def _scattered(b: NodeBuilder, grad: Value, x: Value, indices: Value, dims: int) -> Value:
    """The gradient of each window, added to the element that its index names."""
    planes, image = math.prod(x.shape[:-dims]), math.prod(x.shape[-dims:])
    places = math.prod(grad.shape[-dims:])
    start = b.binary("mul", b.iota(0, (planes, places)), b.constant(image, (), torch.int64))
    place = b.binary("add", b.reshape(indices, (planes, places)), start)
    return b.reshape(b.scatter_add(b.reshape(grad, (planes, places)), place, planes * image), x.shape)


# --- means ------------------------------------------------------------------------------------


def _counts(pools: Sequence[_Pool], count_include_pad: bool, divisor_override: int | None, rank: int) -> torch.Tensor:
    """By what the sum of each window is divided: one number, or one for each window."""
    if divisor_override is not None:
        return torch.tensor(divisor_override)
    counts = torch.ones((1,) * rank, dtype=torch.int64)
    for pool in pools:
        shape = [1] * rank
        shape[pool.dim] = pool.places
        counts = counts * torch.tensor(pool.counts(count_include_pad)).reshape(shape)
    return counts.reshape(-1)[0] if counts.unique().numel() == 1 else counts


def _shares(b: NodeBuilder, pools: Sequence[_Pool], count_include_pad: bool, divisor_override: int | None,
            rank: int) -> Value:
    """What each element of a window counts in its mean."""
    shares = (1 / _counts(pools, count_include_pad, divisor_override, rank).double()).to(b.wide)
    return b.constant_tensor(shares) if shares.dim() else b.constant(shares.item(), (), b.wide)


@lowers("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(b: NodeBuilder, x: Value, kernel_size: int | Sequence[int], stride: int | Sequence[int] = (),
             padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True,
             divisor_override: int | None = None) -> Value:
    pools = _pools(b, x.shape, b.shape, kernel_size, stride, padding)
    sums = b.cast(x, b.wide)
    for pool in reversed(pools):
        parts = _slices(b, _padded(b, sums, pool, 0.0), pool)
        sums = parts[0]
        for part in parts[1:]:
            sums = b.binary("add", sums, part)
    windows = pools, count_include_pad, divisor_override, x.rank
    if not x.is_float:
        counts = _counts(*windows)
        return truncated_division(b, sums, b.constant_tensor(counts.to(x.dtype)) if counts.dim() else counts.item())
    return b.cast(b.binary("mul", sums, _shares(b, *windows)), b.dtype)


@lowers("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(b: NodeBuilder, grad: Value, x: Value, kernel_size: int | Sequence[int],
                      stride: int | Sequence[int], padding: int | Sequence[int], ceil_mode: bool,
                      count_include_pad: bool, divisor_override: int | None) -> Value:
    pools = _pools(b, x.shape, grad.shape, kernel_size, stride, padding)
    shares = _shares(b, pools, count_include_pad, divisor_override, x.rank)
    grad = b.binary("mul", b.cast(grad, b.wide), shares)
    for pool in pools:
        total: Value | None = None
        for k in range(pool.size):
            low, high, interior = ([0] * grad.rank for _ in range(3))
            low[pool.dim], interior[pool.dim] = k, pool.stride - 1
            high[pool.dim] = pool.padded - k - (pool.places - 1) * pool.stride - 1
            spread = b.pad(grad, low, high, 0.0, interior)
            total = spread if total is None else b.binary("add", total, spread)
        assert total is not None, "a window has elements"
        grad = b.slice_dim(total, pool.dim, pool.padding, pool.padding + pool.extent)
    return b.cast(grad, b.dtype)


# --- windows that share an image evenly -----------------------------------------------------------


def _parts(extent: int, places: int) -> list[tuple[int, int]]:
    """PyTorch's windows of an adaptive pool: they overlap where `places` does not divide `extent`."""
    return [(i * extent // places, -(-(i + 1) * extent // places)) for i in range(places)]


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", "aten.adaptive_avg_pool1d.default",
        "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default")
def adaptive_avg_pool(b: NodeBuilder, x: Value, output_size: int | Sequence[int]) -> Value:
    means = b.cast(x, b.wide)
    for dim in range(x.rank - (len(output_size) if not isinstance(output_size, int) else 1), x.rank):
        windows = [b.slice_dim(means, dim, first, last) for first, last in _parts(x.shape[dim], b.shape[dim])]
        means = b.concat([b.reduce("mean", w, [dim], keepdim=True) for w in windows], dim)
    return b.cast(means, b.dtype)


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(b: NodeBuilder, x: Value, output_size: Sequence[int]) -> list[Value | None]:
    dims = len(output_size)
    place = _places(b, x, dims) if 1 in b.used else None
    for dim in reversed(range(x.rank - dims, x.rank)):
        found = []
        for first, last in _parts(x.shape[dim], b.shape[dim]):
            slices = [(b.slice_dim(x, dim, k, k + 1), None if place is None else b.slice_dim(place, dim, k, k + 1))
                      for k in range(first, last)]
            best = slices[0]
            for value, at in slices[1:]:
                best = _larger(b, *best, value, at)
            found.append(best)
        x, places = b.concat([value for value, _ in found], dim), [at for _, at in found if at is not None]
        place = b.concat(places, dim) if places else None
    return [x, None if place is None else b.cast(place, torch.int64)]


@lowers("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(b: NodeBuilder, grad: Value, x: Value) -> Value:
    total = b.cast(grad, b.wide)
    for dim in range(x.rank):
        if grad.shape[dim] == x.shape[dim]:
            continue
        parts: Value | None = None
        for i, (first, last) in enumerate(_parts(x.shape[dim], grad.shape[dim])):
            share = b.binary("mul", b.slice_dim(total, dim, i, i + 1), b.constant(1 / (last - first), (), b.wide))
            shape = list(share.shape)
            shape[dim] = last - first
            low, high = [0] * x.rank, [0] * x.rank
            low[dim], high[dim] = first, x.shape[dim] - last
            spread = b.pad(b.broadcast(share, range(x.rank), shape), low, high, 0.0)
            parts = spread if parts is None else b.binary("add", parts, spread)
        assert parts is not None, "an image has places"
        total = parts
    return b.cast(total, b.dtype)
