# ===- slopes.py - derivatives of what is written in terms of others -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Derivatives of the functions of which the derivative of the parts would be worse than that of the whole.

`segue.compile` takes derivatives of what it is given. Those of branches that are not chosen, of constants that stand for a
limit, of sums that cancel would be zero, NaN or inexact where the function is smooth. There an operator becomes its value, to
which nothing flows back, plus its slope times a zero that has a derivative. Where a slope is infinite, the largest number is
taken; where an argument is, none.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Union

import torch
from torch.types import Number

from ..fx import Operator
from . import elementary, special
from .table import DECOMPOSITIONS, Attempt, Written

aten = torch.ops.aten

Slopes = Callable[..., Union[torch.Tensor, tuple[torch.Tensor, ...]]]

#: Operator -> function of its arguments and its value that gives the derivative by each argument that is a tensor. It calls the
#: functions here and no operators: these would be given slopes again, without an end.
_SLOPES: dict[Operator, Slopes] = {
    aten.atan.default: lambda x, y: 1 / (x * x + 1),
    aten.asin.default: lambda x, y: torch.rsqrt(1 - x * x),
    aten.acos.default: lambda x, y: -torch.rsqrt(1 - x * x),
    aten.sinh.default: lambda x, y: elementary.cosh(x),
    aten.cosh.default: lambda x, y: elementary.sinh(x),
    aten.asinh.default: lambda x, y: torch.rsqrt(x * x + 1),
    aten.acosh.default: lambda x, y: torch.rsqrt(x * x - 1),
    aten.atanh.default: lambda x, y: 1 / (1 - x * x),
    aten.angle.default: lambda x, y: torch.zeros_like(x),
    aten.atan2.default: lambda y, x, angle: _by_square(x, -y, x * x + y * y),
    aten.hypot.default: lambda x, y, length: (x / length, y / length),
    aten.copysign.Tensor: lambda x, y, z: (_same_sign(z, x), torch.zeros_like(y)),
    aten.copysign.Scalar: lambda x, y, z: _same_sign(z, x),
    aten.erfc.default: lambda x, y: -2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.erfinv.default: lambda x, y: math.sqrt(math.pi) / 2 * torch.exp(y * y),
    aten.special_erfcx.default: lambda x, y: 2 * x * y - 2 / math.sqrt(math.pi),
    aten.special_ndtri.default: lambda x, y: math.sqrt(2 * math.pi) * torch.exp(y * y / 2),
    aten.lgamma.default: lambda x, y: special.digamma(x),
    aten.digamma.default: lambda x, y: special.polygamma_of_order(1, x),
    aten.polygamma.default: lambda n, x, y: special.polygamma_of_order(n + 1, x),
    aten.i0.default: lambda x, y: special.i1(x),
    aten.special_i0e.default: lambda x, y: special.i1e(x) - torch.sign(x) * y,
    aten.special_i1.default: lambda x, y: special.i0(x) - _over(y, x),
    aten.special_i1e.default: lambda x, y: special.i0e(x) - torch.sign(x) * y - _over(y, x),
}


def _by_square(first: torch.Tensor, second: torch.Tensor, square: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    some = square != 0
    square = torch.where(some, square, 1.0)
    return torch.where(some, first / square, 0.0), torch.where(some, second / square, 0.0)


def _same_sign(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, 0.0, z / torch.where(x == 0, 1.0, x))


def _over(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y / x, which is 1/2 where both vanish."""
    near = x.abs() < 1e-7
    return torch.where(near, 0.5, y / torch.where(near, 1.0, x))


def _zero_of(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Zero, with the derivative 1 where `x` is finite; NaN where `value` is."""
    x = torch.where(x.isfinite() | value.isnan(), x, 0.0)
    return x - x.detach()


def _bounded(slope: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A slope of which zero times is zero, except where the value is NaN anyhow."""
    most = torch.finfo(slope.dtype).max
    bounded = torch.where(slope.isnan(), 0.0, slope.clamp(-most, most))
    return torch.where(value.isnan(), slope, bounded)


def _with_slopes(function: Written, slopes: Slopes) -> Written:
    @functools.wraps(function)
    def whole(*args: torch.Tensor | Number) -> Attempt[torch.Tensor]:
        value = function(*args)
        if value is NotImplemented:
            return value
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        value, fixed = value.detach(), [a.detach().to(wide) if isinstance(a, torch.Tensor) else a for a in args]
        found = slopes(*fixed, value.to(wide))
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        for x, slope in zip(tensors, found if isinstance(found, tuple) else (found,), strict=True):
            if x.is_floating_point():
                value = value + (_bounded(slope.detach(), value) * _zero_of(x.to(wide), value)).to(value.dtype)
        return value

    return whole


#: Operators that give a value and where it is within a range: gradients go straight through to the first operand there.
_STRAIGHT_THROUGH = (aten.fake_quantize_per_tensor_affine_cachemask.default, aten.fake_quantize_per_channel_affine_cachemask.default)


def _straight_through(function: Written) -> Written:
    @functools.wraps(function)
    def whole(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value, within = function(x, *others)
        return value.detach() + torch.where(within, _zero_of(x, value), 0.0), within

    return whole


def differentiable() -> dict[Operator, Written]:
    """The decompositions, for whoever takes the derivative of what they give."""
    return (DECOMPOSITIONS | {op: _with_slopes(DECOMPOSITIONS[op], slopes) for op, slopes in _SLOPES.items()} |
            {op: _straight_through(DECOMPOSITIONS[op]) for op in _STRAIGHT_THROUGH})
