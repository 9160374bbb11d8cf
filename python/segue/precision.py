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
from typing import TYPE_CHECKING, Any, Sequence

import torch

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .module import Module

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


def bring_to(precision: str, modules: Sequence[Module]) -> None:
    """Captures modules again in this precision, and what one gives the next one in the element type that it has then."""
    given: list[tuple[Any, torch.dtype]] = []  # what the module before gave, in its order, and of which type it is now
    outside: set[str] = set()
    for module in modules:
        before = module._primary.captured
        if before is None:  # of a file, which stays as it is, or is refused
            module.to_precision(precision)
            given = []
            continue
        types = {}
        for each in before.named("input"):
            if each.name in outside or not given or (given[0][0].shape, given[0][0].dtype) != (each.shape, each.dtype):
                outside.add(each.name)
                continue
            if (now := given.pop(0)[1]) != each.dtype:
                types[each.name] = now
        module.to_precision(precision, types)
        after = module._primary.captured
        given = [(old, new.dtype) for old, new in zip(before.results, after.results, strict=True) if old.name != "loss"]
