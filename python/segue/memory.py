# ===- memory.py - what a budget means, said beforehand -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Tells what a training step will hold, do and take under a budget, before anything runs.

The figures are those of `segue-run fit`: a step played in virtual time by the code that will train. Bytes are
certified: a run in `mode: planned` keeps to them on a device that has not one byte more. Times are estimates by the speeds of the device's spec.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, field
from typing import Any, Sequence

from . import _runtime
from .arguments import what_is
from .errors import BudgetInfeasibleError, InvalidArgumentError
from .inspection import size_text
from .notebooks import grid


@dataclass(frozen=True, repr=False)
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
    tiers : dict
        By space, where the step needs it: ``bytes``, ``capacity_bytes``, the ``phase`` of the peak, and ``held``: who
        holds how much then, as ``owner`` and ``bytes``, most first. ``disk`` is below the memory of a cpu, and has what a run
        takes of it beside ``bytes``: ``planning_bytes``, while it plans, when all leaves that can; where seals are counted
        ``seal_bytes``, for sealed checkpoints.
    seconds : float
        Estimated time of the step.
    added : float
        What the budget adds to it, as a part of the unconstrained time: 0.02 for two percent.
    link : dict
        What goes over the link, which on a cpu is the disk: ``out_bytes``, ``in_bytes``, and the ``out_seconds`` and
        ``in_seconds`` that it takes for them, beside computing.
    disk : dict or None
        The same of a disk below the host's memory, where there is one: what goes on to it, and comes from there.
    services : dict
        What each service does in the step: counts and bytes by name of the service.
    """

    what: str
    peak_bytes: int
    live_bytes: int
    peaks: dict[str, dict[str, int]]
    tiers: dict[str, dict[str, Any]]
    seconds: float
    added: float
    link: dict[str, float]
    disk: dict[str, float] | None
    services: dict[str, dict[str, Any]]

    def __repr__(self) -> str:
        return f"Step({self.what}: peak {size_text(self.peak_bytes)}, {self.seconds * 1e3:.3g} ms, {self.link_text()})"

    def link_text(self) -> str:
        """What goes over the link: ``out 1.5 MiB, in 2.0 MiB``."""
        return f"out {size_text(self.link['out_bytes'])}, in {size_text(self.link['in_bytes'])}"


@dataclass(frozen=True, repr=False)
class Memory:
    """The answer of `segue.fit`, `model.memory` and `trainer.memory`. Printing it gives the text of `segue-run fit`.

    Attributes
    ----------
    device : str
        The spec of the virtual device that the steps were played on. On ``cpu`` an unconstrained step holds as
        many ``live_bytes``, to one per cent (`Trainer.peak_bytes`), beside what Python, PyTorch and the compiler take.
    budget_bytes : int
        What was asked for, or all memory that the device has.
    fits : bool
        Whether a step keeps to the budget, and what leaves has room.
    why : str
        If not, what lacks; otherwise empty.
    plan : Step or None
        The step by which it does; None where no plan keeps to the budget.
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
    text : str
        All of it in short, for people.
    """

    device: str
    budget_bytes: int
    fits: bool
    why: str
    plan: Step | None
    unconstrained: Step
    smallest: Step
    smallest_budget_bytes: int
    set_by: str
    held: list[tuple[str, int]]
    can_leave: list[dict[str, Any]] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _verdict(self) -> str:
        return f"{'fits' if self.fits else 'does not fit'} in {size_text(self.budget_bytes)}"

    def __repr__(self) -> str:
        found = self.plan if self.plan is not None else self.unconstrained
        return (f"Memory({self._verdict()}: {found.what} takes {size_text(found.peak_bytes)}, smallest budget {size_text(self.smallest_budget_bytes)}"
                + (f"; {self.why})" if self.why else ")"))

    def _repr_html_(self) -> str:
        steps = {id(step): step for step in (self.plan, self.unconstrained, self.smallest) if step is not None}
        return grid(f"{self._verdict()}, smallest budget {size_text(self.smallest_budget_bytes)}" + (f": {self.why}" if self.why else ""),
                    ("step", "peak", "in use at once", "ms", "added", "over the link"),
                    ((step.what, size_text(step.peak_bytes), size_text(step.live_bytes), f"{step.seconds * 1e3:.3g}", f"{step.added:+.1%}", step.link_text())
                     for step in steps.values())) + grid(
            f"held at the smallest budget, in {self.set_by}", ("who", "holds"), ((owner, size_text(held)) for owner, held in self.held))


def forecast(modules: Sequence[tuple[str, "_runtime.Binary"]], *, budget: int | str | None, device: str,
             clip_grad_norm: float = 0.0, tied: Sequence[Sequence[tuple[str, str]]] = (), micro_batches: int = 1, seal: bool = False, must_be_planned: bool = True) -> Memory:
    """Plays steps of these modules in virtual time; see `Trainer.memory`.

    With `must_be_planned`, raises BudgetInfeasibleError for a budget that no plan keeps to.
    """
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or not 1 <= micro_batches <= 65536:
        raise InvalidArgumentError(f"micro_batches is {micro_batches!r}; give a whole number from 1 to 65536")
    budget_bytes = None if budget is None else parse_bytes(budget)
    found = json.loads(_runtime.forecast_memory(device, list(modules), clip_grad_norm, list(tied), (), micro_batches,
                                                budget_bytes, bool(seal)))
    answer = found["answers"][0]
    steps = [Step(**step) for step in found["plans"]]
    memory = Memory(device=found["device"], budget_bytes=answer["budget_bytes"], fits=answer["fits"], why=answer["why"],
                    plan=None if answer["plan"] is None else steps[answer["plan"]], unconstrained=steps[0], smallest=steps[-1],
                    smallest_budget_bytes=found["smallest_budget_bytes"], set_by=found["set_by"],
                    held=[(holder["owner"], holder["bytes"]) for holder in found["held_at_smallest"]],
                    can_leave=found["can_leave"], text=found["text"])
    if memory.plan is None and must_be_planned and budget is not None:
        raise BudgetInfeasibleError(f"BUDGET_INFEASIBLE: {memory.why}", report={
            "smallest_budget_bytes": memory.smallest_budget_bytes, "set_by": memory.set_by, "held": memory.held})
    return memory


def budget_bytes(budget: int | str) -> int:
    """Bytes of a budget that something is to be done with. Raises InvalidArgumentError for none."""
    found = parse_bytes(budget)
    if not found:
        raise InvalidArgumentError(f"the budget is {budget!r}, in which nothing can be held; memory() tells the smallest one")
    return found


def parse_bytes(quantity: int | str) -> int:
    """Bytes of a number, or of a text such as ``512MiB`` or ``1.5 GB``, which the specs of devices and segue-run read alike."""
    if isinstance(quantity, bool) or not (isinstance(quantity, str) or hasattr(quantity, "__index__")):
        raise InvalidArgumentError(f"a budget is a whole number of bytes or a text such as '512MiB' or '1.5GB'; {what_is(quantity)} was given")
    return _runtime.parse_bytes(quantity if isinstance(quantity, str) else str(operator.index(quantity)))
