# ===- precision.py - mixed precision of compiled modules ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `precision=` of `segue.compile` and `segue.Trainer` says."""

from __future__ import annotations

import contextlib

import torch

from .errors import InvalidArgumentError

#: By name the element type of autocast, or None without it.
PRECISIONS = {"f32": None, "bf16-mixed": torch.bfloat16}


def checked_precision(precision: str | None) -> str | None:
    """The name itself. Raises InvalidArgumentError for one that there is not."""
    if precision is not None and precision not in PRECISIONS:
        raise InvalidArgumentError(f"precision is {precision!r}; it takes {' or '.join(map(repr, PRECISIONS))}")
    return precision


def entered_precision(precision: str | None):
    """A context for capturing: None leaves the autocast around it."""
    if precision is None:
        return contextlib.nullcontext()
    dtype = PRECISIONS[precision]
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
