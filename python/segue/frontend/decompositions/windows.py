# ===- windows.py - windows of signals and frequencies of transforms -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Vectors that a spectral layer makes of a length: windows, and the frequencies of a discrete Fourier transform.

They are computed in f32, or f64 where that is wanted, and rounded once.
"""

from __future__ import annotations

import math
from typing import Callable

import torch

from . import special
from .table import writes

aten = torch.ops.aten


def _computed(wanted: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """The element type of the result, and the one it is computed in."""
    result = torch.get_default_dtype() if wanted is None else wanted
    return result, torch.float64 if result == torch.float64 else torch.float32


def _window(length: int, periodic: bool, dtype: torch.dtype | None, device: torch.device | None,
            shape: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`shape` of places from 0 to 1. A periodic window is the symmetric one that is longer by one place, without that place."""
    result, wide = _computed(dtype)
    if length <= 1:
        return torch.ones(length, dtype=result, device=device)
    last = length if periodic else length - 1
    return shape(torch.arange(length, dtype=wide, device=device) / last).to(result)


@writes(aten.bartlett_window.default, aten.bartlett_window.periodic)
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                    device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return _window(window_length, periodic, dtype, device, lambda t: 1 - (2 * t - 1).abs())


@writes(aten.blackman_window.default, aten.blackman_window.periodic)
def blackman_window(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                    device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return _window(window_length, periodic, dtype, device,
                   lambda t: 0.08 * torch.cos(4 * math.pi * t) - 0.5 * torch.cos(2 * math.pi * t) + 0.42)


@writes(aten.hamming_window.default, aten.hamming_window.periodic, aten.hamming_window.periodic_alpha, aten.hamming_window.periodic_alpha_beta)
def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: torch.dtype | None = None,
                   layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    return _window(window_length, periodic, dtype, device, lambda t: alpha - beta * torch.cos(2 * math.pi * t))


@writes(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta)
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None,
                  layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None) -> torch.Tensor:
    """The ratio of Bessel functions of order 0, exp(|x|) i0e(x), whose factors do not overflow together."""

    def shape(t: torch.Tensor) -> torch.Tensor:
        x = abs(beta) * torch.sqrt((4 * t * (1 - t)).clamp(min=0))
        return torch.exp(x - abs(beta)) * special.i0e(x) / special.i0e(torch.full_like(x, abs(beta)))

    return _window(window_length, periodic, dtype, device, shape)


@writes(aten.fft_fftfreq.default)
def fftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: torch.device | None = None,
            pin_memory: bool | None = None) -> torch.Tensor:
    result, wide = _computed(dtype)
    places = torch.arange(n, dtype=wide, device=device)
    return (torch.where(places >= (n + 1) // 2, places - n, places) * (1.0 / (n * d))).to(result)


@writes(aten.fft_rfftfreq.default)
def rfftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: torch.device | None = None,
             pin_memory: bool | None = None) -> torch.Tensor:
    result, wide = _computed(dtype)
    return (torch.arange(n // 2 + 1, dtype=wide, device=device) * (1.0 / (n * d))).to(result)
