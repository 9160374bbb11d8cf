# ===- whole_step.py - a step that Ctrl-C does not part ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Ctrl-C in the midst of a step."""

from __future__ import annotations

import signal
import threading
from typing import Any

from .errors import RankFailedError


class WholeStep:
    """Keeps KeyboardInterrupt back until what is inside has ended, so that nothing of a finished step is lost."""

    def __enter__(self) -> None:
        self._came = False
        # Python runs handlers on the main thread alone; one that somebody else has set is theirs.
        self._holds = (threading.current_thread() is threading.main_thread()
                       and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        if self._holds:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._came = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Ctrl-C comes to all ranks of a terminal, and may have ended another one first.
            if self._came and (kind is None or issubclass(kind, RankFailedError)):
                raise KeyboardInterrupt from error
