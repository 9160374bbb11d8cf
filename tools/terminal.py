# ===- terminal.py - what a terminal shows of a program ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a terminal shows of programs: for pictures of sessions.

    screen = Screen(columns=100)
    screen.run(["segue-run", "--version"])
    screen.page()                             # as HTML
"""

from __future__ import annotations

import codecs
import fcntl
import html
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Any, Callable, Generator

#: Text, and what moves the cursor or clears the rest of a line. Other sequences of a terminal change nothing here.
PIECES = re.compile(r"\r|\n|\x1b\[K|\x1b\[[0-9;?]*[A-Za-z]|[^\r\n\x1b]+")

STYLE = "body{margin:0;background:#16181d;color:#d7dae0;font:15px/1.45 'DejaVu Sans Mono',monospace}pre{margin:20px 24px}b{color:#7fd1ae}"


def said_on_a_terminal(command: list[str], columns: int, limit_s: float, *, stdout: int | None = None, **options: Any) -> Generator[str, None, int]:
    """What `command` says on a terminal of its own, piece by piece, and its exit status as the generator's value. A `stdout` that is given takes what
    goes there. A caller that asks for no more ends the command.

    Raises TimeoutError when it goes on for longer. `options` are those of `subprocess.Popen`.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs if stdout is None else stdout, stderr=theirs, **options)
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    end = time.monotonic() + limit_s
    try:
        while True:
            if not select.select([ours], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{shlex.join(command)} went on for {limit_s} s")
            try:
                part = os.read(ours, 4096)
            except OSError:  # nobody has the other end any more
                part = b""
            if not part:
                return process.wait(max(0.0, end - time.monotonic()))
            yield decoder.decode(part)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


class Screen:
    """The lines of a terminal that has no last one."""

    def __init__(self, columns: int):
        self.columns = columns
        self.lines, self._column = [""], 0
        self._prompts: set[int] = set()  # lines that somebody typed

    def write(self, text: str) -> None:
        """Shows `text` as a terminal does: carriage returns go back, and lines that are full go on in the next one."""
        for piece in PIECES.findall(text):
            if piece == "\r":
                self._column = 0
            elif piece == "\n":
                self.lines.append("")
                self._column = 0
            elif piece == "\x1b[K":
                self.lines[-1] = self.lines[-1][: self._column]
            elif not piece.startswith("\x1b"):
                while piece:
                    if self._column == self.columns:
                        self.lines.append("")
                        self._column = 0
                    part, piece = piece[: self.columns - self._column], piece[self.columns - self._column :]
                    line = self.lines[-1].ljust(self._column)
                    self.lines[-1] = line[: self._column] + part + line[self._column + len(part) :]
                    self._column += len(part)

    def run(self, command: list[str], folder: Path, until: Callable[["Screen"], bool] = lambda screen: False, limit_s: float = 120) -> None:
        """Shows `command` as if it had been typed, and what it says until it ends or `until` is true of the screen."""
        self._prompts.add(len(self.lines) - 1)
        self.write("$ " + shlex.join(command) + "\n")
        for text in said_on_a_terminal(command, self.columns, limit_s, cwd=folder, env=os.environ | {"TERM": "xterm"}):
            self.write(text)
            if until(self):
                break
        if self.lines[-1]:
            self.write("\n")

    def page(self) -> str:
        """A page of HTML with the lines."""
        shown = [f"<b>{html.escape(line)}</b>" if number in self._prompts else html.escape(line) for number, line in enumerate(self.lines)]
        return f'<!doctype html><meta charset="utf-8"><title>Segue</title><style>{STYLE}</style><pre>' + "\n".join(shown).rstrip() + "</pre>"
