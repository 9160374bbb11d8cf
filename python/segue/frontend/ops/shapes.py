# ===- shapes.py - views, slices, joins -------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators that move elements and compute nothing.

PyTorch says what shape comes out; whether it is a view or a copy there does not
matter here, since values are never changed.
"""

from __future__ import annotations

from typing import Sequence

from torch.types import Number

from ..writer import Value
from .table import NodeBuilder, lowers, normalised


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints",
        "aten.unflatten.int", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
        "aten.unsqueeze.default", "aten.view_as.default", "aten.reshape_as.default", "aten.ravel.default")
def reshape(b: NodeBuilder, x: Value, *_: object, **__: object) -> Value:
    return b.reshape(x, b.shape)


@lowers("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(b: NodeBuilder, x: Value, *_: object, **__: object) -> Value:
    return b.broadcast_to(x, b.shape)


@lowers("aten.broadcast_tensors.default")
def broadcast_tensors(b: NodeBuilder, tensors: Sequence[Value]) -> list[Value]:
    return b.broadcast_together(*tensors)


@lowers("aten.permute.default")
def permute(b: NodeBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, [normalised(d, x.rank) for d in dims])


@lowers("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(b: NodeBuilder, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.rank))
    dim0, dim1 = normalised(dim0, x.rank), normalised(dim1, x.rank)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return b.transpose(x, order)


@lowers("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def matrix_transpose(b: NodeBuilder, x: Value) -> Value:
    return transpose(b, x, -2, -1) if x.rank > 1 else x


@lowers("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def movedim(b: NodeBuilder, x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    source = [source] if isinstance(source, int) else source
    destination = [destination] if isinstance(destination, int) else destination
    moved = {normalised(d, x.rank): normalised(s, x.rank) for s, d in zip(source, destination)}
    rest = iter(i for i in range(x.rank) if i not in moved.values())
    return b.transpose(x, [moved[i] if i in moved else next(rest) for i in range(x.rank)])


@lowers("aten.select.int")
def select(b: NodeBuilder, x: Value, dim: int, index: int) -> Value:
    dim = normalised(dim, x.rank)
    index = index + x.shape[dim] if index < 0 else index
    return b.reshape(b.slice_dim(x, dim, index, index + 1), b.shape)


@lowers("aten.slice.Tensor")
def slice_(b: NodeBuilder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Value:
    dim = normalised(dim, x.rank)
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    return b.slice_dim(x, dim, start, end, step)


@lowers("aten.narrow.default")
def narrow(b: NodeBuilder, x: Value, dim: int, start: int, length: int) -> Value:
    dim = normalised(dim, x.rank)
    start = start + x.shape[dim] if start < 0 else start
    return b.slice_dim(x, dim, start, start + length)


@lowers("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
        "aten.tensor_split.sections", "aten.tensor_split.indices")
def split(b: NodeBuilder, x: Value, _: object, dim: int = 0) -> list[Value]:
    dim, start, parts = normalised(dim, x.rank), 0, []
    for result in b.results:
        parts.append(b.slice_dim(x, dim, start, start + result.shape[dim]))
        start += result.shape[dim]
    return parts


@lowers("aten.unbind.int")
def unbind(b: NodeBuilder, x: Value, dim: int = 0) -> list[Value]:
    dim = normalised(dim, x.rank)
    return [b.reshape(b.slice_dim(x, dim, i, i + 1), b.shape) for i in range(x.shape[dim])]


@lowers("aten.cat.default", "aten.concat.default")
def cat(b: NodeBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    return b.reshape(b.concat([b.cast(t, b.dtype) for t in tensors], normalised(dim, len(b.shape))), b.shape)


@lowers("aten.stack.default")
def stack(b: NodeBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = normalised(dim, len(b.shape))
    shape = [1 if i == dim else d for i, d in enumerate(b.shape)]
    return b.concat([b.reshape(b.cast(t, b.dtype), shape) for t in tensors], dim)


@lowers("aten.repeat.default", "aten.tile.default")
def repeat(b: NodeBuilder, x: Value, repeats: Sequence[int]) -> Value:
    repeats = [1] * (len(b.shape) - len(repeats)) + list(repeats)
    shape = [1] * (len(repeats) - x.rank) + list(x.shape)
    # [d] repeated r times is [r, d], flattened.
    dims = [2 * i + 1 for i in range(len(shape))]
    spread = [extent for pair in zip(repeats, shape) for extent in pair]
    return b.reshape(b.broadcast(b.reshape(x, shape), dims, spread), b.shape)


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave(b: NodeBuilder, x: Value, repeats: int, dim: int | None = None, *,
                      output_size: int | None = None) -> Value:
    if dim is None:
        x, dim = b.reshape(x, (_count(x.shape),)), 0
    dim = normalised(dim, x.rank)
    spread = list(x.shape[: dim + 1]) + [repeats] + list(x.shape[dim + 1 :])
    dims = [i for i in range(len(spread)) if i != dim + 1]
    return b.reshape(b.broadcast(x, dims, spread), b.shape)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


@lowers("aten.roll.default")
def roll(b: NodeBuilder, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    shape = x.shape
    if not dims:
        x, dims = b.reshape(x, (_count(shape),)), [0]
    for shift, dim in zip(shifts, dims) if not x.is_empty else ():
        dim = normalised(dim, x.rank)
        cut = -shift % x.shape[dim]
        if cut:
            x = b.concat([b.slice_dim(x, dim, cut, x.shape[dim]), b.slice_dim(x, dim, 0, cut)], dim)
    return b.reshape(x, shape)


@lowers("aten.pad.default")
def pad_by_mode(b: NodeBuilder, x: Value, pad: Sequence[int], mode: str = "constant",
                value: float | None = None) -> Value:
    if mode == "constant":
        return constant_pad(b, x, pad, 0 if value is None else value)
    for i in range(len(pad) // 2):  # pairs count from the last dimension
        x = _continued(b, x, x.rank - 1 - i, pad[2 * i], pad[2 * i + 1], mode)
    return x


def _continued(b: NodeBuilder, x: Value, dim: int, low: int, high: int, mode: str) -> Value:
    """`x` with more elements of its own before and behind a dimension, or less."""
    x = b.slice_dim(x, dim, max(-low, 0), x.shape[dim] - max(-high, 0))
    low, high, extent = max(low, 0), max(high, 0), x.shape[dim]

    def repeated(place: int, count: int) -> Value:
        edge = b.slice_dim(x, dim, place, place + 1)
        return b.broadcast(edge, range(x.rank), [count if i == dim else d for i, d in enumerate(x.shape)])

    def turned(start: int, count: int) -> list[Value]:  # from the last to the first
        return [b.slice_dim(x, dim, start + count - 1 - k, start + count - k) for k in range(count)]

    if mode == "replicate":
        before, behind = [repeated(0, low)] if low else [], [repeated(extent - 1, high)] if high else []
    elif mode == "reflect":
        before, behind = turned(1, low), turned(extent - 1 - high, high)
    else:
        before, behind = [b.slice_dim(x, dim, extent - low, extent)], [b.slice_dim(x, dim, 0, high)]
    return b.concat([*before, x, *behind], dim)


@lowers("aten.constant_pad_nd.default")
def constant_pad(b: NodeBuilder, x: Value, pad: Sequence[int], value: Number = 0) -> Value:
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):  # pairs count from the last dimension
        low[x.rank - 1 - i], high[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    # A negative amount cuts.
    x = b.slice(x, [max(-l, 0) for l in low], [d - max(-h, 0) for d, h in zip(x.shape, high)], [1] * x.rank)
    return b.pad(x, [max(l, 0) for l in low], [max(h, 0) for h in high], value)


def _triangle(b: NodeBuilder, x: Value, keep: str, diagonal: int) -> Value:
    matrix = x.shape[-2:]
    rows, columns = b.iota(0, matrix), b.iota(1, matrix)
    inside = b.compare(keep, columns, b.binary("add", rows, b.constant(diagonal, (), rows.dtype)))
    return b.select(inside, x, b.constant(0, (), x.dtype))


@lowers("aten.tril.default")
def tril(b: NodeBuilder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, "le", diagonal)


@lowers("aten.triu.default")
def triu(b: NodeBuilder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, "ge", diagonal)
