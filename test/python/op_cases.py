# ===- op_cases.py - every operator of the frontend, with shapes ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every operator of the frontend with a spread of shapes: even, odd, size 1, scalars.

A case is a function of tensors and a way to make its inputs. The same cases are
parsed and verified (test_reference.py) and compared with PyTorch, values and
gradients (test_ops.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable
    inputs: tuple  # callables of a generator, each gives a tensor
    tolerance: float = 1e-4  # relative, norm-wise

    def make(self, seed: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [maker(generator) for maker in self.inputs]


class Apply(torch.nn.Module):
    """A function as a module without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def normal(*shape, dtype=torch.float32):
    return lambda g: torch.randn(shape, generator=g).to(dtype)


def uniform(low, high, *shape):
    """Away from kinks and poles."""
    return lambda g: torch.rand(shape, generator=g) * (high - low) + low


def integers(low, high, *shape, dtype=torch.int64):
    return lambda g: torch.randint(low, high, shape, generator=g, dtype=dtype)


def truths(*shape):
    return lambda g: torch.rand(shape, generator=g) < 0.5


def experts(x, weights, ends):
    """Rows times the matrices of their groups, as Hugging Face's `grouped_mm` experts have it compiled."""
    return torch.ops.transformers.grouped_mm_fallback(x, weights, ends)


if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
    _library = torch.library.Library("transformers", "DEF")
    _library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    _library.define("grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)")

    def _groups(ends):
        return zip([0, *ends.tolist()[:-1]], ends.tolist())

    @torch.library.impl(_library, "grouped_mm_fallback", "CPU")
    def _forward(x, weights, ends):
        parts = [x[first:last] @ w for (first, last), w in zip(_groups(ends), weights)]
        return torch.cat([*parts, x.new_zeros(x.shape[0] - int(ends[-1]), weights.shape[2])])

    @torch.library.impl(_library, "grouped_mm_fallback_backward", "CPU")
    def _backward(x, weights, ends, g):
        return (_forward(g, weights.transpose(1, 2), ends),
                torch.stack([x[first:last].T @ g[first:last] for first, last in _groups(ends)]))

    torch.library.register_fake("transformers::grouped_mm_fallback", lambda x, w, ends: x.new_empty(x.shape[0], w.shape[2]), lib=_library)
    torch.library.register_fake("transformers::grouped_mm_fallback_backward",
                                lambda x, w, ends, g: (torch.empty_like(x), torch.empty_like(w)), lib=_library)
    torch.library.register_autograd(
        "transformers::grouped_mm_fallback",
        lambda ctx, g: (*torch.ops.transformers.grouped_mm_fallback_backward(*ctx.saved_tensors, g), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), lib=_library)


CASES: list[Case] = []


def case(name, function, *inputs, **options):
    assert all(c.name != name for c in CASES), name
    CASES.append(Case(name, function, inputs, **options))


def with_zeros(*shape):
    """Products of these have one, several or no zero along a dimension."""
    return lambda g: torch.where(torch.rand(shape, generator=g) < 0.2, 0.0, torch.randn(shape, generator=g))


SHAPES = [(), (1,), (7,), (4, 8), (3, 1, 5), (2, 3, 4, 5), (1, 1), (33, 17)]


def text(shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


# --- elementwise ----------------------------------------------------------------------

UNARY = {
    "neg": (torch.neg, -2, 2), "abs": (torch.abs, 0.2, 2), "sign": (torch.sign, 0.2, 2), "exp": (torch.exp, -3, 3),
    "expm1": (torch.expm1, -1, 1), "log": (torch.log, 0.1, 4), "sqrt": (torch.sqrt, 0.1, 4),
    "rsqrt": (torch.rsqrt, 0.1, 4), "sin": (torch.sin, -6, 6), "cos": (torch.cos, -6, 6), "tanh": (torch.tanh, -4, 4),
    "erf": (torch.erf, -3, 3), "sigmoid": (torch.sigmoid, -6, 6), "silu": (F.silu, -6, 6), "relu": (F.relu, -2, 2),
    "gelu_erf": (F.gelu, -4, 4), "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), -4, 4),
    "reciprocal": (torch.reciprocal, 0.3, 3), "square": (torch.square, -2, 2), "log1p": (torch.log1p, -0.5, 3),
    "log2": (torch.log2, 0.1, 4), "exp2": (torch.exp2, -3, 3), "tan": (torch.tan, -1, 1),
    "log_sigmoid": (F.logsigmoid, -5, 5), "softplus": (F.softplus, -5, 25), "leaky_relu": (F.leaky_relu, -2, 2),
    "elu": (F.elu, -2, 2), "selu": (F.selu, -2, 2), "relu6": (F.relu6, -2, 8), "hardtanh": (F.hardtanh, -2, 2),
    "mish": (F.mish, -3, 3), "pow2": (lambda x: x ** 2, -2, 2), "pow3": (lambda x: x ** 3, -2, 2),
    "pow_half": (lambda x: x ** 0.5, 0.2, 2), "pow_minus_half": (lambda x: x ** -0.5, 0.2, 2),
    "pow1.7": (lambda x: x ** 1.7, 0.2, 2), "scalar_power": (lambda x: 2.0 ** x, -2, 2),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), -2, 2), "clamp_min": (lambda x: x.clamp(min=0.1), -2, 2),
    "clamp_min_function": (lambda x: torch.clamp_min(x, 0.1), -2, 2), "clamp_max_function": (lambda x: torch.clamp_max(x, 0.1), -2, 2),
    "clamp_max": (lambda x: x.clamp(max=0.1), -2, 2), "rsub": (lambda x: 1 - x, -2, 2),
    "scalar_arithmetic": (lambda x: (x * 3 + 1) / 2 - 0.5, -2, 2), "scalar_over": (lambda x: 1.5 / x, 0.3, 2),
    "softmax_last": (lambda x: torch.softmax(x, -1), -3, 3), "double_use": (lambda x: x * x + x, -2, 2),
    "softplus_beta": (lambda x: F.softplus(x, 2.5, 3.0), -2, 3), "leaky_relu_slope": (lambda x: F.leaky_relu(x, 0.3), -2, 2),
    "elu_alpha": (lambda x: F.elu(x, 1.7), -2, 2), "celu": (lambda x: F.celu(x, 1.7), -2, 2),
    "elu_scales": (lambda x: torch.ops.aten.elu.default(x, 0.9, 1.3, 0.6), -2, 2),
    "hardtanh_bounds": (lambda x: F.hardtanh(x, -0.3, 0.8), -2, 2), "round": (lambda x: x.round() + x, -3, 3),
}
for _name, (_function, _low, _high) in UNARY.items():
    for _shape in [(7,), (33, 17)] if _name not in ("exp", "gelu_tanh", "pow2") else SHAPES:
        case(f"{_name}-{text(_shape)}", _function, uniform(_low, _high, *_shape))

BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "pow": torch.pow, "add_alpha": lambda x, y: torch.add(x, y, alpha=0.5),
    "where": lambda x, y: torch.where(x > y, x, y), "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.7), "sub_alpha": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub_alpha": lambda x, y: torch.rsub(x, y, alpha=0.5),
}
PAIRS = [((4, 8), (4, 8)), ((4, 8), (8,)), ((3, 1, 5), (1, 7, 1)), ((), (3,)), ((5, 1), ()), ((1,), (1,)), ((2, 3, 4), (3, 1))]
for _name, _function in BINARY.items():
    for _a, _b in PAIRS if _name in ("add", "mul", "div") else PAIRS[2:4]:
        case(f"{_name}-{text(_a)}-{text(_b)}", _function, uniform(0.5, 2, *_a), uniform(0.6, 2.1, *_b))

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(f"compare_{_name}", lambda x, y, f=getattr(torch, _name): f(x, y), integers(0, 3, 5, 7), integers(0, 3, 7))
    case(f"compare_{_name}_scalar", lambda x, f=getattr(torch, _name): f(x, 0.5), normal(5, 3))
case("clamp_crossed", lambda x: x.clamp(0.5, -0.5), lambda g: torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0]))
case("smooth_losses_of_infinity", lambda x, y: (F.smooth_l1_loss(x, y, reduction="none"), F.huber_loss(x, y, reduction="none")),
     lambda g: torch.tensor([math.inf, math.nan, 0.5, 3.0]), normal(4))
