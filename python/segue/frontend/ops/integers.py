# ===- integers.py - whole quotients, remainders, and counts ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Quotients that are whole numbers, their remainders, common divisors, and how many elements fall into each bin.

The remainder of floats is exact (`segue.rem`), and the quotient that is rounded down follows from it: the quotient
itself may round up to a whole number that it is not.

The dialect divides floats alone. A quotient of integers is found in them: each division of the remainder by the
divisor in f32 leaves a remainder 2^22 times as small, until it is less than a few divisors. A divisor that is 0 is an
error when it runs, as in PyTorch.
"""

from __future__ import annotations

import math

import torch
from torch.types import Number

from ..writer import Value
from .elementwise import div
from .table import NodeBuilder, Unsupported, ValueOrNumber, lowers


def floor_division(b: NodeBuilder, x: Value, divisor: ValueOrNumber) -> tuple[Value, Value]:
    """The quotient of integers, rounded down, and the remainder, which has the sign of the divisor, which is a number or a value; it is nowhere 0."""

    def number(value: Number) -> Value:
        return b.constant(value, (), x.dtype)

    zero, by, rest = number(0), divisor if isinstance(divisor, Value) else number(divisor), x
    quotient, floats = zero, b.cast(by, torch.float32) if isinstance(divisor, Value) else b.constant(float(divisor))
    for _ in range(3 if x.dtype == torch.int64 else 2):
        part = b.cast(b.writer.unary("floor", b.binary("div", b.cast(rest, torch.float32), floats)), x.dtype)
        quotient, rest = b.binary("add", quotient, part), b.binary("sub", rest, b.binary("mul", part, by))

    def compared(above: str, below: str, value: Value) -> Value:
        """The first comparison where the divisor is above 0, and the second elsewhere."""
        if not isinstance(divisor, Value):
            return b.compare(above if divisor > 0 else below, rest, value)
        return b.select(b.compare("gt", by, zero), b.compare(above, rest, value), b.compare(below, rest, value))

    for _ in range(2):  # the remainder is between 0 and the divisor
        part = b.select(compared("lt", "gt", zero), number(-1), b.select(compared("ge", "le", by), number(1), zero))
        quotient, rest = b.binary("add", quotient, part), b.binary("sub", rest, b.binary("mul", part, by))
    return quotient, rest


def truncated_division(b: NodeBuilder, x: Value, divisor: ValueOrNumber) -> Value:
    """The quotient of integers, rounded towards zero: one more where a quotient below zero is no whole number."""
    zero = b.constant(0, (), x.dtype)
    quotient, rest = floor_division(b, x, divisor)
    negative = b.compare("ne", b.compare("lt", x, zero), b.compare("lt", b.value(divisor, dtype=x.dtype), zero))
    return b.binary("add", quotient, b.cast(b.binary("and", negative, b.compare("ne", rest, zero)), x.dtype))


def _divisor(b: NodeBuilder, x: ValueOrNumber) -> ValueOrNumber:
    """A number, or a value of the type of the result with a look-up that finds nothing where it is 0: the error that PyTorch raises."""
    if not isinstance(x, Value):
        if x == 0:
            raise Unsupported("integers divided by 0")
        return int(x)
    x = b.cast(x, b.dtype)
    none = b.compare("eq", x, b.constant(0, (), x.dtype))
    return b.binary("mul", x, b.gather(b.constant(1, (1,), x.dtype), b.cast(none, torch.int64)))


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(b, x, y)
    if b.dtype.is_floating_point:
        return _rounded_down(b, x, y) if rounding_mode == "floor" else b.writer.unary("trunc", div(b, x, y))
    x, y = b.value(x, dtype=b.dtype), _divisor(b, y)
    return floor_division(b, x, y)[0] if rounding_mode == "floor" else truncated_division(b, x, y)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b: NodeBuilder, x: Value, y: ValueOrNumber) -> Value:
    return div_mode(b, x, y, rounding_mode="floor")


def _wide(b: NodeBuilder, x: ValueOrNumber) -> Value:
    """A float operand of a quotient, in f32."""
    return b.value(x, dtype=torch.float32)


def _remainders(b: NodeBuilder, x: Value, y: Value) -> tuple[Value, Value]:
    """The remainder of floats with the sign of `x`, and whether that of `y` is another one."""
    rest, zero = b.binary("rem", x, y), b.constant(0.0)
    differs = b.compare("ne", *(b.cast(b.compare("lt", v, zero), torch.int32) for v in b.broadcast_together(rest, y)))
    return rest, b.binary("and", b.compare("ne", rest, zero), differs)


def _rounded_down(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber) -> Value:
    """PyTorch's steps: the quotient of what is divisible, moved to a whole number, where rounding left none."""
    x, y = _wide(b, x), _wide(b, y)
    rest, differs = _remainders(b, x, y)
    quotient = b.binary("div", b.binary("sub", x, rest), y)
    quotient = b.binary("sub", quotient, b.select(differs, b.constant(1.0), b.constant(0.0)))
    whole = b.writer.unary("floor", quotient)
    far = b.compare("gt", b.binary("sub", quotient, whole), b.constant(0.5))
    whole = b.binary("add", whole, b.select(far, b.constant(1.0), b.constant(0.0)))
    by_zero = b.compare("eq", y, b.constant(0.0))
    return b.cast(b.select(by_zero, b.writer.unary("floor", b.binary("div", x, y)), whole), b.dtype)  # which has no slope


