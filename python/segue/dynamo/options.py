# ===- options.py - what torch.compile(options=...) takes ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Options of the backend, checked."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields
from typing import Any, Mapping

from ..budgets import Wanted, wanted
from ..cubins import checked_cubin
from ..errors import InvalidArgumentError


@dataclass(frozen=True)
class Options:
    """``torch.compile(model, backend="segue", options={...})``.

    Attributes
    ----------
    device : str or None
        Spec of the device, as in `segue.compile`; default: the GPU that arguments of the segment lie on, or the CPU.
    threads : int or None
        Threads of the device; the same as ``threads=`` in the spec.
    fallback : str
        What happens to a segment that Segue cannot run: ``warn`` runs it in PyTorch and says so
        (`segue.FallbackWarning`), ``error`` raises.
    partition : str
        What is saved for backward: ``min_cut`` recomputes what is cheap, ``default`` saves what PyTorch would.
    max_variants : int
        Sets of sizes that programs are kept for, in a segment with symbolic shapes. When so many are there, PyTorch runs
        others until they have come again and again; then the least recently used goes.
    cubin : str
        Whether kernels for a GPU have machine code beside their PTX, as in `segue.compile`: ``auto``, ``on`` or ``off``.
    budget : int, str or None
        Bytes of the device's memory, or a text such as ``6GiB``, for all segments and modules of this device together.
    spill_dir : path or None
        A folder on a disk for what has no room in them, where the device is ``cpu``.
    spill_capacity : int, str or None
        The most that may lie there; default: half of what is free.
    """

    device: str | None = None
    threads: int | None = None
    fallback: str = "warn"
    partition: str = "min_cut"
    max_variants: int = 8
    cubin: str = "auto"
    budget: int | str | None = None
    spill_dir: str | os.PathLike[str] | None = None
    spill_capacity: int | str | None = None

    @property
    def wanted_budget(self) -> Wanted | None:
        """The budget with its folder. Raises InvalidArgumentError for what is none."""
        return wanted(self.budget, self.spill_dir, self.spill_capacity)

    @property
    def spec(self) -> str:
        """The device with its threads."""
        device = self.device or "cpu"
        return device if self.threads is None else f"{device}{',' if ':' in device else ':'}threads={self.threads}"


_CHOICES = {"fallback": ("warn", "error"), "partition": ("min_cut", "default")}


def checked(options: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Options from what the user gave. Raises InvalidArgumentError, naming the key and what would do."""
    if mode is not None:
        raise InvalidArgumentError(f"mode={mode!r}: the backend 'segue' has no modes; use options={{...}}")
    known = [f.name for f in fields(Options)]
    for key, value in (options or {}).items():
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, 1, 0.0)[0]
            raise InvalidArgumentError(
                f"unknown option {key!r} of the backend 'segue'; the nearest is {nearest!r}; known are {', '.join(known)}")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise InvalidArgumentError(f"option {key!r} is {value!r}; it takes {' or '.join(map(repr, _CHOICES[key]))}")
        if key in ("threads", "max_variants") and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise InvalidArgumentError(f"option {key!r} is {value!r}; it takes an integer of at least 1")
        if key == "cubin":
            checked_cubin(value)
        if key == "device" and not isinstance(value, str):
            raise InvalidArgumentError(f"option 'device' is {value!r}; it takes a spec such as 'cpu' or 'cpu:threads=2'")
    return Options(**(options or {}))
