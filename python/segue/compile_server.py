# ===- compile_server.py - the compiler in a process of its own ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The program that compiles for `segue.compile_process`; it is run as a file and imports neither torch nor numpy. Its argument is the
folder of packages that has nanobind_backend.

Requests come on standard input, answers leave on standard output: eight bytes
of length, then a pickle. A request is (folder, arguments by name); an answer is
("bytes", file, messages for the log), ("refused", message, report), or
("raised", message). The process ends with its input, and when nobody has asked
for a while.
"""

import logging
import os
import pickle
import select
import signal
import struct
import sys
import types
from typing import Any, BinaryIO

#: Seconds without a request after which the process gives its memory back.
IDLE = 60.0


class _Kept(logging.Handler):
    """Keeps messages for the process that asked."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _compiler() -> tuple[Any, Any]:
    """The native module, and the class of its errors, without what the package imports."""
    package = types.ModuleType("segue")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["segue"] = package
    sys.path.append(sys.argv[1])
    from segue import _compiler as native
    from segue.errors import CompileError

    return native, CompileError


def _read(pipe: BinaryIO, count: int) -> bytes:
    data = pipe.read(count)
    if len(data) != count:
        sys.exit(0)  # who asked is gone
    return data


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked
    native, refused = _compiler()
    log = logging.getLogger("segue")
    log.setLevel(logging.INFO)
    log.propagate = False
    # Nothing is in the buffer of `requests` here: whoever asks waits for the answer.
    while select.select([requests], [], [], IDLE)[0]:
        (length,) = struct.unpack("<Q", _read(requests, 8))
        folder, arguments = pickle.loads(_read(requests, length))
        log.handlers = [kept := _Kept()]
        try:
            os.chdir(folder)
            answer: tuple[Any, ...] = ("bytes", native.compile(**arguments), kept.messages)
        except refused as error:
            answer = ("refused", str(error), error.report)
        except Exception as error:
            answer = ("raised", f"{type(error).__name__}: {error}")
        data = pickle.dumps(answer)
        try:
            answers.write(struct.pack("<Q", len(data)) + data)
            answers.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    # Prints of anybody else go to standard error, never between answers.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(os.fdopen(os.dup(0), "rb"), channel)