case("logical", lambda x, y: (x & y) | ~x ^ y, truths(5, 7), truths(7))
case("masked_fill", lambda x, m: x.masked_fill(m, -1e9).exp(), normal(4, 6), truths(4, 6))
case("masked_fill_inf", lambda x: torch.softmax(x.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf), -1), normal(3, 6, 6))
case("isnan", lambda x: torch.isnan(x / x), integers(0, 2, 9, dtype=torch.int32))
case("relu_of_integers", lambda i: i.relu(), integers(-3, 3, 4, 3))
case("largest_truths", lambda x: (*(x > 0.5).max(1), *(x > 0.5).min(0, keepdim=True), (x > 0).int().argmax(0)), normal(4, 5))
case("mixed_types", lambda x, i: x * i + 2, normal(4, 3), integers(-3, 3, 4, 3))
case("integer_arithmetic", lambda x, y: x * y + 3 - y, integers(-9, 9, 4, 3), integers(-9, 9, 3))
case("integer_division", lambda x, y: x / y, integers(1, 9, 4, 3), integers(1, 9, 3))
case("casts", lambda x: x.to(torch.bfloat16).float() + x.to(torch.int32).float() + x.bool().float(), uniform(0.6, 5, 33))
case("rounding_of_integers", lambda x, i: x + i.floor() + i.ceil() + i.trunc() + i.round(), normal(33), integers(0, 5, 33))
case("rounding", lambda x: torch.floor(x) + 10 * torch.ceil(x) + 100 * torch.trunc(x) + x, normal(33))
case("angles", lambda x, y: (torch.atan(3 * x), torch.asin(x), torch.acos(x), torch.atan2(x, y), torch.atan2(y, -x), torch.angle(x)),
     uniform(-0.9, 0.9, 33), uniform(-2, 2, 33))
case("hyperbolic", lambda x: (torch.sinh(2 * x), torch.cosh(x), torch.asinh(3 * x), torch.acosh(x.abs() + 1.1), torch.atanh(x)), uniform(-0.9, 0.9, 33))
case("logarithms_and_lengths", lambda x, y: (torch.log10(x.abs()), torch.hypot(x, y), torch.ldexp(x, torch.arange(-16.0, 17.0))),
     uniform(-2, 2, 33), uniform(0.2, 2, 33))
case("signs", lambda x, y: (torch.copysign(x, y), torch.copysign(x, -2.0), torch.signbit(y), torch.fmax(x, y), torch.fmin(x, y)), normal(33), normal(33))
case("parts_of_floats", lambda x: (*torch.frexp(x.detach() * 1000), x.round(decimals=2) + x, x.round(decimals=-1) + x), normal(33))
case("error_functions", lambda x: (torch.erfc(3 * x), torch.erfinv(x), torch.special.erfcx(2 * x), torch.special.ndtri(x / 2 + 0.5),
     torch.special.log_ndtr(4 * x)), uniform(-0.99, 0.99, 65))
case("gamma", lambda x: (torch.lgamma(x), torch.digamma(x), *(torch.polygamma(n, x) for n in (1, 2, 3))), lambda g: torch.linspace(-3.3, 14.2, 36))
case("bessel_without_derivatives", lambda x: (torch.special.modified_bessel_i0(x.detach()), torch.special.modified_bessel_i1(x.detach())), uniform(-12, 12, 65))
case("bessel", lambda x: (torch.special.i0(x), torch.special.i0e(x), torch.special.i1(x), torch.special.i1e(x)), uniform(-12, 12, 65))
case("bf16_chain", lambda x, y: (x * y + x).float().sum(), normal(5, 9, dtype=torch.bfloat16),
     normal(9, dtype=torch.bfloat16), tolerance=2e-2)

# --- shapes -----------------------------------------------------------------------------

SHAPE_OPS = {
    "view": lambda x: x.reshape(4, -1), "flatten": lambda x: x.flatten(1), "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "permute": lambda x: x.permute(2, 0, 1), "transpose": lambda x: x.transpose(-1, 0), "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2), "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "squeeze": lambda x: x[:1].squeeze(), "expand": lambda x: x[:, :1].expand(4, 5, 6),
    "select": lambda x: x[1], "select_last": lambda x: x[..., -1], "slice": lambda x: x[1:3, ::2, -4:],
    "slice_step": lambda x: x[:, 1:5:3], "narrow": lambda x: x.narrow(2, 1, 3),
    "split": lambda x: x.split(2, dim=1), "split_sizes": lambda x: x.split([1, 4], dim=1),
    "chunk": lambda x: x.chunk(4, dim=-1), "unbind": lambda x: x.unbind(1)[2], "cat": lambda x: torch.cat([x, x[:, :2]], 1),
    "stack": lambda x: torch.stack([x, x * 2], -1), "repeat": lambda x: x.repeat(2, 1, 3), "tile": lambda x: x.tile(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1), "roll": lambda x: x.roll(2, 1), "flip": lambda x: x.flip(1) * x.flip((0, -1)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), "pad_plain": lambda x: torch.constant_pad_nd(x, (1, 2), 0.25), "pad_negative": lambda x: F.pad(x, (-1, 2)),
    "tril": lambda x: x.tril(), "tril_below": lambda x: x.tril(-1), "triu": lambda x: x.triu(1), "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "clone": lambda x: x.clone() * 2, "rotate_half": lambda x: torch.cat([-x[..., 3:], x[..., :3]], -1),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 0, 2), x.diagonal(-2, -1, 0)),
    "diagonal_put": lambda x: torch.diagonal_scatter(x * 2, x[0, :, :4] * 3, -2, 2, 0) * x,
    "diag_embed": lambda x: torch.diag_embed(x, -1, 0, 2), "trace": lambda x: x[0].trace(),
    "unfold": lambda x: (x.unfold(1, 3, 2), x.unfold(-1, 2, 1), x.unfold(0, 1, 3)),
    "unfold_far": lambda x: x.reshape(-1).unfold(0, 70, 50),
    "strided": lambda x: (x.as_strided((3, 4), (2, 7), 5), x.as_strided((2, 3, 2), (1, 0, 30)), x[1:].as_strided((5, 3), (6, 2))),
    "strided_windows": lambda x: x.as_strided((3, 30, 2), (30, 1, 15), 0), "strided_of_turned": lambda x: (x * 1).transpose(0, 1).as_strided((3, 5), (7, 1), 2),
    "pad_replicated": lambda x: (F.pad(x, (2, 1), "replicate"), F.pad(x, (2, 0, 1, 3), "replicate"), F.pad(x[None], (-1, 2, 3, 0), "replicate")),
    "pad_reflected": lambda x: (F.pad(x, (2, 5), "reflect"), F.pad(x, (0, 3, 4, 1), "reflect")), "pad_around": lambda x: F.pad(x, (6, 2), "circular"),
    "in_place": lambda x: (x * 1.0).add_(1).mul_(x), "slice_assign": lambda x: _assign(x),
}


def _assign(x):
    y = x * 1.0
    y[:, 1] = 0.5
    return y * x


def _masked(x, mask, value):
    x[mask] = value
    return x


for _name, _function in SHAPE_OPS.items():
    if _name != "slice_assign":
        case(f"shape_{_name}", _function, normal(4, 5, 6))
case("shape_scalar_views", lambda x: x.reshape(1, 1).squeeze().unsqueeze(0), normal())
case("shape_ones", lambda x: x.permute(1, 2, 0).reshape(1), normal(1, 1, 1))

# --- sources ------------------------------------------------------------------------------

case("arange", lambda x: x * torch.arange(7) + torch.arange(2, 9) * torch.arange(1, 15, 2), normal(3, 7))
case("zeros_ones_full", lambda x: x + torch.zeros(5) + torch.ones_like(x) + torch.full((4, 1), 2.5) + x.new_ones(5), normal(4, 5))
case("scalar_tensor", lambda x: torch.where(x > 0, x, torch.scalar_tensor(0.5)), normal(4, 5))
case("eye", lambda x: x * torch.eye(4), normal(4, 4))
case("lifted_constant", lambda x: x * torch.tensor([1.0, -2.0, 0.5]), normal(4, 3))
case("one_hot", lambda i, x: F.one_hot(i, 5).float() * x, integers(0, 5, 4), normal(4, 5))
case("causal_mask", lambda x: x.masked_fill(torch.arange(6)[:, None] < torch.arange(6)[None, :], 0.0), normal(2, 6, 6))