@lowers("aten.remainder.Scalar", "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor")
def remainder(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber) -> Value:
    if not b.dtype.is_floating_point:
        return floor_division(b, b.value(x, dtype=b.dtype), _divisor(b, y))[1]
    x, y = _wide(b, x), _wide(b, y)
    rest, differs = _remainders(b, x, y)
    return b.cast(b.select(differs, b.binary("add", rest, y), rest), b.dtype)


@lowers("aten.fmod.Scalar", "aten.fmod.Tensor")
def fmod(b: NodeBuilder, x: Value, y: ValueOrNumber) -> Value:
    if b.dtype.is_floating_point:
        return b.cast(b.binary("rem", _wide(b, x), _wide(b, y)), b.dtype)
    quotient = div_mode(b, x, y, rounding_mode="trunc")
    return b.binary("sub", b.value(x, dtype=b.dtype), b.binary("mul", quotient, b.value(y, dtype=b.dtype)))


# --- common divisors ----------------------------------------------------------------------------


def _common_divisor(b: NodeBuilder, x: Value, y: Value) -> Value:
    """Euclid's algorithm. Whatever whole number is taken for the quotient, the divisors are those of both; with the nearest, which f64
    has but for a few of the last digits, the remainder is at most half of the divisor, and 1 + sqrt(2) times as small in each step."""
    zero, one = b.constant(0, (), x.dtype), b.constant(1, (), x.dtype)
    x, y = b.writer.unary("abs", x), b.writer.unary("abs", y)
    for _ in range(math.ceil(torch.iinfo(x.dtype).bits * math.log(2, 1 + math.sqrt(2))) + 2):
        ends = b.compare("eq", y, zero)
        by = b.select(ends, one, y)
        ratio = b.binary("div", b.cast(x, torch.float64), b.cast(by, torch.float64))
        rest = b.binary("sub", x, b.binary("mul", b.cast(b.writer.unary("round", ratio), x.dtype), by))
        x, y = b.select(ends, x, by), b.select(ends, zero, b.writer.unary("abs", rest))
    return x


@lowers("aten.gcd.default")
def gcd(b: NodeBuilder, x: Value, y: Value) -> Value:
    return _common_divisor(b, *b.broadcast_together(b.cast(x, b.dtype), b.cast(y, b.dtype)))


@lowers("aten.lcm.default")
def lcm(b: NodeBuilder, x: Value, y: Value) -> Value:
    wide = torch.int32 if b.dtype == torch.int8 else b.dtype  # in which PyTorch takes the absolute value of the product
    x, y = b.broadcast_together(b.cast(x, wide), b.cast(y, wide))
    zero, one = b.constant(0, (), wide), b.constant(1, (), wide)
    common = _common_divisor(b, x, y)
    none = b.compare("eq", common, zero)  # where both are 0
    quotient, _ = floor_division(b, x, b.select(none, one, common))
    return b.cast(b.writer.unary("abs", b.binary("mul", quotient, y)), b.dtype)


# --- counts -------------------------------------------------------------------------------------


@lowers("aten.histc.default")
def histc(b: NodeBuilder, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    if min == max:
        raise Unsupported("histc between the least and the greatest element")
    x = b.cast(b.reshape(x, (math.prod(x.shape),)), torch.float32)
    # PyTorch multiplies before it divides, too; the greatest belongs to the last bin.
    place = b.binary("div", b.binary("mul", b.binary("sub", x, b.constant(float(min))), b.constant(float(bins))), b.constant(float(max - min)))
    place = b.binary("min", b.cast(place, torch.int64), b.constant(bins - 1, (), torch.int64))
    inside = b.binary("and", b.compare("ge", x, b.constant(float(min))), b.compare("le", x, b.constant(float(max))))
    shape = (bins, x.shape[0])
    here = b.binary("and", b.compare("eq", b.iota(0, shape), b.broadcast_to(place, shape)), b.broadcast_to(inside, shape))
    return b.cast(b.reduce("sum", b.cast(here, torch.int64), [1]), b.dtype)
