# ===- schedules.py - learning rates that change with the step ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Learning rates that change with the step: functions of it, which is 0 at the first.

The runtime has the formulas (`RateSchedule.h`), so that ``segue-run train --lr-schedule`` gives the same rates to the bit.
"""

from __future__ import annotations

from typing import Callable, Sequence

from . import _runtime

Schedule = Callable[[int], float]


def warmup_cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A linear rise over `warmup` steps, then a cosine down to `final` at step `steps`."""
    return _runtime.warmup_cosine(lr, steps, warmup, final)


def warmup_linear(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A linear rise over `warmup` steps, then a straight line down to `final` at step `steps`."""
    return _runtime.warmup_linear(lr, steps, warmup, final)


def one_cycle(lr: float, steps: int, rise: float = 0.3, start: float = 1 / 25, final: float = 1 / 25e4) -> Schedule:
    """Up to `lr` within the share `rise` of all `steps`, and down again, by cosines, as `torch.optim.lr_scheduler.OneCycleLR`.

    It begins at ``start * lr`` and ends at ``final * lr``.
    """
    return _runtime.one_cycle(lr, steps, rise, start, final)


def step_decay(lr: float, every: int | Sequence[int], factor: float = 0.1) -> Schedule:
    """`lr` times `factor` for each `every` steps that are done; or, of several numbers, for each step of these that has come."""
    if isinstance(every, int):
        return _runtime.step_decay(lr, every, factor)
    return _runtime.step_decay_at(lr, every, factor)
