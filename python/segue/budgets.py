# ===- budgets.py - budgets of the devices that PyTorch's calls run on --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""One budget for all that calls of modules and segments hold on a device.

``segue.compile(..., budget=)`` and ``torch.compile(..., options={"budget": ...})`` name a device by its spec. Whoever names
the same one shares the device, its budget and what keeps to it, for as long as one of them lives.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Callable

from . import _runtime
from .errors import InvalidArgumentError
from .memory import budget_bytes, parse_bytes
from .tensors import device as open_device


@dataclass(frozen=True)
class Wanted:
    """A budget as somebody asks for it, checked as far as that needs no device.

    Attributes
    ----------
    bytes : int
    spill_dir : str
        Empty: what leaves goes to the host's memory.
    spill_capacity : int
        0: half of what is free in the folder.
    """

    bytes: int
    spill_dir: str = ""
    spill_capacity: int = 0

    def __str__(self) -> str:
        parts = [f"budget={self.bytes}"]
        if self.spill_dir:
            parts.append(f"spill_dir={self.spill_dir!r}")
        if self.spill_capacity:
            parts.append(f"spill_capacity={self.spill_capacity}")
        return ", ".join(parts)


def wanted(budget: int | str | None, spill_dir: str | os.PathLike[str] | None, spill_capacity: int | str | None = None) -> Wanted | None:
    """The budget that the arguments ask for; None without one.

    Raises
    ------
    InvalidArgumentError
        There is no budget for the other two, or a text is no quantity.
    """
    if budget is None:
        if spill_dir is not None or spill_capacity is not None:
            raise InvalidArgumentError("spill_dir says where a budget's surplus goes, and spill_capacity how much may; give the budget, too")
        return None
    folder = "" if spill_dir is None else os.path.realpath(spill_dir)
    return Wanted(budget_bytes(budget), folder, 0 if spill_capacity is None else parse_bytes(spill_capacity))


class DeviceBudget:
    """A device, its budget, and what keeps to it. Made by `of_spec`; the budget ends when nobody holds this any more."""

    #: False: those that are made from now on go by watermarks alone, as before there is a plan (for comparisons).
    is_planned = True

    def __init__(self, spec: str, given: Wanted):
        self.spec, self.wanted = spec, given
        driver, _, options = spec.partition(":")
        if any(option.startswith("dram=") for option in options.split(",")) and not given.spill_dir:
            self.device = open_device(spec)  # whoever names it without a budget has the same memory
        else:
            sized, _ = _runtime.within_budget(given.bytes, given.spill_dir, given.spill_capacity, spec)
            self.device = _runtime.Device.open(sized)
        self.loop = _runtime.LoopBudget(self.device, given.bytes, self.is_planned)

    def report(self) -> "BudgetReport":
        held = self.device.held()
        away = sum(sum(kinds.values()) for space, kinds in held.items() if space in ("host_pinned", "disk"))
        return BudgetReport(device=self.spec, away_bytes=away, torch_bytes=_runtime.outside_bytes(self.device), **self.loop.figures())


