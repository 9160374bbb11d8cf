# ===- test_status.py - the table of features names tests that are there -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""docs/status.md: every feature says its state and, unless it is not there, one test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def known_tests():
    """Suites, and tests as Suite.Name."""
    names = set()
    for folder in ("runtime/test", "test/stitch", "test/unit", "tools"):
        for file in (ROOT / folder).rglob("*.cpp"):
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", file.read_text(), re.M):
                names |= {suite, f"{suite}.{name}"}
    return names


def test_every_feature_has_its_state_and_a_test():
    known, found = known_tests(), 0
    for line in (ROOT / "docs" / "status.md").read_text().splitlines():
        if not line.startswith("| ") or line.startswith(("| feature", "| ---")):
            continue
        cells = [cell.strip() for cell in line.removeprefix("| ").removesuffix("|").split("|")]
        assert len(cells) == 3, line
        state, tests = cells[1], re.findall(r"`([^`]+)`", cells[2])
        assert re.match(r"(works|partly|no)\b", state), line
        assert len(line) < 300, line
        if state.startswith("no") and not tests:
            continue
        assert len(tests) == 1, line
        assert tests[0] in known or (ROOT / "test" / tests[0]).is_file(), f"{tests[0]} does not exist: {line}"
        found += 1
    assert found > 40
