# ===- special.py - error functions, gamma, Bessel functions --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Error functions, the gamma function and its logarithmic derivatives, Bessel functions.

Where a function is smooth it is a polynomial (fits.py); elsewhere it is taken there by what it fulfils: symmetries,
recurrences, asymptotic series.
"""

from __future__ import annotations

import math

import torch

from . import fits
from .approximations import Fit, OfTensor, by_parts, horner, polynomial
from .table import Attempt, in_floats, writes

aten = torch.ops.aten


# --- error functions --------------------------------------------------------------------


def _exp_of_minus_square(x: torch.Tensor) -> torch.Tensor:
    """exp(-x^2), whose exponent is given in two parts: a rounded one would cost half of the digits."""
    head = x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32).to(x.dtype)
    return torch.exp(-head * head) * torch.exp(-(x - head) * (x + head))


def _erfcx_of_positive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    endless = x > 1e15
    x = torch.where(endless, 1.0, x)
    value = polynomial(fits.ERFCX, (x - 3.75) / (x + 3.75)) / (1 + 2 * x)
    return value, endless


@writes(aten.special_erfcx.default)
@in_floats
def erfcx(x: torch.Tensor) -> torch.Tensor:
    value, endless = _erfcx_of_positive(x.abs())
    value = torch.where(endless, 1 / (x.abs() * math.sqrt(math.pi)), value)
    # Beyond 27 the square alone overflows.
    below = torch.where((x < 0) & (x > -27), x, 0.0)
    below = 2 / torch.where(below < 0, _exp_of_minus_square(below), 1.0)
    return torch.where(x < 0, torch.where(x <= -27, math.inf, below - value), value)


@writes(aten.erfc.default)
@in_floats
def erfc(x: torch.Tensor) -> torch.Tensor:
    value, _ = _erfcx_of_positive(x.abs())
    near = x.abs() < 28  # beyond it the result is 0, or 2
    tail = torch.where(near, value * _exp_of_minus_square(torch.where(near, x, 0.0)), 0.0)
    return torch.where(x.isnan(), x, torch.where(x < 0, 2 - tail, tail))


def _erfinv_over_x(w: torch.Tensor) -> torch.Tensor:
    """By w = -log(1 - x^2)."""
    root = torch.sqrt(w.clamp(min=1))
    far = torch.where(root > 6.25, polynomial(fits.ERFINV_FARTHEST, root.clamp(6.25, 27.5)), polynomial(fits.ERFINV_FAR, root.clamp(2.5, 6.25)))
    return torch.where(w > 6.25, far, polynomial(fits.ERFINV_NEAR, w.clamp(0, 6.25)))


@writes(aten.erfinv.default)
@in_floats
def erfinv(x: torch.Tensor) -> torch.Tensor:
    inside = x.abs() < 1
    y = torch.where(inside, x, 0.0)
    value = y * _erfinv_over_x(-torch.log1p(-y) - torch.log1p(y))
    ends = torch.where(x == 1, torch.full_like(x, math.inf), torch.where(x == -1, torch.full_like(x, -math.inf), math.nan))
    return torch.where(inside, value, ends)


@writes(aten.special_ndtri.default)
@in_floats
def ndtri(p: torch.Tensor) -> torch.Tensor:
    inside = (p > 0) & (p < 1)
    q = torch.where(inside, p, 0.5)
    value = math.sqrt(2) * (2 * q - 1) * _erfinv_over_x(-torch.log(4 * q) - torch.log1p(-q))
    ends = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, math.nan)).to(p.dtype)
    return torch.where(inside, value, ends)


# --- the gamma function -------------------------------------------------------------------

#: Of the asymptotic series of lgamma by 1/x^2: B(2k) / (2k (2k - 1)).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
#: Of that of digamma by 1/x^2: B(2k) / 2k.
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
#: B(2k), from k = 1.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
#: Of polygamma: beyond it factorials leave the floats.
_HIGHEST_ORDER = 20
#: From here on the series are exact to 1e-17.
_FAR = 12.0


def _sin_pi(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """sin(pi x) and cos(pi x), exact at whole and half numbers."""
    part = x - 2 * torch.round(x / 2)  # in [-1, 1]
    nearest = torch.round(2 * part)
    rest = (part - nearest / 2) * math.pi
    sine, cosine = torch.sin(rest), torch.cos(rest)
    turned = nearest.abs() == 1
    s = torch.where(turned, nearest * cosine, torch.where(nearest.abs() == 2, -sine, sine))
    c = torch.where(turned, -nearest * sine, torch.where(nearest.abs() == 2, -cosine, cosine))
    return s, c


def _lgamma_of_positive(x: torch.Tensor) -> torch.Tensor:
    # Into [1, 3] by lgamma(x + 1) = lgamma(x) + log(x), or to the series.
    far = x > _FAR
    y = torch.where(far, 2.0, x)
    below = torch.where(y < 1, y, 1.0)
    y = torch.where(y < 1, y + 1, y)
    factor = torch.ones_like(y)
    for _ in range(int(_FAR) - 3):
        beyond = y > 3
        y = torch.where(beyond, y - 1, y)
        factor = torch.where(beyond, factor * y, factor)
    near = (y - 1) * (y - 2) * polynomial(fits.LGAMMA, y) + torch.log(factor) - torch.log(below)
    z = torch.where(far, x, _FAR)
    endless = z == math.inf
    z = torch.where(endless, _FAR, z)
    log = torch.log(z)
    series = (z - 0.5) * (log - 1) + (0.5 * math.log(2 * math.pi) - 0.5) + horner(_STIRLING, 1 / (z * z)) / z
    return torch.where(far, torch.where(endless, math.inf, series), near)


@writes(aten.lgamma.default)
@in_floats
def lgamma(x: torch.Tensor) -> torch.Tensor:
    negative = x < 0
    value = _lgamma_of_positive(torch.where(negative, 1 - x, x))
    sine = _sin_pi(torch.where(negative, x, 0.5))[0].abs()
    reflected = math.log(math.pi) - torch.log(sine) - value
    result = torch.where(negative, torch.where(x == -math.inf, math.inf, reflected), value)
    return torch.where((x == 0) | (negative & (x == torch.floor(x))), math.inf, result)


def _shifted(x: torch.Tensor, term: OfTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` moved to where series hold, and the sum of `term` over the steps to there."""
    total = torch.zeros_like(x)
    for _ in range(int(_FAR)):
        near = x < _FAR
        total = torch.where(near, total + term(torch.where(near, x, 1.0)), total)
        x = torch.where(near, x + 1, x)
    return x, total


