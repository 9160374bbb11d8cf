# ===- memory.py - what a budget means, said beforehand -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a training step will hold, do and take under a budget, before anything runs.

The figures are those of `segue-run plan`: a step played in virtual time by the code that will train. Bytes are
certified: a run in `mode: planned` keeps to them on a device that has not one byte more. Times are estimates by the speeds of the device's spec.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Sequence

from . import _runtime
from .errors import BudgetInfeasibleError, InvalidArgumentError
from .inspection import size_text

# Where nothing is said and the module lives on a device that nothing can leave: as in `segue-run plan`.
DEFAULT_DEVICE = "sim:virtual,dram=24GiB,pinned=16GiB,link=16GB/s"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Step:
    """One step under one budget.

    Attributes
    ----------
    what : str
        ``unconstrained``, ``budget 512.00 MiB`` or ``smallest budget``.
    peak_bytes : int
        Bytes of device memory (``device_dram``) that do for the step: its blocks at the addresses that a plan gives them.
    live_bytes : int
        The most that live at once of it.
    peaks : dict
        The most that live at once by space, then by phase: ``peaks["device_dram"]["backward"]``.
    seconds : float
        Estimated time of the step.
    added : float
        What the budget adds to it, as a part of the unconstrained time: 0.02 for two percent.
    services : dict
        What each service does in the step: counts and bytes by name of the service.
    """

    what: str
    peak_bytes: int
    live_bytes: int
    peaks: dict[str, dict[str, int]]
    seconds: float
    added: float
    services: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {size_text(size)}" for phase, size in self.peaks.get("device_dram", {}).items())
        lines = [f"{self.what}: {size_text(self.peak_bytes)} at most, {self.seconds * 1e3:.3f} ms ({round(self.added, 3) + 0.0:+.1%})",
                 f"  by phase: {phases}"]
        lines += [f"  {space}: {size_text(max(sizes.values()))}" for space, sizes in self.peaks.items()
                  if space != "device_dram"]
        for service, figures in self.services.items():
            lines.append(f"  {service}: {', '.join(_busy(figures)) or 'nothing to do'}")
        return "\n".join(lines)


def _busy(figures: dict[str, Any]) -> list[str]:
    """``leave 6``, ``out_bytes 39.0 MiB``, ``state tensors 48``: what is not zero, nested names in front."""
    texts = []
    for key, value in figures.items():
        if isinstance(value, dict):
            texts += [f"{key} {text}" for text in _busy(value)]
        elif value:
            texts.append(f"{key} {size_text(value) if key.endswith('_bytes') else value}")
    return texts


@dataclass(frozen=True)
class Memory:
    """What `model.memory` and `trainer.memory` say. Printing it gives a short text.

    Attributes
    ----------
    device : str
        The spec of the virtual device that the steps were played on. On ``cpu`` an unconstrained step holds as
        many ``live_bytes``, to one per cent (`Trainer.peak_bytes`), beside what Python, PyTorch and the compiler take.
    budget_bytes : int or None
        What was asked for.
    plan : Step
        The step under that budget; without one, the unconstrained step.
    unconstrained, smallest : Step
        The step in which nothing leaves, and the one under the smallest feasible budget.
    smallest_budget_bytes : int
        No plan keeps to less.
    set_by : str
        The event of the step that sets it.
    held : list of (str, int)
        Who holds how many bytes there, most first.
    can_leave : list of dict
        Tensors that can leave the device, with ``tensor``, ``block``, ``location`` in the source and ``bytes``.
    """

    device: str
    budget_bytes: int | None
    plan: Step
    unconstrained: Step
    smallest: Step
    smallest_budget_bytes: int
    set_by: str
    held: list[tuple[str, int]]
    can_leave: list[dict[str, Any]]

    def __str__(self) -> str:
        leave = sum(tensor["bytes"] for tensor in self.can_leave)
        steps = [self.unconstrained] + ([self.plan] if self.plan is not self.unconstrained else []) + [self.smallest]
        lines = [f"on {self.device}; {len(self.can_leave)} tensors of {size_text(leave)} can leave"]
        lines += [str(step) for step in steps]
        lines.append(f"the smallest budget is {size_text(self.smallest_budget_bytes)}, set by {self.set_by}, where these are held:")
        lines += [f"  {size_text(size):>12}  {owner}" for owner, size in self.held[:8]]
        return "\n".join(lines)


def forecast(modules: Sequence[tuple[str, "_runtime.Binary"]], *, budget: int | str | None, device: str | None, lives_on: "_runtime.Device",
             clip_grad_norm: float = 0.0, tied=(), micro_batches: int = 1) -> Memory:
    """Plays steps of these modules in virtual time; see `Trainer.memory`."""
    if device is None:
        device = lives_on.twin or DEFAULT_DEVICE
    budget_bytes = None if budget is None else parse_bytes(budget)
    found = json.loads(_runtime.forecast_memory(device, list(modules), clip_grad_norm, list(tied), (), micro_batches,
                                                budget_bytes))
    held = [(holder["owner"], holder["bytes"]) for holder in found["held_at_smallest"]]
    if found["infeasible"]:
        raise BudgetInfeasibleError(found["infeasible"], report={
            "smallest_budget_bytes": found["smallest_budget_bytes"], "set_by": found["set_by"], "held": held})
    steps = [Step(**step) for step in found["plans"]]
    return Memory(device=found["device"], budget_bytes=budget_bytes, plan=steps[2] if budget is not None else steps[0],
                  unconstrained=steps[0], smallest=steps[1], smallest_budget_bytes=found["smallest_budget_bytes"],
                  set_by=found["set_by"], held=held, can_leave=found["can_leave"])


def parse_bytes(quantity: int | str) -> int:
    """Bytes of a number, or of a text such as ``512MiB`` or ``1.5 GB``."""
    if isinstance(quantity, bool) or not isinstance(quantity, (int, str)):
        raise InvalidArgumentError(f"a budget is bytes or a text such as '512MiB'; a {type(quantity).__name__} was given")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(quantity))
    if not match or match[2].upper() not in _UNITS:
        raise InvalidArgumentError(f"budget {quantity!r} is not a quantity such as 512MiB or 536870912")
    return int(float(match[1]) * _UNITS[match[2].upper()]) if "." in match[1] else int(match[1]) * _UNITS[match[2].upper()]

