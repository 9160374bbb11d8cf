# ===- training.py - operators that autograd leaves in graphs ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators of graphs that went through PyTorch's autograd: with statistics for backward, and of backward.

What PyTorch can write in terms of others is not here; these would come out
worse that way.
"""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch.types import Number

from ..writer import Value
from .losses import _MEAN, _NONE, _row_weights, _rows
from .attention import attention, attention_grad
from .matmul import _repeated_heads, adjoin, gather, place_of
from .normalisation import _rows as _normalised_rows
from .table import NodeBuilder, Unsupported, lowers, normalised


@lowers("aten.native_layer_norm.default")
def native_layer_norm(b: NodeBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None,
                      bias: Value | None, eps: float) -> list[Value]:
    rows, (weight, bias) = _normalised_rows(b, x, normalized_shape, (weight, bias))
    parts = b.layer_norm(rows, weight, bias, eps)
    return [b.reshape(part, tuple(wanted.shape)) for part, wanted in zip(parts, b.results)]


# --- losses -------------------------------------------------------------------------------


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(b: NodeBuilder, x: Value, target: Value, weight: Value | None, reduction: int,
                     ignore_index: int) -> list[Value]:
    logs, targets = _rows(b, x), b.reshape(target, (math.prod(target.shape),))
    weights, counts = _row_weights(b, targets, weight, ignore_index)
    chosen = _of_target(b, logs, b.select(counts, targets, b.constant(0, (), targets.dtype)))
    losses = b.writer.unary("neg", b.binary("mul", b.cast(chosen, b.wide), weights))
    total = b.reduce("sum", weights, [0])
    if reduction == _NONE:
        return [b.cast(b.reshape(losses, b.shape), b.dtype), b.constant(0.0, (), b.dtype)]
    loss = b.reduce("sum", losses, [0])
    if reduction == _MEAN:
        loss = b.binary("div", loss, total)
    return [b.cast(loss, b.dtype), b.cast(total, b.dtype)]


def _of_target(b: NodeBuilder, rows: Value, targets: Value) -> Value:
    """Returns of each row the element that its target names."""
    # A lookup in a table of the classes refuses a target that is none; one in the flattened rows would not.
    count, classes = rows.shape
    targets = b.gather(b.iota(0, (classes,)), targets)
    place = b.binary("add", b.binary("mul", b.iota(0, (count,)), b.constant(classes, (), torch.int64)), targets)
    return b.gather(b.reshape(rows, (count * classes,)), place)


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(b: NodeBuilder, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int,
                      ignore_index: int, total_weight: Value) -> Value:
    logs, targets = _rows(b, x), b.reshape(target, (math.prod(target.shape),))
    weights, _ = _row_weights(b, targets, weight, ignore_index)
    grad = b.cast(grad, b.wide)
    if reduction == _MEAN:
        grad = b.binary("div", grad, b.cast(total_weight, b.wide))
    rows = b.writer.unary("neg", b.binary("mul", b.reshape(grad, targets.shape if reduction == _NONE else ()), weights))
    classes = b.iota(1, logs.shape, targets.dtype)
    chosen = b.compare("eq", classes, b.broadcast(targets, [0], logs.shape))
    result = b.cast(b.select(chosen, b.broadcast(rows, [0], logs.shape), b.constant(0.0, (), b.wide)), b.dtype)
    if x.rank < 3:
        return b.reshape(result, b.shape)
    # Classes go back to dimension 1.
    result = b.reshape(result, (x.shape[0], *x.shape[2:], x.shape[1]))
    return b.transpose(result, [0, x.rank - 1, *range(1, x.rank - 1)])


# --- attention ----------------------------------------------------------------------------


def _attention_mask(b: NodeBuilder, mask: Value | None, q: Value) -> Value | None:
    if mask is None:
        return None
    mask = b.reshape(mask, (1,) * (4 - mask.rank) + mask.shape)
    return b.cast(mask, q.dtype) if mask.is_float else mask


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(b: NodeBuilder, query: Value, key: Value, value: Value, dropout_p: float = 0.0,
                    is_causal: bool = False, *, attn_mask: Value | None = None,
                    scale: float | None = None) -> list[Value]:
    if dropout_p:
        raise Unsupported(f"dropout_p={dropout_p}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    key, value = (_repeated_heads(b, x, query.shape[1]) for x in (key, value))
    out, lse = attention(b, query, key, value, _attention_mask(b, attn_mask, query), is_causal, scale)
    return [out, b.reshape(lse, tuple(b.results[1].shape))]


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(b: NodeBuilder, grad: Value, query: Value, key: Value, value: Value, out: Value,
                             lse: Value, dropout_p: float, is_causal: bool, *, attn_mask: Value | None = None,
                             scale: float | None = None) -> list[Value]:
    if dropout_p:
        raise Unsupported(f"dropout_p={dropout_p}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads = key.shape[1]
    key, value = (_repeated_heads(b, x, query.shape[1]) for x in (key, value))
    grads = attention_grad(b, query, key, value, _attention_mask(b, attn_mask, query), out,
                           b.reshape(lse, query.shape[:3]), grad, is_causal, scale)
    return [grads[0], *(_summed_heads(b, x, heads) for x in grads[1:])]


def _summed_heads(b: NodeBuilder, x: Value, heads: int) -> Value:
    """The inverse of repeating heads."""
    if x.shape[1] == heads:
        return x
    return b.reduce("sum", b.reshape(x, (x.shape[0], heads, x.shape[1] // heads, *x.shape[2:])), [2])


@lowers("transformers.grouped_mm_fallback_backward.default")
def transformers_grouped_mm_backward(b: NodeBuilder, x: Value, weight: Value, offs: Value, grad: Value) -> list[Value]:
    return [b.grouped_dot(grad, b.transpose(weight, [0, 2, 1]), offs), b.grouped_outer(x, grad, offs)]


# --- lookups and parts: what backward adds into zeros --------------------------------------


@lowers("aten.embedding_dense_backward.default")
def embedding_backward(b: NodeBuilder, grad: Value, indices: Value, num_weights: int, padding_idx: int,
                       scale_grad_by_freq: bool) -> Value:
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
    if padding_idx >= 0:
        kept = b.compare("ne", indices, b.constant(padding_idx, (), indices.dtype))
        kept = b.reshape(kept, kept.shape + (1,) * (grad.rank - indices.rank))
        grad = b.select(kept, grad, b.constant(0.0, (), grad.dtype))
    return b.scatter_add(grad, indices, num_weights)


def _spread(b: NodeBuilder, part: Value, dim: int, start: int, step: int, extent: int) -> Value:
    """`part` along `dim` at start, start + step, ... of so many zeros."""
    low, high, interior = ([0] * part.rank for _ in range(3))
    low[dim], interior[dim] = start, step - 1
    covered = start + (part.shape[dim] - 1) * step + 1
    high[dim] = extent - covered
    return b.pad(part, low, high, 0, interior)


@lowers("aten.slice_backward.default")
def slice_backward(b: NodeBuilder, grad: Value, input_sizes: Sequence[int], dim: int, start: int, end: int,
                   step: int) -> Value:
    dim = normalised(dim, len(b.shape))
    start, _, step = slice(start, end, step).indices(b.shape[dim])
    return _spread(b, grad, dim, start, step, b.shape[dim])


@lowers("aten.select_backward.default")
def select_backward(b: NodeBuilder, grad: Value, input_sizes: Sequence[int], dim: int, index: int) -> Value:
    dim = normalised(dim, len(b.shape))
    index = index + b.shape[dim] if index < 0 else index
    return _spread(b, b.reshape(grad, grad.shape[:dim] + (1,) + grad.shape[dim:]), dim, index, 1, b.shape[dim])


def written_along(b: NodeBuilder, x: Value, part: Value, dim: int, start: int, step: int) -> Value:
    """`x` with `part` in the place of every step-th slice along `dim`."""
    taken = _spread(b, b.cast(b.constant(1, part.shape, torch.bool), torch.int32), dim, start, step, x.shape[dim])
    return b.select(b.cast(taken, torch.bool), _spread(b, b.cast(part, x.dtype), dim, start, step, x.shape[dim]), x)


@lowers("aten.slice_scatter.default")
def slice_scatter(b: NodeBuilder, x: Value, part: Value, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Value:
    dim = normalised(dim, x.rank)
    start, _, step = slice(start, end, step).indices(x.shape[dim])
    return written_along(b, x, part, dim, start, step)


@lowers("aten.select_scatter.default")
def select_scatter(b: NodeBuilder, x: Value, part: Value, dim: int, index: int) -> Value:
    dim = normalised(dim, x.rank)
    index = index + x.shape[dim] if index < 0 else index
    part = b.broadcast_to(part, x.shape[:dim] + x.shape[dim + 1 :])
    return written_along(b, x, b.reshape(part, part.shape[:dim] + (1,) + part.shape[dim:]), dim, index, 1)


#: Up to so many comparisons, each place is compared with each element that is written; more of them take longer than a sort.
_MOST_COMPARED = 1 << 20


def _last_written(b: NodeBuilder, index: Value, places: int) -> Value:
    """For each of so many places the last of `index`'s row that names it, or -1; rows are along the last dimension."""
    lead, count = list(range(index.rank - 1)), index.shape[-1]
    if places * count <= _MOST_COMPARED:
        shape = index.shape[:-1] + (places, count)
        here = b.compare("eq", b.broadcast(index, [*lead, index.rank], shape), b.iota(index.rank - 1, shape, index.dtype))
        return b.reduce("max", b.select(here, b.iota(index.rank, shape), b.constant(-1, (), torch.int64)), [index.rank])
    shape, rows = index.shape[:-1] + (places,), math.prod(index.shape[:-1])
    index = b.reshape(index, (rows, count))
    order = b.argsort(index, False, 0, count)
    named = gather(b, index, 1, order)
    # Elements that name one place stand together, the last of them at the end: it alone adds its number to the place.
    next_named = b.pad(b.slice_dim(named, 1, 1, count), [0, 0], [0, 1], -1)
    number = b.binary("add", order, b.constant(1, (), torch.int64))
    number = b.select(b.compare("ne", named, next_named), number, b.constant(0, (), torch.int64))
    place = place_of(b, [b.iota(0, named.shape, named.dtype), named], (rows, places))
    last = b.binary("sub", b.scatter_add(number, place, rows * places), b.constant(1, (), torch.int64))
    return b.reshape(last, shape)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(b: NodeBuilder, x: Value, indices: Sequence[Value | None], values: Value,
              accumulate: bool = False) -> Value:
    """Where several elements name one place and are not added, the last of them is there; PyTorch promises none."""
    chosen = {i: v for i, v in enumerate(indices) if v is not None}
    given = list(chosen)
    if any(v.dtype == torch.bool for v in chosen.values()):
        return _put_by_mask(b, x, chosen[given[0]], given, values, accumulate)
    if accumulate and x.dtype == torch.bool:  # true where one is
        return b.cast(index_put(b, b.cast(x, torch.int32), indices, b.cast(values, torch.int32), True), torch.bool)
    # The indexed dimensions go first and become one.
    order = given + [i for i in range(x.rank) if i not in given]
    extents, rest = [x.shape[i] for i in given], [x.shape[i] for i in order[len(given) :]]
    place = place_of(b, list(chosen.values()), extents)
    if place.is_empty:
        return x
    first, k = given[0] if adjoin(given) else 0, place.rank
    values = b.broadcast_to(b.cast(values, x.dtype), (*rest[:first], *place.shape, *rest[first:]))
    values = b.transpose(values, [*range(first, first + k), *range(first), *range(first + k, values.rank)])
    back = [order.index(i) for i in range(x.rank)]
    if accumulate:
        sums = b.reshape(b.scatter_add(values, place, math.prod(extents)), (*extents, *rest))
        return b.binary("add", x, b.transpose(sums, back))
    count = math.prod(place.shape)
    last = _last_written(b, b.reshape(place, (count,)), math.prod(extents))
    found = b.gather(b.reshape(values, (count, *rest)), b.binary("max", last, b.constant(0, (), torch.int64)))
    named = b.broadcast(b.compare("ge", last, b.constant(0, (), torch.int64)), [0], (math.prod(extents), *rest))
    named, found = (b.transpose(b.reshape(v, (*extents, *rest)), back) for v in (named, found))
    return b.select(named, found, x)


