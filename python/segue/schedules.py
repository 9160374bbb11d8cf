# ===- schedules.py - learning rates that change with the step ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Learning rates that change with the step: functions of it, which is 0 at the first."""

from __future__ import annotations

import math
from typing import Callable, Sequence

from .errors import InvalidArgumentError

Schedule = Callable[[int], float]


def _cosine(begin: float, end: float, progress: float) -> float:
    """Returns a value on a cosine from `begin` at a progress of 0 to `end` at 1."""
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _warmed_up(lr: float, steps: int, warmup: int, later: Callable[[float], float]) -> Schedule:
    """A linear rise over `warmup` steps, then `later` of the progress from there to `steps`."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        return later(min(1.0, (step - warmup) / max(1, steps - warmup)))

    return rate


def warmup_cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A linear rise over `warmup` steps, then a cosine down to `final` at step `steps`."""
    return _warmed_up(lr, steps, warmup, lambda progress: _cosine(lr, final, progress))


def warmup_linear(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A linear rise over `warmup` steps, then a straight line down to `final` at step `steps`."""
    return _warmed_up(lr, steps, warmup, lambda progress: lr + (final - lr) * progress)


def one_cycle(lr: float, steps: int, rise: float = 0.3, start: float = 1 / 25, final: float = 1 / 25e4) -> Schedule:
    """Up to `lr` within the share `rise` of all `steps`, and down again, by cosines, as `torch.optim.lr_scheduler.OneCycleLR`.

    It begins at ``start * lr`` and ends at ``final * lr``.
    """
    if steps < 1 or not 0 < rise < 1:
        raise InvalidArgumentError(f"one_cycle has {steps} steps and a rise of {rise}; give at least one step, and a rise between 0 and 1")
    top = rise * steps - 1

    def rate(step: int) -> float:
        if step <= top:
            return _cosine(start * lr, lr, step / top if top > 0 else 1.0)
        return _cosine(lr, final * lr, (step - top) / max(steps - 1 - top, 1e-9))

    return rate


def step_decay(lr: float, every: int | Sequence[int], factor: float = 0.1) -> Schedule:
    """`lr` times `factor` for each `every` steps that are done; or, of several numbers, for each step of these that has come."""
    if isinstance(every, int) and every < 1:
        raise InvalidArgumentError(f"step_decay falls every {every} steps; give at least 1")

    def rate(step: int) -> float:
        falls = step // every if isinstance(every, int) else sum(step >= at for at in every)
        return lr * factor**falls

    return rate
