# ===- strided.py - views by strides, diagonals, sliding windows ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Views that are given by strides of memory, and what is written through them.

A view whose every dimension steps over all of the next is *nested*: it is a
reshape of the flattened tensor, of which each dimension keeps its first
elements. Of dimensions that overlap, such as windows, one is taken apart into as
many nested views as it has elements.
"""

from __future__ import annotations

import math
from typing import Callable, Sequence

import torch

from ..writer import Value
from .table import NodeBuilder, Unsupported, lowers, normalised
from .training import written_along

#: Overlapping views are put together of so many nested ones; more are looked up element by element.
_MOST_PARTS = 64


def _clash(size: Sequence[int], stride: Sequence[int]) -> tuple[int, int] | None:
    """Two dimensions that are not nested, or None."""
    dims = _nest(size, stride)
    for outer, inner in zip(dims, dims[1:]):
        if stride[outer] % stride[inner] or stride[outer] < size[inner] * stride[inner]:
            return outer, inner
    return None


def _nest(size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The dimensions that have several elements, those of larger steps first."""
    return sorted((i for i, n in enumerate(size) if n != 1), key=lambda i: -stride[i])


def _grid(size: Sequence[int], stride: Sequence[int]) -> tuple[list[int], list[int]]:
    """A nested view as a part of a tensor: the extents of this, and of the part. The last dimension is one step."""
    dims = _nest(size, stride)
    steps = [stride[d] for d in dims]
    if not dims:
        return [1], [1]
    extents = [size[dims[0]]] + [a // b for a, b in zip(steps, steps[1:])] + [steps[-1]]
    return extents, [size[d] for d in dims] + [1]


def _read(b: NodeBuilder, flat: Value, size: Sequence[int], stride: Sequence[int], offset: int) -> Value:
    """The view of a flattened tensor."""
    repeated = [i for i, n in enumerate(size) if n != 1 and stride[i] == 0]
    if repeated:
        once = [1 if i in repeated else n for i, n in enumerate(size)]
        return b.broadcast(_read(b, flat, once, stride, offset), range(len(size)), size)
    clash = _clash(size, stride)
    if clash is not None:
        return _read_overlapping(b, flat, size, stride, offset, clash)
    dims, (extents, kept) = _nest(size, stride), _grid(size, stride)
    count = math.prod(extents)
    part = b.slice_dim(flat, 0, offset, min(flat.shape[0], offset + count))
    part = b.pad(part, [0], [count - part.shape[0]], 0)
    part = b.slice(b.reshape(part, extents), [0] * len(kept), kept, [1] * len(kept))
    part = b.reshape(part, [size[d] for d in dims])
    return b.reshape(b.transpose(part, [dims.index(d) for d in sorted(dims)]), size)


def _read_overlapping(b: NodeBuilder, flat: Value, size: Sequence[int], stride: Sequence[int], offset: int,
                      clash: tuple[int, int]) -> Value:
    dim = min(clash, key=lambda i: size[i])
    if size[dim] <= _MOST_PARTS:
        one = [1 if i == dim else n for i, n in enumerate(size)]
        return b.concat([_read(b, flat, one, stride, offset + k * stride[dim]) for k in range(size[dim])], dim)
    place = b.constant(offset, size, torch.int64)
    for i in range(len(size)):
        place = b.binary("add", place, b.binary("mul", b.iota(i, size), b.constant(stride[i], (), torch.int64)))
    return b.gather(flat, place)


def _spread(b: NodeBuilder, part: Value, size: Sequence[int], stride: Sequence[int], offset: int, count: int) -> Value:
    """The elements of a nested view at their places in a flattened tensor of zeros."""
    dims, (extents, kept) = _nest(size, stride), _grid(size, stride)
    order = sorted(dims)
    part = b.transpose(b.reshape(part, [size[d] for d in order]), [order.index(d) for d in dims])
    low = [0] * len(kept)
    flat = b.pad(b.reshape(part, kept), low, [e - k for e, k in zip(extents, kept)], 0)
    flat = b.slice_dim(b.reshape(flat, (math.prod(extents),)), 0, 0, min(math.prod(extents), count - offset))
    return b.pad(flat, [offset], [count - offset - flat.shape[0]], 0)


def _written(b: NodeBuilder, flat: Value, part: Value, size: Sequence[int], stride: Sequence[int],
             offset: int) -> Value:
    """A flattened tensor with what was written through a nested view."""
    taken = b.cast(b.constant(1, size, torch.bool), torch.int32)
    taken, part = (_spread(b, v, size, stride, offset, flat.shape[0]) for v in (taken, b.cast(part, flat.dtype)))
    return b.select(b.cast(taken, torch.bool), part, flat)


def _memory(b: NodeBuilder, x: Value) -> tuple[Value, Callable[[Value], Value], int]:
    """The tensor in the order of its elements in memory, flattened; how to bring that back, and where it begins."""
    assert b.layout is not None, "the first operand is a tensor"
    strides, first = b.layout
    dims = _nest(x.shape, strides)
    step = 1
    for d in reversed(dims):
        if strides[d] != step:
            raise Unsupported("strides of a tensor that has gaps or repeats elements")
        step *= x.shape[d]
    order = dims + [i for i in range(x.rank) if i not in dims]
    flat = b.reshape(b.transpose(x, order), (math.prod(x.shape),))

    def back(value: Value) -> Value:
        value = b.reshape(value, [x.shape[d] for d in order])
        return b.transpose(value, [order.index(d) for d in range(x.rank)])

    return flat, back, first


def _start(flat: Value, size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Checks that the view stays in the tensor; where it begins there."""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    if 0 not in size and not 0 <= offset <= last < flat.shape[0]:
        raise Unsupported("strides that lead out of the tensor, to others in its memory")
    return offset


@lowers("aten.as_strided.default")
def as_strided(b: NodeBuilder, x: Value, size: Sequence[int], stride: Sequence[int],
               storage_offset: int | None = None) -> Value:
    flat, _, first = _memory(b, x)
    if 0 in size:
        return b.constant(0, size, x.dtype)
    return _read(b, flat, list(size), stride, _start(flat, size, stride, (first if storage_offset is None else storage_offset) - first))


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(b: NodeBuilder, x: Value, part: Value, size: Sequence[int], stride: Sequence[int],
                       storage_offset: int | None = None) -> Value:
    flat, back, first = _memory(b, x)
    if 0 in size:
        return x
    if any(s == 0 and n != 1 for n, s in zip(size, stride)) or _clash(size, stride) is not None:
        raise Unsupported("writing through a view whose elements may overlap")
    start = _start(flat, size, stride, (first if storage_offset is None else storage_offset) - first)
    return back(_written(b, flat, part, list(size), stride, start))


# --- diagonals -----------------------------------------------------------------------------


def _diagonals(b: NodeBuilder, x: Value, offset: int, dim1: int, dim2: int) -> tuple[Value, list[int], int, int, int]:
    """The tensor with both dimensions last and made one, the order that this took, and where the diagonals lie there:
    their first element, the step to the next, and how many there are.
    """
    dim1, dim2 = normalised(dim1, x.rank), normalised(dim2, x.rank)
    order = [i for i in range(x.rank) if i not in (dim1, dim2)] + [dim1, dim2]
    moved = b.transpose(x, order)
    m, n = moved.shape[-2:]
    count = max(0, min(m + min(offset, 0), n - max(offset, 0)))
    return b.reshape(moved, (*moved.shape[:-2], m * n)), order, max(offset, 0) + max(-offset, 0) * n, n + 1, count


@lowers("aten.diagonal.default")
def diagonal(b: NodeBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rows, _, start, step, count = _diagonals(b, x, offset, dim1, dim2)
    return b.slice_dim(rows, rows.rank - 1, start, start + (count - 1) * step + 1, step) if count else b.constant(0, b.shape, x.dtype)


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(b: NodeBuilder, x: Value, part: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rows, order, start, step, count = _diagonals(b, x, offset, dim1, dim2)
    if not count:
        return x
    written = written_along(b, rows, part, rows.rank - 1, start, step)
    return b.transpose(b.reshape(written, [x.shape[i] for i in order]), [order.index(i) for i in range(x.rank)])


# --- windows -----------------------------------------------------------------------------------


@lowers("aten.unfold.default")
def unfold(b: NodeBuilder, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along a dimension; their elements become a dimension behind all others."""
    if x.is_empty or 0 in b.shape:
        return b.constant(0, b.shape, x.dtype)
    dim = normalised(dimension, x.rank)
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.rank)]
    along = strides[dim] if x.rank else 1
    strides = [s * step if i == dim else s for i, s in enumerate(strides)] + [along]
    return _read(b, b.reshape(x, (math.prod(x.shape),)), list(b.shape), strides, 0)
