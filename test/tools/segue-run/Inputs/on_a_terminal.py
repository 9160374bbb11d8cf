"""Runs a command with stderr on a terminal of 100 columns, and says what was drawn there.

`screen` stands first for both streams on it, `talk` for stderr alone. Every line that was drawn over is printed once as
`drawn: ...`, and what is left in the end as `left: ...`.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tools"))

from terminal import said_on_a_terminal  # noqa: E402

kind, *command = sys.argv[1:]
environment = os.environ | {"TERM": os.environ.get("TRIED_TERM", "xterm")}


def seen():
    """All that was said, and the exit status."""
    stdout = None if kind == "screen" else subprocess.DEVNULL
    status = yield from said_on_a_terminal(command, 100, 60, stdout=stdout, env=environment)
    yield f"\r\nstatus {status}"


*lines, status = "".join(seen()).split("\r\n")
for line in lines:
    *drawn, left = line.split("\r\x1b[K")
    for each in filter(None, drawn):
        print("drawn:", each)
    if left:
        print("left:", left)
print(status)
