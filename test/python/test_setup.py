# ===- test_setup.py - what tools/setup runs, and what becomes of its failures -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""tools/setup, with stand-ins for the programs that install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each says when it begins and ends, and has the status that a variable gives it. Without WAITS, the first to begin waits for the other.
STAND_IN = """#!/bin/bash
case "$(basename "$0") $*" in
  dpkg-query*) [[ " $MISSING " == *" ${!#} "* ]] || echo "ok installed"; exit 0 ;;
  sudo*) [[ $1 == -n ]] && exit 0; exec "$@" ;;
  apt-get*install*) name=apt status=$APT ;;
  "python3 -m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python; exit 0 ;;
  python*pip*) name=pip status=$PIP ;;
  *) exit 0 ;;
esac
echo "$name begins" >>said
echo "$*" >>arguments
for ((i = 0; i < WAITS && $(grep -c begins said) < 2; i++)); do sleep 0.1; done
sleep "$([[ $name == "$SLOW" ]] && echo 0.3 || echo 0)"
echo "$name ends" >>said
exit "$status"
"""


def set_up(folder, *arguments, **variables):
    """The status of setup in a checkout that has nothing yet, what ran in which order, and whether the environment counts as made."""
    stand_ins = folder / "bin"
    for path in (folder / "tools", folder / "python", stand_ins):
        path.mkdir()
    shutil.copy(ROOT / "tools" / "setup", folder / "tools")
    (folder / "python" / "requirements.txt").write_text("torch\n")
    (folder / "python" / "requirements-dev.txt").write_text("pytest\n")
    for name in ("dpkg-query", "sudo", "apt-get", "python3"):
        (stand_ins / name).write_text(STAND_IN)
        (stand_ins / name).chmod(0o755)
    done = subprocess.run([folder / "tools" / "setup", *arguments], capture_output=True, text=True, timeout=60, env=os.environ | {
        "PATH": f"{stand_ins}{os.pathsep}{os.environ['PATH']}", "MISSING": "ninja-build", "APT": "0", "PIP": "0", "WAITS": "0", "SLOW": ""} | variables)
    return done.returncode, (folder / "said").read_text().splitlines(), (folder / ".venv" / "requirements.sum").exists()


def test_packages_of_the_system_and_of_python_are_installed_side_by_side(tmp_path):
    status, said, made = set_up(tmp_path, WAITS="100")
    assert status == 0 and made and [line.split()[1] for line in said] == ["begins", "begins", "ends", "ends"], said


def test_an_environment_waits_for_its_python(tmp_path):
    status, said, made = set_up(tmp_path, MISSING="ninja-build python3-venv")
    assert status == 0 and made and said == ["apt begins", "apt ends", "pip begins", "pip ends"]


@pytest.mark.parametrize("slow", ["apt", "pip"])
@pytest.mark.parametrize("fails", ["APT", "PIP"])
def test_a_failure_of_either_is_one_of_setup_which_leaves_nothing_running(tmp_path, fails, slow):
    status, said, made = set_up(tmp_path, SLOW=slow, **{fails: "7"})
    assert status == 7 and sorted(said) == ["apt begins", "apt ends", "pip begins", "pip ends"] and made == (fails == "APT"), said


def test_the_demo_is_spared_what_tests_need(tmp_path):
    """What tests need is installed by `tools/setup dev` alone, and an environment that has the rest gets that list."""
    everything = {"MISSING": "ninja-build chromium-headless-shell clang-22"}
    status, _, made = set_up(tmp_path, **everything)
    given = (tmp_path / "arguments").read_text()
    assert status == 0 and made and "ninja-build" in given and "requirements.txt" in given
    assert "chromium" not in given and "clang" not in given and "requirements-dev" not in given

    (tmp_path / "arguments").unlink()
    status = subprocess.run([tmp_path / "tools" / "setup", "dev"], timeout=60, env=os.environ | everything | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "APT": "0", "PIP": "0", "WAITS": "0", "SLOW": ""}).returncode
    given = (tmp_path / "arguments").read_text()
    assert status == 0 and "chromium-headless-shell" in given and "clang-22" in given
    assert "--requirement=python/requirements-dev.txt" in given and "requirements.txt" not in given
    assert (tmp_path / ".venv" / "requirements-dev.sum").exists()


def test_a_mistyped_argument_is_refused(tmp_path):
    shutil.copy(ROOT / "tools" / "setup", tmp_path)
    done = subprocess.run([tmp_path / "setup", "test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == 'setup: "test" is not known; dev is\n'
