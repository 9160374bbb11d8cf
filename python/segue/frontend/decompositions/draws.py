# ===- draws.py - random numbers of all distributions, from uniform ones --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Random numbers of all distributions, from uniform ones.

The uniform numbers are Segue's own, which depend on a seed and on no state, so that what is computed again draws the same.
They have 24 bits. One that wants a generator is left to PyTorch.
"""

from __future__ import annotations

import functools
import math

import torch

from .table import writes

aten = torch.ops.aten

#: What one number of 24 bits can tell apart, with some to spare.
_FEW = 1 << 12


def _without_generator(function):
    """The function, which leaves calls with a generator as they are."""

    @functools.wraps(function)
    def checked(*args, generator=None, **kwargs):
        return NotImplemented if generator is not None else function(*args, **kwargs)

    return checked


def _uniform(shape, device):
    return torch.rand(tuple(shape), dtype=torch.float32, device=device)


def _clock(u):
    """Exponential numbers of rate 1. As PyTorch's they are above 0, since their logarithms are taken (`gumbel_softmax`)."""
    return -torch.log1p(-u.clamp(min=2.0**-25))


def _normal(shape, device):
    """By the transform of Box and Muller."""
    radius = torch.sqrt(-2 * torch.log1p(-_uniform(shape, device)))
    return radius * torch.cos((2 * math.pi) * _uniform(shape, device))


def _whole(low: int, high: int, shape, device):
    """Whole numbers of [low, high), i64."""
    span = high - low
    if span <= _FEW:
        return (torch.floor(_uniform(shape, device) * span)).to(torch.int64) + low
    fine = _uniform(shape, device).double() + _uniform(shape, device).double() * 2.0**-24
    return torch.floor(fine * float(span)).to(torch.int64).clamp(max=span - 1) + low


def _of(shape, dtype, device, draw):
    return draw(shape, device or "cpu").to(dtype or torch.get_default_dtype())


@writes(aten.randn.default, aten.randn.generator)
@_without_generator
def randn(size, *, dtype=None, layout=None, device=None, pin_memory=None):
    return _of(size, dtype, device, _normal)


@writes(aten.randn_like.default, aten.randn_like.generator)
@_without_generator
def randn_like(x, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _of(x.shape, dtype or x.dtype, device or x.device, _normal)


@writes(aten.rand.generator)
@_without_generator
def rand(size, *, dtype=None, layout=None, device=None, pin_memory=None):
    return _of(size, dtype, device, _uniform)


@writes(aten.rand_like.generator)
@_without_generator
def rand_like(x, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _of(x.shape, dtype or x.dtype, device or x.device, _uniform)


@writes(aten.randint.default, aten.randint.generator)
@_without_generator
def randint(high, size, *, dtype=torch.int64, layout=None, device=None, pin_memory=None):
    return _of(size, dtype, device, functools.partial(_whole, 0, high))


@writes(aten.randint.low, aten.randint.low_generator)
@_without_generator
def randint_from(low, high, size, *, dtype=torch.int64, layout=None, device=None, pin_memory=None):
    return _of(size, dtype, device, functools.partial(_whole, low, high))


@writes(aten.randint_like.default, aten.randint_like.generator)
@_without_generator
def randint_like(x, high, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _of(x.shape, dtype or x.dtype, device or x.device, functools.partial(_whole, 0, high))


@writes(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
@_without_generator
def randint_like_from(x, low, high, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _of(x.shape, dtype or x.dtype, device or x.device, functools.partial(_whole, low, high))


@writes(aten.randperm.default, aten.randperm.generator)
@_without_generator
def randperm(n, *, dtype=torch.int64, layout=None, device=None, pin_memory=None):
    return torch.argsort(_uniform((n,), device or "cpu")).to(dtype)


# --- what fills a tensor ------------------------------------------------------------------


def _filled(draw):
    """Entered for an operator that gives a tensor like its first argument, by `draw(u, *numbers)` of uniform numbers."""

    @_without_generator
    def function(x, *args, **kwargs):
        return draw(_uniform(x.shape, x.device), *args, **kwargs).to(x.dtype)

    return function


@writes(aten.uniform.default)
@_filled
def uniform(u, low=0.0, high=1.0):
    return low + u * (high - low)


@writes(aten.exponential.default)
@_filled
def exponential(u, lambd=1.0):
    return _clock(u) / lambd


@writes(aten.cauchy.default)
@_filled
def cauchy(u, median=0.0, sigma=1.0):
    return median + sigma * torch.tan(math.pi * (u - 0.5))


@writes(aten.geometric.default)
@_filled
def geometric(u, p):
    return torch.ceil(torch.log1p(-u) / math.log1p(-p)).clamp(min=1) if p < 1 else torch.ones_like(u)


@writes(aten.log_normal.default)
@_without_generator
def log_normal(x, mean=1.0, std=2.0):
    return torch.exp(mean + std * _normal(x.shape, x.device)).to(x.dtype)


@writes(aten.normal_functional.default)
@_without_generator
def normal_functional(x, mean=0.0, std=1.0):
    return (mean + std * _normal(x.shape, x.device)).to(x.dtype)


@writes(aten.normal.Tensor_float, aten.normal.Tensor_Tensor)
@_without_generator
def normal(mean, std=1.0):
    shape = torch.broadcast_shapes(mean.shape, std.shape) if isinstance(std, torch.Tensor) else mean.shape
    return (mean + std * _normal(shape, mean.device).to(mean.dtype)).to(mean.dtype)


@writes(aten.normal.float_Tensor)
@_without_generator
def normal_of_deviations(mean, std):
    return mean + std * _normal(std.shape, std.device).to(std.dtype)


@writes(aten.normal.float_float)
@_without_generator
def normal_of_numbers(mean, std, size, *, dtype=None, layout=None, device=None, pin_memory=None):
    return mean + std * _of(size, dtype, device, _normal)


@writes(aten.bernoulli.Tensor)
@_without_generator
def bernoulli(x, p):
    return (_uniform(x.shape, x.device) < p).to(x.dtype)


@writes(aten.multinomial.default)
@_without_generator
def multinomial(weights, num_samples, replacement=False):
    weights = weights.to(torch.float32)
    if replacement:
        sums = weights.cumsum(-1)
        drawn = _uniform((*weights.shape[:-1], num_samples), weights.device) * sums[..., -1:]
        return torch.searchsorted(sums, drawn, right=True).clamp(max=weights.shape[-1] - 1)
    # The first of several exponential clocks: the next are those that a draw without it would find.
    return torch.topk(-_clock(_uniform(weights.shape, weights.device)) / weights, num_samples).indices


@writes(aten.rrelu_with_noise_functional.default)
@_without_generator
def rrelu(x, noise, lower=0.125, upper=0.3333333333333333, training=False):
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2)), noise
    slope = torch.where(x > 0, 1.0, lower + _uniform(x.shape, x.device) * (upper - lower)).to(x.dtype)
    return x * slope, slope
