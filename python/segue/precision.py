# ===- precision.py - mixed precision of compiled modules ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `precision=` of `segue.compile` and `segue.Trainer` says, and the scale of losses for f16."""

from __future__ import annotations

import contextlib
from dataclasses import astuple, dataclass
from typing import Any

import torch

from .errors import InvalidArgumentError

#: By name the element type of autocast, or None without it.
PRECISIONS = {"f32": None, "bf16-mixed": torch.bfloat16, "f16-mixed": torch.float16}


@dataclass(frozen=True)
class LossScale:
    """How a trainer scales losses, so that gradients in f16 are neither 0 nor infinite; as `torch.amp.GradScaler`.

    A step whose loss or gradients are not finite is skipped: nothing changes but the scale, which falls. Unlike PyTorch's, a scale that
    has fallen below 1 skips no more: `NanLossError` is raised as without.

    Parameters
    ----------
    init_scale : float
        The scale of the first step.
    growth_factor, backoff_factor : float
        What it is multiplied by after `growth_interval` finite steps in a row, and after one that is skipped.
    growth_interval : int
        See there.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def given(self) -> tuple[float, float, float, int]:
        """As the runtime takes it."""
        return astuple(self)


def checked_precision(precision: str | None) -> str | None:
    """The name itself. Raises InvalidArgumentError for one that there is not."""
    if precision is not None and precision not in PRECISIONS:
        raise InvalidArgumentError(f"precision is {precision!r}; it takes {', '.join(map(repr, PRECISIONS))}")
    return precision


def entered_precision(precision: str | None, place: str = "cpu") -> contextlib.AbstractContextManager[Any]:
    """A context for capturing what has its tensors on the ``cpu`` or in ``cuda``: None leaves the autocast around it."""
    if precision is None:
        return contextlib.nullcontext()
    dtype = PRECISIONS[precision]
    return torch.autocast(place, dtype=dtype, enabled=dtype is not None)
