# ===- test_terminal.py - the terminal of pictures ----------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""tools/terminal.py shows what a terminal would: docs/images/terminal.png is made with it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from terminal import Screen  # noqa: E402


def test_a_line_that_is_drawn_over_is_gone():
    screen = Screen(columns=20)
    screen.write("[==>  ] 1/3, 0:02 left\r\x1b[Kdone\nnext\rN")
    assert screen.lines == ["[==>  ] 1/3, 0:02 le", "done", "Next"]
    screen.write("\x1b[K \x1b[1;31mred\x1b[0m")
    assert screen.lines[-1] == "N red"


def test_a_program_sees_a_terminal_and_is_stopped_when_enough_is_seen(tmp_path):
    program = "import os, sys, time\nprint(sys.stderr.isatty(), os.get_terminal_size(1).columns)\nfor i in range(600): print(i, end='\\r', flush=True); time.sleep(0.1)"
    screen = Screen(columns=60)
    screen.run([sys.executable, "-Sc", program], tmp_path, until=lambda screen: screen.lines[-1] == "3")
    assert screen.lines[-3:] == ["True 60", "3", ""]


def test_what_programs_say_is_text_of_the_page():
    screen = Screen(columns=60)
    screen.write("<script>alert(1)</script>")
    assert "&lt;script&gt;" in screen.page() and "<script>" not in screen.page()
