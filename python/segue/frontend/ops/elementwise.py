# ===- elementwise.py - arithmetic, functions, comparisons, casts ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Arithmetic, functions of one variable, comparisons, selection and casts."""

from __future__ import annotations

import math

import torch
from torch.types import Number

from ..writer import Value
from .table import NodeBuilder, Unsupported, ValueOrNumber, lowers, promoted_type

# --- functions of one variable -------------------------------------------------------


def _enter_unary(aten: str, name: str) -> None:
    @lowers(f"aten.{aten}.default")
    def function(b: NodeBuilder, x: Value) -> Value:
        return b.unary(name, x)


for _aten, _name in {
    "neg": "neg", "abs": "abs", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf",
    "sigmoid": "sigmoid", "silu": "silu",
}.items():
    _enter_unary(_aten, _name)


@lowers("aten.sign.default")
def sign(b: NodeBuilder, x: Value) -> Value:
    return x if x.dtype == torch.bool else b.unary("sign", x)


def _enter_rounding(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def function(b: NodeBuilder, x: Value) -> Value:
        return b.unary(name, x) if x.is_float else x


for _name in ("floor", "ceil", "trunc", "round"):
    _enter_rounding(_name)


@lowers("aten.relu.default")
def relu(b: NodeBuilder, x: Value) -> Value:
    return b.unary("relu", x) if x.is_float else b.binary("max", x, b.constant(0, (), x.dtype))


@lowers("aten.gelu.default")
def gelu(b: NodeBuilder, x: Value, *, approximate: str = "none") -> Value:
    return b.gelu("tanh" if approximate == "tanh" else "erf", x)


@lowers("aten.reciprocal.default")
def reciprocal(b: NodeBuilder, x: Value) -> Value:
    x = b.cast(x, b.dtype)
    return b.binary("div", b.constant(1.0, (), x.dtype), x)


@lowers("aten.square.default")
def square(b: NodeBuilder, x: Value) -> Value:
    return b.binary("mul", x, x)


@lowers("aten.log2.default")
def log2(b: NodeBuilder, x: Value) -> Value:
    return b.binary("mul", b.unary("log", x), b.constant(1 / math.log(2), (), b.dtype))


@lowers("aten.exp2.default")
def exp2(b: NodeBuilder, x: Value) -> Value:
    # A power is taken and not exp(x log 2): the product would lose up to six bits.
    return b.binary("pow", b.constant(2.0, (), b.dtype), b.cast(x, b.dtype))


@lowers("aten.tan.default")
def tan(b: NodeBuilder, x: Value) -> Value:
    return b.binary("div", b.unary("sin", x), b.unary("cos", x))


@lowers("aten.log_sigmoid.default")
def log_sigmoid(b: NodeBuilder, x: Value) -> Value:
    # min(x, 0) - log(1 + exp(-|x|)) does not overflow.
    zero = b.constant(0.0, (), x.dtype)
    return b.binary("sub", b.binary("min", x, zero), log1p_exp_of_minus_abs(b, x))


@lowers("aten.softplus.default")
def softplus(b: NodeBuilder, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    scaled = b.binary("mul", x, b.constant(float(beta), (), x.dtype))
    zero = b.constant(0.0, (), x.dtype)
    soft = b.binary("add", b.binary("max", scaled, zero), log1p_exp_of_minus_abs(b, scaled))
    soft = b.binary("div", soft, b.constant(float(beta), (), x.dtype))
    return b.select(b.compare("gt", scaled, b.constant(float(threshold), (), x.dtype)), x, soft)


def log1p_exp_of_minus_abs(b: NodeBuilder, x: Value) -> Value:
    return b.writer.unary("log1p", b.writer.unary("exp", b.writer.unary("neg", b.writer.unary("abs", x))))


@lowers("aten.leaky_relu.default")
def leaky_relu(b: NodeBuilder, x: Value, negative_slope: Number = 0.01) -> Value:
    zero = b.constant(0.0, (), x.dtype)
    return b.select(b.compare("gt", x, zero), x, b.binary("mul", x, b.constant(negative_slope, (), x.dtype)))


@lowers("aten.elu.default")
def elu(b: NodeBuilder, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    zero = b.constant(0.0, (), x.dtype)
    positive = b.compare("gt", x, zero)
    # For a large x, whose branch is not taken, expm1 would be infinite, and its gradient infinity times 0.
    inner = b.binary("mul", b.select(positive, zero, x), b.constant(float(input_scale), (), x.dtype))
    negative = b.binary("mul", b.writer.unary("expm1", inner), b.constant(float(alpha), (), x.dtype))
    result = b.select(positive, x, negative)
    return b.binary("mul", result, b.constant(float(scale), (), x.dtype)) if scale != 1 else result


@lowers("aten.selu.default")
def selu(b: NodeBuilder, x: Value) -> Value:
    # Klambauer et al., arXiv:1706.02515.
    return elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@lowers("aten.relu6.default")
def relu6(b: NodeBuilder, x: Value) -> Value:
    return hardtanh(b, x, 0, 6)


@lowers("aten.hardtanh.default")
def hardtanh(b: NodeBuilder, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    # This is clamp, except that PyTorch's gradient is 0 at the bounds and 1 for NaN.
    low, high = (b.constant(float(bound), (), x.dtype) for bound in (min_val, max_val))
    return b.select(b.compare("ge", x, high), high, b.select(b.compare("le", x, low), low, x))


@lowers("aten.mish.default")
def mish(b: NodeBuilder, x: Value) -> Value:
    return b.binary("mul", x, b.writer.unary("tanh", softplus(b, x)))


# --- functions of two variables ---------------------------------------------------------


def _scaled(b: NodeBuilder, x: Value, alpha: Number) -> Value:
    return x if alpha == 1 else b.binary("mul", x, b.constant(alpha, (), x.dtype))


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(b: NodeBuilder, x: Value, y: ValueOrNumber, alpha: Number = 1) -> Value:
    x, y = b.promoted(x, y)
    if x.dtype == torch.bool:
        return b.binary("or", x, y)
    return b.binary("add", x, _scaled(b, y, alpha))


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: NodeBuilder, x: Value, y: ValueOrNumber, alpha: Number = 1) -> Value:
    x, y = b.promoted(x, y)
    return b.binary("sub", x, _scaled(b, y, alpha))


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(b: NodeBuilder, x: Value, y: ValueOrNumber, alpha: Number = 1) -> Value:
    x, y = b.promoted(x, y)
    return b.binary("sub", y, _scaled(b, x, alpha))


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def mul(b: NodeBuilder, x: Value, y: ValueOrNumber) -> Value:
    x, y = b.promoted(x, y)
    return b.binary("and" if x.dtype == torch.bool else "mul", x, y)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber) -> Value:
    return b.binary("div", b.value(x, dtype=b.dtype), b.value(y, dtype=b.dtype))


@lowers("aten.maximum.default", "aten.max.other")
def maximum(b: NodeBuilder, x: Value, y: Value) -> Value:
    x, y = b.promoted(x, y)
    return b.binary("or" if x.dtype == torch.bool else "max", x, y)


@lowers("aten.minimum.default", "aten.min.other")
def minimum(b: NodeBuilder, x: Value, y: Value) -> Value:
    x, y = b.promoted(x, y)
    return b.binary("and" if x.dtype == torch.bool else "min", x, y)


@lowers("aten.addcmul.default")
def addcmul(b: NodeBuilder, x: Value, y: Value, z: Value, *, value: Number = 1) -> Value:
    return b.binary("add", x, _scaled(b, b.binary("mul", y, z), value))


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: NodeBuilder, x: Value, y: Value, weight: ValueOrNumber) -> Value:
    weight = weight if isinstance(weight, Value) else b.constant(weight, (), x.dtype)
    return b.binary("add", x, b.binary("mul", weight, b.binary("sub", y, x)))


@lowers("aten.pow.Tensor_Scalar")
def pow_scalar(b: NodeBuilder, x: Value, exponent: Number) -> Value:
    x = b.cast(x, b.dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return b.binary("mul", x, x)
    if exponent == 3:
        return b.binary("mul", b.binary("mul", x, x), x)
    if not x.is_float:
        if exponent < 0:  # tracers accept it
            raise Unsupported(f"exponent {exponent} of an integer tensor, which PyTorch refuses too")
        return _whole_power(b, x, int(exponent))
    if exponent == 0.5:
        return b.writer.unary("sqrt", x)
    if exponent == -0.5:
        return b.writer.unary("rsqrt", x)
    if exponent == -1:
        return reciprocal(b, x)
    return b.binary("pow", x, b.constant(float(exponent), (), x.dtype))


def _whole_power(b: NodeBuilder, x: Value, exponent: int) -> Value:
    """By squaring, for exponents from 0 on."""
    result = None
    while exponent:
        if exponent % 2:
            result = x if result is None else b.binary("mul", result, x)
        exponent //= 2
        x = b.binary("mul", x, x) if exponent else x
    return b.constant(1, x.shape, x.dtype) if result is None else result


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(b: NodeBuilder, x: ValueOrNumber, exponent: ValueOrNumber) -> Value:
    x, exponent = b.value(x, dtype=b.dtype), b.value(exponent, dtype=b.dtype)
    return b.binary("pow", x, exponent) if x.is_float else _whole_powers(b, x, exponent)


def _whole_powers(b: NodeBuilder, x: Value, exponent: Value) -> Value:
    """By squaring, bit by bit of the exponents; below 0, where PyTorch rounds the power to 0, but for those of 1 and -1."""
    zero, one, minus = (b.constant(number, (), x.dtype) for number in (0, 1, -1))
    bits = torch.iinfo(x.dtype).bits - 1

    def bit(k: int) -> Value:
        return b.compare("ne", b.binary("and", exponent, b.constant(1 << k, (), x.dtype)), zero)

    result, square = b.select(bit(0), x, one), x
    for k in range(1, bits):
        square = b.binary("mul", square, square)
        result = b.select(bit(k), b.binary("mul", result, square), result)
    of_minus = b.select(b.compare("eq", x, minus), b.select(bit(0), minus, one), zero)
    inverse = b.select(b.compare("eq", x, one), one, of_minus)
    return b.select(b.compare("lt", exponent, zero), inverse, result)


@lowers("aten.clamp.default", "aten.clip.default", "aten.clamp.Tensor")
def clamp(b: NodeBuilder, x: Value, min: ValueOrNumber | None = None, max: ValueOrNumber | None = None) -> Value:
    x = b.cast(x, b.dtype)
    low, high = (None if bound is None else b.value(bound, dtype=x.dtype) for bound in (min, max))
    bounded = x if low is None else b.binary("max", x, low)
    bounded = bounded if high is None else b.binary("min", bounded, high)
    if not any(value is not None and value.differentiable for value in (x, low, high)):
        return bounded
    # PyTorch's gradient: all of it for x where x is a bound, where max and min would share; none for NaN.
    result = b.constant(math.nan, (), x.dtype)
    if high is not None:
        result = b.select(b.compare("ge", x, high), high, result)
    if low is not None:
        lower = low if high is None else b.binary("min", low, high)
        result = b.select(b.compare("le", x, lower), lower, result)
    inside = [b.compare(predicate, x, bound) for predicate, bound in (("ge", low), ("le", high)) if bound is not None]
    return b.select(inside[0] if len(inside) == 1 else b.binary("and", *inside), x, result)


@lowers("aten.clamp_min.default")
def clamp_min(b: NodeBuilder, x: Value, min: Number) -> Value:
    return clamp(b, x, min=min)


@lowers("aten.clamp_max.default")
def clamp_max(b: NodeBuilder, x: Value, max: Number) -> Value:
    return clamp(b, x, max=max)


# --- comparisons and truth values -----------------------------------------------------------


def _enter_compare(predicate: str, *aten: str) -> None:
    @lowers(*(f"aten.{name}.{overload}" for name in aten for overload in ("Tensor", "Scalar")))
    def function(b: NodeBuilder, x: ValueOrNumber, y: ValueOrNumber) -> Value:
        dtype = promoted_type(x, y)
        return b.compare(predicate, b.value(x, dtype=dtype), b.value(y, dtype=dtype))


for _predicate, _names in {
    "eq": ("eq",), "ne": ("ne", "not_equal"), "lt": ("lt", "less"), "le": ("le", "less_equal"),
    "gt": ("gt", "greater"), "ge": ("ge", "greater_equal"),
}.items():
    _enter_compare(_predicate, *_names)


@lowers("aten.logical_and.default")
def logical_and(b: NodeBuilder, x: Value, y: Value) -> Value:
    return b.binary("and", _truth(b, x), _truth(b, y))


@lowers("aten.logical_or.default")
def logical_or(b: NodeBuilder, x: Value, y: Value) -> Value:
    return b.binary("or", _truth(b, x), _truth(b, y))


@lowers("aten.logical_xor.default")
def logical_xor(b: NodeBuilder, x: Value, y: Value) -> Value:
    return b.compare("ne", _truth(b, x), _truth(b, y))


@lowers("aten.logical_not.default")
def logical_not(b: NodeBuilder, x: Value) -> Value:
    return b.writer.unary("not", _truth(b, x))


def _truth(b: NodeBuilder, x: Value) -> Value:
    return b.value(x, dtype=torch.bool)


@lowers("aten.isnan.default")
def isnan(b: NodeBuilder, x: Value) -> Value:
    return b.compare("ne", x, x)


@lowers("aten.isinf.default")
def isinf(b: NodeBuilder, x: Value) -> Value:
    return b.compare("eq", b.writer.unary("abs", x), b.constant(math.inf, (), x.dtype))


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(b: NodeBuilder, condition: Value, x: ValueOrNumber, y: ValueOrNumber) -> Value:
    return b.select(condition, b.value(x, dtype=b.dtype), b.value(y, dtype=b.dtype))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: NodeBuilder, x: Value, mask: Value, value: ValueOrNumber) -> Value:
    return b.select(mask, b.value(value, dtype=x.dtype), x)


# --- casts and copies ----------------------------------------------------------------------------


@lowers("aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten._to_copy.default",
        "aten.type_as.default", "aten.clone.default", "aten.contiguous.default", "aten.alias.default",
        "aten.lift_fresh_copy.default", "aten.lift_fresh.default",
        "prims.convert_element_type.default")  # the last one is of sizes, as PyTorch computes them where they are symbols
def cast(b: NodeBuilder, x: Value, *_: object, **__: object) -> Value:
    return b.broadcast_to(b.cast(x, b.dtype), b.shape)


@lowers("aten.detach.default", "aten.detach_.default")
def detach(b: NodeBuilder, x: Value) -> Value:
    # Left to PyTorch, it would become a plain alias, through which gradients flow.
    return b.detach(x)