def _put_by_mask(b: NodeBuilder, x: Value, mask: Value, given: list[int], values: Value, accumulate: bool) -> Value:
    """What a mask over the first dimensions chooses gets one value, or the rows of several in their order."""
    if given != [0]:
        raise Unsupported("a mask beside other indices")
    whole = b.reshape(mask, mask.shape + (1,) * (x.rank - mask.rank))
    rest = x.shape[mask.rank :]
    if values.rank <= len(rest) or values.shape[0] == 1:
        values = b.reshape(values, values.shape[1:]) if values.rank > len(rest) else values
        written = b.broadcast_to(b.cast(values, x.dtype), x.shape)
    else:
        # Another number of rows than the mask takes is an index outside of the rows, when it runs.
        taken = b.reduce("sum", b.cast(b.reshape(mask, (math.prod(mask.shape),)), torch.int64), [0])
        rows = b.constant(values.shape[0], (), torch.int64)
        place = b.select(b.compare("eq", taken, rows), _count_of_taken(b, mask), rows)
        written = b.reshape(b.gather(b.broadcast_to(b.cast(values, x.dtype), (values.shape[0], *rest)), place), x.shape)
    return b.select(whole, b.binary("add", x, written) if accumulate else written, x)


def _count_of_taken(b: NodeBuilder, mask: Value) -> Value:
    """For each element of a mask, flattened, the number of the last that it has taken; 0 before the first."""
    taken = b.cast(b.reshape(mask, (math.prod(mask.shape),)), torch.int64)
    number = b.binary("sub", b.writer.unary("cumsum", taken, "dim 0"), b.constant(1, (), torch.int64))
    return b.binary("max", number, b.constant(0, (), torch.int64))


