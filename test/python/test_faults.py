# ===- test_faults.py - the guide of faults names tests that are there ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""docs/guides/faults.md: every row names at least one test, and every test that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "faults.md"


def known_tests():
    names = set()
    for folder in ("runtime/test", "test/stitch", "tools"):
        for file in (ROOT / folder).rglob("*.cpp"):
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", file.read_text(), re.M):
                names.add(f"{suite}.{name}")
    for file in (ROOT / "test" / "python").glob("test_*.py"):
        names.update(re.findall(r"^def (test_\w+)", file.read_text(), re.M))
    return names


def rows():
    for line in GUIDE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| fault", "| ---")):
            yield line


def test_every_row_has_tests_that_exist():
    known = known_tests()
    assert "MemoryServicesTest.HostileDevices" in known and "test_every_row_has_tests_that_exist" in known
    found = 0
    for row in rows():
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3, row
        named = re.findall(r"`([\w.]+)`", cells[2])
        assert named, f"no test: {row}"
        for name in named:
            assert name in known, f"{name} does not exist: {row}"
        found += 1
    assert found > 30


def test_each_service_has_its_table():
    headings = re.findall(r"^## (.*)$", GUIDE.read_text(), re.M)
    assert {"Conductor", "Activation Stagehand", "Weight Stagehand", "SquareQ", "Selective Precision", "Stitching"} <= set(headings)
