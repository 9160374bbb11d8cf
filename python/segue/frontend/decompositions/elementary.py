# ===- elementary.py - inverse and hyperbolic functions, signs -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Inverse and hyperbolic functions, logarithms, signs and what is made of them.

Formulas are those that lose no digits near 0 and 1 and do not overflow before the result does.
"""

from __future__ import annotations

import math
from typing import Callable

import torch
from torch.types import Number

from . import fits
from .approximations import by_parts, odd, polynomial
from .table import in_floats, writes

aten = torch.ops.aten


def _large(x: torch.Tensor) -> float:
    """Beyond it x^2 + 1 is x^2."""
    return 1e9 if x.dtype == torch.float64 else 1e5


# --- angles ---------------------------------------------------------------------------


def _atan_of_positive(x: torch.Tensor) -> torch.Tensor:
    """Beyond tan(3 pi / 8) by -1/x, beyond tan(pi / 8) by (x - 1) / (x + 1)."""
    far, near = x > math.tan(3 * math.pi / 8), x > math.tan(math.pi / 8)
    t = torch.where(far, -1 / torch.where(far, x, 1.0), torch.where(near, (x - 1) / torch.where(far, 2.0, x + 1), x))
    t = torch.where(x.isnan(), x, t)
    angle = t * polynomial(fits.ATAN, t * t)
    return torch.where(far, angle + math.pi / 2, torch.where(near, angle + math.pi / 4, angle))


def _atan(x: torch.Tensor) -> torch.Tensor:
    return odd(_atan_of_positive, x)


@writes(aten.atan.default)
@in_floats
def atan(x: torch.Tensor) -> torch.Tensor:
    return _atan(x)


@writes(aten.asin.default)
@in_floats
def asin(x: torch.Tensor) -> torch.Tensor:
    return _atan(x / torch.sqrt((1 - x) * (1 + x)))


@writes(aten.acos.default)
@in_floats
def acos(x: torch.Tensor) -> torch.Tensor:
    return 2 * _atan(torch.sqrt((1 - x) / (1 + x)))


def _is_negative(x: torch.Tensor) -> torch.Tensor:
    """The sign bit, of zeros too."""
    return (x < 0) | ((x == 0) & (1 / x < 0))


@writes(aten.atan2.default)
@in_floats
def atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    across, up = x.abs(), y.abs()
    low, high = torch.minimum(across, up), torch.maximum(across, up)
    ratio = low / torch.where(high == 0, 1.0, high)
    angle = _atan_of_positive(torch.where((low == high) & (low != 0), 1.0, ratio))  # infinities too
    angle = torch.where(up > across, math.pi / 2 - angle, angle)
    angle = torch.where(_is_negative(x), math.pi - angle, angle)
    return torch.where(_is_negative(y), -angle, angle)


@writes(aten.angle.default)
@in_floats
def angle(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), x, torch.where(x < 0, torch.full_like(x, math.pi), 0.0))


# --- hyperbolic functions ---------------------------------------------------------------


def _cosh_of_positive(x: torch.Tensor) -> torch.Tensor:
    half = torch.exp(x / 2)  # exp(x) would overflow before the result
    return (0.5 * half) * half + 0.5 * torch.exp(-x)


def _sinh_of_positive(x: torch.Tensor) -> torch.Tensor:
    def near(x: torch.Tensor) -> torch.Tensor:
        e = torch.expm1(x)
        return (e + e / (e + 1)) / 2

    def far(x: torch.Tensor) -> torch.Tensor:
        half = torch.exp(x / 2)
        return (0.5 * half) * half - 0.5 * torch.exp(-x)

    return by_parts(x < 1, near, far, x, 0.5, 1.0)


@writes(aten.cosh.default)
@in_floats
def cosh(x: torch.Tensor) -> torch.Tensor:
    return _cosh_of_positive(x.abs())


@writes(aten.sinh.default)
@in_floats
def sinh(x: torch.Tensor) -> torch.Tensor:
    return odd(_sinh_of_positive, x)


@writes(aten.asinh.default)
@in_floats
def asinh(x: torch.Tensor) -> torch.Tensor:
    def near(x: torch.Tensor) -> torch.Tensor:
        return torch.log1p(x + x * x / (1 + torch.sqrt(x * x + 1)))

    return odd(lambda x: by_parts(x < _large(x), near, lambda x: torch.log(x) + math.log(2), x, 1.0, 1.0), x)


@writes(aten.acosh.default)
@in_floats
def acosh(x: torch.Tensor) -> torch.Tensor:
    def near(x: torch.Tensor) -> torch.Tensor:
        return torch.log1p((x - 1) + torch.sqrt(x - 1) * torch.sqrt(x + 1))

    return by_parts(x > _large(x), lambda x: torch.log(x) + math.log(2), near, x, 1.0, 2.0)


@writes(aten.atanh.default)
@in_floats
def atanh(x: torch.Tensor) -> torch.Tensor:
    return odd(lambda x: 0.5 * torch.log1p(2 * x / (1 - x)), x)


# --- logarithms and lengths -----------------------------------------------------------------


@writes(aten.log10.default)
@in_floats
def log10(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x) * (1 / math.log(10))


@writes(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(start: torch.Tensor | Number, end: torch.Tensor | Number, steps: int, base: float = 10.0, *,
             dtype: torch.dtype | None = None, **given: object) -> torch.Tensor:
    table = torch._decomp.global_decomposition_table["post_autograd"]
    written: Callable[..., torch.Tensor] = table[aten.logspace.default]
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return written(start, end, steps, base, dtype=dtype, **given)
    start, end = (x.to(dtype) if isinstance(x, torch.Tensor) else int(x) for x in (start, end))
    powers = written(start, end, steps, base, dtype=torch.float64, **given)
    # A whole power, which kernels give but for its last digits, is not cut to the number below it.
    whole = powers.round()
    return torch.where((powers - whole).abs() < 1e-12 * whole.abs(), whole, powers).to(dtype)


@writes(aten.hypot.default)
@in_floats
def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x.abs(), y.abs()
    low, high = torch.minimum(x, y), torch.maximum(x, y)
    ratio = low / torch.where((high == 0) | (high == math.inf), 1.0, high)
    length = high * torch.sqrt(1 + ratio * ratio)
    return torch.where((x == math.inf) | (y == math.inf), math.inf, torch.where(high == math.inf, high, length))


# --- signs ------------------------------------------------------------------------------------


@writes(aten.signbit.default)
def signbit(x: torch.Tensor) -> torch.Tensor:
    return _is_negative(x) if x.is_floating_point() else x < 0


@writes(aten.copysign.Tensor, aten.copysign.Scalar)
@in_floats
def copysign(x: torch.Tensor, y: torch.Tensor | Number) -> torch.Tensor:
    y = y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype)
    return torch.where(_is_negative(y), -x.abs(), x.abs())


@writes(aten.fmax.default)
def fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = _promoted(x, y)
    return torch.where((x >= y) | _is_nan(y), x, y)  # of equals the first has the gradient


@writes(aten.fmin.default)
def fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = _promoted(x, y)
    return torch.where((x <= y) | _is_nan(y), x, y)


def _promoted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.result_type(x, y)
    return x.to(dtype), y.to(dtype)


def _is_nan(x: torch.Tensor) -> torch.Tensor:
    return x.isnan() if x.is_floating_point() else x != x


@writes(aten.ldexp.Tensor)
def ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return x * torch.pow(2.0, exponent)


@writes(aten.round.decimals)
def round_decimals(x: torch.Tensor, decimals: int) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals >= 0 else torch.round(x / scale) * scale


@writes(aten.frexp.Tensor)
def frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    special = ~wide.isfinite() | (wide.abs() < torch.finfo(wide.dtype).tiny)  # kernels read the subnormal as 0
    part, exponent = torch.where(special, 0.5, wide.abs()), torch.zeros_like(wide)
    for k in _powers(x.dtype):  # all steps are exact
        large, small = part >= 2.0**k, part < 2.0 ** (1 - k)
        part = torch.where(large, part * 2.0**-k, torch.where(small, part * 2.0**k, part))
        exponent = torch.where(large, exponent + k, torch.where(small, exponent - k, exponent))
    part = torch.where(wide < 0, -part, part) / 2
    return torch.where(special, wide, part).to(x.dtype), torch.where(special, 0.0, exponent + 1).to(torch.int32)


def _powers(dtype: torch.dtype) -> list[int]:
    """Steps that bring a magnitude between 1 and 2."""
    return [1 << k for k in reversed(range(10 if dtype == torch.float64 else 7))]
