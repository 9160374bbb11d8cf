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

import torch

from .losses import _MEAN, _NONE, _row_weights, _rows
from .matmul import _repeated_heads, adjoin, gather, place_of
from .normalisation import _rows as _normalised_rows
from .table import Unsupported, lowers, normalised


@lowers("aten.native_layer_norm.default")
def native_layer_norm(b, x, normalized_shape, weight, bias, eps):
    rows, (weight, bias) = _normalised_rows(b, x, normalized_shape, (weight, bias))
    parts = b.layer_norm(rows, weight, bias, eps)
    return [b.reshape(part, tuple(wanted.shape)) for part, wanted in zip(parts, b.results)]


# --- losses -------------------------------------------------------------------------------


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(b, x, target, weight, reduction, ignore_index):
    logs, targets = _rows(b, x), b.reshape(target, (math.prod(target.shape),))
    weights, counts = _row_weights(b, targets, weight, ignore_index)
    chosen = _of_target(b, logs, b.select(counts, targets, b.constant(0, (), targets.dtype)))
    losses = b.writer.unary("neg", b.binary("mul", b.cast(chosen, torch.float32), weights))
    total = b.reduce("sum", weights, [0])
    if reduction == _NONE:
        return [b.cast(b.reshape(losses, b.shape), b.dtype), b.constant(0.0, (), b.dtype)]
    loss = b.reduce("sum", losses, [0])
    if reduction == _MEAN:
        loss = b.binary("div", loss, total)
    return [b.cast(loss, b.dtype), b.cast(total, b.dtype)]


def _of_target(b, rows, targets):
    """Of each row the element that its target names."""
    # A lookup in a table of the classes refuses a target that is none; one in the flattened rows would not.
    count, classes = rows.shape
    targets = b.gather(b.iota(0, (classes,)), targets)
    place = b.binary("add", b.binary("mul", b.iota(0, (count,)), b.constant(classes, (), torch.int64)), targets)
    return b.gather(b.reshape(rows, (count * classes,)), place)


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(b, grad, x, target, weight, reduction, ignore_index, total_weight):
    logs, targets = _rows(b, x), b.reshape(target, (math.prod(target.shape),))
    weights, _ = _row_weights(b, targets, weight, ignore_index)
    grad = b.cast(grad, torch.float32)
    if reduction == _MEAN:
        grad = b.binary("div", grad, b.cast(total_weight, torch.float32))
    rows = b.writer.unary("neg", b.binary("mul", b.reshape(grad, targets.shape if reduction == _NONE else ()), weights))
    classes = b.iota(1, logs.shape, targets.dtype)
    chosen = b.compare("eq", classes, b.broadcast(targets, [0], logs.shape))
    result = b.cast(b.select(chosen, b.broadcast(rows, [0], logs.shape), b.constant(0.0)), b.dtype)
    if x.rank < 3:
        return b.reshape(result, b.shape)
    # Classes go back to dimension 1.
    result = b.reshape(result, (x.shape[0], *x.shape[2:], x.shape[1]))
    return b.transpose(result, [0, x.rank - 1, *range(1, x.rank - 1)])


# --- attention ----------------------------------------------------------------------------


