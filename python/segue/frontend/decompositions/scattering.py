# ===- scattering.py - reductions of elements that an index sends to one place ------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Reductions of elements that an index sends to one place.

Sums are scattered. For products and extrema each place looks through all elements of its row, so that no order is left
open; for extrema of many elements these are sorted first.
"""

from __future__ import annotations

import math
from typing import Callable

import torch
from torch.types import Number

from .table import Attempt, writes

aten = torch.ops.aten

#: Places times elements of a row.
_MOST_PAIRS = 1 << 20

_TOGETHER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}


def _neutral(reduce: str, dtype: torch.dtype) -> Number:
    """What changes no result."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


@writes(aten.scatter_reduce.two)
def scatter_reduce(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *,
                   include_self: bool = True) -> Attempt[torch.Tensor]:
    if not x.dim():
        lifted = scatter_reduce(x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self)
        return lifted if lifted is NotImplemented else lifted.reshape(())
    if not index.numel():
        return x.clone()
    source = source[tuple(slice(0, n) for n in index.shape)]
    if x.dtype == torch.bool:
        return NotImplemented if reduce == "mean" else scatter_reduce(x.int(), dim, index, source.int(), reduce, include_self=include_self).bool()
    if reduce == "mean":
        return _mean(x, dim, index, source, include_self)
    if reduce == "sum":
        return (x if include_self else _without(x, dim, index)).scatter_add(dim, index, source)
    dim %= x.dim()
    start = x[tuple(slice(0, n) if i != dim else slice(None) for i, n in enumerate(index.shape))]
    if x.shape[dim] * index.shape[dim] <= _MOST_PAIRS:
        places = torch.arange(x.shape[dim], device=x.device).reshape(-1, *[1] * (x.dim() - dim - 1), 1)
        own = index.movedim(dim, -1).unsqueeze(dim)  # [..., 1, ..., elements]
        here = own == places
        parts = torch.where(here, source.movedim(dim, -1).unsqueeze(dim), _neutral(reduce, x.dtype))
        found: torch.Tensor = parts.prod(-1, dtype=x.dtype) if reduce == "prod" else getattr(parts, reduce)(-1)
        some = here.any(-1)
    elif reduce in ("amax", "amin"):
        # The last of several elements that are written to one place stays: in this order the greatest, or NaN.
        rising = source if reduce == "amax" else -source if x.is_floating_point() else ~source
        order = torch.sort(rising, dim=dim, stable=True).indices
        found = torch.full_like(start, _neutral(reduce, x.dtype)).scatter(dim, index.gather(dim, order), source.gather(dim, order))
        some = torch.zeros(start.shape, device=x.device).scatter(dim, index, 1.0) > 0
    else:
        return NotImplemented
    found = _TOGETHER[reduce](start, found) if include_self else found
    return _put(x, torch.where(some, found, start), dim)


def _put(x: torch.Tensor, part: torch.Tensor, dim: int) -> torch.Tensor:
    """`x` with its first elements along all dimensions but one in the place of which `part` is given."""
    for i, n in enumerate(part.shape):
        if i != dim and n != x.shape[i]:
            rest = _put(x.narrow(i, 0, n), part, dim)
            return torch.cat([rest, x.narrow(i, n, x.shape[i] - n)], i)
    return part


def _without(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """`x` with zeros where the index points."""
    return x.scatter(dim, index, 0)


def _mean(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, include_self: bool) -> torch.Tensor:
    total = scatter_reduce(x, dim, index, source, "sum", include_self=include_self)
    dtype = torch.float32 if x.is_floating_point() else torch.int64
    ones = torch.ones_like(source, dtype=dtype)
    count = (torch.ones if include_self else torch.zeros)(x.shape, dtype=dtype, device=x.device).scatter_add(dim, index, ones).clamp(min=1)
    return total / count.to(x.dtype) if x.is_floating_point() else torch.div(total, count.to(x.dtype), rounding_mode="floor")


@writes(aten.scatter.reduce)
def scatter_with(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str) -> torch.Tensor:
    return scatter_reduce(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@writes(aten.scatter.value_reduce)
def scatter_number_with(x: torch.Tensor, dim: int, index: torch.Tensor, value: Number, *, reduce: str) -> torch.Tensor:
    return scatter_with(x, dim, index, torch.full(index.shape, value, dtype=x.dtype, device=x.device), reduce=reduce)


@writes(aten.index_reduce.default)
def index_reduce(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *,
                 include_self: bool = True) -> Attempt[torch.Tensor]:
    if not x.dim():
        lifted = index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self)
        return lifted if lifted is NotImplemented else lifted.reshape(())
    dim %= x.dim()
    shape = [-1 if i == dim else 1 for i in range(x.dim())]
    return scatter_reduce(x, dim, index.reshape(shape).expand(source.shape).long(), source, reduce, include_self=include_self)


@writes(aten.put.default)
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)
