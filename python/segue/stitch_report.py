# ===- stitch_report.py - what the seams between programs cost -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What the seams between programs have cost on a device."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _runtime


class StitchReport:
    """Per edge between programs: inputs taken as they lay, converted, or found converted, and their bytes.

    Printing it shows the edges that copied. Made by `Trainer.stitch_report`; follows the device until it is reset.
    """

    def __init__(self, report: "_runtime.StitchReport"):
        self._report = report

    @property
    def steps(self) -> int:
        """Training steps since the beginning, or since `reset`."""
        return self._report.steps

    @property
    def edges(self) -> list[dict[str, Any]]:
        """Edges with ``producer`` (none: from outside), ``consumer``, ``elided``, ``converted``, ``cache_hits``, bytes of each;
        ``packed``: of the elided, those that the producer laid in tiles or rows by a copy of its own;
        ``from`` and ``to`` layout where something was converted. Most converted bytes first."""
        edges: list[dict[str, Any]] = json.loads(self._report.json())["edges"]
        return edges

    def write_hints(self, path: str | os.PathLike[str]) -> None:
        """Writes `stitch_hints.json` for the compiler: the edges that copied, with the layouts that would not.

        Raises
        ------
        FileError
            The file cannot be written.
        """
        self._report.write_hints(os.fspath(path))

    def reset(self) -> None:
        """Forgets what was counted."""
        self._report.reset()

    def __repr__(self) -> str:
        edges = self.edges
        return f"StitchReport({self.steps} steps, {len(edges)} edges, {sum(edge['converted'] for edge in edges)} inputs converted)"

    def __str__(self) -> str:
        return self._report.table()
