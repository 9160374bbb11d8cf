# ===- cubins.py - machine code of GPUs beside PTX -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Whether kernels of a GPU have cubins beside their PTX, and the program of NVIDIA's toolkit, ptxas, that makes them."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import Any

from . import _runtime
from .errors import InvalidArgumentError

CHOICES = ("auto", "on", "off")
_MOST_SECONDS = 60.0


def checked_cubin(choice: str) -> str:
    """The choice of a user. Raises InvalidArgumentError for what is none, and for "on" where there is no ptxas."""
    if choice not in CHOICES:
        raise InvalidArgumentError(f"cubin is {choice!r}; it takes {', '.join(map(repr, CHOICES[:-1]))} or {CHOICES[-1]!r}")
    if choice == "on" and not _runtime.find_ptxas():
        raise InvalidArgumentError(f"cubin is 'on': {_runtime.NO_PTXAS}")
    return choice


def ptxas_for(choice: str, target: str) -> str:
    """The path of the ptxas that is to make cubins for a target of the compiler; empty for none."""
    return _runtime.find_ptxas() if choice != "off" and "sm_" in target else ""


def version(ptxas: str) -> str:
    """What a ptxas says of itself, or why it cannot: the same of two that make the same cubins."""
    status = os.stat(ptxas)
    return _version(ptxas, status.st_mtime_ns, status.st_size)


@functools.lru_cache
def _version(ptxas: str, *_: Any) -> str:
    try:
        done = subprocess.run([ptxas, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    return done.stdout + done.stderr
