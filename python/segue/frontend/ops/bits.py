# ===- bits.py - bits of integers ---------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Bits of integers, and shifts of them. Of truth values, which have one bit, these are the logical operators.

The dialect has `and` and `or` of bits. A shift to the left is a product with a power of two, one to the right a quotient that is rounded down.
"""

from __future__ import annotations

from typing import Callable

import torch

from ..writer import Value
from .integers import floor_division
from .table import NodeBuilder, ValueOrNumber, lowers


def _enter(name: str, function: Callable[[NodeBuilder, Value, Value], Value]) -> None:
    """Enters a function of two values under the names that PyTorch has for it."""

    @lowers(*(f"aten.bitwise_{name}.{overload}" for overload in ("Tensor", "Scalar", "Scalar_Tensor")),
            *(f"aten.__{name}__.{overload}" for overload in ("Tensor", "Scalar")))
    def lowering(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber) -> Value:
        return function(b, b.value(x, dtype=b.dtype), b.value(y, dtype=b.dtype))


def _xor(b: NodeBuilder, x: Value, y: Value) -> Value:
    if x.dtype == torch.bool:
        return b.compare("ne", x, y)
    return b.binary("sub", b.binary("or", x, y), b.binary("and", x, y))


_enter("and", lambda b, x, y: b.binary("and", x, y))
_enter("or", lambda b, x, y: b.binary("or", x, y))
_enter("xor", _xor)


@lowers("aten.bitwise_not.default")
def bitwise_not(b: NodeBuilder, x: Value) -> Value:
    return b.writer.unary("not", x) if x.dtype == torch.bool else b.binary("sub", b.constant(-1, (), x.dtype), x)


# --- shifts ---------------------------------------------------------------------------------


def _width(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).bits


def _power(b: NodeBuilder, places: Value, most: int) -> Value:
    """2 to the power of each element, which is from 0 to `most`; that of the highest bit is negative."""
    powers = torch.tensor([1 << i for i in range(most)] + [-(1 << most) if most == _width(places.dtype) - 1 else 1 << most], dtype=places.dtype)
    return b.gather(b.constant_tensor(powers), b.cast(places, torch.int64))


def _reaches(b: NodeBuilder, places: Value, end: int) -> Value:
    """Whether a shift is by so many places that it is by none from 0 to below `end`."""
    zero, behind = b.constant(0, (), places.dtype), b.constant(end, (), places.dtype)
    return b.binary("or", b.compare("lt", places, zero), b.compare("ge", places, behind))


@lowers("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.bitwise_left_shift.Scalar_Tensor",
        "aten.__lshift__.Tensor", "aten.__lshift__.Scalar")
def left_shift(b: NodeBuilder, x: ValueOrNumber, places: ValueOrNumber) -> Value:
    x, places = b.value(x, dtype=b.dtype), b.value(places, dtype=b.dtype)
    zero, out = b.constant(0, (), b.dtype), _reaches(b, places, _width(b.dtype))
    return b.select(out, zero, b.binary("mul", x, _power(b, b.select(out, zero, places), _width(b.dtype) - 1)))


@lowers("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.bitwise_right_shift.Scalar_Tensor",
        "aten.__rshift__.Tensor", "aten.__rshift__.Scalar")
def right_shift(b: NodeBuilder, x: ValueOrNumber, places: ValueOrNumber) -> Value:
    """The sign comes in from the left; it is all that is left beyond the last bit."""
    x, places = b.value(x, dtype=b.dtype), b.value(places, dtype=b.dtype)
    zero, minus, last = b.constant(0, (), b.dtype), b.constant(-1, (), b.dtype), _width(b.dtype) - 1
    out = _reaches(b, places, last)
    quotient, _ = floor_division(b, x, _power(b, b.select(out, zero, places), last - 1))
    return b.select(out, b.select(b.compare("lt", x, zero), minus, zero), quotient)
