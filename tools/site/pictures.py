#!/usr/bin/env python3
# ===- pictures.py - draws the pictures of the concepts ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Draws docs/images/step.svg: one training step in time, what leaves the device and what returns.

    tools/site/pictures.py > docs/images/step.svg

A network of four blocks is played: each saves a tensor in forward that its backward reads, and has two moments that the optimizer reads and writes. The curves of
memory are computed from the copies that are drawn, so that the picture agrees with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from drawing import COLOURS, Drawing

WIDTH, LEFT, SCALE = 1000, 96, 56
BLOCKS = 4
FORWARD, BACKWARD, OPTIMIZER = 1.0, 2.0, 0.7
T_FORWARD = 0.5
T_BACKWARD = T_FORWARD + BLOCKS * FORWARD
T_OPTIMIZER = T_BACKWARD + BLOCKS * BACKWARD
T_END = T_OPTIMIZER + BLOCKS * OPTIMIZER
COPY = 0.62  # of one saved tensor over the link; a block's moments take half of it
BASE = 2.0  # parameters, and what a block computes with
MOMENTS = 0.5  # of one block


@dataclass
class Copy:
    what: str
    begin: float
    seconds: float
    bytes: float
    out: bool

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def copies() -> list[Copy]:
    """What the plan moves: the two tensors that wait longest, and all moments."""
    found = []
    for block in range(2):
        found.append(Copy(f"saved {block}", T_FORWARD + (block + 1) * FORWARD, COPY, 1, True))
        needed = T_BACKWARD + (BLOCKS - 1 - block) * BACKWARD
        found.append(Copy(f"saved {block}", needed - COPY - 0.25, COPY, 1, False))
    for block in range(BLOCKS):
        used = T_OPTIMIZER + block * OPTIMIZER
        found.append(Copy(f"m, v {block}", used - COPY / 2 - 0.05, COPY / 2, MOMENTS, False))
        found.append(Copy(f"m, v {block}", used + OPTIMIZER, COPY / 2, MOMENTS, True))
    return found


def memory(moved: list[Copy]) -> list[tuple[float, float]]:
    """Bytes on the device after each event, in the order of time."""
    events = [(0.0, BASE)]
    for block in range(BLOCKS):
        events.append((T_FORWARD + (block + 1) * FORWARD, 1.0))  # saved at the end of its forward
        events.append((T_BACKWARD + (BLOCKS - block) * BACKWARD, -1.0))  # read for the last time at the end of its backward
    if moved:
        events += [(copy.end, -copy.bytes) if copy.out else (copy.begin, copy.bytes) for copy in moved]
    else:
        events[0] = (0.0, BASE + BLOCKS * MOMENTS)
    curve, level = [], 0.0
    for time, change in sorted(events):
        level += change
        curve.append((time, level))
    return curve


def x(time: float) -> float:
    return LEFT + time * SCALE


def steps(curve, y_of):
    """The corners of a curve that changes at once."""
    points, level = [], None
    for time, value in curve:
        if level is not None:
            points.append((x(time), y_of(level)))
        points.append((x(time), y_of(value)))
        level = value
    points.append((x(T_END + 0.5), y_of(level)))
    return points


def picture() -> str:
    draw, moved = Drawing(), copies()
    top = 34
    phases = [("STEP_BEGIN", 0.0, T_FORWARD), ("FORWARD", T_FORWARD, T_BACKWARD), ("BACKWARD", T_BACKWARD, T_OPTIMIZER), ("OPTIMIZER", T_OPTIMIZER, T_END),
              ("STEP_END", T_END, T_END + 0.5)]
    for name, begin, end in phases:
        short = end - begin < 1
        draw.box(x(begin), top, x(end), top + 26, f"phase {name.lower()}", "" if short else name)
        if short:
            last = name == "STEP_END"
            draw.text(x(end) if last else x(begin), top - 8, name, "small", "end" if last else "start")
    draw.text(12, top + 18, "phase")

    y = top + 44
    draw.text(12, y + 18, "computing")
    for block in range(BLOCKS):
        begin = T_FORWARD + block * FORWARD
        draw.box(x(begin) + 1, y, x(begin + FORWARD) - 1, y + 26, "forward", f"block {block}", True)
        begin = T_BACKWARD + (BLOCKS - 1 - block) * BACKWARD
        draw.box(x(begin) + 1, y, x(begin + BACKWARD) - 1, y + 26, "backward", f"block {block}", True)
        begin = T_OPTIMIZER + block * OPTIMIZER
        draw.box(x(begin) + 1, y, x(begin + OPTIMIZER) - 1, y + 26, "optimizer", str(block), True)

    for row, (label, out) in enumerate((("leaves", True), ("returns", False))):
        y = top + 88 + row * 34
        draw.text(12, y + 17, label)
        for copy in (c for c in moved if c.out == out):
            draw.box(x(copy.begin), y, x(copy.end), y + 24, "out" if out else "in", "" if copy.bytes < 1 else copy.what[-1], True)
    draw.text(x(T_FORWARD + FORWARD), top + 88 + 50, "saved 0 and 1 go to the host", "small")
    draw.text(x(T_BACKWARD + 0.1), top + 88 + 17, "and are back before their backward", "small")
    draw.text(x(T_OPTIMIZER) - 8, top + 88 + 17, "moments, block by block", "small", "end")

    floor, top_of = top + 360, max(value for _, value in memory([]))
    y_of = lambda value: floor - value / top_of * 160  # noqa: E731
    draw.text(12, floor - 80, "bytes on")
    draw.text(12, floor - 64, "the device")
    capped = steps(memory(moved), y_of)
    draw.parts.append(f'<polygon class="area" points="{x(0):.1f},{floor} {" ".join(f"{a:.1f},{b:.1f}" for a, b in capped)} {capped[-1][0]:.1f},{floor}"/>')
    draw.line(steps(memory([]), y_of), "free")
    draw.line(capped, "capped")
    cap = max(value for _, value in memory(moved))
    draw.line([(x(0), y_of(cap)), (x(T_END + 0.5), y_of(cap))], "cap")
    draw.text(x(T_END + 0.5) - 4, y_of(cap) - 6, "budget", "small", "end")
    draw.text(x(T_BACKWARD + 0.6), y_of(top_of) - 6, "if nothing left", "small")
    draw.text(x(0.1), y_of(BASE / 2) + 4, "parameters, and what a block computes with", "small")
    draw.line([(x(0), floor), (x(T_END + 0.5), floor)], "axis")
    draw.text(x(T_END + 0.5), floor + 18, "time", "small", "end")

    style = COLOURS + """ .phase { fill: var(--e); } .phase.forward, .forward { fill: var(--f); } .phase.backward, .backward { fill: var(--b); }
    .phase.optimizer, .optimizer { fill: var(--o); } .out { fill: var(--b); stroke: var(--cap); } .in { fill: var(--f); stroke: var(--line); }
    polyline { fill: none; } .free { stroke: var(--faint); stroke-dasharray: 5 4; stroke-width: 1.5; } .capped { stroke: var(--line); stroke-width: 2; }
    .cap { stroke: var(--cap); stroke-width: 1.5; } .axis { stroke: var(--faint); } .area { fill: var(--area); }
  """
    title = "One training step: saved tensors leave in forward and return in backward, moments come for the optimizer, and the bytes on the device stay below the budget"
    return draw.svg(WIDTH, floor + 30, title, style)


if __name__ == "__main__":
    print(picture(), end="")
