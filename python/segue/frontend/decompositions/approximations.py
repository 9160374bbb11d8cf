# ===- approximations.py - how functions are put together ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How functions are put together: of fitted polynomials, of parts, of what is known for magnitudes."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

import torch


OfTensor = Callable[[torch.Tensor], torch.Tensor]


class Fit(NamedTuple):
    """A polynomial in the variable that runs from -1 to 1 over an interval.

    low, high : the interval
    coefficients : from the constant one
    """

    low: float
    high: float
    coefficients: tuple[float, ...]


def polynomial(fit: Fit, x: torch.Tensor) -> torch.Tensor:
    """The value of a fit at `x`, which lies in its interval."""
    return horner(fit.coefficients, (x - fit.low) * (2 / (fit.high - fit.low)) - 1)


def horner(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    """The polynomial with these coefficients, from the constant one."""
    first, *others = reversed(coefficients)
    value = torch.full_like(x, first)
    for c in others:
        value = value * x + c
    return value


def by_parts(condition: torch.Tensor, function: OfTensor, otherwise: OfTensor, x: torch.Tensor, inside: float,
             outside: float) -> torch.Tensor:
    """`function(x)` where the condition holds and `otherwise(x)` elsewhere; each sees a harmless number in the place of the others.

    What is not chosen would have a gradient of 0 times infinity.
    """
    return torch.where(condition, function(torch.where(condition, x, inside)), otherwise(torch.where(condition, outside, x)))


def odd(function: OfTensor, x: torch.Tensor) -> torch.Tensor:
    """A function of magnitudes that has the sign of `x` and, near 0, the slope 1."""
    value = function(x.abs())
    return torch.where(x == 0, x, torch.where(x < 0, -value, value))