# --- reductions -----------------------------------------------------------------------------

for _name, _function in {"sum": torch.sum, "mean": torch.mean}.items():
    for _shape in SHAPES:
        case(f"{_name}_all-{text(_shape)}", _function, normal(*_shape))
    for _dims in [0, -1, (0, 2), (0, 1, 2)]:
        for _keep in (False, True):
            case(f"{_name}-{_dims}-{_keep}", lambda x, f=_function, d=_dims, k=_keep: f(x, dim=d, keepdim=k), normal(3, 5, 7))
case("amax", lambda x: x.amax(1), normal(3, 5, 7))
case("amax_keep", lambda x: x.amax((0, 2), keepdim=True), normal(3, 5, 7))
case("amin", lambda x: x.amin(-1), normal(3, 5, 7))
case("max_all", lambda x: x.max(), normal(3, 5))
case("max_dim", lambda x: x.max(-1).values + x.min(1, keepdim=True).values.squeeze(1), normal(3, 5))
case("logical_of_numbers", lambda x, y: [f(a, b) for a, b in ((x, y), (x.float(), y > 0)) for f in (torch.logical_and, torch.logical_or, torch.logical_xor)]
     + [torch.logical_not(x), torch.logical_not(y.float())], integers(-1, 2, 5, 7), integers(-1, 2, 7))
case("any_all", lambda x: (x > 1).any(1) & (x > -3).all(1), normal(6, 5))
case("var", lambda x: x.var(-1), normal(3, 7))
case("var_biased", lambda x: x.var(0, unbiased=False, keepdim=True), normal(3, 7))
case("std", lambda x: x.std((0, 1)), normal(3, 7))
case("var_mean", lambda x: torch.var_mean(x, -1), normal(3, 7))
case("var_correction", lambda x: x.var(-1, correction=2) + x.std(-1, correction=0), normal(3, 7))
case("var_mean_correction", lambda x: torch.var_mean(x, 1, correction=0)[0], normal(3, 7))
case("var_all", lambda x: x.var() + x.std(), normal(3, 7))
case("logsumexp", lambda x: x.logsumexp(1), normal(3, 7))
case("logsumexp_keep", lambda x: x.logsumexp((0, 2), keepdim=True), normal(3, 5, 7))
case("sum_mean_wide", lambda x: x.sum(1, dtype=torch.float32) + x.mean(1, dtype=torch.float32), normal(3, 7, dtype=torch.bfloat16), tolerance=2e-2)
case("extrema_keep", lambda x: x.amin(1, keepdim=True) + x.max(1, keepdim=True).values + x.amax() + x.amin(), normal(3, 7))
case("arguments_keep", lambda x: (x.argmax(1, keepdim=True), x.argmin(0, keepdim=True), x.argmax(), x.argmin()), normal(3, 7))
case("truths_keep", lambda x: (x > 0).any(1, keepdim=True) | (x > -1).all(0, keepdim=True), normal(6, 6))
case("var_keep", lambda x: x.var(0, correction=3, keepdim=True) + x.std(0, correction=2, keepdim=True), normal(5, 7))
case("var_of_dim", lambda x: torch.ops.aten.var.dim(x, [1], False, True) + torch.ops.aten.std.dim(x, [0], False, True), normal(5, 7))
case("var_mean_keep", lambda x: torch.var_mean(x, 0, correction=3, keepdim=True), normal(5, 7))
case("var_mean_of_dim", lambda x: torch.ops.aten.var_mean.dim(x, [1], False, True), normal(5, 7))
case("norm_inf", lambda x: torch.linalg.vector_norm(x, math.inf, 1, True), normal(3, 7))
case("norm_wide", lambda x: torch.linalg.vector_norm(x, dtype=torch.float32), normal(3, 7, dtype=torch.bfloat16), tolerance=2e-2)
case("norm2", lambda x: torch.linalg.vector_norm(x, dim=-1), normal(3, 7))
case("norm1", lambda x: x.norm(p=1, dim=0), normal(3, 7))
case("norms_of_orders", lambda x: tuple(torch.linalg.vector_norm(x, p, 1) for p in (0, 0.5, 3, -math.inf, -1)), with_zeros(5, 7))
case("medians", lambda x: (*x.median(1), *x.nanmedian(0, keepdim=True), x.median(), (x * 2).nanmedian(), *torch.where(x > 1, math.nan, x).nanmedian(1)), normal(6, 7))
case("modes", lambda x, i: (*i.mode(1), *i.mode(0, keepdim=True), x.round().mode(1)[0]), normal(6, 7), integers(0, 3, 6, 7))
case("distances", lambda x, y: (*(torch.cdist(x, y, p) for p in (0, 1, 2, 3, math.inf)), torch.dist(x[0, :3], y, 3)), normal(2, 5, 4), normal(3, 4))
case("distances_within", lambda x: (*(F.pdist(x, p) for p in (1, 2, 4, math.inf)), torch.pdist(x * 2)), normal(5, 4))
case("products_added", lambda c, x, y: torch.addbmm(c, x, y, beta=0.4, alpha=0.3) + torch.addbmm(c, x, y), normal(4, 6), normal(3, 4, 5), normal(3, 5, 6))
case("searched", lambda s, x: (torch.searchsorted(s.sort().values, x), torch.searchsorted(s.sort().values, x, right=True, out_int32=True),
     torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.0, 1.0]), right=True), torch.bucketize(0.5, torch.tensor([0.5, 1.0]))), normal(4, 13), normal(4, 6))
case("integer_products", lambda x, y: (x @ y, x.prod(), y.prod(0), x.cumprod(1), y.cumprod(0), x ** 5, x ** 0, x[0] @ y, torch.outer(x[0], y[0])),
     integers(-9, 9, 7, 3), integers(-9, 9, 3, 5))
case("integer_products_batched", lambda x, y: (torch.bmm(x, y), x[:, None] @ y, torch.einsum("bij,bjk->ik", x, y)), integers(-9, 9, 2, 4, 3), integers(-9, 9, 2, 3, 5))
case("integer_sum", lambda x: x.sum(0), integers(-5, 5, 7, 3))

# --- products ----------------------------------------------------------------------------------

for _m, _k, _n in [(4, 8, 16), (1, 1, 1), (5, 7, 3), (33, 17, 9), (1, 64, 5), (64, 1, 7)]:
    case(f"mm-{_m}x{_k}x{_n}", torch.mm, normal(_m, _k), normal(_k, _n))
    case(f"linear-{_m}x{_k}x{_n}", F.linear, normal(_m, _k), normal(_n, _k), normal(_n))
