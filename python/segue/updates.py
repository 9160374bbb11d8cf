# ===- updates.py - where parameters are updated ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Chooses where parameters are updated, for an optimizer with ``updates="auto"``: as a step is forecast to be fastest within its budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

from . import _runtime
from .memory import Memory, Updates, forecast
from .optimizers import WAYS, Optimizer

#: A way that is faster by less, as a part of the time of a step, is none to change for.
_TIE = 0.01


def refusals(*, clip_grad_norm: float = 0.0, micro_batches: int = 1, scales_loss: bool = False, shares: bool = False,
             is_planned: bool = True) -> dict[str, str]:
    """Why parameters cannot be updated in some way, by ways of `WAYS`.

    Parameters
    ----------
    shares : bool
        Whether several modules train a parameter.
    is_planned : bool
        Whether a plan alone keeps a step to its budget.
    """
    refused = {}
    for way, holds, why in (
            ("in_backward", clip_grad_norm > 0, "clip_grad_norm needs the norm of all gradients before the first update"),
            ("in_backward", micro_batches > 1, "grad_accumulation adds up gradients of several batches before the first update"),
            ("in_backward", scales_loss, "a step whose scaled loss gives gradients that are not finite is skipped, which is known after backward"),
            ("in_backward", shares, "several modules have gradients of a parameter, which are added up first"),
            ("in_forward", shares, "several modules read a parameter"),
            ("in_forward", not is_planned, "gradients wait between two steps, which watermarks and a ring of weights have no place for")):
        if holds:
            refused.setdefault(way, why)
    return refused


def choose(optimizer: Optimizer, binaries_of: Callable[[Optimizer], Sequence[tuple[str, "_runtime.Binary"]]],
           refused: Mapping[str, str], **options: Any) -> tuple[Optimizer, Memory]:
    """The optimizer with the way whose step is forecast to be fastest, and that forecast.

    Parameters
    ----------
    binaries_of : function
        Makes the programs of a session with an optimizer.
    refused : mapping
        The ways that are not tried, with reasons, as `refusals` gives them.
    **options
        As those of `forecast`.
    """
    found = {way: forecast(binaries_of(replace(optimizer, updates=way)), must_be_planned=False, **options) for way in WAYS if way not in refused}
    seconds = {way: memory.plan.seconds if memory.fits else math.inf for way, memory in found.items()}
    chosen = next(iter(found))  # unless another is faster
    fastest = min(seconds, key=seconds.get)
    if seconds[chosen] > seconds[fastest] * (1 + _TIE):
        chosen = fastest
    updates = Updates(chosen, {way: None if math.isinf(time) else time for way, time in seconds.items()}, dict(refused))
    memory = replace(found[chosen], updates=updates, text=f"{found[chosen].text}\n{updates}\n")
    return replace(optimizer, updates=chosen), memory
