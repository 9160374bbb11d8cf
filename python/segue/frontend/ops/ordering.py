# ===- ordering.py - sort, topk, kthvalue ------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators that order the elements along a dimension: a choice among experts, a beam, a quantile.

`segue.argsort` gives the places of the wanted elements, and a gather the elements, which has their derivative. Equal
elements keep their order, as a stable sort has it; NaN is the greatest of all.
"""

from __future__ import annotations

import torch

from ..writer import Value
from .matmul import gather
from .table import NodeBuilder, Unsupported, lowers, normalised


#: Places of elements have 31 bits in a row that is being sorted.
_LONGEST_ROW = (1 << 31) - 1


def _ordered(b: NodeBuilder, x: Value, dim: int, descending: bool, first: int, count: int) -> list[Value]:
    """Elements `first` to `first + count` along `dim` in the order, and where they were."""
    if not x.rank:
        return [x, b.constant(0, (), torch.int64)]
    dim = normalised(dim, x.rank)
    order = [i for i in range(x.rank) if i != dim] + [dim]
    if x.shape[dim] > _LONGEST_ROW:
        raise Unsupported(f"{x.shape[dim]} elements along the dimension; {_LONGEST_ROW} are sorted at most")
    index = b.argsort(b.transpose(x, order), descending, first, count)
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
