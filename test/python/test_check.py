# ===- test_check.py - what the summary of all tests calls a success ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A suite that tested nothing is no success: skipped as a whole, or chosen by a filter that matches nothing."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from sample import drawn

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "tools"))

import check  # noqa: E402
import sanitized  # noqa: E402
import unit  # noqa: E402


def reported(tmp_path, cases: str) -> check.Suite:
    suite = check.Suite("unit", [], tmp_path / "unit.xml", 1)
    suite.report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    check.read_report(suite)
    return suite


PASSED, SKIPPED = '<testcase classname="{0}" name="{1}"/>', '<testcase classname="{0}" name="{1}"><skipped/></testcase>'


@pytest.mark.parametrize("group, one, other", [
    ("test.python.test_a", "test_one", "test_other"),  # pytest
    ("threads.Sims/RingTest", "One/0", "Other/1"),  # a GoogleTest report
    ("", "Sims/RingTest.One/0", "Sims/RingTest.Other/1"),  # ctest gives the name twice
    ("", "RingTest.One", "RingTest.Other"),
    ("", "Sizes/RingTest/0.One", "Sizes/RingTest/1.One"),  # a test of types
])
def test_a_group_that_is_skipped_has_failed(tmp_path, group, one, other):
    names = [(group or name, name) for name in (one, other)]
    whole = reported(tmp_path, "".join(SKIPPED.format(*name) for name in names) + PASSED.format("test.python.test_b", "test"))
    assert whole.skipped == 2 and whole.passed == 1
    assert len(whole.failures) == 1 and re.fullmatch(r"\(every test of (test\.python\.test_a|.*RingTest) was skipped\)", whole.failures[0])
    part = reported(tmp_path, SKIPPED.format(*names[0]) + PASSED.format(*names[1]))
    assert part.failures == [] and part.skipped == 1


def test_what_is_disabled_is_run_by_hand(tmp_path):
    disabled = '<testcase classname="Speed.Table" name="Speed.Table" status="disabled"/>'  # as ctest writes it
    suite = reported(tmp_path, disabled + PASSED.format("RingTest.One", "RingTest.One"))
    assert (suite.passed, suite.skipped, suite.failures) == (1, 0, [])


def test_what_a_failure_says_is_shown(tmp_path, capsys, monkeypatch):
    """The end of a log is all that is left of some runs."""
    lines = "".join(f"line {i}&#10;" for i in range(1000))
    suite = reported(tmp_path, f'''<testcase classname="RingTest" name="One"><failure message="Ring.cpp:7&#10;Expected: 1">long</failure></testcase>
                                   <testcase classname="RingTest" name="Two"><error>{lines}</error></testcase>''')
    monkeypatch.setattr(check, "suites", lambda build: [suite])
    monkeypatch.setattr(check, "run_all", lambda chosen, places: None)
    monkeypatch.setattr(sys, "argv", ["check.py", "--build", str(tmp_path)])
    assert check.main() == 1
    out = capsys.readouterr().out
    assert "  FAILED RingTest::One\n    Ring.cpp:7\n    Expected: 1\n  FAILED RingTest::Two\n    line 0\n" in out
    assert "line 20\n" not in out


def test_what_a_benchmark_missed_is_shown(tmp_path, capsys, monkeypatch):
    row = "copy 2x2 | 0.5 | 0.9 MISSED"
    suite = reported(tmp_path, f'<testcase classname="test_bench" name="test"><properties><property name="missed" value="{row}"/></properties></testcase>')
    assert suite.failures == [] and suite.missed == [f"test_bench::test: {row}"]
    monkeypatch.setattr(check, "suites", lambda build: [suite])
    monkeypatch.setattr(check, "run_all", lambda chosen, places: None)
    monkeypatch.setattr(sys, "argv", ["check.py", "--build", str(tmp_path)])
    assert check.main() == 0
    assert f"  missed test_bench::test: {row}\n" in capsys.readouterr().out


@pytest.mark.parametrize("text, options, failure", [
    ("import pytest\ndef test_a(): pytest.skip('no hardware')\n", [], "(every test of test_it was skipped)"),
    ("import pytest\npytest.skip('no hardware', allow_module_level=True)\n", [], "(every test of test_it was skipped)"),
    ("def test_a(): pass\n", ["-k", "renamed"], "(the suite ran no test)"),
    ("def test_a(): pass\n", [], None),
])
def test_runs_that_tested_nothing(tmp_path, text, options, failure):
    (tmp_path / "test_it.py").write_text(text)
    report = tmp_path / "python.xml"
    suite = check.Suite("python", [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "--junitxml", report, tmp_path, *options], report, 60)
    check.run_all([suite], 1)
    assert suite.failures == ([failure] if failure else [])


