# ===- test_compile_process.py - the compiler in a process of its own -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What the compiler gives is the same from another process, and its death is an error."""

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

import segue
from segue import compile_process
from segue.compile_process import compile_text

TEXT = """func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.exp %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@pytest.fixture(autouse=True)
def children(monkeypatch):
    """Those of the test, whatever another one has compiled."""
    own = []
    monkeypatch.setenv("SEGUE_CACHE_DIR", "")
    monkeypatch.setattr(compile_process, "_idle", own)
    yield own
    for child in own:
        child.end()


def test_the_bytes_are_those_of_this_process(monkeypatch, children):
    there = [compile_text(TEXT, "m", training=False) for _ in range(2)]
    assert len(children) == 1, "one child answers both"
    monkeypatch.setenv(compile_process.VARIABLE, "0")
    assert there == [compile_text(TEXT, "m", training=False)] * 2


def test_diagnostics_come_back():
    with pytest.raises(segue.CompileError, match="custom op 'segue.exxp' is unknown") as caught:
        compile_text(TEXT.replace("exp", "exxp"), "m", training=False)
    assert "segue.exxp" in caught.value.report["diagnostics"]
    with pytest.raises(segue.CompileError, match="TypeError"):
        compile_text(TEXT, "m", trainning=False)


def test_a_death_between_requests_is_not_noticed(children):
    before = compile_text(TEXT, "m", training=False)
    os.kill(children[0].process.pid, signal.SIGKILL)
    assert compile_text(TEXT, "m", training=False) == before


def test_threads_have_children_of_their_own(children):
    given = {}
    threads = [threading.Thread(target=lambda n=n: given.setdefault(n, compile_text(TEXT, n, training=False)))
               for n in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(given.values()) and 1 <= len(children) <= 2


def test_without_a_program_to_start_the_compiler_runs_here(monkeypatch, caplog, children):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with caplog.at_level(logging.WARNING, "segue"):
        assert compile_text(TEXT, "m", training=False)
    assert "it runs in this one" in caplog.text and not children


def test_a_process_that_ends_takes_its_children_along():
    program = ("import sys; from segue import compile_process as c\n"
               f"c.compile_text({TEXT!r}, 'm', training=False)\n"
               "assert 'segue._compiler' not in sys.modules, 'LLVM is mapped'\n"
               "print(c._idle[0].process.pid)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for _ in range(100):
        if not os.path.exists(f"/proc/{int(done.stdout)}/exe"):
            return
        threading.Event().wait(0.05)
    pytest.fail("the compiler's process is still there")
