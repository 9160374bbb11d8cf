# ===- report.py - what became of the pieces of a program ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.backend_report()`: which segments run in Segue, which in PyTorch and why, and what stitching cost."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from ..budgets import BudgetReport, reports

COUNTERS = ("submits", "inputs", "inputs_elided", "inputs_converted", "converted_bytes")


@dataclass(frozen=True)
class SegmentReport:
    """One piece of a program between two graph breaks.

    Attributes
    ----------
    name : str
    compiled : bool
        True if it runs in Segue.
    trains : bool
        True if it has a backward.
    reasons : tuple of str
        Why it does not run in Segue.
    variants : int
        Sets of sizes that it was compiled for.
    forward_calls, backward_calls : int
        Calls that Segue ran.
    saved_bytes : int
        What its last forward keeps in the runtime for its backward.
    counters : dict
        Of `submit`: inputs = inputs_elided + inputs_converted.
    operators : int
        Calls in the graph that TorchDynamo captured.
    seconds : float
        What its forward and backward calls have taken, in Segue if it is compiled, else in PyTorch.
    pytorch_calls : int
        Forward calls of a compiled segment that PyTorch ran, since no variant was there for their sizes.
    pytorch_seconds : float
        What these have taken, with their backward calls.
    regions_as_hints : int
        Regions under `torch.utils.checkpoint` that are compiled as if they were none, since there is a budget: what of their
        values stays, leaves or is computed again is decided by the plan of a step.
    """

    name: str
    compiled: bool
    trains: bool
    reasons: tuple[str, ...]
    variants: int
    forward_calls: int
    backward_calls: int
    saved_bytes: int
    counters: dict[str, int]
    operators: int
    seconds: float
    pytorch_calls: int = 0
    pytorch_seconds: float = 0.0
    regions_as_hints: int = 0


class Reporting(Protocol):
    """A piece of a program, as the report knows it. `number` says in which order pieces were made."""

    number: int

    def report(self) -> SegmentReport: ...


_segments: weakref.WeakSet[Reporting] = weakref.WeakSet()


@dataclass(frozen=True)
class BackendReport:
    """All segments that are alive, in the order in which they were made, and the budgets of devices that are in force.

    Attributes
    ----------
    graph_breaks : dict
        What TorchDynamo left to PyTorch between segments, and how often while it captured: of all backends, since the process
        began.
    """

    segments: tuple[SegmentReport, ...] = field(default_factory=tuple)
    budgets: tuple[BudgetReport, ...] = ()
    graph_breaks: dict[str, int] = field(default_factory=dict)

    @property
    def compiled(self) -> int:
        """Segments that run in Segue."""
        return sum(s.compiled for s in self.segments)

    @property
    def fallen_back(self) -> int:
        """Segments that run in PyTorch."""
        return len(self.segments) - self.compiled

    @property
    def counters(self) -> dict[str, int]:
        """The sums over all segments."""
        return {name: sum(s.counters[name] for s in self.segments) for name in COUNTERS}

    @property
    def operators_in_segue(self) -> float:
        """The fraction of operators that Segue runs."""
        total = sum(s.operators for s in self.segments)
        return sum(s.operators for s in self.segments if s.compiled) / total if total else 0.0

    @property
    def time_in_segue(self) -> float:
        """The fraction of the time of all calls that Segue ran."""
        total = sum(s.seconds + s.pytorch_seconds for s in self.segments)
        return sum(s.seconds for s in self.segments if s.compiled) / total if total else 0.0

    def __str__(self) -> str:
        lines = []
        for s in self.segments:
            where = "Segue" if s.compiled else "PyTorch"
            lines.append(f"{s.name}: in {where}, {s.forward_calls} forward and {s.backward_calls} backward calls, "
                         f"{s.variants} variants, {s.counters['inputs']} inputs, {s.counters['inputs_converted']} converted, "
                         f"{s.operators} operators, {s.seconds:.3g} s"
                         + (f"; {s.pytorch_calls} calls in PyTorch, {s.pytorch_seconds:.3g} s" if s.pytorch_calls else "")
                         + (f"; {s.regions_as_hints} checkpointed regions are a hint, the budget's plan decides" if s.regions_as_hints
                            else ""))
            lines += [f"  {reason}" for reason in s.reasons]
        if self.segments:
            lines.append(f"in Segue: {self.operators_in_segue:.0%} of the operators, {self.time_in_segue:.0%} of the time")
        lines += [f"graph break, {count} x: {what}" for what, count in self.graph_breaks.items()]
        lines += map(str, self.budgets)
        return "\n".join(lines) or "no segments"


def enter(segment: Reporting) -> None:
    """Lets the report know a segment for as long as it lives."""
    _segments.add(segment)


def leave(segment: Reporting) -> None:
    """Takes a segment out of the report: others run in its place."""
    _segments.discard(segment)


def forget() -> None:
    """Empties the report. A segment that something keeps alive, such as the traceback of an error, may still run: it is not told of again."""
    _segments.clear()


def _graph_breaks() -> dict[str, int]:
    """The first line and the explanation of each of TorchDynamo's texts."""
    found: Counter[str] = Counter()
    dynamo = sys.modules.get("torch._dynamo.utils")  # which importing segue does not load
    for text, count in dynamo.counters["graph_break"].items() if dynamo else ():
        lines = [line.strip() for line in text.splitlines()]
        why = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
        found[": ".join(lines[:1] + why[:1])] += count
    return dict(found)


def backend_report() -> BackendReport:
    """What became of the pieces of the programs given to ``torch.compile(..., backend="segue")``.

    Segments leave the report when PyTorch drops them, and all at `torch.compiler.reset`.
    """
    return BackendReport(tuple(s.report() for s in sorted(_segments, key=lambda s: s.number)), reports(), _graph_breaks())
