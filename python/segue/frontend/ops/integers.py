# ===- integers.py - quotients of integers, and counts ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Quotients that are whole numbers, their remainders, and how many elements fall into each bin.

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
        if rounding_mode == "floor":
            raise Unsupported("floats divided with rounding_mode='floor': a quotient that rounds up to a whole number is not that")
        return b.writer.unary("trunc", div(b, x, y))
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


@lowers("aten.remainder.Scalar")
def remainder(b, x, y):
    if b.dtype.is_floating_point:
        raise Unsupported("the remainder of floats")
    return _floor_division(b, x, y)[1]


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
