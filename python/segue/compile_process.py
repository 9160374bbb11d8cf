# ===- compile_process.py - asks another process to compile -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Compilation where its crash cannot take a training run along.

LLVM ends its process on a broken assumption, and machine code can fault while
the compiler folds. So the compiler runs in a child (`compile_server`), which
answers many requests; when it dies, the request becomes a `CompileError` that
says how, and the next request starts another child. Each thread that compiles
has a child of its own. With ``SEGUE_COMPILER_PROCESS=0``, and where no child
can be started, the compiler runs in this process.
"""

from __future__ import annotations

from typing import Any

import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading

from . import compile_cache
from .errors import CompileError

log = logging.getLogger("segue")

VARIABLE = "SEGUE_COMPILER_PROCESS"
_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile_server.py")


def _backend() -> str:
    """The folder of nanobind's part at run time, which a child with no folders of packages would not find."""
    return os.path.dirname(sys.modules["nanobind_backend"].__path__[0])  # which _runtime has imported


class _Gone(Exception):
    """The child has ended."""


class _Child:

    def __init__(self) -> None:
        self.messages = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, "-I", "-S", _SERVER, _backend()], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.messages)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout

    def ask(self, request: bytes) -> tuple[Any, ...]:
        """The answer to a request. Raises _Gone where none comes."""
        try:
            self._requests.write(struct.pack("<Q", len(request)) + request)
            self._requests.flush()
            answer: tuple[Any, ...] = pickle.loads(self._read(struct.unpack("<Q", self._read(8))[0]))
            return answer
        except BrokenPipeError:
            raise _Gone from None

    def _read(self, count: int) -> bytes:
        data = self._answers.read(count)
        if len(data) != count:
            raise _Gone
        return data

    def epitaph(self) -> tuple[str, str]:
        """Returns how the process ended, and the end of what it printed."""
        status = self.process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"
        self.messages.seek(0)
        return how, self.messages.read()[-2000:].decode(errors="replace").strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self._requests, self._answers, self.messages):
            try:
                pipe.close()
            except BrokenPipeError:  # of what was not sent
                pass


_idle: list[_Child] = []
_lock = threading.Lock()
# A process that was forked shares no child with this one.
os.register_at_fork(after_in_child=_idle.clear)


def compile_text(text: str, name: str, **options: Any) -> bytes:
    """`_compiler.compile` with these arguments, in another process, unless it was compiled before (`compile_cache`).

    Raises
    ------
    CompileError
        The compiler refused the text, or died; the report has ``diagnostics``.
    """
    arguments = {"text": text, "name": name, **options}
    file = compile_cache.find(arguments)
    if file is None:
        file = _compiled(name, arguments)
        compile_cache.keep(arguments, file)
    return file


def start() -> None:
    """Lets a child come up while its first request is being written, where what is compiled need not be kept already."""
    if not _runs_here() and not compile_cache.is_on():
        with _lock:
            if not _idle:
                try:
                    _idle.append(_Child())
                except OSError:
                    pass  # said when there is something to compile


def _runs_here() -> bool:
    return os.environ.get(VARIABLE) == "0" or not sys.executable


def _compiled(name: str, arguments: dict[str, Any]) -> bytes:
    if _runs_here():
        return _here(arguments)
    request = pickle.dumps((os.getcwd(), arguments))
    while True:
        with _lock:
            child = _idle.pop() if _idle else None
        was_idle = child is not None
        try:
            child = child or _Child()
        except OSError as error:
            log.warning("no process for the compiler can be started (%s); it runs in this one", error)
            return _here(arguments)
        try:
            answer = child.ask(request)
        except _Gone:
            how, printed = child.epitaph()
            child.end()
            if was_idle:
                continue  # it may have left, or been ended, before the request; another one tells
            first = printed.splitlines()[0] if printed else "it printed nothing"
            raise CompileError(f"the compiler {how} while it compiled {name}: {first}",
                               report={"diagnostics": printed, "died": how}) from None
        except BaseException:  # an interrupt: the answer to this request must not meet the next one
            child.end()
            raise
        with _lock:
            _idle.append(child)
        return _answered(answer)


def _here(arguments: dict[str, Any]) -> bytes:
    from . import _compiler  # maps LLVM

    return _compiler.compile(**arguments)


def _answered(answer: tuple[Any, ...]) -> bytes:
    kind, value, *more = answer
    if isinstance(value, bytes):
        for message in more[0]:
            log.info("%s", message)
        return value
    if kind == "refused":
        raise CompileError(value, report=more[0])
    raise CompileError(f"the compiler failed: {value}", report={"diagnostics": value})