case("linear_3d", F.linear, normal(2, 5, 7), normal(3, 7), normal(3))
case("linear_1d", F.linear, normal(7), normal(3, 7))
case("linear_no_bias", F.linear, normal(2, 5, 7), normal(3, 7))
case("bmm", torch.bmm, normal(3, 4, 5), normal(3, 5, 6))
case("matmul_broadcast", torch.matmul, normal(2, 1, 4, 5), normal(3, 5, 6))
case("matmul_matrix", torch.matmul, normal(2, 3, 4, 5), normal(5, 6))
case("matmul_vector", torch.matmul, normal(2, 4, 5), normal(5))
case("vector_matmul", torch.matmul, normal(5), normal(2, 5, 3))
case("matmul_transposed", lambda x, y: x.transpose(1, 2) @ y, normal(2, 5, 4), normal(2, 5, 6))
case("dot", torch.dot, normal(9), normal(9))
case("mv", torch.mv, normal(4, 9), normal(9))
case("outer", torch.outer, normal(4), normal(9))
case("addmm", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), normal(6), normal(4, 5), normal(5, 6))
case("addmv", lambda c, x, y: torch.addmv(c, x, y, beta=0.7, alpha=1.5), normal(4), normal(4, 9), normal(9))
case("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y, beta=0.4, alpha=0.3), normal(3, 4, 6), normal(3, 4, 5), normal(3, 5, 6))
for _equation, _shapes in {
    "ij,jk->ik": [(3, 4), (4, 5)], "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)], "bij,bj->bi": [(2, 3, 4), (2, 4)],
    "i,j->ij": [(3,), (4,)], "ijk->ki": [(2, 3, 4)], "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)], "ij,ij->": [(3, 4), (3, 4)], "bnd,dhk->bhnk": [(2, 3, 4), (4, 5, 6)],
}.items():
    case(f"einsum-{_equation}", lambda *xs, e=_equation: torch.einsum(e, *xs), *(normal(*s) for s in _shapes))

# --- convolutions ---------------------------------------------------------------------------------

for _name, _x, _w, _options in [
    ("plain", (2, 3, 8, 8), (4, 3, 3, 3), {}),
    ("one_by_one", (3, 5, 7, 6), (6, 5, 1, 1), {}),
    ("one_place", (1, 3, 5, 5), (2, 3, 5, 5), {}),
    ("stride", (2, 3, 9, 11), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    ("stride_beyond_the_weight", (1, 2, 10, 9), (3, 2, 2, 2), {"stride": (3, 4)}),
    ("same", (2, 3, 7, 9), (4, 3, 3, 3), {"padding": "same"}),
    ("same_even", (1, 3, 7, 9), (4, 3, 4, 2), {"padding": "same", "dilation": (1, 3)}),
    ("valid", (1, 3, 7, 9), (4, 3, 4, 2), {"padding": "valid"}),
    ("dilation", (2, 3, 11, 9), (4, 3, 3, 2), {"dilation": 2, "padding": (2, 0)}),
    ("groups", (2, 4, 6, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    ("depthwise", (2, 5, 9, 8), (5, 1, 3, 3), {"groups": 5, "padding": 1, "stride": 2}),
    ("depthwise_twice", (2, 3, 8, 8), (6, 1, 3, 3), {"groups": 3}),
    ("weight_larger_than_the_image", (1, 2, 3, 2), (3, 2, 5, 7), {"padding": (2, 3)}),
    ("all", (3, 4, 13, 10), (6, 2, 3, 2), {"stride": (2, 3), "padding": (3, 1), "dilation": (2, 1), "groups": 2}),
    ("steps_beyond_every_image", (2, 3, 6, 5), (4, 3, 1, 2), {"stride": (70000, 1), "dilation": (70000, 2)}),
    # More depth, places and rows than a block of the engine has, and no multiple of any.
    ("blocks", (2, 37, 29, 31), (259, 37, 3, 3), {"padding": 1}),
]:
    case(f"conv2d_{_name}", lambda x, w, b, o=_options: F.conv2d(x, w, b, **o), normal(*_x), normal(*_w), normal(_w[0]))
    # f16 has no kernels of oneDNN: the engine's own loops run in it.
    for _dtype, _suffix, _tolerance in [(torch.bfloat16, "bf16", 2e-2), (torch.float16, "f16", 2e-3)]:
        case(f"conv2d_{_name}_{_suffix}", lambda x, w, b, o=_options: F.conv2d(x, w, b, **o), normal(*_x, dtype=_dtype),
             normal(*_w, dtype=_dtype), normal(_w[0], dtype=_dtype), tolerance=_tolerance)
case("conv2d_without_bias", lambda x, w: F.conv2d(x * 2, w).tanh(), normal(2, 3, 8, 8), normal(4, 3, 3, 3))
case("conv2d_one_image", F.conv2d, normal(3, 8, 8), normal(4, 3, 3, 3))
case("conv2d_of_views", lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w.flip(2)), normal(2, 8, 8, 3), normal(4, 3, 3, 3))
case("conv2d_twice", lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v), normal(2, 3, 8, 8), normal(4, 3, 3, 3), normal(5, 4, 3, 3))
_window = ([2, 1], [1, 0], [1, 2])
case("convolution", lambda x, w, b: torch.convolution(x, w, b, *_window, False, [0, 0], 2), normal(2, 4, 7, 8), normal(6, 2, 3, 2), normal(6))
case("convolution_transposed", lambda x, w, b: torch.convolution(x, w, b, *_window, True, [1, 0], 2), normal(2, 4, 5, 6), normal(4, 3, 3, 2), normal(6))
case("convolution_backward", lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, [6], *_window, False, [0, 0], 2, [True] * 3),
     normal(2, 6, 4, 6), normal(2, 4, 7, 8), normal(6, 2, 3, 2))
case("convolution_backward_transposed", lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, [6], *_window, True, [1, 0], 2, [True] * 3),
     normal(2, 6, 10, 8), normal(2, 4, 5, 6), normal(4, 3, 3, 2))
case("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), 1, (1, 2), 2, 2), normal(2, 4, 5, 3), normal(4, 3, 3, 2), normal(6))
case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1), normal(4, 5), normal(4, 3, 3), normal(3))
case("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2, 2), normal(2, 4, 13), normal(6, 2, 3), normal(6))
case("conv1d_same", lambda x, w: F.conv1d(x, w, padding="same"), normal(4, 13), normal(6, 4, 4))

for _name, _x, _w, _options in [
    ("plain", (2, 3, 5, 6, 4), (4, 3, 2, 3, 2), {}),
    ("one_by_one", (2, 5, 3, 4, 2), (6, 5, 1, 1, 1), {}),
    ("patches", (1, 3, 4, 8, 8), (5, 3, 2, 4, 4), {"stride": (2, 4, 4)}),
    ("same", (1, 3, 4, 5, 3), (4, 3, 3, 2, 4), {"padding": "same", "dilation": (1, 2, 1)}),
    ("depthwise", (2, 4, 5, 4, 3), (8, 1, 3, 3, 2), {"groups": 4, "padding": 1, "stride": (2, 1, 2)}),
    ("all", (2, 4, 7, 6, 9), (6, 2, 2, 3, 3), {"stride": (2, 1, 3), "padding": (1, 2, 0), "dilation": (3, 1, 2), "groups": 2}),
    # More depth, places and rows than a block of the engine has, and no multiple of any.
    ("blocks", (2, 19, 5, 11, 13), (67, 19, 2, 3, 3), {"padding": 1}),
]:
    for _dtype, _suffix, _tolerance in [(torch.float32, "", 1e-4), (torch.bfloat16, "_bf16", 2e-2), (torch.float16, "_f16", 2e-3)]:
        case(f"conv3d_{_name}{_suffix}", lambda x, w, b, o=_options: F.conv3d(x, w, b, **o), normal(*_x, dtype=_dtype),
             normal(*_w, dtype=_dtype), normal(_w[0], dtype=_dtype), tolerance=_tolerance)
case("conv3d_one_volume", lambda x, w: F.conv3d(x, w.flip(2)), normal(3, 4, 5, 4), normal(4, 3, 2, 2, 3))
case("conv_transpose3d", lambda x, w, b: F.conv_transpose3d(x, w, b, (2, 3, 1), 1, (1, 2, 0), 2, 2), normal(2, 4, 3, 2, 4), normal(4, 3, 2, 2, 3), normal(6))
case("convolution_backward_3d", lambda g, x, w: torch.ops.aten.convolution_backward(
    g, x, w, [6], [2, 1, 1], [1, 0, 1], [1, 2, 1], False, [0] * 3, 2, [True] * 3), normal(2, 6, 3, 2, 7), normal(2, 4, 5, 6, 7), normal(6, 2, 2, 3, 3))

# --- products of groups -----------------------------------------------------------------------------

_ENDS = torch.tensor([3, 3, 8, 16], dtype=torch.int32)  # one group has no row
_half = dict(dtype=torch.bfloat16)
case("grouped_mm", lambda x, w: torch._grouped_mm(x, w.transpose(1, 2), offs=_ENDS), normal(16, 8, **_half), normal(4, 24, 8, **_half), tolerance=2e-2)
case("grouped_mm_of_columns", lambda w, x: torch._grouped_mm(w, x, offs=_ENDS), normal(4, 8, 16, **_half), normal(16, 16, **_half), tolerance=2e-2)
case("grouped_mm_summed", lambda x, y: torch._grouped_mm(x.transpose(0, 1), y, offs=_ENDS), normal(16, 8, **_half), normal(16, 24, **_half), tolerance=2e-2)
case("grouped_mm_batched", lambda x, y: torch._grouped_mm(x, y), normal(2, 8, 16, **_half), normal(2, 16, 8, **_half), tolerance=2e-2)
# In f32 PyTorch traces none, and Hugging Face's mixtures of experts call an operator of theirs.
case("grouped_mm_of_experts", lambda x, w: experts(x * 2, w, _ENDS).tanh(), normal(16, 5), normal(4, 5, 7))
case("grouped_mm_of_turned_experts", lambda x, w: experts(x, w.transpose(1, 2), _ENDS.long() - 2), normal(16, 5), normal(4, 7, 5))
case("grouped_mm_in_blocks", lambda x, w: experts(x, w, torch.tensor([700, 701], dtype=torch.int32)), normal(701, 401), normal(2, 401, 37))

# --- attention ------------------------------------------------------------------------------------

sdpa = F.scaled_dot_product_attention
for _b, _h, _r, _d in [(2, 3, 8, 16), (1, 1, 1, 1), (1, 2, 17, 8), (2, 1, 33, 5)]:
    _qkv = [normal(_b, _h, _r, _d)] * 3
    case(f"attention-{_b}x{_h}x{_r}x{_d}", sdpa, *_qkv)
    case(f"attention_causal-{_b}x{_h}x{_r}x{_d}", lambda q, k, v: sdpa(q, k, v, is_causal=True), *_qkv)
case("attention_3d", sdpa, *[normal(2, 8, 16)] * 3)
case("attention_cross", sdpa, normal(2, 3, 5, 8), normal(2, 3, 9, 8), normal(2, 3, 9, 8))
case("attention_scale", lambda q, k, v: sdpa(q, k, v, scale=0.1), *[normal(2, 3, 5, 8)] * 3)
case("attention_bool_mask", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m | torch.eye(6).bool()), *[normal(2, 3, 6, 8)] * 3, truths(6, 6))
case("attention_float_mask", lambda q, k, v: sdpa(q, k, v, attn_mask=-torch.arange(6.0).expand(1, 1, 6, 6)), *[normal(2, 3, 6, 8)] * 3)
case("attention_trained_mask", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *[normal(2, 3, 6, 8)] * 3, normal(6, 6))
case("attention_gqa", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
     normal(2, 6, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8))
