# ===- turns.py - one call of a trainer at a time ---------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Calls of a trainer from several threads go one after the other: its session is in one step at a time."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, TypeVar, cast

from .errors import InvalidArgumentError

_F = TypeVar("_F", bound=Callable[..., Any])


class Turns:
    """Who has the session of a trainer. A thread that has it may call what only reads or writes state, as a gradient hook may."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.computing = ""  # the method that computes now; written by the thread that holds the lock


def in_turn(method: _F) -> _F:
    """Has a method of `segue.Trainer` wait until no other thread is within one."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        with self._turns.lock:
            return method(self, *args, **given)

    return cast(_F, call)


def computes_in_turn(method: _F) -> _F:
    """The same of a method that runs programs, in the midst of which the same thread can run no others: it would take what they keep for backward."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        turns: Turns = self._turns
        with turns.lock:
            if turns.computing:
                raise InvalidArgumentError(f"{method.__name__} was called within {turns.computing} of the same trainer, as by a hook on gradients; call it after")
            turns.computing = method.__name__
            try:
                return method(self, *args, **given)
            finally:
                turns.computing = ""

    return cast(_F, call)