@dataclass(frozen=True)
class BudgetReport:
    """The work of a budget, in all steps that are over.

    Attributes
    ----------
    device : str
        The spec that it was given for.
    budget_bytes : int
    peak_bytes : int
        The most that was taken of the device's memory, at most the budget.
    live_bytes : int
        What is taken now.
    away_bytes : int
        Memory of the host or the disk that is taken for what left, free places for more of it included.
    spilled_bytes, restored_bytes : int
        Saved values that have left, and that have come back.
    stalls : int
        Saved values that backward had to wait for.
    stall_seconds : float
        How long.
    steps, aborted_steps : int
        From a first forward to the backward after which nothing is saved any more.
    plans : int
        Plans that were made: one for each order of calls, and again with the times that its steps took.
    planned_steps, departed_steps : int
        Steps that went by their plan to the end, and those that went another way than the one before: what these saved from
        there on left the device.
    computed_again : int
        Saved values that plans had computed again.
    planning_seconds : float
        How long making the plans took.
    certified_bytes : int
        Of the plan made last: the most of the device's memory that its step was seen to take, played in virtual time; 0: none was made.
    planned_seconds : float
        How long that step took there.
    why_no_plan : str
        Why the last step of an order that had come before went by no plan; empty where it had one.
    torch_bytes : int
        The memory, the host's or the GPU's, of PyTorch's tensors that the device's programs were given and may read again: parameters,
        buffers, inputs that backward needs. Held by PyTorch, and no part of the budget; gradients, outputs and optimizer states are
        PyTorch's, too, and are not in it.
    """

    device: str
    budget_bytes: int
    peak_bytes: int
    live_bytes: int
    away_bytes: int
    spilled_bytes: int
    restored_bytes: int
    stalls: int
    stall_seconds: float
    steps: int
    aborted_steps: int
    plans: int
    planned_steps: int
    departed_steps: int
    computed_again: int
    planning_seconds: float
    certified_bytes: int
    planned_seconds: float
    why_no_plan: str
    torch_bytes: int

    def __str__(self) -> str:
        mib: Callable[[int], str] = lambda count: f"{count / (1 << 20):.1f} MiB"  # noqa: E731
        return (f"budget of {self.device}: {mib(self.peak_bytes)} of {mib(self.budget_bytes)} at most, {mib(self.live_bytes)} now; "
                f"{mib(self.spilled_bytes)} spilled, {mib(self.restored_bytes)} restored, {self.stalls} stalls of {self.stall_seconds:.3g} s, "
                f"{self.steps} steps, {self.planned_steps} by plan" + (f", {self.departed_steps} departed" if self.departed_steps else "")
                + (f", {self.aborted_steps} given up" if self.aborted_steps else "")
                + (f"; {self.computed_again} values computed again" if self.computed_again else "")
                + (f"; no plan: {self.why_no_plan}" if self.why_no_plan else "") + f"; held by PyTorch: {mib(self.torch_bytes)}")


_by_spec: "weakref.WeakValueDictionary[str, DeviceBudget]" = weakref.WeakValueDictionary()
#: By the identity of the device, which lives as long as its budget.
_by_device: "weakref.WeakValueDictionary[int, DeviceBudget]" = weakref.WeakValueDictionary()
_making = threading.RLock()


def of_spec(spec: str, given: Wanted) -> DeviceBudget:
    """The budget of a device, put in force if it is not.

    Raises
    ------
    InvalidArgumentError
        The device has another budget; or no such budget can be kept there.
    """
    with _making:
        known = _by_spec.get(spec)
        if known is not None and known.wanted != given:
            del known
            gc.collect()  # compiled functions that nobody has any more are in cycles
            known = _by_spec.get(spec)
        if known is None:
            known = DeviceBudget(spec, given)
            _by_spec[spec] = _by_device[id(known.device)] = known
        elif known.wanted != given:
            raise InvalidArgumentError(f"{given} for device {spec!r}, which has {known.wanted} from others that are alive: all modules and "
                                       "segments of a device share one budget; give the same, or a device of another spec")
        return known


def device_and_budget(spec: str, given: Wanted | None) -> tuple["_runtime.Device", DeviceBudget | None]:
    """The device of a module or segment; whoever computes on it keeps the budget, too."""
    if given is None:
        return open_device(spec), None
    budget = of_spec(spec, given)
    return budget.device, budget


def loop_of(on: "_runtime.Device") -> "_runtime.LoopBudget | None":
    """The sink that calls on a device are to go through, also those of modules that were compiled without a budget."""
    budget = _by_device.get(id(on))
    return budget.loop if budget is not None else None


def reports() -> tuple[BudgetReport, ...]:
    """One for each budget in force."""
    return tuple(budget.report() for _, budget in sorted(_by_spec.items()))