case("attention_value_size", sdpa, normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 4))

# --- normalisation ------------------------------------------------------------------------------------

for _shape in [(4, 8), (1, 1), (3, 5, 7), (33, 65)]:
    _n = _shape[-1]
    # A row of one element is constant after normalisation: its gradient is exactly 0 and has no direction.
    if _n > 1:
        case(f"layer_norm-{text(_shape)}", lambda x, g, b, n=_n: F.layer_norm(x, (n,), g, b), normal(*_shape), normal(_n), normal(_n))
    case(f"rms_norm-{text(_shape)}", lambda x, g, n=_n: F.rms_norm(x, (n,), g, 1e-2), normal(*_shape), normal(_n))
    case(f"cumsum-{text(_shape)}", lambda x: torch.cumsum(x, 0) + x.cumsum(-1) * 2, normal(*_shape))
    case(f"softmax-{text(_shape)}", lambda x: torch.softmax(x, 0) + torch.softmax(x, -1), normal(*_shape))
    case(f"log_softmax-{text(_shape)}", lambda x: torch.log_softmax(x, 0) + F.log_softmax(x, -1), normal(*_shape))
case("cumsum_middle", lambda x: (x * 2).cumsum(1).tanh(), normal(3, 40, 5))
case("cumsum_scalar", lambda x: torch.cumsum(x, 0), normal())
case("cumsum_counts", lambda x: torch.cumsum(x, -1), integers(0, 9, 5, 7, dtype=torch.int32))
case("cumsum_in_bf16", lambda x: torch.cumsum(x, 0, dtype=torch.bfloat16), normal(9, 4), tolerance=2e-2)
case("cumprod", lambda x: x.cumprod(0) + 2 * torch.cumprod(x, -1), with_zeros(5, 7))
case("cumprod_middle", lambda x: (x * 2).cumprod(1).tanh(), with_zeros(3, 9, 5))
case("cumprod_scalar", lambda x: torch.cumprod(x, 0), normal())
case("cumprod_in_bf16", lambda x: torch.cumprod(x, 0, dtype=torch.bfloat16), uniform(0.5, 1.5, 9, 4), tolerance=2e-2)
case("prod", lambda x: (x.prod(), x.prod(1), x.prod(0, keepdim=True)), with_zeros(3, 4))
case("prod_wide", lambda x: (x.prod(dtype=torch.float32), torch.prod(x, 0, dtype=torch.float32)), uniform(0.5, 1.5, 9, 4), tolerance=1e-4)
case("cummax", lambda x: (*x.cummax(1), x.cummax(0)[0]), normal(3, 40, 5))
case("cummin", lambda x: (*x.cummin(-1), x.cummin(0)[0] * 2), normal(4, 31))
case("cummax_ties", lambda x: (*(x * 1.0).cummax(1), *x.cummax(0), *x.cummin(1)), integers(-2, 3, 5, 17))
case("logcumsumexp", lambda x: x.logcumsumexp(0) + torch.logcumsumexp(x * 30, -1), normal(7, 40))
case("logcumsumexp_scalar", lambda x: torch.logcumsumexp(x, 0), normal())
case("layer_norm_plain", lambda x: F.layer_norm(x, (7,)), normal(3, 7))
case("layer_norm_two_dims", lambda x, g, b: F.layer_norm(x, (5, 7), g, b), normal(3, 5, 7), normal(5, 7), normal(5, 7))
case("rms_norm_plain", lambda x: F.rms_norm(x, (7,)), normal(3, 7))
case("rms_norm_written_out", lambda x, g: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * g, normal(3, 7), normal(7))
# Rows that hardly vary show what eps is added to.
case("layer_norm_eps", lambda x, g, b: F.layer_norm(x * 0.01 + 3, (7,), g, b, 3e-4), normal(5, 7), normal(7), normal(7))
case("rms_norm_eps", lambda x, g: F.rms_norm(x * 0.01, (7,), g, 3e-4), normal(5, 7), normal(7))
case("group_norm_eps", lambda x, g, b: F.group_norm(x * 0.01 + 3, 2, g, b, 3e-4), normal(3, 4, 5), normal(4), normal(4))
case("batch_norm_eps", lambda x, g, b: F.batch_norm(x, torch.arange(4) / 4.0, torch.arange(1, 5) / 9.0, g, b, eps=0.3),
     normal(3, 4, 5), normal(4), normal(4))
# In a program that writes to a tensor, batch_norm is another operator.
case("batch_norm_written_to", lambda x, g: F.batch_norm(x, torch.arange(4) / 4.0, torch.arange(1, 5) / 9.0, g).mul_(2.0),
     normal(3, 4, 5), normal(4))
case("group_norm", lambda x, g, b: F.group_norm(x, 2, g, b), normal(3, 4, 5), normal(4), normal(4))

# --- losses ------------------------------------------------------------------------------------------------

for _rows, _classes in [(8, 16), (1, 1), (5, 7), (33, 65)]:
    case(f"cross_entropy-{_rows}x{_classes}", F.cross_entropy, normal(_rows, _classes), integers(0, _classes, _rows))
for _reduction in ("none", "sum", "mean"):
    case(f"cross_entropy_{_reduction}", lambda x, t, r=_reduction: F.cross_entropy(x, t, reduction=r), normal(6, 9), integers(0, 9, 6))
    case(f"cross_entropy_ignore_{_reduction}", lambda x, t, r=_reduction: F.cross_entropy(x, t, ignore_index=2, reduction=r),
         normal(16, 4), integers(0, 4, 16))
    case(f"cross_entropy_smooth_{_reduction}",
         lambda x, t, r=_reduction: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=1, reduction=r), normal(16, 4), integers(0, 4, 16))
    case(f"mse_{_reduction}", lambda x, y, r=_reduction: F.mse_loss(x, y, reduction=r), normal(5, 7), normal(5, 7))
