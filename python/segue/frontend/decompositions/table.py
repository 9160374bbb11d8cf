# ===- table.py - how a decomposition is entered -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How a decomposition is entered, and in which element type it computes."""

from __future__ import annotations

import functools
from typing import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind, elementwise_dtypes

from .fits import Fit

#: Operator -> function, as AOTAutograd and `torch.export` take decompositions.
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable] = {}

#: Function of PyTorch -> function: called in its place before autograd sees it, which has no derivative then that could be taken
#: apart. What they cannot write they leave to the function itself.
BEFORE_AUTOGRAD: dict[Callable, Callable] = {}


def writes(*operators: torch._ops.OpOverload):
    """Enter a function as what is done in the place of operators."""

    def enter(function: Callable) -> Callable:
        for operator in operators:
            assert operator not in DECOMPOSITIONS, f"{operator} is entered twice"
            DECOMPOSITIONS[operator] = function
        return function

    return enter


def replaces(*functions: Callable):
    """Enter a function as what is called in the place of others before derivatives are taken."""

    def enter(function: Callable) -> Callable:
        BEFORE_AUTOGRAD.update(dict.fromkeys(functions, function))
        return function

    return enter


def in_floats(function: Callable) -> Callable:
    """Of tensors and numbers, promoted as PyTorch promotes them: integers become floats, and halves are computed in f32."""

    @functools.wraps(function)
    def promoted(*args, **kwargs):
        wide, result = elementwise_dtypes(*args, type_promotion_kind=Kind.INT_TO_FLOAT)
        args = [a.to(wide) if isinstance(a, torch.Tensor) else a for a in args]
        return function(*args, **kwargs).to(result)

    return promoted


def polynomial(fit: Fit, x: torch.Tensor) -> torch.Tensor:
    """The value of a fit at `x`, which lies in its interval."""
    return horner(fit.coefficients, (x - fit.low) * (2 / (fit.high - fit.low)) - 1)


def horner(coefficients, x: torch.Tensor) -> torch.Tensor:
    """The polynomial with these coefficients, from the constant one."""
    first, *others = reversed(coefficients)
    value = torch.full_like(x, first)
    for c in others:
        value = value * x + c
    return value


def by_parts(condition: torch.Tensor, function: Callable, otherwise: Callable, x: torch.Tensor, inside: float, outside: float):
    """`function(x)` where the condition holds and `otherwise(x)` elsewhere; each sees a harmless number in the place of the others.

    What is not chosen would have a gradient of 0 times infinity.
    """
    return torch.where(condition, function(torch.where(condition, x, inside)), otherwise(torch.where(condition, outside, x)))


def odd(function: Callable, x: torch.Tensor) -> torch.Tensor:
    """A function of magnitudes that has the sign of `x` and, near 0, the slope 1."""
    value = function(x.abs())
    return torch.where(x == 0, x, torch.where(x < 0, -value, value))
