#!/usr/bin/env python3
# ===- architecture.py - draws the floor plan of Segue ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Draws docs/images/architecture.svg: from a PyTorch module to a file, and from a file to a device.

    tools/site/architecture.py > docs/images/architecture.svg
"""

from __future__ import annotations

from dataclasses import dataclass

from drawing import COLOURS, Drawing

WIDTH, HEIGHT, BORDER = 1000, 856, 484
STYLE = COLOURS + """ .half { fill: none; stroke: var(--e); stroke-width: 2; } .small { font-size: 14px; } .title { font-size: 15px; font-weight: 600; } .half-title { font-size: 15px; fill: var(--faint); }
    .graph { fill: var(--f); } .made { fill: var(--o); } .runs { fill: var(--b); } .given { fill: var(--e); }
    .arrow, .hint { stroke: var(--line); stroke-width: 1.5; fill: none; } .hint { stroke-dasharray: 5 4; } .head { fill: var(--line); }
    .code { font-family: ui-monospace, monospace; font-size: 13.5px; }
  """


@dataclass
class Box:
    x: float  # of the centre
    y: float
    width: float
    style: str
    title: str
    text: str = ""

    @property
    def height(self) -> float:
        return 54 if self.text else 38

    @property
    def top(self) -> tuple[float, float]:
        return self.x, self.y - self.height / 2

    @property
    def bottom(self) -> tuple[float, float]:
        return self.x, self.y + self.height / 2

    @property
    def left(self) -> tuple[float, float]:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y


TORCH = Box(370, 56, 170, "given", "PyTorch module")
TEXT = Box(660, 56, 170, "given", "MLIR text")
GRAPH = Box(500, 150, 280, "graph", "segue dialect", "tensors, layouts, blocks, roles")
FUSED = Box(500, 262, 280, "graph", "fused kernels and library calls")
PROG = Box(310, 366, 280, "graph", "prog dialect", "buffers, commands, phases, blocks")
CODE = Box(690, 366, 280, "graph", "machine code, PTX and cubins", "once per kernel")
FILE = Box(500, BORDER, 170, "made", ".segue file")
BINARY = Box(220, 584, 170, "runs", "Binary, Program")
SESSION = Box(500, 584, 230, "runs", "Session, Stitcher, submit")
PLAN = Box(810, 584, 200, "runs", "Plan", "a twin on sim:virtual")
EXECUTOR = Box(330, 694, 200, "runs", "Executor", "walks commands")
SERVICES = Box(810, 694, 200, "runs", "Services", "decide, and carry it out")
DEVICE = Box(330, 806, 200, "runs", "Device", "cpu, cuda, sim")
TRANSFER = Box(810, 806, 200, "runs", "TransferEngine")
BOXES = [TORCH, TEXT, GRAPH, FUSED, PROG, CODE, FILE, BINARY, SESSION, PLAN, EXECUTOR, SERVICES, DEVICE, TRANSFER]


def shifted(point: tuple[float, float], x: float, y: float = 0) -> tuple[float, float]:
    return point[0] + x, point[1] + y


class FloorPlan(Drawing):
    def arrow(self, begin, end, style="arrow"):
        """A line with a head at its end."""
        (x0, y0), (x1, y1) = begin, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        u, v = (x1 - x0) / length, (y1 - y0) / length
        x2, y2 = x1 - 8 * u, y1 - 8 * v
        self.parts.append(f'<path class="{style}" d="M{x0:.1f} {y0:.1f}L{x2:.1f} {y2:.1f}"/>')
        self.parts.append(f'<path class="head" d="M{x1:.1f} {y1:.1f}L{x2 - 4.5 * v:.1f} {y2 + 4.5 * u:.1f}L{x2 + 4.5 * v:.1f} {y2 - 4.5 * u:.1f}z"/>')

    def texts(self, x, y, lines, style="small", anchor="start"):
        for i, line in enumerate(lines):
            self.text(x, y + 17 * i, line, style, anchor)


def picture() -> str:
    draw = FloorPlan()
    draw.box(8, 8, WIDTH - 8, BORDER - 2, "half")
    draw.box(8, BORDER + 2, WIDTH - 8, HEIGHT - 8, "half")
    draw.text(20, 30, "the compiler, on LLVM and MLIR", "half-title")
    draw.text(20, BORDER + 26, "the runtime, without either", "half-title")

    draw.arrow(TORCH.bottom, shifted(GRAPH.top, -60))
    draw.texts(376, 104, ["python/segue/frontend"], "code", "end")
    draw.arrow(TEXT.bottom, shifted(GRAPH.top, 60))
    draw.arrow(GRAPH.bottom, FUSED.top)
    draw.texts(516, 197, ["autodiff, plan-saved, optimizer, update-in-backward,", "assign-layouts, expand, form-kernels,", "outline-kernels, recompute-programs"], "code")
    draw.arrow(shifted(FUSED.bottom, -70), PROG.top)
    draw.texts(344, 312, ["lib/Conversion/SegueToProg"], "code", "end")
    draw.arrow(shifted(FUSED.bottom, 70), CODE.top)
    draw.texts(668, 304, ["lib/Conversion/SegueToLoops,", "lib/Target/CPU, lib/Target/NVPTX"], "code")
    draw.arrow(PROG.bottom, shifted(FILE.top, -50))
    draw.texts(334, 426, ["update-in-forward, plan-memory,", "lib/Target/FlatBuffer"], "code", "end")
    draw.arrow(CODE.bottom, shifted(FILE.top, 50))

    draw.arrow(shifted(FILE.bottom, -50), BINARY.top)
    draw.texts(310, 534, ["verified, signature checked"], anchor="end")
    draw.arrow(BINARY.bottom, shifted(EXECUTOR.top, -40))
    draw.arrow(SESSION.bottom, shifted(EXECUTOR.top, 50))
    draw.arrow(EXECUTOR.bottom, DEVICE.top)
    draw.texts(318, 748, ["launches,", "library calls"], anchor="end")
    draw.arrow(EXECUTOR.right, SERVICES.left)
    draw.texts(570, 686, ["events: phase, block, save, restore"], anchor="middle")
    draw.arrow(PLAN.bottom, SERVICES.top, "hint")
    draw.texts(822, 636, ["what leaves when,", "addresses"])
    draw.arrow(SERVICES.bottom, TRANSFER.top)
    draw.texts(822, 758, ["toLayout"], "code")
    draw.arrow(shifted(EXECUTOR.right, 0, 16), shifted(TRANSFER.left, 0, -10))
    draw.texts(566, 742, ["toLayout of inputs"])
    draw.arrow(shifted(TRANSFER.left, 0, 8), shifted(DEVICE.right, 0, 8))
    draw.texts(570, 832, ["copies on H2D and D2H queues"], anchor="middle")

    for box in BOXES:
        draw.box(box.x - box.width / 2, box.y - box.height / 2, box.x + box.width / 2, box.y + box.height / 2, box.style)
        draw.text(box.x, box.y + (-5 if box.text else 5), box.title, "title", "middle")
        if box.text:
            draw.text(box.x, box.y + 16, box.text, "small", "middle")
    title = ("How Segue is built: the compiler makes a .segue file of a PyTorch module or of MLIR, by the segue dialect, kernels and the prog dialect; "
             "the runtime loads it, plans a step, and plays its commands on a device while services move tensors")  # fmt: skip
    return draw.svg(WIDTH, HEIGHT, title, STYLE)


if __name__ == "__main__":
    print(picture(), end="")