case("cross_entropy_weighted", lambda x, t, w: F.cross_entropy(x, t, weight=w / 2.0), normal(6, 9), integers(0, 9, 6), integers(1, 5, 9))
case("cross_entropy_nd", F.cross_entropy, normal(2, 5, 3, 4), integers(0, 5, 2, 3, 4))
case("cross_entropy_soft", lambda x, t: F.cross_entropy(x, t.softmax(-1)), normal(4, 5), normal(4, 5))
for _reduction in ("none", "sum", "mean"):
    case(f"cross_entropy_weighted_smooth_{_reduction}",
         lambda x, t, w, r=_reduction: F.cross_entropy(x, t, w / 4.0, label_smoothing=0.2, ignore_index=1, reduction=r),
         normal(16, 4), integers(0, 4, 16), integers(1, 9, 4))
    case(f"cross_entropy_soft_weighted_smooth_{_reduction}",
         lambda x, t, w, r=_reduction: F.cross_entropy(x, t.softmax(1), w, label_smoothing=0.2, reduction=r),
         normal(4, 5, 3), normal(4, 5, 3), uniform(0.2, 2, 5))
    case(f"nll_weighted_{_reduction}", lambda x, t, w, r=_reduction: F.nll_loss(x, t, w / 4.0, ignore_index=2, reduction=r),
         normal(16, 4), integers(0, 4, 16), integers(1, 9, 4))
case("nll", lambda x, t: F.nll_loss(F.log_softmax(x, -1), t), normal(6, 9), integers(0, 9, 6))
case("nll_ignore", lambda x, t: F.nll_loss(F.log_softmax(x, -1), t, ignore_index=3, reduction="sum"), normal(16, 5), integers(0, 5, 16))
case("l1", F.l1_loss, normal(5, 7), normal(5, 7))
case("l1_sum", lambda x, y: F.l1_loss(x, y, reduction="sum"), normal(5, 7), normal(5, 7))
case("smooth_l1", F.smooth_l1_loss, normal(5, 7), normal(5, 7))
case("smooth_l1_beta", lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.3), normal(5, 7), normal(5, 7))
case("huber", F.huber_loss, normal(5, 7), normal(5, 7))
case("huber_delta", lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.3), normal(5, 7), normal(5, 7))
case("kl_div", lambda x, y: F.kl_div(x, y, reduction="sum", log_target=True), normal(5, 7), normal(5, 7))
case("kl_div_of_probabilities", lambda x, y: F.kl_div(x, y.softmax(-1), reduction="none"), normal(5, 7), normal(5, 7))
case("kl_div_of_nothing", lambda x: F.kl_div(x, torch.eye(5), reduction="batchmean"), normal(5, 5))
case("bce_with_logits", F.binary_cross_entropy_with_logits, normal(5, 7), uniform(0, 1, 5, 7))
case("bce_with_logits_weighted", lambda x, t, w, p: F.binary_cross_entropy_with_logits(
    x, t, w / 4.0, reduction="sum", pos_weight=p / 3.0), normal(5, 7), uniform(0, 1, 5, 7), integers(1, 9, 7), integers(1, 9, 7))

# --- lookups -----------------------------------------------------------------------------------------------

case("strided_put", lambda x, i: torch.as_strided_scatter(x, i, (5, 4), (20, 4), 1), integers(0, 99, 4, 5, 6), integers(0, 99, 5, 4))
case("embedding", lambda i, w: F.embedding(i, w), integers(0, 11, 3, 5), normal(11, 7))
case("embedding_padded_constant", lambda i: F.embedding(i, torch.arange(10.0).reshape(5, 2), padding_idx=2), integers(0, 5, 3))
for _mode in ("sum", "mean", "max"):
    case(f"embedding_bag_{_mode}", lambda i, w, m=_mode: (F.embedding_bag(i, w, torch.tensor([0, 3, 3, 9]), mode=m, padding_idx=2),
         F.embedding_bag(i.reshape(3, 4), w * 2, mode=m)), integers(0, 7, 12), normal(7, 5))
case("embedding_bag_weighted", lambda i, w, s: F.embedding_bag(i, w, torch.tensor([0, 3, 12]), mode="sum", per_sample_weights=s, include_last_offset=True),
     integers(0, 7, 12), normal(7, 5), normal(12))
case("embedding_one", lambda i, w: F.embedding(i, w), integers(0, 1, 1), normal(1, 1))
case("index_rows", lambda x, i: x[i], normal(5, 3), integers(-5, 5, 7))
case("index_columns", lambda x, i: x[:, i], normal(5, 6, 3), integers(0, 6, 4))
case("index_select", lambda x, i: x.index_select(1, i), normal(5, 6), integers(0, 6, 4))
case("embedding_padded_trained", lambda i, w: F.embedding(i, w * 1, padding_idx=-3), integers(0, 5, 3, 5), normal(5, 7))
case("detached", lambda x, y: x * (x * y).detach() + y, normal(3, 4), normal(3, 4))
case("gather", lambda x, i: x.gather(1, i), normal(5, 6), integers(0, 6, 5, 3))
case("gather_first", lambda x, i: x.gather(0, i), normal(5, 6), integers(0, 5, 2, 6))
case("take_along_dim", lambda x, i, j: (torch.take_along_dim(x, i, 1), torch.take_along_dim(x, j)), normal(5, 6), integers(0, 6, 5, 3),
     integers(0, 30, 7))
case("index_two", lambda x, i, j: x[i, j], normal(5, 6, 3), integers(-5, 5, 4), integers(0, 6, 4))
case("index_behind", lambda x, i, j: x[:, i, j] * x[:, j, i], normal(2, 6, 6, 3), integers(-6, 6, 4), integers(0, 6, 4))
case("index_around", lambda x, i, j: x[i, :, j], normal(5, 3, 6), integers(0, 5, 2, 4), integers(0, 6, 4))
case("index_outer", lambda x, i, j: x[i[:, None], j], normal(5, 6), integers(0, 5, 2), integers(0, 6, 4))

# --- order and pools -----------------------------------------------------------------------------------------

case("topk", lambda x: x.topk(2), normal(5, 7))
case("topk_first_smallest", lambda x: x.topk(3, 0, largest=False)[0], normal(5, 3, 4))
case("topk_unsorted", lambda x: (x * x).topk(3, 1, sorted=False)[0].sum(1), normal(2, 7))
case("sort", lambda x: x.sort(), normal(3, 17))
case("sort_first_descending", lambda x: x.sort(0, descending=True), normal(9, 4))
case("sort_stable", lambda x: torch.sort(x, stable=True, dim=1, descending=True), integers(0, 4, 5, 9))
case("sort_scalar", lambda x: x.sort(), normal())
case("argsort", lambda x: (x.argsort(), x.argsort(0, descending=True)), normal(5, 7))
case("argsort_stable", lambda x: torch.argsort(x, stable=True, dim=0, descending=True), integers(0, 3, 9, 2))
case("order_of_a_long_dimension", lambda x, w: (x.sort(1).values * w, x.topk(20, 1)[0], x.median(1).values, x.argsort(1)), normal(2, 1500, 3), normal(1500, 3))
case("written_by_many_indices", lambda x, s, i: (x.scatter(1, i.argsort(1)[:, :1100], s), torch.index_put(x, (i[0].argsort() % 2, i[1].argsort()), s[0, 0])),
     normal(2, 1500), normal(2, 1100), normal(2, 1500))
case("largest_by_many_indices", lambda x, s, i: [y.scatter_reduce(1, i, v, reduce, include_self=own) for y, v in
     ((x, s), (x.detach(), torch.where(s > 2, math.nan, s).detach())) for reduce in ("amax", "amin") for own in (True, False)],
     normal(2, 1100), normal(2, 1200), integers(0, 1000, 2, 1200))
case("kthvalue", lambda x: (*x.kthvalue(3), x.kthvalue(2, 0, keepdim=True)[0]), normal(5, 7))
case("antialiased", lambda x: [F.interpolate(x, **size, mode=mode, antialias=True, align_corners=aligned) for mode in ("bilinear", "bicubic")
     for aligned in (False, True) for size in ({"size": (5, 21)}, {"size": 1}, {"scale_factor": (0.37, 1.7)})], normal(2, 3, 13, 16))