def shared_suite(tmp_path) -> check.Suite:
    """A suite that two processes share: what lies in `tmp_path`."""
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'test' / 'python')!r})\nfrom claims import pytest_runtest_protocol\n")
    report = tmp_path / "python.xml"
    return check.Suite("python", [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "--junitxml", report, tmp_path], report, 60, workers=2)


def test_processes_share_the_files(tmp_path):
    """Each file is run once, whole, and by whoever is free; one that dies fails the suite."""
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(f"import time, pytest\n@pytest.fixture(scope='module')\ndef slow(): time.sleep({0.5 + 2 * (name == 'a')})\n"
                                                  "def test_one(slow): pass\ndef test_two(slow): pass\n")
    suite = shared_suite(tmp_path)
    check.run_all([suite], 2)
    assert (suite.passed, suite.failures) == (8, [])
    files = [sorted({case.get("classname") for case in xml.parse(suite.report_of(worker)).getroot().iter("testcase")}) for worker in (0, 1)]
    assert sorted(files, key=len) == [["test_a"], ["test_b", "test_c", "test_d"]]

    (tmp_path / "test_c.py").write_text("import os\ndef test_c(): os._exit(0)\n")
    suite = shared_suite(tmp_path)
    check.run_all([suite], 2)
    assert suite.failures == ["(the suite wrote no report)"]


