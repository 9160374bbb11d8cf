# ===- test_warm.py - the Python that has PyTorch imported is one ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The launcher of warm.py does what an interpreter does with a script, `-c` or `-m`, and its process ends with it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

SHOW = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("SHOWN"), sys.path[0], __name__, sys.stdin.read()]))
print("said", file=sys.stderr)
sys.exit(3)
"""


def run(python, *words, **options):
    return subprocess.run([python, *words], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("how", ["-c", "-m", "script"])
def test_a_program_sees_what_it_would_see_elsewhere(tmp_path, how):
    (tmp_path / "show.py").write_text(SHOW)
    words = {"-c": ["-c", SHOW], "-m": ["-m", "show"], "script": [tmp_path / "show.py"]}[how]
    options = {"cwd": tmp_path, "env": os.environ | {"SHOWN": "a b"}, "input": "given"}
    warmed, cold = (run(python, *words, "x y", **options) for python in (warm.python(), sys.executable))
    assert (warmed.returncode, warmed.stdout, warmed.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert json.loads(warmed.stdout)[4:] == ["__main__", "given"]


def test_pytorch_is_there_and_so_it_is_for_children():
    program = "import os, subprocess, sys; print('torch' in sys.modules, os.getpid(), flush=True); sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
    done = run(warm.python(), "-c", program, "-c", "import sys; sys.exit(7 * ('torch' in sys.modules))")
    assert done.returncode == 7 and done.stdout.startswith("True ")


def test_threads_are_those_of_the_environment():
    program = "import torch; print(torch.get_num_threads())"
    assert run(warm.python(), "-c", program, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout == "1\n"


def test_a_library_that_reads_a_variable_when_it_is_loaded_gets_it():
    program = "import sys; print('torch' in sys.modules)"
    assert run(warm.python(), "-c", program, env=os.environ | {"MALLOC_ARENA_MAX": "2"}).stdout == "False\n"


def test_a_process_and_its_launcher_end_together():
    assert run(warm.python(), "-c", "import os; os.kill(os.getpid(), 9)").returncode == -9
    launcher = subprocess.Popen([warm.python(), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(100)"], stdout=subprocess.PIPE)
    process = Path("/proc") / launcher.stdout.readline().decode().strip()
    assert process.exists()
    launcher.kill()
    launcher.communicate()
    for _ in range(1000):
        if not process.exists():
            return
        time.sleep(0.02)
    raise AssertionError("the process goes on")