case("antialiased_lanczos", lambda x: torch.ops.aten._upsample_lanczos2d_aa(x, (6, 18), False), normal(1, 2, 13, 16))
case("max_pool1d", lambda x: F.max_pool1d(x, 3, stride=2, padding=1), normal(2, 3, 9))
case("max_pool2d", lambda x: F.max_pool2d(x, 2), normal(2, 3, 8, 6))
case("max_pool2d_options", lambda x: F.max_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), normal(2, 3, 9, 8))
case("max_pool2d_ceil", lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True), normal(3, 8, 7))
case("max_pool2d_places", lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True, return_indices=True), normal(2, 2, 8, 7))
case("max_pool3d", lambda x: F.max_pool3d(x, 2, stride=1), normal(1, 2, 4, 5, 3))
for _padding in ("zeros", "border", "reflection"):
    case(f"grid_sample_{_padding}", lambda x, g, p=_padding: (F.grid_sample(x, g, "bilinear", p, False), F.grid_sample(x, g, "nearest", p, True)),
         normal(2, 3, 5, 6), uniform(-1.4, 1.4, 2, 3, 4, 2))
case("grid_sample_cubic", lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", True), normal(1, 2, 5, 6), uniform(-1.2, 1.2, 1, 3, 4, 2))
case("grid_sample_of_volumes", lambda x, g: F.grid_sample(x, g, "bilinear", "border", True), normal(1, 2, 3, 5, 4), uniform(-1.4, 1.4, 1, 2, 3, 2, 3))
case("avg_pool1d", lambda x: F.avg_pool1d(x, 4, stride=3, padding=2), normal(2, 3, 11))
case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), normal(2, 3, 8, 6))
case("avg_pool2d_within", lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False), normal(2, 3, 9, 8))
case("avg_pool2d_ceil", lambda x: F.avg_pool2d(x, (3, 2), stride=(2, 3), padding=1, ceil_mode=True), normal(3, 8, 7))
case("avg_pool2d_divided", lambda x: F.avg_pool2d(x, 3, stride=1, divisor_override=5), normal(2, 3, 5, 6))
case("avg_pool3d", lambda x: F.avg_pool3d(x, 2, ceil_mode=True), normal(1, 2, 4, 5, 3))
case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), normal(2, 3, 7))
case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), normal(2, 3, 7, 8))
case("adaptive_avg_pool2d_one", lambda x: F.adaptive_avg_pool2d(x, 1), normal(2, 3, 7, 8))
case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), normal(2, 3, 7, 8))
case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2) * 2, normal(3, 7))
case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 1, 3))[0, :, :1], normal(1, 2, 5, 3, 4))
case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, None, 2)), normal(1, 2, 4, 3, 5))

