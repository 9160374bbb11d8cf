# ===- test_mutants.py - the list of mutants fits the code -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Each change of tools/mutants.toml can be made where it says, and its test is there; whether that fails is tried by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402
import sanitized  # noqa: E402

LISTED = mutants.read()


def test_there_are_mutants_of_both_halves():
    assert len({m.name for m in LISTED}) == len(LISTED) >= 40
    assert sum(m.file.startswith("lib/") for m in LISTED) >= 10 and sum(m.file.startswith("runtime/") for m in LISTED) >= 20


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant.name)
def test_each_can_be_made(mutant):
    text = (ROOT / mutant.file).read_text()
    assert mutant.changed(text) != text


def test_their_tests_are_there():
    for test in {m.test for m in LISTED}:
        if test.kind == "gtest":
            assert sanitized.matching_nothing(BUILD / "bin" / test.words[0], test.words[1]) == [], test
        else:
            assert (ROOT / ("test" if test.kind == "lit" else "") / test.words[0]).is_file(), test


def test_a_text_that_is_not_there_once_is_refused():
    mutant = mutants.Mutant("twice", "some.cpp", "i", "j", LISTED[0].test)
    assert mutant.changed("a+i") == "a+j"
    for text in ("a+b", "i+i"):
        with pytest.raises(ValueError, match="twice: the text occurs . times in some.cpp, not once"):
            mutant.changed(text)


def test_the_tool_lists_and_refuses():
    tool = [sys.executable, ROOT / "tools" / "mutants.py"]
    listed = subprocess.run([*tool, "--list", "--only", "hysteresis"], capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0 and "no-hysteresis" in listed.stdout and "golden-logs.test" in listed.stdout
    refused = subprocess.run([*tool, "--only", "no such"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "no mutant has no such in its name or file" in refused.stderr
