# ===- reductions.py - sums, means, extrema, variances --------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators that combine all elements along some dimensions."""

from __future__ import annotations

import math
from typing import Callable, Sequence

import torch
from torch.types import Number

from ..writer import Value
from .table import NodeBuilder, Unsupported, all_dims, lowers, normalised


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def sum_(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Value:
    return b.reduce("sum", b.cast(x, b.dtype), all_dims(dim, x.rank), keepdim)


@lowers("aten.cumsum.default")
def cumsum(b: NodeBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return b.unary("cumsum", x, f"dim {normalised(dim, x.rank)}") if x.rank else b.cast(x, b.dtype)


@lowers("aten.cumprod.default")
def cumprod(b: NodeBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    x = b.cast(x, b.dtype)
    return _products(b, x, normalised(dim, x.rank)) if x.rank else x


def _products(b: NodeBuilder, x: Value, dim: int) -> Value:
    """The product of all elements up to each. Each is a factor of the one before it, so that the derivative divides by none."""
    if x.is_empty:
        return x
    if not x.is_float:
        return _whole_products(b, x, dim)
    low, high = [0] * x.rank, [0] * x.rank
    high[dim] = x.shape[dim] - 1
    return b.recurrence(x, b.pad(b.slice_dim(x, dim, 0, 1), low, high), dim)


def _whole_products(b: NodeBuilder, x: Value, dim: int) -> Value:
    """Of integers, of which the order does not matter: each step joins twice as many."""
    step, none = 1, [0] * x.rank
    while step < x.shape[dim]:
        low = [step if i == dim else 0 for i in range(x.rank)]
        x = b.binary("mul", x, b.pad(b.slice_dim(x, dim, 0, x.shape[dim] - step), low, none, 1))
        step *= 2
    return x


@lowers("aten.prod.default", "aten.prod.dim_int")
def prod(b: NodeBuilder, x: Value, dim: int | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Value:
    x = b.cast(x, b.dtype)
    if dim is None:
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    if x.is_empty:
        return b.constant(1, b.shape, b.dtype)
    dim = normalised(dim, x.rank)
    return b.reshape(b.slice_dim(_products(b, x, dim), dim, x.shape[dim] - 1, x.shape[dim]), b.shape)


@lowers("aten.cummax.default")
def cummax(b: NodeBuilder, x: Value, dim: int) -> list[Value]:
    return _largest_so_far(b, x, normalised(dim, x.rank), lambda v: v)


@lowers("aten.cummin.default")
def cummin(b: NodeBuilder, x: Value, dim: int) -> list[Value]:
    # The least integer has no negative.
    turned = lambda v: b.writer.unary("neg", v) if v.is_float else b.binary("sub", b.constant(-1, (), v.dtype), v)  # noqa: E731
    return _largest_so_far(b, x, normalised(dim, x.rank), turned)


def _largest_so_far(b: NodeBuilder, x: Value, dim: int, turned: Callable[[Value], Value]) -> list[Value]:
    """The elements that `turned` makes the largest up to each, and where the last of them is; NaN is the largest of all."""
    if x.dtype == torch.bool:
        values, places = _largest_so_far(b, b.cast(x, torch.int32), dim, turned)
        return [b.cast(values, torch.bool), places]
    values = turned(b.writer.unary("cummax", turned(x), f"dim {dim}"))
    found = b.compare("eq", x, values)
    if x.is_float:
        found = b.binary("or", found, b.compare("ne", x, x))
    places = b.select(found, b.iota(dim, x.shape), b.constant(-1, (), torch.int64))
    return [values, b.writer.unary("cummax", places, f"dim {dim}")]


@lowers("aten.logcumsumexp.default")
def logcumsumexp(b: NodeBuilder, x: Value, dim: int) -> Value:
    """The logarithm of sums that are kept relative to the largest term so far, as a recurrence."""
    if not x.rank:
        return x
    dim, wide = normalised(dim, x.rank), b.cast(x, torch.float32)
    if x.is_empty:
        return x
    nothing, none = b.constant(0.0), b.constant(-math.inf)
    peak = b.detach(b.writer.unary("cummax", wide, f"dim {dim}"))
    endless = b.compare("eq", b.writer.unary("abs", peak), b.constant(math.inf))
    shift = b.select(endless, nothing, peak)
    # The sum so far is 0 as long as the largest term is: then its factor counts for nothing.
    low, high = [0] * x.rank, [0] * x.rank
    low[dim] = 1
    before = b.pad(b.slice_dim(peak, dim, 0, x.shape[dim] - 1), low, high, -math.inf)
    factors = b.select(b.compare("eq", before, none), nothing, b.writer.unary("exp", b.binary("sub", before, shift)))
    sums = b.recurrence(factors, b.writer.unary("exp", b.binary("sub", wide, shift)), dim)
    return b.cast(b.binary("add", b.writer.unary("log", sums), shift), b.dtype)


@lowers("aten.mean.default", "aten.mean.dim")
def mean(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Value:
    return b.reduce("mean", b.cast(x, b.dtype), all_dims(dim, x.rank), keepdim)


def _extreme(b: NodeBuilder, kind: str, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    if x.dtype == torch.bool:
        return b.cast(b.reduce(kind, b.cast(x, torch.int32), dims, keepdim), torch.bool)
    return b.reduce(kind, x, dims, keepdim)


@lowers("aten.amax.default")
def amax(b: NodeBuilder, x: Value, dim: int | Sequence[int] = (), keepdim: bool = False) -> Value:
    return _extreme(b, "max", x, all_dims(dim, x.rank), keepdim)


@lowers("aten.amin.default")
def amin(b: NodeBuilder, x: Value, dim: int | Sequence[int] = (), keepdim: bool = False) -> Value:
    return _extreme(b, "min", x, all_dims(dim, x.rank), keepdim)


@lowers("aten.max.default")
def max_(b: NodeBuilder, x: Value) -> Value:
    return _extreme(b, "max", x, range(x.rank))


@lowers("aten.min.default")
def min_(b: NodeBuilder, x: Value) -> Value:
    return _extreme(b, "min", x, range(x.rank))


@lowers("aten.max.dim")
def max_dim(b: NodeBuilder, x: Value, dim: int, keepdim: bool = False) -> list[Value | None]:
    return [*_extremum(b, "max", x, dim, keepdim)]


@lowers("aten.min.dim")
def min_dim(b: NodeBuilder, x: Value, dim: int, keepdim: bool = False) -> list[Value | None]:
    return [*_extremum(b, "min", x, dim, keepdim)]


def _extremum(b: NodeBuilder, kind: str, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value | None]:
    if x.dtype == torch.bool:
        found, at = _extremum(b, kind, b.cast(x, torch.int32), dim, keepdim)
        return b.cast(found, torch.bool), at
    dims = all_dims(dim, x.rank)
    value = b.reduce(kind, x, dims, keepdim)
    if not (x.differentiable and dims):
        return value, _place_of(b, x, value, dim) if 1 in b.used else None
    # The gradient goes to the one element that the index names, not to all that are equal.
    place = _place_of(b, x, value, dim)
    lasting = b.reshape(place, [1 if i in dims else d for i, d in enumerate(x.shape)])
    chosen = b.compare("eq", b.iota(dims[0], x.shape), b.broadcast_to(lasting, x.shape))
    return b.reduce("sum", b.select(chosen, x, b.constant(0.0, (), x.dtype)), dims, keepdim), place


@lowers("aten.argmax.default")
def argmax(b: NodeBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _argument(b, "max", x, dim)


@lowers("aten.argmin.default")
def argmin(b: NodeBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _argument(b, "min", x, dim)


def _argument(b: NodeBuilder, kind: str, x: Value, dim: int | None) -> Value:
    x = b.cast(x, torch.int32) if x.dtype == torch.bool else x
    if dim is None:
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    return _place_of(b, x, b.reduce(kind, x, all_dims(dim, x.rank)), dim)


def _place_of(b: NodeBuilder, x: Value, value: Value, dim: int) -> Value:
    """The first index along `dim` where `x` is `value`; for NaN, which equals nothing, the first NaN."""
    dims = all_dims(dim, x.rank)
    value = b.broadcast_to(b.reshape(value, [1 if i in dims else d for i, d in enumerate(x.shape)]), x.shape)
    found = b.compare("eq", x, value)
    if x.is_float:
        found = b.binary("or", found, b.compare("ne", x, x))
    last = x.shape[dims[0]] - 1 if dims else 0
    index = b.iota(dims[0], x.shape) if dims else b.constant(0, (), torch.int64)
    index = b.select(found, index, b.constant(last, (), torch.int64))
    return b.reshape(b.reduce("min", index, dims), b.shape if b.dtype == torch.int64 else tuple(b.results[1].shape))


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    return _truths(b, "max", x, dim, keepdim)


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    return _truths(b, "min", x, dim, keepdim)


def _truths(b: NodeBuilder, kind: str, x: Value, dim: int | Sequence[int] | None, keepdim: bool) -> Value:
    if x.is_empty:
        return b.constant(kind == "min", b.shape, b.dtype)  # all of none are true
    x = b.cast(b.cast(x, torch.bool), torch.int32)
    return b.cast(b.reduce(kind, x, all_dims(dim, x.rank), keepdim), torch.bool)


def _variance(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None, correction: Number | None,
              keepdim: bool) -> Value:
    dims = all_dims(dim, x.rank)
    count, correction = _count(x.shape, dims), 1 if correction is None else correction
    if count <= correction:
        raise Unsupported(f"correction {correction} over {count} elements: the variance is not a number")
    centred = b.binary("sub", x, b.reduce("mean", x, dims, keepdim=True))
    total = b.reduce("sum", b.binary("mul", centred, centred), dims, keepdim)
    return b.binary("mul", total, b.constant(1 / (count - correction), (), x.dtype))


@lowers("aten.var.correction")
def var(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, *, correction: Number | None = None,
        keepdim: bool = False) -> Value:
    return _variance(b, x, dim, correction, keepdim)


@lowers("aten.var.dim")
def var_dim(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None, unbiased: bool = True,
            keepdim: bool = False) -> Value:
    return _variance(b, x, dim, int(unbiased), keepdim)


def _root(b: NodeBuilder, x: Value) -> Value:
    """The square root of a sum of squares. PyTorch's gradient is 0, not NaN, where the sum is 0."""
    if not x.differentiable:
        return b.writer.unary("sqrt", x)
    some = b.compare("ne", x, b.constant(0.0, (), x.dtype))
    return b.select(some, b.writer.unary("sqrt", b.select(some, x, b.constant(1.0, (), x.dtype))), x)


@lowers("aten.std.correction")
def std(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, *, correction: Number | None = None,
        keepdim: bool = False) -> Value:
    return _root(b, _variance(b, x, dim, correction, keepdim))


@lowers("aten.std.dim")
def std_dim(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None, unbiased: bool = True,
            keepdim: bool = False) -> Value:
    return _root(b, _variance(b, x, dim, int(unbiased), keepdim))


@lowers("aten.var_mean.correction")
def var_mean(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None = None, *, correction: Number | None = None,
             keepdim: bool = False) -> list[Value]:
    return [_variance(b, x, dim, correction, keepdim), b.reduce("mean", x, all_dims(dim, x.rank), keepdim)]


@lowers("aten.var_mean.dim")
def var_mean_dim(b: NodeBuilder, x: Value, dim: int | Sequence[int] | None, unbiased: bool = True,
                 keepdim: bool = False) -> list[Value]:
    return var_mean(b, x, dim, correction=int(unbiased), keepdim=keepdim)


@lowers("aten.logsumexp.default")
def logsumexp(b: NodeBuilder, x: Value, dim: int | Sequence[int], keepdim: bool = False) -> Value:
    dims = all_dims(dim, x.rank)
    if x.is_empty:
        return b.of_nothing(-math.inf, b.shape, b.dtype, x)
    peak = b.reduce("max", x, dims, keepdim=True)
    # A peak that is infinite is the result already; infinity minus itself would be NaN.
    endless = b.compare("eq", b.writer.unary("abs", peak), b.constant(math.inf, (), x.dtype))
    peak = b.select(endless, b.constant(0.0, (), x.dtype), peak)
    total = b.writer.unary("log", b.reduce("sum", b.writer.unary("exp", b.binary("sub", x, peak)), dims, keepdim=True))
    return b.reshape(b.binary("add", total, peak), b.shape)


@lowers("aten.linalg_vector_norm.default")
def vector_norm(b: NodeBuilder, x: Value, ord: Number = 2, dim: int | Sequence[int] | None = None,
                keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    x, dims = b.cast(x, b.dtype), all_dims(dim, x.rank)
    if ord == 2:
        return _root(b, b.reduce("sum", b.binary("mul", x, x), dims, keepdim))
    if ord == 1:
        return b.reduce("sum", b.writer.unary("abs", x), dims, keepdim)
    if abs(ord) == math.inf:
        return b.reduce("max" if ord > 0 else "min", b.writer.unary("abs", x), dims, keepdim)
    zero = b.compare("eq", x, b.constant(0.0, (), x.dtype))
    if ord == 0:
        return b.reduce("sum", b.select(zero, b.constant(0.0, (), x.dtype), b.constant(1.0, (), x.dtype)), dims, keepdim)
    # The derivative is 0 at 0, whatever the order: what is raised to a power is never 0.
    raised = _raised(b, b.writer.unary("abs", x), zero, float(ord))
    total = b.reduce("sum", raised, dims, keepdim)
    return _raised(b, total, b.compare("eq", total, b.constant(0.0, (), x.dtype)), 1 / ord)


def _raised(b: NodeBuilder, x: Value, zero: Value, exponent: float) -> Value:
    """`x` to a power, without a derivative where it is 0."""
    one, of_zero = b.constant(1.0, (), x.dtype), b.constant(0.0 if exponent > 0 else math.inf, (), x.dtype)
    return b.select(zero, of_zero, b.binary("pow", b.select(zero, one, x), b.constant(exponent, (), x.dtype)))
