# ===- matmul.py - products of matrices, attention, embedding ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Products of matrices, attention and lookups.

Contractions become one `segue.dot_general` each: transposes stay views of its
operands and never move bytes by themselves.
"""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch.types import Number

from ..writer import Dropout, Pairs, Value
from .attention import attention as whole_attention, is_written_out, scores_of
from .sources import dropped
from .table import NodeBuilder, Unsupported, lowers, normalised


def _product(b: NodeBuilder, x: Value, y: Value, batch: Pairs, contract: Pairs) -> Value:
    return b.dot_general(x, y, batch, contract) if x.is_float else _integer_product(b, x, y, batch, contract)


def _integer_product(b: NodeBuilder, x: Value, y: Value, batch: Pairs, contract: Pairs) -> Value:
    """Sums of the products of integers, for which there is no library."""
    spread = []
    for v, own in ((x, 0), (y, 1)):
        free = [d for d in range(v.rank) if d not in batch[own] and d not in contract[own]]
        spread.append((b.transpose(v, [*batch[own], *free, *contract[own]]), len(free)))
    (x, left), (y, right) = spread
    lead, summed = len(batch[0]), len(contract[0])
    shape = x.shape[: lead + left] + y.shape[lead : lead + right] + x.shape[lead + left :]
    behind = range(lead + left + right, len(shape))
    if 0 in shape:
        return b.constant(0, shape[: lead + left + right], x.dtype)
    product = b.binary("mul", b.broadcast(x, [*range(lead + left), *behind], shape),
                       b.broadcast(y, [*range(lead), *range(lead + left, lead + left + right), *behind], shape))
    return b.reduce("sum", product, list(behind)) if summed else product


@lowers("aten.linear.default")
def linear(b: NodeBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    y = _product(b, x, weight, ([], []), ([x.rank - 1], [weight.rank - 1]))
    return y if bias is None else b.binary("add", y, bias)


@lowers("aten.mm.default")
def mm(b: NodeBuilder, x: Value, y: Value) -> Value:
    return _product(b, x, y, ([], []), ([1], [0]))


@lowers("aten.bmm.default")
def bmm(b: NodeBuilder, x: Value, y: Value) -> Value:
    return _product(b, x, y, ([0], [0]), ([2], [1]))


@lowers("aten.mv.default", "aten.dot.default", "aten.inner.default", "aten.vdot.default")
def mv(b: NodeBuilder, x: Value, y: Value) -> Value:
    return _product(b, x, y, ([], []), ([x.rank - 1], [y.rank - 1]))


@lowers("aten.outer.default", "aten.ger.default")
def outer(b: NodeBuilder, x: Value, y: Value) -> Value:
    return b.binary("mul", b.reshape(x, (x.shape[0], 1)), b.reshape(y, (1, y.shape[0])))


@lowers("aten.matmul.default")
def matmul(b: NodeBuilder, x: Value, y: Value) -> Value:
    if y.rank <= 2:  # one matrix for all of x, or a vector: no batch
        return _product(b, x, y, ([], []), ([x.rank - 1], [max(y.rank - 2, 0)]))
    if x.rank == 1:
        return b.reshape(matmul(b, b.reshape(x, (1, x.shape[0])), y), b.shape)
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = b.broadcast_to(x, lead + x.shape[-2:]), b.broadcast_to(y, lead + y.shape[-2:])
    batch = list(range(len(lead)))
    return _product(b, x, y, (batch, batch), ([len(lead) + 1], [len(lead)]))


@lowers("aten.addmm.default")
def addmm(b: NodeBuilder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _plus(b, mm(b, x, y), bias, beta, alpha)


@lowers("aten.addmv.default")
def addmv(b: NodeBuilder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _plus(b, mv(b, x, y), bias, beta, alpha)


@lowers("aten.baddbmm.default")
def baddbmm(b: NodeBuilder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _plus(b, bmm(b, x, y), bias, beta, alpha)


def _plus(b: NodeBuilder, product: Value, bias: Value, beta: Number, alpha: Number) -> Value:
    if alpha != 1:
        product = b.binary("mul", product, b.constant(float(alpha), (), product.dtype))
    if beta == 0:
        return product
    if beta != 1:
        bias = b.binary("mul", bias, b.constant(float(beta), (), bias.dtype))
    return b.binary("add", product, bias)


@lowers("aten.einsum.default")
def einsum(b: NodeBuilder, equation: str, operands: Sequence[Value], *, path: Sequence[int] | None = None) -> Value:
    """Contracts from the left to the right, two operands at a time."""
    equation = equation.replace(" ", "")
    if "..." in equation:
        equation = _without_ellipsis(equation, operands)
    left_side, _, result = equation.partition("->")
    terms = left_side.split(",")
    if "->" not in equation:
        letters = "".join(terms)
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    pending = [_unrepeated(t, v) for t, v in zip(terms, operands)]
    while len(pending) > 1:
        (left, x), (right, y), rest = pending[0], pending[1], pending[2:]
        wanted = set(result).union(*(t for t, _ in rest))
        pending = [_contract(b, left, x, right, y, wanted), *rest]
    term, x = pending[0]
    summed = [i for i, c in enumerate(term) if c not in result]
    x = b.reduce("sum", x, summed)
    term = "".join(c for c in term if c in result)
    return b.transpose(x, [term.index(c) for c in result])


def _without_ellipsis(equation: str, operands: Sequence[Value]) -> str:
    terms = equation.partition("->")[0].split(",")
    ranks = {v.rank - len(t.replace("...", "")) for t, v in zip(terms, operands) if "..." in t}
    if len(ranks) != 1:
        raise Unsupported("'...' of several ranks in one equation")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    return equation.replace("...", "".join(free[: ranks.pop()]))


def _unrepeated(term: str, x: Value) -> tuple[str, Value]:
    if len(set(term)) != len(term):
        raise Unsupported(f"a diagonal in einsum: {term!r} repeats an index")
    return term, x


def _contract(b: NodeBuilder, left: str, x: Value, right: str, y: Value, wanted: set[str]) -> tuple[str, Value]:
    # An index that only one side has, and nobody wants, is summed first.
    for_left = [i for i, c in enumerate(left) if c not in right and c not in wanted]
    x, left = b.reduce("sum", x, for_left), "".join(c for i, c in enumerate(left) if i not in for_left)
    for_right = [i for i, c in enumerate(right) if c not in left and c not in wanted]
    y, right = b.reduce("sum", y, for_right), "".join(c for i, c in enumerate(right) if i not in for_right)
    shared = [c for c in left if c in right]
    extents = {c: max(x.shape[left.index(c)], y.shape[right.index(c)]) for c in shared}
    x = b.broadcast_to(x, [extents.get(c, d) for c, d in zip(left, x.shape)])
    y = b.broadcast_to(y, [extents.get(c, d) for c, d in zip(right, y.shape)])
    batch = [c for c in shared if c in wanted]
    contract = [c for c in shared if c not in wanted]
    product = _product(b, x, y, ([left.index(c) for c in batch], [right.index(c) for c in batch]),
                       ([left.index(c) for c in contract], [right.index(c) for c in contract]))
    term = "".join(batch) + "".join(c for c in left if c not in shared) + "".join(c for c in right if c not in shared)
    return term, product


# --- products of groups of rows ----------------------------------------------------------------


@lowers("aten._grouped_mm.default")
def grouped_mm(b: NodeBuilder, x: Value, y: Value, offs: Value | None = None, bias: Value | None = None,
               out_dtype: torch.dtype | None = None) -> Value:
    """Groups end at `offs`: of rows of `x`, of columns of `y`, or of what is summed; rows behind the last give zeros."""
    if x.dtype == torch.float64:
        raise Unsupported("products of groups in float64")
    if bias is not None or b.dtype != x.dtype:
        raise Unsupported("a bias" if bias is not None else f"out_dtype={out_dtype}")
    if x.rank == 3 and y.rank == 3:
        return bmm(b, x, y)
    assert offs is not None, "PyTorch asks for the ends of groups where one tensor has two dimensions"
    if x.rank == 2 and y.rank == 3:
        return b.grouped_dot(x, y, offs)
    if x.rank == 2:
        return b.grouped_outer(b.transpose(x, [1, 0]), y, offs)
    return b.transpose(b.grouped_dot(b.transpose(y, [1, 0]), b.transpose(x, [0, 2, 1]), offs), [1, 0])


@lowers("transformers.grouped_mm_fallback.default")
def transformers_grouped_mm(b: NodeBuilder, x: Value, weight: Value, offs: Value) -> Value:
    """What Hugging Face's mixtures of experts call in the place of `torch._grouped_mm` where they are compiled in f32."""
    return grouped_mm(b, x, weight, offs)


