# ===- ordering.py - sort, topk, kthvalue ------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators that order the elements along a dimension.

Each element is compared with each other of its row, which gives its place in the order without a loop that
depends on values: a choice among experts, a beam, a quantile. Equal elements keep their order, as a stable sort
has it; NaN is the greatest of all.
"""

from __future__ import annotations

import torch

from ..writer import Value
from .matmul import gather
from .table import NodeBuilder, Unsupported, lowers, normalised

#: Rows that are longer would take more than a million comparisons each.
_LONGEST_ROW = 1024


def _places(b: NodeBuilder, rows: Value, descending: bool) -> Value:
    """The place of each element of the last dimension in the order of its row, i64."""
    n, rank = rows.shape[-1], rows.rank
    if n > _LONGEST_ROW:
        raise Unsupported(f"{n} elements along the dimension; {_LONGEST_ROW} are compared with each other at most")
    shape = rows.shape + (n,)
    own, other = b.broadcast(rows, range(rank), shape), b.broadcast(rows, [*range(rank - 1), rank], shape)
    goes_before = b.compare("gt" if descending else "lt", other, own)
    equal = b.compare("eq", other, own)
    if rows.is_float:
        own_is_nan, other_is_nan = b.compare("ne", own, own), b.compare("ne", other, other)
        nan_goes_before = b.compare("gt", *(b.cast(x, torch.int32) for x in (
            (other_is_nan, own_is_nan) if descending else (own_is_nan, other_is_nan))))
        goes_before = b.binary("or", goes_before, nan_goes_before)
        equal = b.binary("or", equal, b.binary("and", own_is_nan, other_is_nan))
    earlier = b.compare("lt", b.iota(rank, shape), b.iota(rank - 1, shape))
    goes_before = b.binary("or", goes_before, b.binary("and", equal, earlier))
    return b.reduce("sum", b.cast(goes_before, torch.int64), [rank])


def _ordered(b: NodeBuilder, x: Value, dim: int, descending: bool, first: int, count: int) -> list[Value]:
    """Elements `first` to `first + count` along `dim` in the order, and where they were."""
    if not x.rank:
        return [x, b.constant(0, (), torch.int64)]
    dim = normalised(dim, x.rank)
    order = [i for i in range(x.rank) if i != dim] + [dim]
    rows = b.transpose(x, order)
    shape = rows.shape[:-1] + (count, rows.shape[-1])
    lead = list(range(rows.rank - 1))
    wanted = b.binary("add", b.iota(rows.rank - 1, shape), b.constant(first, (), torch.int64))
    here = b.compare("eq", b.broadcast(_places(b, rows, descending), [*lead, rows.rank], shape), wanted)
    index = b.reduce("sum", b.select(here, b.iota(rows.rank, shape), b.constant(0, (), torch.int64)), [rows.rank])
    index = b.transpose(index, [order.index(i) for i in range(x.rank)])
    return [gather(b, x, dim, index), index]


@lowers("aten.topk.default")
def topk(b: NodeBuilder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Value]:
    return _ordered(b, x, dim, largest, 0, k)


@lowers("aten.sort.default")
def sort(b: NodeBuilder, x: Value, dim: int = -1, descending: bool = False) -> list[Value]:
    return _ordered(b, x, dim, descending, 0, x.shape[dim] if x.rank else 1)


@lowers("aten.sort.stable")
def stable_sort(b: NodeBuilder, x: Value, *, stable: bool | None = None, dim: int = -1,
                descending: bool = False) -> list[Value]:
    return sort(b, x, dim, descending)


@lowers("aten.argsort.default")
def argsort(b: NodeBuilder, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return sort(b, x, dim, descending)[1]


@lowers("aten.argsort.stable")
def stable_argsort(b: NodeBuilder, x: Value, *, stable: bool, dim: int = -1, descending: bool = False) -> Value:
    return sort(b, x, dim, descending)[1]


@lowers("aten.kthvalue.default")
def kthvalue(b: NodeBuilder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    parts = _ordered(b, x, dim, False, k - 1, 1)
    return [b.reshape(part, tuple(wanted.shape)) for part, wanted in zip(parts, b.results)]
