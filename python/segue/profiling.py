# ===- profiling.py - where a training step goes ------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Where a training step goes: each command beside its own limit, and what lies between commands.

The table is that of `segue-run train --profile` and `segue-run bench --roofline`; the runtime makes it.
"""

from __future__ import annotations

import html
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator

from . import _runtime
from .batches import BatchNames
from .errors import InvalidArgumentError
from .tensors import is_tensor


@dataclass(frozen=True)
class CommandRow:
    """What one command, or all of one kind, has taken in the profiled steps.

    Attributes
    ----------
    program : str
        ``forward``, ``backward``, ``optimizer``, with the module's name before it where there are several. Of a kind: empty.
    label : str
        The kernel or library call with its extents: ``launch gelu_3``, ``matmul 1x2048x384x1536`` (batch, rows, sum, columns).
    kind : str
        ``Matmul``, ``Attention``, ``AttentionGrad``, ``Launch``, ``ToLayout``, ``Fill``, or the name of another library call.
    location : str
        The line of the model and the module that it comes from, where they are known.
    calls : int
        In all profiled steps, as are the figures below.
    seconds, share : float
        The time, and its part of the time of the steps.
    bytes, flops : int
        What is read and written, and computed.
    limit_seconds : float or None
        The larger of the bytes by the speed of memory and the flops by that of products. None: it has neither.
    bound_by : str or None
        Which of them it is, ``memory`` or ``products``. Of a kind: None.
    reached : float or None
        The limit's part of the time. More than 1: what it reads or writes lies in a cache.
    """

    program: str
    label: str
    kind: str
    location: str
    calls: int
    seconds: float
    share: float
    bytes: int
    flops: int
    limit_seconds: float | None
    bound_by: str | None
    reached: float | None


@dataclass(frozen=True, repr=False)
class Profile:
    """Where some training steps went. Made by `Trainer.profile`; printing it gives the table, and notebooks show one of HTML.

    Attributes
    ----------
    device : str
        The spec of the device.
    threads : int
        How many threads it computes with.
    flops_per_second, bytes_per_second : float
        What limits are made of: how fast it multiplies, and how fast its memory is beyond all caches.
    speed_from : str
        Where these come from: the profile that the spec of the device names (``cpu:profile=laptop.json``), or a measurement.
    steps : int
        How many steps are in the table.
    seconds : float
        The time of these steps.
    losses : list of float
        Of all steps that were taken, with the first one of a new trainer, which is not in the table.
    rows : list of CommandRow
        The commands, the dearest first.
    kinds : list of CommandRow
        The same by kind.
    product_share, other_share, between_share : float
        The parts of the time in matmul, attention and library calls, in other commands, and between commands: the host, copies over links,
        sums of gradients.
    between_seconds : float
        The last of these as a time, of all steps.
    """

    device: str
    threads: int
    flops_per_second: float
    bytes_per_second: float
    speed_from: str
    steps: int
    seconds: float
    losses: list[float]
    rows: list[CommandRow]
    kinds: list[CommandRow]
    product_share: float
    other_share: float
    between_share: float
    between_seconds: float
    _text: str = field(compare=False)
    _json: dict[str, Any] = field(compare=False)

    def __repr__(self) -> str:
        return self._text.rstrip("\n")

    def to_json(self) -> str:
        """All of it as the JSON that ``segue-run bench --roofline --json`` has, and the ``losses``."""
        return json.dumps({**self._json, "losses": self.losses}, indent=2)

    def _repr_html_(self) -> str:
        head, *_, last = self._text.rstrip("\n").splitlines()
        titles = ("share", "ms", "calls", "GB", "GFLOP", "limit ms", "bound by", "reached", "command", "source")
        tables = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in _cells(row))}</tr>" for row in self.rows)
        return (f"<p>{html.escape(head)}; {self.steps} steps of {self.seconds / max(self.steps, 1) * 1e3:.3f} ms</p><table><thead><tr>"
                f"{''.join(f'<th>{title}</th>' for title in titles)}</tr></thead><tbody>{tables}</tbody></table><p>{html.escape(last)}</p>")


def _cells(row: CommandRow) -> Iterator[str]:
    yield f"{row.share:.1%}"
    yield f"{row.seconds * 1e3:.3f}"
    yield str(row.calls)
    yield f"{row.bytes / 1e9:.3f}"
    yield f"{row.flops / 1e9:.3f}"
    yield "" if row.limit_seconds is None else f"{row.limit_seconds * 1e3:.3f}"
    yield row.bound_by or ""
    yield "" if row.reached is None else f"{row.reached:.0%}"
    yield f"{row.program}: {row.label}"
    yield row.location


def profile_steps(device: "_runtime.Device", step: Callable[..., float], names: BatchNames, batches: Iterable[Any], steps: int, *,
                  is_warm: bool) -> Profile:
    """Takes `steps` steps over batches and returns where they went; see `Trainer.profile`."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidArgumentError(f"steps is {steps!r}; a profile is of a whole number of steps, at least 1")
    if is_tensor(batches) or isinstance(batches, (Mapping, str, bytes)) or not isinstance(batches, Iterable):
        raise InvalidArgumentError(f"a profile is of batches, as fit takes them, and a {type(batches).__name__} was given; "
                                   "give a loader or a list, as profile([batch])")
    taken = itertools.islice(batches, steps)
    # The first step of all compiles, plans and warms up: it counts only if it is the only one.
    first = list(itertools.islice(taken, 1 if is_warm or steps == 1 else 2))
    if not first:
        raise InvalidArgumentError("there is no batch to profile a step on")
    losses = [step(**names(first.pop(0)))] if len(first) > 1 else []
    timer, seconds, counted = _runtime.CommandTimer(device), 0.0, 0
    try:
        for batch in itertools.chain(first, taken):
            named = names(batch)
            begin = time.perf_counter()
            losses.append(step(**named))
            seconds += time.perf_counter() - begin
            counted += 1
        begin = time.perf_counter()
    finally:
        timer.stop()  # waits for the last step
    seconds += time.perf_counter() - begin
    return _profile_of(json.loads(timer.table("step", counted, seconds)), losses)


def _profile_of(found: dict[str, Any], losses: list[float]) -> Profile:
    text = found.pop("text")
    return Profile(
        device=found["device"], threads=found["threads"], flops_per_second=found["flops_per_second"],
        bytes_per_second=found["bytes_per_second"], speed_from=found["speed_from"], steps=found["runs"], seconds=found["seconds"],
        losses=losses, rows=[CommandRow(**row) for row in found["commands"]],
        kinds=[CommandRow(program="", label=kind, kind=kind, location="", bound_by=None, **figures) for kind, figures in found["kinds"].items()],
        product_share=found["products"]["share"], other_share=found["others"]["share"], between_share=found["between"]["share"],
        between_seconds=found["between"]["seconds"], _text=text, _json=found)