# --- attention ---------------------------------------------------------------------------------


@lowers("aten.scaled_dot_product_attention.default")
def attention(b: NodeBuilder, query: Value, key: Value, value: Value, attn_mask: Value | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
              enable_gqa: bool = False) -> Value:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa:
        key, value = (_repeated_heads(b, x, query.shape[-3]) for x in (key, value))
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (b.broadcast_to(x, lead + x.shape[-2:]) for x in (query, key, value))

    # Two leading dimensions, whatever the caller has.
    heads = lead[-1] if len(lead) > 1 else 1
    flat = (math.prod(lead) // heads, heads)
    q, k, v = (b.reshape(x, flat + x.shape[-2:]) for x in (q, k, v))
    mask = attn_mask
    if mask is not None:
        whole = lead + (q.shape[-2], k.shape[-2])
        if mask.rank > 4 or len(lead) != 2:
            mask = b.reshape(b.broadcast_to(mask, whole), flat + whole[-2:])
        mask = b.reshape(mask, (1,) * (4 - mask.rank) + mask.shape)
        if mask.is_float:
            mask = b.cast(mask, q.dtype)

    # The whole op wants equal head sizes, gives no gradient for the mask, and drops not all.
    whole_op = dropout_p < 1.0 and v.shape == k.shape and not (mask is not None and mask.differentiable)
    arguments = (q, k, v, mask, is_causal, scale)
    if whole_op and not (dropout_p > 0.0 and is_written_out(q)):
        y = whole_attention(b, *arguments, Dropout(dropout_p, b.new_random_id()) if dropout_p > 0.0 else None)[0]
    else:
        y = _written_out(b, *arguments, dropout_p)
    return b.reshape(y, b.shape)


def _repeated_heads(b: NodeBuilder, x: Value, heads: int) -> Value:
    if x.shape[-3] == heads:
        return x
    lead, times = x.shape[:-2], heads // x.shape[-3]
    spread = lead + (times,) + x.shape[-2:]
    dims = [i for i in range(len(spread)) if i != len(lead)]
    return b.reshape(b.broadcast(x, dims, spread), x.shape[:-3] + (heads,) + x.shape[-2:])


def _written_out(b: NodeBuilder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float,
                 dropout_p: float) -> Value:
    weights = b.softmax(scores_of(b, q, k, mask, causal, scale), 3)
    if dropout_p > 0.0:
        weights = dropped(b, weights, dropout_p)
    return b.dot_general(weights, v, ([0, 1], [0, 1]), ([3], [2]))


# --- lookups -------------------------------------------------------------------------------------


@lowers("aten.embedding.default")
def embedding(b: NodeBuilder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Value:
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
    rows = b.gather(weight, indices)
    if padding_idx < 0 or not weight.differentiable:
        return rows
    # The row is looked up as any other, and gets no gradient.
    trained = b.compare("ne", indices, b.constant(padding_idx, (), indices.dtype))
    return b.select(b.reshape(trained, trained.shape + (1,)), rows, b.detach(rows))


@lowers("aten.index_select.default")
def index_select(b: NodeBuilder, x: Value, dim: int, index: Value) -> Value:
    return _gather_dim(b, x, normalised(dim, x.rank), index)


@lowers("aten.flip.default")
def flip(b: NodeBuilder, x: Value, dims: Sequence[int]) -> Value:
    for dim in sorted({normalised(d, x.rank) for d in dims}):
        size = x.shape[dim]
        backwards = b.binary("sub", b.constant(size - 1, (size,), torch.int64), b.iota(0, (size,)))
        x = _gather_dim(b, x, dim, backwards)
    return x


@lowers("aten.index.Tensor")
def index(b: NodeBuilder, x: Value, indices: Sequence[Value | None]) -> Value:
    given = {i: v for i, v in enumerate(indices) if v is not None}
    if any(v.dtype == torch.bool for v in given.values()):
        raise Unsupported("indexing by a mask: the shape of the result would depend on values")
    return _indexed(b, x, list(given), list(given.values()))


def _gather_dim(b: NodeBuilder, x: Value, dim: int, indices: Value) -> Value:
    return _indexed(b, x, [dim], [indices])


def _indexed(b: NodeBuilder, x: Value, dims: list[int], indices: Sequence[Value]) -> Value:
    """Dimensions of the indices stand where `dims` were or, if others lie between those, in front."""
    order = dims + [i for i in range(x.rank) if i not in dims]
    rows, place = b.transpose(x, order), place_of(b, indices, [x.shape[d] for d in dims])
    y = b.gather(b.reshape(rows, (math.prod(rows.shape[: len(dims)]),) + rows.shape[len(dims) :]), place)
    first, n = dims[0] if adjoin(dims) else 0, place.rank
    return b.transpose(y, [*range(n, n + first), *range(n), *range(n + first, y.rank)])


def adjoin(dims: Sequence[int]) -> bool:
    """Returns whether no dimension lies between `dims`."""
    return list(dims) == list(range(dims[0], dims[-1] + 1))


def place_of(b: NodeBuilder, indices: Sequence[Value], extents: Sequence[int]) -> Value:
    """Returns where index tensors point when their dimensions are one; negative indices count from the end."""
    place: Value | None = None
    for extent, index in zip(extents, indices):
        index = _wrapped(b, b.cast(index, torch.int64), extent)
        place = index if place is None else b.binary(
            "add", b.binary("mul", place, b.constant(extent, (), torch.int64)), index)
    assert place is not None, "there is an index at least"
    return place


def _wrapped(b: NodeBuilder, indices: Value, extent: int) -> Value:
    """Negative indices count from the end."""
    behind = b.compare("lt", indices, b.constant(0, (), indices.dtype))
    return b.select(behind, b.binary("add", indices, b.constant(extent, (), indices.dtype)), indices)


@lowers("aten.gather.default")
def gather(b: NodeBuilder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if not x.rank:
        return b.reshape(gather(b, b.reshape(x, (1,)), 0, b.reshape(index, (math.prod(index.shape),))), index.shape)
    dim = normalised(dim, x.rank)
    if index.dtype != torch.int64:
        index = b.cast(index, torch.int64)
    # The place of an element in the flattened tensor.
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.rank)]
    place: Value | None = None
    for i in range(x.rank):
        coordinate = index if i == dim else b.iota(i, index.shape)
        part = b.binary("mul", coordinate, b.constant(strides[i], (), torch.int64)) if strides[i] != 1 else coordinate
        place = part if place is None else b.binary("add", place, part)
    assert place is not None, "x has dimensions"
    return b.gather(b.reshape(x, (math.prod(x.shape),)), place)