@lowers("aten.masked_scatter.default")
def masked_scatter(b: NodeBuilder, x: Value, mask: Value, source: Value) -> Value:
    shape = b.shape
    x, mask = b.broadcast_to(x, shape), b.broadcast_to(mask, shape)
    if x.is_empty or source.is_empty:
        return x
    found = b.gather(b.reshape(source, (math.prod(source.shape),)), _count_of_taken(b, mask))
    return b.select(mask, b.reshape(found, shape), x)


@lowers("aten.masked_scatter_backward.default")
def masked_scatter_backward(b: NodeBuilder, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    grad, mask = b.broadcast_together(grad, mask)
    if grad.is_empty or 0 in b.shape:
        return b.constant(0, b.shape, b.dtype)
    taken = b.select(mask, grad, b.constant(0.0, (), grad.dtype))
    # No more are taken than there are; the others add 0 to the last of them.
    rows = b.reshape(taken, (math.prod(grad.shape),))
    return b.reshape(b.scatter_add(rows, _count_of_taken(b, mask), math.prod(b.shape)), b.shape)


@lowers("aten.scatter_add.default")
def scatter_add(b: NodeBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    if x.dtype == torch.bool:  # true where one is
        return b.cast(scatter_add(b, b.cast(x, torch.int32), dim, index, b.cast(source, torch.int32)), torch.bool)
    if not x.rank:
        lifted = scatter_add(b, b.reshape(x, (1,)), 0, b.reshape(index, (1,)), b.reshape(source, (1,))) if not index.is_empty else x
        return b.reshape(lifted, ())
    dim = normalised(dim, x.rank)
    source = b.slice(source, [0] * x.rank, list(index.shape), [1] * x.rank)
    coordinates = [index if i == dim else b.iota(i, index.shape, index.dtype) for i in range(x.rank)]
    place = place_of(b, coordinates, x.shape)
    return b.binary("add", x, b.reshape(b.scatter_add(source, place, math.prod(x.shape)), x.shape))


@lowers("aten.scatter.value")
def scatter_value(b: NodeBuilder, x: Value, dim: int, index: Value, value: Number) -> Value:
    ones = b.constant(1.0, index.shape)
    taken = scatter_add(b, b.constant(0.0, x.shape), dim, index, ones)
    return b.select(b.compare("gt", taken, b.constant(0.0)), b.constant(value, (), x.dtype), x)


@lowers("aten.scatter.src")
def scatter_source(b: NodeBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Where several elements name one place, the last of them is there; PyTorch promises none."""
    dim, rank = normalised(dim, x.rank), x.rank
    if index.is_empty:
        return x
    if any(n != d for i, (n, d) in enumerate(zip(index.shape, x.shape)) if i != dim):
        raise Unsupported("writing by index to a part of the other dimensions")
    source = b.cast(b.slice(source, [0] * rank, list(index.shape), [1] * rank), x.dtype)
    if index.shape[dim] == 1:
        here = b.compare("eq", b.iota(dim, x.shape, index.dtype), b.broadcast_to(index, x.shape))
        return b.select(here, b.broadcast_to(source, x.shape), x)
    order = [i for i in range(rank) if i != dim] + [dim]
    rows, index, source = (b.transpose(v, order) for v in (x, index, source))
    last = _last_written(b, index, rows.shape[-1])
    found = gather(b, source, rank - 1, b.binary("max", last, b.constant(0, (), torch.int64)))
    written = b.select(b.compare("ge", last, b.constant(0, (), torch.int64)), found, rows)
    return b.transpose(written, [order.index(i) for i in range(rank)])


# --- norms of weights, and pads ----------------------------------------------------------------


@lowers("aten._weight_norm_interface_backward.default")
def weight_norm_backward(b: NodeBuilder, grad: Value, v: Value, g: Value, norms: Value, dim: int) -> list[Value]:
    """Of w = v g / |v|, where |v| is taken over all dimensions but `dim`."""
    grad, v, g, norms = (b.cast(x, torch.float32) for x in (grad, v, g, norms))
    dims = [i for i in range(v.rank) if i != normalised(dim, v.rank)]
    along = b.binary("div", b.reduce("sum", b.binary("mul", grad, v), dims, keepdim=True), norms)
    across = b.binary("sub", grad, b.binary("mul", v, b.binary("div", along, norms)))
    return [b.cast(x, wanted.dtype)
            for x, wanted in zip((b.binary("mul", across, b.binary("div", g, norms)), along), b.results)]


@lowers("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default",
        "aten.replication_pad3d_backward.default")
def replication_pad_backward(b: NodeBuilder, grad: Value, x: Value, padding: Sequence[int]) -> Value:
    for i in range(len(padding) // 2):  # pairs count from the last dimension
        dim, low, high = grad.rank - 1 - i, padding[2 * i], padding[2 * i + 1]
        extent, end = x.shape[dim], grad.shape[dim] - max(high, 0)
        inner = b.slice_dim(grad, dim, max(low, 0), end)
        before, behind = [0] * grad.rank, [0] * grad.rank
        before[dim], behind[dim] = max(-low, 0), max(-high, 0)
        total = b.pad(inner, before, behind)
        for start, limit, place in ((0, low, 0), (end, end + high, extent - 1)):
            if limit > start:
                edge = b.reduce("sum", b.slice_dim(grad, dim, start, limit), [dim], keepdim=True)
                total = b.binary("add", total, _spread(b, edge, dim, place, 1, extent))
        grad = total
    return grad


@lowers("aten.new_empty_strided.default", "aten.empty_strided.default")
def empty_strided(b: NodeBuilder, *_: object, **__: object) -> Value:
    return b.constant(0, b.shape, b.dtype)


@lowers("aten.copy.default")
def copy(b: NodeBuilder, target: Value, source: Value, *_: object) -> Value:
    """The source, as an element type and shape of the target's; its old value does not matter."""
    return b.broadcast_to(b.cast(source, b.dtype), b.shape)