case("floor_of_quotient", lambda x: (x // 7, x // -3, torch.div(x, 5, rounding_mode="floor")), integers(-50, 50, 9, 8))
case("whole_quotient", lambda x: (torch.div(x, 7, rounding_mode="trunc"), torch.div(x, -3, rounding_mode="trunc")), integers(-50, 50, 9, 8))
case("quotient_of_large", lambda x: (x // 3, x % 10, x // -1000003, x // 2**40), integers(-2**63, 2**63 - 1, 64))
case("quotient_i32", lambda x: (x // 3, x % -10, x // 1, x % 65536), integers(-2**31, 2**31 - 1, 64, dtype=torch.int32))
case("whole_quotient_of_floats", lambda x, y: (torch.div(x, y, rounding_mode="trunc"), torch.div(x, 0.3, rounding_mode=None)),
     normal(5, 7), uniform(0.1, 2, 5, 7))
case("floor_of_quotient_of_floats", lambda x, y: (torch.div(x, y, rounding_mode="floor"), x.detach() // 0.3, torch.floor_divide(x.detach(), (y * y).detach())), normal(5, 7), uniform(0.1, 2, 5, 7))
case("remainder_of_floats", lambda x, y: (x % y, x % -0.3, 2.5 % y.detach(), torch.remainder(x, 0.7), x % (y - 3)), uniform(-5, 5, 5, 7), uniform(0.1, 2, 5, 7))
case("fmod", lambda x, y: (torch.fmod(x, y), torch.fmod(x, -0.3)), uniform(-5, 5, 5, 7), uniform(0.1, 2, 5, 7))
case("fmod_of_integers", lambda x: (torch.fmod(x, 7), torch.fmod(x, -3)), integers(-50, 50, 9, 8))
case("remainder_in_bf16", lambda x, y: x % y, lambda g: torch.arange(-40, 40).bfloat16() / 8, lambda g: torch.arange(1, 81).bfloat16() / 4)
case("remainder", lambda x: (x % 7, x % -3, torch.remainder(x, 1)), integers(-50, 50, 9, 8))
_WIDTHS = {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8}


def _ends(dtype, *, least=True):
    """The ends of a type of integers and what is beside them, small ones and random ones, each with each."""
    info, draw = torch.iinfo(dtype), torch.Generator().manual_seed(9)
    numbers = torch.tensor([info.max, info.max - 1, info.min, info.min + 1, info.max // 3, -(info.max // 2), 0, 1, -1, 2, -3, 7, 10, 31, 63, 64],
                           dtype=dtype)
    numbers = torch.cat([numbers, torch.randint(info.min, info.max, (6,), generator=draw, dtype=dtype)])
    return torch.cartesian_prod(*(numbers if least else numbers[numbers != info.min] for _ in range(2))).T


for _name, _dtype in _WIDTHS.items():
    _x, _y = _ends(_dtype)
    case(f"bits_{_name}", lambda x, y: (x & y, x | y, x ^ y, ~x, x & 12, x ^ -3, 5 | x), lambda g, x=_x: x, lambda g, y=_y: y)
    case(f"shifts_{_name}", lambda x, y: (x << y, x >> y, x << 3, x >> 2, 3 << y, torch.bitwise_right_shift(-77, y)), lambda g, x=_x: x, lambda g, y=_y: y)
    case(f"powers_{_name}", lambda x, y: (x**y, 3**y), lambda g, x=_x: x, lambda g, y=_y: y)
    _divides = (_y != 0) & ~((_y == -1) & (_x == torch.iinfo(_dtype).min))
    case(f"quotients_{_name}", lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), 5 % y, torch.fmod(x, -7)),
         lambda g, x=_x[_divides]: x, lambda g, y=_y[_divides]: y)
    _x, _y = _ends(_dtype, least=False)
    case(f"common_divisors_{_name}", lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), lambda g, x=_x: x, lambda g, y=_y: y)
case("bits_of_truths", lambda x, y: (torch.bitwise_and(x, y), torch.bitwise_or(x, y), torch.bitwise_xor(x, y), torch.bitwise_not(x), x.int() & y),
     truths(5, 7), truths(7))
case("sums_by_index_of_integers", lambda x, i, s: (
    x.scatter_add(0, i, s), x.int().index_add(0, i[0], s.int()[:, :4].T.reshape(4, -1)[:, :1].expand(4, 4), alpha=3), x.sum().scatter_add(0, i[0, 0] * 0, s[0, 0]),
    *(x.to(dtype).scatter_reduce(0, i, s.to(dtype), r, include_self=own) for dtype in (torch.int32, torch.int64) for r in _REDUCTIONS for own in (True, False))),
     integers(-9, 9, 5, 4), integers(0, 5, 6, 4), integers(-9, 9, 6, 4))
case("truths_so_far", lambda x: (*x.cummax(1), *x.cummin(0)), truths(5, 7))
case("truths_by_index", lambda x, i, s: (x.scatter_add(0, i, s), x.index_add(0, i[0], s[:4]), x.put(i[0], s[0], accumulate=True), x.sign(),
     *(x.scatter_reduce(0, i, s, r) for r in ("sum", "prod", "amax", "amin"))), truths(5, 4), integers(0, 5, 6, 4), truths(6, 4))
case("extremes_of_truths", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.max(), y.min(), x.amax(1), y.amin(0, keepdim=True)), truths(5, 7), truths(7))
case("from_a_scalar", lambda x, i: (x.gather(0, i), x.gather(0, i[0])), normal(), integers(0, 1, 3))
case("means_of_integers_over_windows", lambda x: (F.avg_pool1d(x, 3), F.avg_pool1d(x, 4, 3, 1, True, False), F.avg_pool3d(x[None, None], 2, 1, divisor_override=-3)),
     integers(-50, 50, 2, 3, 9))
case("maxima_of_integers_over_windows", lambda x: (F.max_pool2d(x, 3, 2, 1), *F.max_pool2d(x.int(), 2, 1, return_indices=True)), integers(-50, -30, 2, 5, 6))
case("products_of_integers_scaled", lambda x, y: torch.addbmm(torch.tensor(3), x, y, beta=2.6, alpha=3.2), integers(-9, 9, 2, 3, 4), integers(-9, 9, 2, 4, 5))
case("whole_powers_in_steps", lambda x: x + torch.logspace(0, 9, 10, 3.0, dtype=torch.int64) + torch.logspace(1, 4, 10, 5.0, dtype=torch.int32), integers(0, 9, 10))
case("histc", lambda x: torch.histc(x.float(), 8, 0, 7), integers(-2, 10, 5, 9))
case("histc_of_floats", lambda x: torch.histc(x.float() / 10, bins=10, min=-1, max=2), integers(-20, 30, 64))

case("masked_scatter", lambda x, m, s: x.masked_scatter(m, s * 2) * x, normal(3, 1, 4), truths(5, 4), normal(61))
_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")
for _own in (True, False):
    case(f"scatter_reduced_{_own}", lambda x, i, s, own=_own: tuple(x.scatter_reduce(1, i, s, r, include_self=own) for r in _REDUCTIONS),
         normal(5, 6), integers(0, 6, 4, 7), normal(4, 7))
    case(f"index_reduced_{_own}", lambda x, i, s, own=_own: tuple(x.index_reduce(0, i, s, r, include_self=own) for r in _REDUCTIONS[1:]),
         normal(5, 3), integers(0, 5, 7), normal(7, 3))
case("scatter_with_a_reduction", lambda x, i, s: (torch.scatter(x.detach(), 0, i, s.detach(), reduce="add"), torch.scatter(x.detach(), 1, i, 2.5, reduce="multiply")),
     normal(5, 6), integers(0, 5, 4, 5), normal(5, 7))
case("scatter_reduced_integers", lambda x, i, s: tuple(x.scatter_reduce(0, i, s, r) for r in _REDUCTIONS if r not in ("prod", "mean")),
     integers(-9, 9, 6), integers(0, 6, 9), integers(-9, 9, 9))
case("put", lambda x, i, s: (x.put(i, s, accumulate=True), x.put(i.flatten().argsort().reshape(2, 4), s * 2)), normal(3, 4), integers(-12, 12, 2, 4), normal(2, 4))
case("masked_put", lambda x, m: _masked(x * 2, m, 0.5), normal(5, 4), truths(5, 4))
case("masked_put_rows", lambda x, m, v: _masked(x * 2, m, v * v) * x, normal(5, 4, 3), truths(5, 4), normal(3))
case("masked_put_several", lambda x, v: _masked(x * 2, torch.arange(5) > 1, v.detach()) * x, normal(5, 4), normal(3, 4))
case("masked_added", lambda x, m, v: torch.ops.aten.index_put(x, [m], v.detach(), True) * x, normal(5, 4, 3), truths(5), normal(1, 4, 3))

case("truths_put", lambda x: (torch.select_scatter(x, ~x[0], 0, 0), torch.slice_scatter(x, x[:, :2] ^ x[:, 2:], 1, 1, 3), F.pad(x, (1, 2), value=True), F.pad(x, (0, 0, 2, 1))),
     truths(5, 4))
case("fake_quantised", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -20, 25), normal(5, 7))
case("powers_between_tensors", lambda x: x + sum(torch.logspace(*ends, 7, base) for base in (10.0, 2.5) for ends in (
    (x[0].detach(), x[1].detach()), (x[0].detach(), 2.0), (0.5, x[1].detach()))), uniform(-1, 1, 7))
case("searched_number", lambda x: (torch.searchsorted(x.detach().sort().values, 0.3), torch.searchsorted(x.detach().sort().values, -0.2, right=True)), normal(9))
case("windows", lambda x: tuple(x[:n] * make(n, periodic, *more) for n in (1, 2, 9) for periodic in (True, False) for make, *more in (
    (torch.bartlett_window,), (torch.blackman_window,), (torch.hamming_window,), (torch.hamming_window, 0.6, 0.3), (torch.kaiser_window,),
    (torch.kaiser_window, -3.0))), normal(9))
case("windows_by_default", lambda x: (x + torch.bartlett_window(8), x + torch.blackman_window(8), x + torch.hamming_window(8), x + torch.kaiser_window(8),
                                      x + torch.hamming_window(8, False, 0.7)), normal(8))
case("frequencies", lambda x: (x[:7] * torch.fft.fftfreq(7, 0.5), x * torch.fft.fftfreq(8), x[:5] * torch.fft.rfftfreq(8, 0.3)), normal(8))
case("fake_quantised_channels", lambda x: torch.fake_quantize_per_channel_affine(
    x, torch.tensor([0.1, 0.02, 0.5]), torch.tensor([0, -3, 2], dtype=torch.int32), 1, -10, 12), normal(4, 3, 5))


def _encoder_layer(norm_first, gelu, mask, kind):
    def layer(x, qkv, inner, outer, norm):
        with torch.no_grad():
            return torch._transformer_encoder_layer_fwd(
                x, 8, 2, qkv, qkv[:, 0], outer[:, :8], outer[:, 8], gelu, norm_first, 1e-5, norm[0], norm[1], norm[2], norm[3], inner, inner[:, 0], outer, outer[:, 1], mask, kind)
    return layer


_HIDDEN = torch.rand(2, 2, 5, 5, generator=torch.Generator().manual_seed(2)) < 0.3
for _name, _mask, _kind in (("", None, None), ("_after", torch.ones(5, 5).triu(1).bool(), 0), ("_of_rows", _HIDDEN[:, 0, 1], 1), ("_any", _HIDDEN, 2)):
    case(f"encoder_layer{_name}", _encoder_layer(_kind != 0, _kind != 1, _mask, _kind), normal(2, 5, 8), normal(24, 8), normal(12, 8), normal(8, 12), normal(4, 8))

# Autograd's graphs have these.
case("weight_norm", lambda v, g: torch._weight_norm(v * 2, g, 2) + torch._weight_norm(v, g[0, 0, 0].expand(5, 1, 1), 0), normal(5, 3, 2), normal(1, 1, 2))

case("max_pool2d_backward", lambda g, i: torch.ops.aten.max_pool2d_with_indices_backward(
    g, torch.zeros(2, 3, 5, 4), [2, 3], [2, 1], [0, 1], [1, 1], True, i), normal(2, 3, 3, 4), integers(0, 20, 2, 3, 3, 4))
case("max_pool3d_backward", lambda g, i: torch.ops.aten.max_pool3d_with_indices_backward(
    g, torch.zeros(1, 2, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, i), normal(1, 2, 2, 2, 2), integers(0, 64, 1, 2, 2, 2, 2))
case("adaptive_max_pool2d_backward", lambda g, i: torch.ops.aten.adaptive_max_pool2d_backward(g, torch.zeros(2, 3, 5, 4), i),
     normal(2, 3, 3, 2), integers(0, 20, 2, 3, 3, 2))
case("adaptive_max_pool3d_backward", lambda g, i: torch.ops.aten.adaptive_max_pool3d_backward(g, torch.zeros(2, 3, 2, 4), i),
     normal(2, 2, 1, 2), integers(0, 24, 2, 2, 1, 2))
case("avg_pool2d_backward", lambda g: torch.ops.aten.avg_pool2d_backward(
    g, torch.zeros(2, 3, 8, 7), [3, 2], [2, 1], [1, 0], True, False, None), normal(2, 3, 5, 6))
case("avg_pool3d_backward", lambda g: torch.ops.aten.avg_pool3d_backward(
    g, torch.zeros(2, 4, 4, 4), [2, 2, 2], [1, 2, 2], [1, 0, 0], False, True, 3), normal(2, 5, 2, 2))
case("adaptive_avg_pool2d_backward", lambda g: torch.ops.aten._adaptive_avg_pool2d_backward(g, torch.zeros(2, 3, 7, 8)), normal(2, 3, 3, 4))
case("adaptive_avg_pool3d_backward", lambda g: torch.ops.aten._adaptive_avg_pool3d_backward(g, torch.zeros(2, 5, 4, 3)), normal(2, 2, 4, 2))

# --- written by PyTorch in terms of others ------------------------------------------------------------------

case("glu", F.glu, normal(3, 8))
case("prelu", F.prelu, uniform(0.1, 2, 3, 8), normal(1))
case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), normal(3, 8), normal(3, 8))
case("normalize", lambda x: F.normalize(x, dim=-1), normal(3, 8))