@writes(aten.digamma.default)
@in_floats
def digamma(x: torch.Tensor) -> torch.Tensor:
    negative = x < 0
    y, total = _shifted(torch.where(negative, 1 - x, x), lambda y: 1 / y)
    inverse = 1 / y
    value = torch.log(y) - 0.5 * inverse - horner(_DIGAMMA, inverse * inverse) * inverse * inverse - total
    sine, cosine = _sin_pi(torch.where(negative, x, 0.5))
    whole = negative & (x == torch.floor(x))
    reflected = value - math.pi * cosine / torch.where(sine == 0, 1.0, sine)
    result = torch.where(negative, torch.where(whole, math.nan, reflected), value)
    return torch.where(x == 0, -1 / x, torch.where(x == math.inf, x, result))


def _derivative_of_cotangent(n: int, cotangent: torch.Tensor) -> torch.Tensor:
    """The derivative of pi cot(pi x) of order n, a polynomial in the cotangent."""
    coefficients = [0.0, math.pi]
    for _ in range(n):  # cot' = -(1 + cot^2)
        slopes = [-math.pi * k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [a + b for a, b in zip(slopes + [0.0, 0.0], [0.0, 0.0] + slopes)]
    return horner(coefficients, cotangent)


def polygamma_of_order(n: int, x: torch.Tensor) -> torch.Tensor:
    """The derivative of digamma of order n: a sum, a series behind it, and a reflection below zero."""
    negative = x < 0
    y, total = _shifted(torch.where(negative, 1 - x, x), lambda y: y ** -(n + 1.0))
    inverse = 1 / y
    square = inverse * inverse
    series = [b * math.factorial(2 * k + n - 1) / math.factorial(2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    power = inverse**n
    tail = power * (math.factorial(n - 1) + 0.5 * math.factorial(n) * inverse + square * horner(series, square))
    value = (-1) ** (n + 1) * (math.factorial(n) * total + tail)
    sine, cosine = _sin_pi(torch.where(negative, x, 0.5))
    pole = (x == 0) | (negative & (sine == 0))
    reflected = (-1) ** n * value - _derivative_of_cotangent(n, cosine / torch.where(pole, 1.0, sine))
    return torch.where(pole, (-1) ** (n + 1) * math.inf, torch.where(negative, reflected, value))


@writes(aten.polygamma.default)
def polygamma(n: int, x: torch.Tensor) -> Attempt[torch.Tensor]:
    if not 0 <= n <= _HIGHEST_ORDER:
        return NotImplemented
    return torch.digamma(x) if n == 0 else in_floats(lambda x: polygamma_of_order(n, x))(x)


# --- Bessel functions -----------------------------------------------------------------------


def _scaled_bessel(near: Fit, far: Fit, x: torch.Tensor) -> torch.Tensor:
    """exp(-x) I(x) of magnitudes, without the factor that `near` may lack."""
    return by_parts(x <= 8, lambda x: polynomial(near, x), lambda x: polynomial(far, 1 / x) * torch.rsqrt(x), x, 1.0, 9.0)


def _i0e(x: torch.Tensor) -> torch.Tensor:
    return _scaled_bessel(fits.I0_NEAR, fits.I0_FAR, x.abs())


def _i1e(x: torch.Tensor) -> torch.Tensor:
    def of_magnitudes(x: torch.Tensor) -> torch.Tensor:
        value = _scaled_bessel(fits.I1_NEAR, fits.I1_FAR, x)
        return torch.where(x <= 8, x * value, value)

    value = of_magnitudes(x.abs())
    return torch.where(x < 0, -value, value)


def _grown(x: torch.Tensor, scaled: torch.Tensor) -> torch.Tensor:
    """exp(|x|) times the scaled function, in two steps: the exponential alone overflows before the result."""
    half = torch.exp(x.abs() / 2)
    return (scaled * half) * half


@writes(aten.special_i0e.default)
@in_floats
def i0e(x: torch.Tensor) -> torch.Tensor:
    return _i0e(x)


@writes(aten.special_i1e.default)
@in_floats
def i1e(x: torch.Tensor) -> torch.Tensor:
    return _i1e(x)


@writes(aten.i0.default, aten.special_modified_bessel_i0.default)
@in_floats
def i0(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() == math.inf, x.abs(), _grown(x, _i0e(x)))


@writes(aten.special_i1.default, aten.special_modified_bessel_i1.default)
@in_floats
def i1(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() == math.inf, x, _grown(x, _i1e(x)))
