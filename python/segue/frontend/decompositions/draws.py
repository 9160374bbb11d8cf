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
from typing import Callable, Sequence, TypeVar

import torch
from torch.types import Number

from .table import Attempt, writes

aten = torch.ops.aten

_R = TypeVar("_R")

#: What one number of 24 bits can tell apart, with some to spare.
_FEW = 1 << 12


def _without_generator(function: Callable[..., _R]) -> Callable[..., Attempt[_R]]:
    """The function, which leaves calls with a generator as they are."""

    @functools.wraps(function)
    def checked(*args: object, generator: torch.Generator | None = None, **kwargs: object) -> Attempt[_R]:
        return NotImplemented if generator is not None else function(*args, **kwargs)

    return checked


def _uniform(shape: Sequence[int], device: torch.device | str) -> torch.Tensor:
    return torch.rand(tuple(shape), dtype=torch.float32, device=device)


def _clock(u: torch.Tensor) -> torch.Tensor:
    """Exponential numbers of rate 1. As PyTorch's they are above 0, since their logarithms are taken (`gumbel_softmax`)."""
    return -torch.log1p(-u.clamp(min=2.0**-25))


def _normal(shape: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """By the transform of Box and Muller."""
    radius = torch.sqrt(-2 * torch.log1p(-_uniform(shape, device)))
    return radius * torch.cos((2 * math.pi) * _uniform(shape, device))


def _whole(low: int, high: int, shape: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Whole numbers of [low, high), i64."""
    span = high - low
    if span <= _FEW:
        return (torch.floor(_uniform(shape, device) * span)).to(torch.int64) + low
    fine = _uniform(shape, device).double() + _uniform(shape, device).double() * 2.0**-24
    return torch.floor(fine * float(span)).to(torch.int64).clamp(max=span - 1) + low


def _of(shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None,
        draw: Callable[[Sequence[int], torch.device | str], torch.Tensor]) -> torch.Tensor:
    return draw(shape, device or "cpu").to(dtype or torch.get_default_dtype())


@writes(aten.randn.default, aten.randn.generator)
@_without_generator
def randn(size: Sequence[int], *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
          device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return _of(size, dtype, device, _normal)


@writes(aten.randn_like.default, aten.randn_like.generator)
@_without_generator
def randn_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
               device: torch.device | None = None, pin_memory: bool | None = None,
               memory_format: torch.memory_format | None = None) -> torch.Tensor:
    return _of(x.shape, dtype or x.dtype, device or x.device, _normal)


@writes(aten.rand.generator)
@_without_generator
def rand(size: Sequence[int], *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
         device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return _of(size, dtype, device, _uniform)


@writes(aten.rand_like.generator)
@_without_generator
def rand_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
              device: torch.device | None = None, pin_memory: bool | None = None,
              memory_format: torch.memory_format | None = None) -> torch.Tensor:
    return _of(x.shape, dtype or x.dtype, device or x.device, _uniform)


@writes(aten.randint.default, aten.randint.generator)
@_without_generator
def randint(high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64,
            layout: torch.layout | None = None, device: torch.device | None = None,
            pin_memory: bool | None = None) -> torch.Tensor:
    return _of(size, dtype, device, functools.partial(_whole, 0, high))


@writes(aten.randint.low, aten.randint.low_generator)
@_without_generator
def randint_from(low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64,
                 layout: torch.layout | None = None, device: torch.device | None = None,
                 pin_memory: bool | None = None) -> torch.Tensor:
    return _of(size, dtype, device, functools.partial(_whole, low, high))


@writes(aten.randint_like.default, aten.randint_like.generator)
@_without_generator
def randint_like(x: torch.Tensor, high: int, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                 device: torch.device | None = None, pin_memory: bool | None = None,
                 memory_format: torch.memory_format | None = None) -> torch.Tensor:
    return _of(x.shape, dtype or x.dtype, device or x.device, functools.partial(_whole, 0, high))


@writes(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
@_without_generator
def randint_like_from(x: torch.Tensor, low: int, high: int, *, dtype: torch.dtype | None = None,
                      layout: torch.layout | None = None, device: torch.device | None = None,
                      pin_memory: bool | None = None, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    return _of(x.shape, dtype or x.dtype, device or x.device, functools.partial(_whole, low, high))


@writes(aten.randperm.default, aten.randperm.generator)
@_without_generator
def randperm(n: int, *, dtype: torch.dtype | None = torch.int64, layout: torch.layout | None = None,
             device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return torch.argsort(_uniform((n,), device or "cpu")).to(dtype)


# --- what fills a tensor ------------------------------------------------------------------


def _filled(draw: Callable[..., torch.Tensor]) -> Attempt[Callable[..., torch.Tensor]]:
    """Entered for an operator that gives a tensor like its first argument, by `draw(u, *numbers)` of uniform numbers."""

    @_without_generator
    def function(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return draw(_uniform(x.shape, x.device), *args, **kwargs).to(x.dtype)

    return function


@writes(aten.uniform.default)
@_filled
def uniform(u: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return low + u * (high - low)


@writes(aten.exponential.default)
@_filled
def exponential(u: torch.Tensor, lambd: float = 1.0) -> torch.Tensor:
    return _clock(u) / lambd


@writes(aten.cauchy.default)
@_filled
def cauchy(u: torch.Tensor, median: float = 0.0, sigma: float = 1.0) -> torch.Tensor:
    return median + sigma * torch.tan(math.pi * (u - 0.5))


@writes(aten.geometric.default)
@_filled
def geometric(u: torch.Tensor, p: float) -> torch.Tensor:
    return torch.ceil(torch.log1p(-u) / math.log1p(-p)).clamp(min=1) if p < 1 else torch.ones_like(u)


@writes(aten.log_normal.default)
@_without_generator
def log_normal(x: torch.Tensor, mean: float = 1.0, std: float = 2.0) -> torch.Tensor:
    return torch.exp(mean + std * _normal(x.shape, x.device)).to(x.dtype)


@writes(aten.normal_functional.default)
@_without_generator
def normal_functional(x: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    return (mean + std * _normal(x.shape, x.device)).to(x.dtype)


@writes(aten.normal.Tensor_float, aten.normal.Tensor_Tensor)
@_without_generator
def normal(mean: torch.Tensor, std: float | torch.Tensor = 1.0) -> torch.Tensor:
    shape = torch.broadcast_shapes(mean.shape, std.shape) if isinstance(std, torch.Tensor) else mean.shape
    return (mean + std * _normal(shape, mean.device).to(mean.dtype)).to(mean.dtype)


@writes(aten.normal.float_Tensor)
@_without_generator
def normal_of_deviations(mean: float, std: torch.Tensor) -> torch.Tensor:
    return mean + std * _normal(std.shape, std.device).to(std.dtype)


@writes(aten.normal.float_float)
@_without_generator
def normal_of_numbers(mean: float, std: float, size: Sequence[int], *, dtype: torch.dtype | None = None,
                      layout: torch.layout | None = None, device: torch.device | None = None,
                      pin_memory: bool | None = None) -> torch.Tensor:
    return mean + std * _of(size, dtype, device, _normal)


@writes(aten.bernoulli.Tensor)
@_without_generator
def bernoulli(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (_uniform(x.shape, x.device) < p).to(x.dtype)


@writes(aten.multinomial.default)
@_without_generator
def multinomial(weights: torch.Tensor, num_samples: int, replacement: bool = False) -> torch.Tensor:
    weights = weights.to(torch.float32)
    if replacement:
        sums = weights.cumsum(-1)
        drawn = _uniform((*weights.shape[:-1], num_samples), weights.device) * sums[..., -1:]
        return torch.searchsorted(sums, drawn, right=True).clamp(max=weights.shape[-1] - 1)
    # The first of several exponential clocks: the next are those that a draw without it would find.
    return torch.topk(-_clock(_uniform(weights.shape, weights.device)) / weights, num_samples).indices


@writes(aten.rrelu_with_noise_functional.default)
@_without_generator
def rrelu(x: torch.Tensor, noise: torch.Tensor, lower: Number = 0.125, upper: Number = 0.3333333333333333,
          training: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2)), noise
    slope = torch.where(x > 0, 1.0, lower + _uniform(x.shape, x.device) * (upper - lower)).to(x.dtype)
    return x * slope, slope