def test_one_process_after_the_others_may_find_nothing_left(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_one(): pass\n")
    suite = shared_suite(tmp_path)
    check.run_all([suite], 1)
    assert (suite.passed, suite.failures) == (1, [])


def test_what_is_compiled_beside_others_is_run_as_soon_as_a_process_makes_room(tmp_path):
    """No case is lost and none runs twice; priorities are those of the compiler's process alone."""
    order = tmp_path / "order"
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("import os, time\ndef test_it():\n"
                                                  f"    open({str(order)!r}, 'a').write(f'{name} {{os.sched_getscheduler(0)}}\\n')\n    time.sleep(1.5)\n")
    report = tmp_path / "fuzz.xml"
    write = f"open({str(order)!r}, 'a').write(f'{{sys.argv[1]}} {{os.sched_getscheduler(0)}}\\n')"
    fuzz = check.Suite("fuzz", [sys.executable, "-c", f"import os, sys; {write}; open(sys.argv[2], 'w').write('<a><testcase classname=\"a\" name=\"b\"/></a>')",
                                "fuzz", report], report, 60,
                       compiling=[sys.executable, "-c", f"import os, sys, time; {write}; time.sleep(0.2)", "compiles"])
    suite = shared_suite(tmp_path)
    check.run_all([fuzz, suite], 1)
    assert (suite.passed, suite.failures, fuzz.passed, fuzz.failures) == (3, [], 1, [])
    lines = order.read_text().split("\n")
    files = [line[0] for line in lines if line[1:2] == " "]
    assert sorted(files) == ["a", "b", "c"] and f"compiles {os.SCHED_IDLE}" in lines
    assert 0 < lines.index(f"fuzz {os.SCHED_OTHER}") < len(lines) - 2, lines  # between files
    assert not list(check.claims_of(suite).glob("room-for-*")) and suite.workers == 3


# A program that answers as GoogleTest does; what a case does is its name.
PROGRAM = """
import os, sys, time
cases, report = sys.argv[1].removeprefix("--gtest_filter=").split(":"), sys.argv[3].removeprefix("--gtest_output=xml:")
said = []
for case in cases:
    if case == "A.Dies" or (case == "A.DiesBesideOthers" and len(cases) > 1):
        os.abort()
    if case == "A.NeverEnds":
        time.sleep(60)
    if case != "A.SaysNothing":
        said.append('<testcase classname="A" name="%s" status="run">%s</testcase>' % (case[2:], '<failure/>' * (case == "A.Fails")))
open(report, "w").write("<testsuites><testsuite>" + "".join(said) + "</testsuite></testsuites>")
sys.exit("A.Fails" in cases)
"""


@pytest.mark.parametrize("case, why", [
    (None, None), ("A.Fails", ""), ("A.Dies", "ended with -6"), ("A.NeverEnds", "ended with too late"), ("A.SaysNothing", "ended with 0"),
    ("A.DiesBesideOthers", "pass alone, and end with -6"),
])
def test_a_case_at_fault_takes_no_other_along(tmp_path, monkeypatch, case, why):
    monkeypatch.setattr(unit, "PATIENCE", 1)
    cases, output = ["A.One", *filter(None, [case]), "A.Two"], []
    piece = unit.Piece([sys.executable, "-c", PROGRAM], cases, {}, None, 1.5 if case == "A.NeverEnds" else 30, cases)
    found = unit.play(piece, tmp_path, output)
    assert {"One", "Two"} <= {element.get("name") for element in found if element.find("failure") is None}
    bad = [element.find("failure") for element in found if element.find("failure") is not None]
    assert len(bad) == (case is not None) and all(why in (failure.get("message") or "") for failure in bad)


def test_pieces_hold_every_case_once():
    tests = unit.known_to_ctest(BUILD)
    pieces = unit.pieces_of(tests)
    assert sorted(name for piece in pieces for name in piece.names) == \
        sorted(test["name"] for test in tests if {"name": "DISABLED", "value": True} not in test["properties"])
    assert 40 < len(pieces) < len(tests) / 10 and all(len(piece.cases) <= unit.CASES for piece in pieces)


def test_filters_of_the_sanitized_builds():
    program = BUILD / "bin" / "SegueDeviceTests"
    assert sanitized.matching_nothing(program, "*Arena*:*NoSuchTest*:*") == ["*NoSuchTest*"]


# ctest runs each case by a filter, by hand; that the name is found is no matter of course to GoogleTest.
def test_ctest_fails_where_a_name_matches_nothing():
    done = subprocess.run([BUILD / "bin" / "SegueDeviceTests", "--gtest_filter=No.Such"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Running 0 tests" in done.stdout
    shown = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, timeout=60)
    tests = [test for test in json.loads(shown.stdout)["tests"] if any("--gtest_filter=" in word for word in test.get("command", []))]
    assert len(tests) > 500
    for test in tests:
        assert {"name": "FAIL_REGULAR_EXPRESSION", "value": ["Running 0 tests"]} in test["properties"], test["name"]


def test_filters_that_the_documents_name():
    texts = [ROOT / "docs" / "guides" / "testing.md", ROOT / "bench" / "RESULTS.md", ROOT / "README.md"]
    found = [pair for text in texts for pair in re.findall(r"(Segue\w+) --gtest_filter='([^']+)'", text.read_text())]
    assert len(found) > 2
    for program, cases in found:
        assert sanitized.matching_nothing(BUILD / "bin" / program, cases) == [], program


def test_the_slowest_steps_are_known(tmp_path):
    suite = reported(tmp_path, '<testcase classname="a" name="b" time="2.5"/><testcase classname="a" name="c"/>')
    assert suite.steps == [(2.5, "unit: a::b"), (0.0, "unit: a::c")]
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / ".ninja_log").write_text("# ninja log v6\n10\t3510\t0\tlib/a.o\t1f\n0\t500\t0\tlib/b.o\t2f\n")
    assert sorted(check.build_steps(tmp_path)) == [(0.5, "build: inner/lib/b.o"), (3.5, "build: inner/lib/a.o")]


def test_samples_are_parts_that_make_up_all(monkeypatch):
    cases = list(range(11))
    monkeypatch.delenv("SEGUE_SEED", raising=False)
    assert drawn(cases, 3, "a") == cases
    parts = []
    for seed in ("41", "42", "43"):
        monkeypatch.setenv("SEGUE_SEED", seed)
        parts.append(drawn(cases, 3, "a"))
    assert sorted(sum(parts, [])) == cases and all(parts) and drawn(cases, 3, "b") != parts[-1]


def test_instances_that_are_sampled_are_drawn_for_each_test():
    names = ["Alone.Test", "All/Other.Test/Sim", *(f"SampleOf3/Ranks.{test}/Way{way}" for test in ("Gather", "Send") for way in range(7))]
    tests = [{"name": name} for name in names]
    assert unit.drawn(tests, None) == tests
    parts = [[test["name"] for test in unit.drawn(tests, seed)] for seed in ("41", "42", "43")]
    assert all(part[:2] == names[:2] for part in parts) and sorted(name for part in parts for name in part[2:]) == sorted(names[2:])
    for part in parts:
        ways = [[name[-1] for name in part if test in name] for test in ("Gather", "Send")]
        assert all(ways) and ways[0] != ways[1]


def test_a_suite_draws_with_a_number_of_the_commit(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SEGUE_SEED", raising=False)
    seed = check.draw_seed()
    assert seed == check.draw_seed() and int(seed) >= 0
    report = tmp_path / "unit.xml"
    suite = check.Suite("unit", [sys.executable, "-c", "import os, sys; open(sys.argv[1], 'w').write('<a><testcase classname=\"a\" name=\"%s\"/></a>' % os.environ['SEGUE_SEED'])",
                                 report], report, 60)
    monkeypatch.setattr(check, "suites", lambda build: [suite])
    monkeypatch.setattr(sys, "argv", ["check.py", "--build", str(tmp_path)])
    assert check.main() == 0 and suite.steps == [(0.0, f"unit: a::{seed}")]
    assert f"SEGUE_SEED={seed};" in capsys.readouterr().out
    monkeypatch.setenv("SEGUE_SEED", "5")
    assert check.draw_seed() == "5"
