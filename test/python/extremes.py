# ===- extremes.py - every operator at the ends of the floats ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Functions of one and two variables and of rows, for values that training should never meet and does.

Many functions become one module, each with inputs of its own: what counts for
time is how many modules are compiled.
"""

import math

import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
#: Zero, subnormal, tiny, ordinary, where exp overflows, where sine loses its argument, huge, infinite.
POSITIVE = [0.0, 1e-40, 1.5e-38, 1e-30, 1e-10, 1e-5, 1e-3, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 10.0, 20.5, 50.0, 88.0, 88.6,
            100.0, 1e4, 3e6, 1e9, 3e15, 1e20, 1e30, 3e38, INF]
ENDS = torch.tensor([NAN, *POSITIVE, *(-x for x in POSITIVE)])

UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "log1p": torch.log1p, "log2": torch.log2, "exp2": torch.exp2, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "silu": F.silu, "relu": F.relu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "reciprocal": torch.reciprocal, "square": torch.square,
    "log_sigmoid": F.logsigmoid, "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, 2.5, 7.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3), "elu": lambda x: F.elu(x, 1.3), "selu": F.selu, "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -2.0, 0.5), "mish": F.mish, "pow2": lambda x: x ** 2, "pow3": lambda x: x ** 3,
    "pow_half": lambda x: x ** 0.5, "pow_minus_half": lambda x: x ** -0.5, "pow_minus_1": lambda x: x ** -1,
    "pow_minus_2": lambda x: x ** -2, "pow4": lambda x: x ** 4, "pow5": lambda x: x ** 5, "pow1.7": lambda x: x ** 1.7,
    "pow0": lambda x: x ** 0, "scalar_power": lambda x: 2.0 ** x, "clamp": lambda x: x.clamp(-0.5, 2.0),
    "clamp_min": lambda x: x.clamp(min=0.5), "clamp_max": lambda x: x.clamp(max=0.5),
    "clamp_upwards": lambda x: torch.clamp_min(x, 0.5), "clamp_downwards": lambda x: torch.clamp_max(x, 0.5),
    "clamp_crossed": lambda x: x.clamp(2.0, -0.5), "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "isnan": torch.isnan, "isinf": torch.isinf, "rsub": lambda x: 1 - x,
    "over": lambda x: 1.5 / x, "by": lambda x: x / 3.0, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "threshold": lambda x: F.threshold(x, 0.5, 0.25),
    "atan": torch.atan, "asin": torch.asin, "acos": torch.acos, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "log10": torch.log10, "erfc": torch.erfc, "erfinv": torch.erfinv,
    "erfcx": torch.special.erfcx, "ndtri": torch.special.ndtri, "lgamma": torch.lgamma, "digamma": torch.digamma, "angle": torch.angle,
    "i0": torch.special.i0, "i0e": torch.special.i0e, "i1": torch.special.i1, "i1e": torch.special.i1e, "signbit": torch.signbit,
    "frexp": lambda x: torch.frexp(x)[1], "round_decimals": lambda x: x.round(decimals=2),
    "to_bf16": lambda x: x.bfloat16().float(), "to_f16": lambda x: x.half().float(), "to_int": lambda x: x.clamp(-1e9, 1e9).nan_to_num().int(),
}
A, B = torch.meshgrid(*[torch.tensor([NAN, 0.0, 1e-30, 0.5, 1.0, 2.0, 3.0, 88.0, 1e30, INF, -1e-30, -0.5, -1.0, -2.0, -3.0, -1e30, -INF])] * 2, indexing="ij")
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "pow": torch.pow, "logaddexp": torch.logaddexp, "hypot_like": lambda x, y: (x * x + y * y).sqrt(),
    "where": lambda x, y: torch.where(x > y, x, y), "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=2.0, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, delta=2.0, reduction="none"),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"), "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "atan2": torch.atan2, "hypot": torch.hypot, "copysign": torch.copysign, "fmax": torch.fmax, "fmin": torch.fmin,
    "fmod": torch.fmod, "remainder": torch.remainder, "floor_divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5), "masked_fill": lambda x, y: x.masked_fill(y > 0, 2.0),
    "kl_div": lambda x, y: F.kl_div(x, y.abs(), reduction="none"), "xor": lambda x, y: (x > 0) ^ (y > 0),
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "or": lambda x, y: (x > 0) | ~(y <= 0), "and": lambda x, y: (x < 0) & (y < 0),
    "clamp_tensor": lambda x, y: torch.clamp(x, y, y + 1), "eq": lambda x, y: x == y, "lt": lambda x, y: x < y, "ge": lambda x, y: x >= y,
}
ROWS = torch.tensor([
    [0.5, -1.0, 2.0, 0.25], [100.0, -100.0, 99.0, 98.5], [1000.0, -1000.0, 1000.0, 0.0], [1e30, -1e30, 1e30, 0.0],
    [-INF, 1.0, 2.0, -INF], [-INF, -INF, -INF, -INF], [INF, 1.0, 2.0, -INF], [INF, INF, 0.0, 1.0], [NAN, 1.0, 2.0, 3.0],
    [0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0], [1e-20, 2e-20, -1e-20, 0.0], [1e-30, -1e-30, 0.0, 1e-30],
    [1e4, 1.0001e4, 1e4, 0.9999e4], [3e18, -2e18, 1e18, 0.0], [88.0, 89.0, 90.0, 91.0], [-88.0, -89.0, -200.0, -104.0]])
ROWWISE = {
    "softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: torch.log_softmax(x, -1),
    "cumsum": lambda x: x.cumsum(-1), "cumprod": lambda x: x.cumprod(-1), "cummax": lambda x: x.cummax(-1)[0],
    "cummin": lambda x: x.cummin(-1)[0], "logcumsumexp": lambda x: x.logcumsumexp(-1), "prod": lambda x: x.prod(-1), "logsumexp": lambda x: x.logsumexp(-1), "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1), "amin": lambda x: x.amin(-1), "max": lambda x: x.max(-1).values, "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1), "norm1": lambda x: x.norm(1, -1), "norm2": lambda x: x.norm(2, -1), "norm_inf": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "layer_norm_eps": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-12),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]), "rms_norm_eps": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-12),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 2, eps=1e-3), "normalize": lambda x: F.normalize(x, dim=-1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3] * 4 + [0]), reduction="none"),
    "cross_entropy_smooth": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3] * 4 + [0]), reduction="none", label_smoothing=0.2),
    "nll": lambda x: F.nll_loss(x, torch.tensor([0, 1, 2, 3] * 4 + [0]), reduction="none"), "softmin": lambda x: F.softmin(x, -1),
    "conv1d": lambda x: F.conv1d(x[:, None], torch.tensor([[[0.5, -1.0, 2.0]]], dtype=x.dtype)),
    "argmax": lambda x: x.argmax(-1), "argmin": lambda x: x.argmin(-1), "min": lambda x: x.min(-1).values,
    "any": lambda x: (x > 1e4).any(-1), "all": lambda x: (x < 1e4).all(-1), "max_of_all": lambda x: x[:5].max(),
    "min_of_all": lambda x: x[:4].min(), "var_mean": lambda x: torch.var_mean(x, -1)[0],
    "var_plain": lambda x: torch.var(x, -1, correction=0), "std_plain": lambda x: torch.std(x, -1, correction=0),
    "var_mean_plain": lambda x: torch.var_mean(x, -1, correction=0)[0],
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[-1], dtype=x.dtype), torch.full(x.shape[-1:], 1e-12, dtype=x.dtype), eps=1e-10),
}


class Group(torch.nn.Module):
    def __init__(self, functions, arity):
        super().__init__()
        self.functions, self.arity = functions, arity

    def forward(self, *xs):
        return [f(*xs[i * self.arity : (i + 1) * self.arity]) for i, f in enumerate(self.functions)]


#: Absolute differences that are rounding: of results whose terms cancel, or of steps that pass below the least normal number.
NOISE = {
    "softmax": 1e-7, "softmin": 1e-7, "layer_norm": 1e-7, "layer_norm_eps": 1e-7, "rms_norm": 1e-8, "rms_norm_eps": 1e-8,
    "normalize": 1e-7, "group_norm": 1e-4, "silu": 1e-36, "mish": 1e-36, "gelu_tanh": 1e-36, "gelu": 5e-7, "hardswish": 1e-7,
    # PyTorch takes y + 1, which is 0 for y near -1.
    ("expm1", "gradient 0"): 1e-7,
    # sigmoid(x) - y: terms below the rounding of the larger vanish.
    ("bce", "gradient 0"): 1e-29,
    # Near the zero at 1.46.
    ("digamma", "value"): 5e-7, ("lgamma", "gradient 0"): 5e-7,
}


def _largest(x):
    """Of each row of `x` the largest magnitude that is a number, repeated over the row."""
    return x.abs().nan_to_num(0.0, INF).amax(-1, keepdim=True).expand_as(x)


def _squares_end(a, x):
    """Squares of the row overflow, or vanish."""
    rows = (_largest(x) > 1e18) | (_largest(x) < 1e-18)
    return _like(rows, a)


def _product_ends(a, x):
    """Products along the row overflow: what is then multiplied with 0 depends on the order."""
    return _like((x.abs().clamp(min=1).prod(-1, keepdim=True) == INF).expand_as(x), a)


def _like(rows, a):
    """A mask of rows in the shape of a result, which may lack the last dimension."""
    return rows[:, 0] if a.dim() == 1 else rows.reshape(a.shape)


def _holds(condition):
    return lambda a, x: _like(condition(x), a)


_LARGE_LOGITS = [_holds(lambda x: _largest(x) > 50)]
#: Where results are not PyTorch's, each for a reason that docs/guides/numerics.md gives: (name, part) -> masks of (result, *inputs).
DIFFERENT = {
    **{(name, part): [_squares_end] for name in ("std", "std_plain", "norm2", "normalize", "layer_norm", "layer_norm_eps", "group_norm")
       for part in ("value", "gradient 0")},
    **{(name, "gradient 0"): [_holds(lambda x: _largest(x) == INF)] for name in ("var", "var_plain", "var_mean", "var_mean_plain")},
    ("norm_inf", "gradient 0"): [_holds(lambda x: x.isnan().any(-1, keepdim=True).expand_as(x))],
    ("cross_entropy", "gradient 0"): _LARGE_LOGITS, ("cross_entropy_smooth", "gradient 0"): _LARGE_LOGITS,
    ("logsumexp", "gradient 0"): [_holds(lambda x: _largest(x) > 50)],
    ("hardtanh", "gradient 0"): [lambda a, x: x.isnan()], ("relu6", "gradient 0"): [lambda a, x: x.isnan()],
    ("hardswish", "gradient 0"): [lambda a, x: x.abs() == 3], ("hardsigmoid", "gradient 0"): [lambda a, x: x.abs() == 3],
    ("pow_minus_half", "gradient 0"): [lambda a, x: x == -INF], ("gelu", "value"): [lambda a, x: x == INF],
    ("kl_div", "value"): [lambda a, x, y: y.isinf()], ("kl_div", "gradient 1"): [lambda a, x, y: y == 0],
    **{key: [_product_ends, _holds(lambda x: x.isnan().any(-1, keepdim=True).expand_as(x))] for key in (("cumprod", "gradient 0"), ("prod", "value"), ("prod", "gradient 0"))},
    ("logcumsumexp", "gradient 0"): _LARGE_LOGITS, ("remainder", "gradient 1"): [lambda a, x, y: x.isinf()],
    ("clamp_tensor", "gradient 1"): [lambda a, x, y: y + 1 == y],
    ("erfcx", "gradient 0"): [lambda a, x: x.abs() > 5], ("ndtri", "gradient 0"): [lambda a, x: x < 1e-30],
    **{(name, "gradient 0"): [lambda a, x: (x < 0) & (x == x.floor())] for name in ("lgamma", "digamma")},
    **{(name, "value"): [lambda a, x: x.isinf()] for name in ("i0", "i1")},
    **{(name, "gradient 0"): [lambda a, x: ~(x.abs() < 50)] for name in ("i0", "i0e", "i1", "i1e")},
    ("signbit", "value"): [lambda a, x: x.abs() < 1e-37],  # the comparison takes the sign off what kernels read as zero
    **{(name, part): [lambda a, x, y: x.isinf() | y.isinf() | (x == 0) & (y == 0)] for name in ("atan2", "hypot", "copysign")
       for part in ("gradient 0", "gradient 1")},
}
