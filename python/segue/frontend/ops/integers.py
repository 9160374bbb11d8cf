# ===- integers.py - whole quotients, remainders, and counts ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Quotients that are whole numbers, their remainders, and how many elements fall into each bin.

The remainder of floats is exact (`segue.rem`), and the quotient that is rounded down follows from it: the quotient
itself may round up to a whole number that it is not.

The dialect divides floats alone. A quotient of integers is found in them: each division of the remainder by the
divisor in f32 leaves a remainder 2^22 times as small, until it is less than a few divisors.
"""

from __future__ import annotations

import math

import torch

from .elementwise import div
from .table import Unsupported, lowers


def _floor_division(b, x, divisor):
    """The quotient of integers, rounded down, and the remainder, which has the sign of the divisor."""
    if not isinstance(divisor, int) or isinstance(divisor, bool):
        raise Unsupported("integers divided by values that are not known when compiling: one may be 0")
    if divisor == 0:
        raise Unsupported("integers divided by 0")

    def number(value):
        return b.constant(value, (), x.dtype)

    quotient, rest = number(0), x
    for _ in range(3 if x.dtype == torch.int64 else 2):
        ratio = b.binary("div", b.cast(rest, torch.float32), b.constant(float(divisor)))
        part = b.cast(b.writer.unary("floor", ratio), x.dtype)
        quotient, rest = b.binary("add", quotient, part), b.binary("sub", rest, b.binary("mul", part, number(divisor)))
    for _ in range(2):  # the remainder is between 0 and the divisor
        below = b.compare("lt" if divisor > 0 else "gt", rest, number(0))
        beyond = b.compare("ge" if divisor > 0 else "le", rest, number(divisor))
        part = b.select(below, number(-1), b.select(beyond, number(1), number(0)))
        quotient, rest = b.binary("add", quotient, part), b.binary("sub", rest, b.binary("mul", part, number(divisor)))
    return quotient, rest


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b, x, y, *, rounding_mode=None):
    if rounding_mode is None:
        return div(b, x, y)
    if b.dtype.is_floating_point:
        return _rounded_down(b, x, y) if rounding_mode == "floor" else b.writer.unary("trunc", div(b, x, y))
    quotient, rest = _floor_division(b, x, y)
    if rounding_mode == "floor":
        return quotient
    # Towards zero is one more where a quotient below zero is no whole number.
    negative = b.compare("lt" if y > 0 else "gt", x, b.constant(0, (), x.dtype))
    up = b.binary("and", negative, b.compare("ne", rest, b.constant(0, (), x.dtype)))
    return b.binary("add", quotient, b.cast(up, x.dtype))


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b, x, y):
    return div_mode(b, x, y, rounding_mode="floor")


def _wide(b, x):
    """A float operand of a quotient, in f32."""
    return b.value(x, dtype=torch.float32)


def _remainders(b, x, y):
    """The remainder of floats with the sign of `x`, and whether that of `y` is another one."""
    rest, zero = b.binary("rem", x, y), b.constant(0.0)
    differs = b.compare("ne", *(b.cast(b.compare("lt", v, zero), torch.int32) for v in b.broadcast_together(rest, y)))
    return rest, b.binary("and", b.compare("ne", rest, zero), differs)


def _rounded_down(b, x, y):
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
def remainder(b, x, y):
    if not b.dtype.is_floating_point:
        return _floor_division(b, b.value(x, dtype=b.dtype), y)[1]
    x, y = _wide(b, x), _wide(b, y)
    rest, differs = _remainders(b, x, y)
    return b.cast(b.select(differs, b.binary("add", rest, y), rest), b.dtype)


@lowers("aten.fmod.Scalar", "aten.fmod.Tensor")
def fmod(b, x, y):
    if b.dtype.is_floating_point:
        return b.cast(b.binary("rem", _wide(b, x), _wide(b, y)), b.dtype)
    quotient = div_mode(b, x, y, rounding_mode="trunc")
    return b.binary("sub", x, b.binary("mul", quotient, b.constant(y, (), x.dtype)))


@lowers("aten.histc.default")
def histc(b, x, bins=100, min=0, max=0):
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