def _attention_mask(b, mask, q):
    if mask is None:
        return None
    mask = b.reshape(mask, (1,) * (4 - mask.rank) + mask.shape)
    return b.cast(mask, q.dtype) if mask.is_float else mask


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(b, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    if dropout_p:
        raise Unsupported(f"dropout_p={dropout_p}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    key, value = (_repeated_heads(b, x, query.shape[1]) for x in (key, value))
    out, lse = b.attention(query, key, value, _attention_mask(b, attn_mask, query), is_causal, scale)
    return [out, b.reshape(lse, tuple(b.results[1].shape))]


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(b, grad, query, key, value, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None):
    if dropout_p:
        raise Unsupported(f"dropout_p={dropout_p}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads = key.shape[1]
    key, value = (_repeated_heads(b, x, query.shape[1]) for x in (key, value))
    grads = b.attention_grad(query, key, value, _attention_mask(b, attn_mask, query), out,
                             b.reshape(lse, query.shape[:3]), grad, is_causal, scale)
    return [grads[0], *(_summed_heads(b, x, heads) for x in grads[1:])]


def _summed_heads(b, x, heads):
    """The inverse of repeating heads."""
    if x.shape[1] == heads:
        return x
    return b.reduce("sum", b.reshape(x, (x.shape[0], heads, x.shape[1] // heads, *x.shape[2:])), [2])


# --- lookups and parts: what backward adds into zeros --------------------------------------


@lowers("aten.embedding_dense_backward.default")
def embedding_backward(b, grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
    if padding_idx >= 0:
        kept = b.compare("ne", indices, b.constant(padding_idx, (), indices.dtype))
        kept = b.reshape(kept, kept.shape + (1,) * (grad.rank - indices.rank))
        grad = b.select(kept, grad, b.constant(0.0, (), grad.dtype))
    return b.scatter_add(grad, indices, num_weights)


def _spread(b, part, dim, start, step):
    """`part` along `dim` at start, start + step, ... of zeros with the shape of the result."""
    low, high, interior = ([0] * part.rank for _ in range(3))
    low[dim], interior[dim] = start, step - 1
    covered = start + (part.shape[dim] - 1) * step + 1
    high[dim] = b.shape[dim] - covered
    return b.pad(part, low, high, 0, interior)


@lowers("aten.slice_backward.default")
def slice_backward(b, grad, input_sizes, dim, start, end, step):
    dim = normalised(dim, len(b.shape))
    start, _, step = slice(start, end, step).indices(b.shape[dim])
    return _spread(b, grad, dim, start, step)


@lowers("aten.select_backward.default")
def select_backward(b, grad, input_sizes, dim, index):
    dim = normalised(dim, len(b.shape))
    index = index + b.shape[dim] if index < 0 else index
    return _spread(b, b.reshape(grad, grad.shape[:dim] + (1,) + grad.shape[dim:]), dim, index, 1)


def _written(b, x, part, dim, start, step):
    """`x` with `part` in the place of every step-th slice along `dim`."""
    taken = _spread(b, b.cast(b.constant(1, part.shape, torch.bool), torch.int32), dim, start, step)
    return b.select(b.cast(taken, torch.bool), _spread(b, b.cast(part, x.dtype), dim, start, step), x)


@lowers("aten.slice_scatter.default")
def slice_scatter(b, x, part, dim=0, start=None, end=None, step=1):
    dim = normalised(dim, x.rank)
    start, _, step = slice(start, end, step).indices(x.shape[dim])
    return _written(b, x, part, dim, start, step)


@lowers("aten.select_scatter.default")
def select_scatter(b, x, part, dim, index):
    dim = normalised(dim, x.rank)
    index = index + x.shape[dim] if index < 0 else index
    part = b.broadcast_to(part, x.shape[:dim] + x.shape[dim + 1 :])
    return _written(b, x, b.reshape(part, part.shape[:dim] + (1,) + part.shape[dim:]), dim, index, 1)


#: Writing several elements along one dimension compares each place with each of them.
_MOST_WRITES = 1 << 20


def _last_written(b, index, places):
    """For each of so many places the last of `index`'s row that names it, or -1; rows are along the last dimension."""
    lead = range(index.rank - 1)
    shape = index.shape[:-1] + (places, index.shape[-1])
    if places * index.shape[-1] > _MOST_WRITES:
        raise Unsupported(f"writing {index.shape[-1]} elements by index to {places} places")
    here = b.compare("eq", b.broadcast(index, [*lead, index.rank], shape), b.iota(index.rank - 1, shape, index.dtype))
    return b.reduce("max", b.select(here, b.iota(index.rank, shape), b.constant(-1, (), torch.int64)), [index.rank])


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(b, x, indices, values, accumulate=False):
    """Where several elements name one place and are not added, the last of them is there; PyTorch promises none."""
    given = [i for i, v in enumerate(indices) if v is not None]
    if any(indices[i].dtype == torch.bool for i in given):
        raise Unsupported("indexing by a mask: the number of elements would depend on values")
    if accumulate and not x.is_float:
        raise Unsupported("adding integers by index")
    # The indexed dimensions go first and become one.
    order = given + [i for i in range(x.rank) if i not in given]
    extents, rest = [x.shape[i] for i in given], [x.shape[i] for i in order[len(given) :]]
    place = place_of(b, [indices[i] for i in given], extents)
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


@lowers("aten.scatter_add.default")
def scatter_add(b, x, dim, index, source):
    if not x.is_float or not x.rank:
        raise Unsupported("a scalar" if x.is_float else "integers")
    dim = normalised(dim, x.rank)
    source = b.slice(source, [0] * x.rank, list(index.shape), [1] * x.rank)
    coordinates = [index if i == dim else b.iota(i, index.shape, index.dtype) for i in range(x.rank)]
    place = place_of(b, coordinates, x.shape)
    return b.binary("add", x, b.reshape(b.scatter_add(source, place, math.prod(x.shape)), x.shape))


@lowers("aten.scatter.value")
def scatter_value(b, x, dim, index, value):
    ones = b.constant(1.0, index.shape)
    taken = scatter_add(b, b.constant(0.0, x.shape), dim, index, ones)
    return b.select(b.compare("gt", taken, b.constant(0.0)), b.constant(value, (), x.dtype), x)


@lowers("aten.scatter.src")
def scatter_source(b, x, dim, index, source):
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


@lowers("aten.as_strided.default")
def as_strided(b, x, size, stride, storage_offset=None):
    dense = [math.prod(size[i + 1 :]) for i in range(len(size))]
    if not b.row_major or storage_offset or math.prod(size) != math.prod(x.shape) or any(
            s != d and n != 1 for s, d, n in zip(stride, dense, size)):
        raise Unsupported("a view that is not the whole tensor, row-major")
    return b.reshape(x, tuple(size))


@lowers("aten.new_empty_strided.default", "aten.empty_strided.default")
def empty_strided(b, *_, **__):
    return b.constant(0, b.shape, b.dtype)


@lowers("aten.copy.default")
def copy(b, target, source, *_):
    """The source, as an element type and shape of the target's; its old value does not matter."""
    return b.broadcast_to(b.cast(source, b.dtype), b.shape)
