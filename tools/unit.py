#!/usr/bin/env python3
"""Runs the C++ tests that ctest knows, many cases to a process.

    tools/unit.py --build build [--report unit.xml] [--jobs 2] [--only SUBSTRING]

ctest starts a process per case, which here takes longer than most cases: a
program of the compiler maps LLVM first. The cases of a GoogleTest program are
run in pieces of CASES, several at a time, with what ctest would give them
(environment, time). A piece whose process dies, stays away, or says nothing of
a case is run again case by case, so that the case at fault has a name and takes
no other along; a case that passes there only has failed all the same. Tests
that are no GoogleTest are run as they are. With SEGUE_SEED, as in a check, of a
suite that is instantiated as SampleOf3 each test is run with one parameter of
three, with others for each seed and in each test. Exit status 0 only if all passed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

CASES = 40
#: A piece may take this many times what one case may.
PATIENCE = 4
FILTER = "--gtest_filter="
SAMPLED = re.compile(r"SampleOf(\d+)/([^/]+)/")


@dataclass
class Piece:
    """Cases of one program, or one test that is no GoogleTest."""

    command: list
    cases: list
    environment: dict
    folder: str | None
    limit_s: float
    names: list = field(default_factory=list)  # as ctest calls them

    def alone(self, at: int) -> "Piece":
        return Piece(self.command, [self.cases[at]], self.environment, self.folder, self.limit_s, [self.names[at]])


def known_to_ctest(build: Path) -> list:
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(shown.stdout)["tests"]


def drawn(tests: list, seed: str | None) -> list:
    """The tests that a check runs: of those that are sampled the part that `seed` draws, as runtime/test/Sample.h does. As many seeds in a row draw all."""
    met, kept = Counter(), []
    for test in tests:
        sampled = SAMPLED.match(test["name"])
        if sampled is None or seed is None:
            kept.append(test)
            continue
        number, of = met[sampled[2]], int(sampled[1])
        met[sampled[2]] += 1
        if (number + int(seed) + sum(map(ord, sampled[2]))) % of == 0:
            kept.append(test)
    return kept


def pieces_of(tests: list) -> list:
    """The tests in pieces, large programs first, so that the last to end are short."""
    programs, pieces = {}, []
    for test in tests:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        if properties.get("DISABLED"):
            continue
        if "command" not in test:
            raise SystemExit(f"unit.py: {test['name']}: its program was not built")
        case = next((word[len(FILTER):] for word in test["command"] if word.startswith(FILTER)), None)
        command = [word for word in test["command"] if not word.startswith(FILTER)]
        environment = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        rest = (environment, properties.get("WORKING_DIRECTORY"), float(properties.get("TIMEOUT", 300)))
        if case is None:
            pieces.append(Piece(command, [], *rest, [test["name"]]))
        else:
            programs.setdefault(json.dumps([command, *rest]), []).append((case, test["name"]))
    for key, cases in sorted(programs.items(), key=lambda item: -len(item[1])):
        for at in range(0, len(cases), CASES):
            part = cases[at:at + CASES]
            pieces.append(Piece(*[json.loads(key)[0], [case for case, _ in part], *json.loads(key)[1:], [name for _, name in part]]))
    return pieces


def failed(name: str, why: str, seconds: float) -> xml.Element:
    case = xml.Element("testcase", classname=name, name=name, time=f"{seconds:.2f}")
    xml.SubElement(case, "failure", message=why.splitlines()[0][:200]).text = re.sub(r"[^\t\n\x20-\x7e]", "?", why)
    return case


def said_of(report: Path) -> dict:
    """Case: what a GoogleTest report says of it; a report that was cut off says nothing."""
    try:
        cases = xml.parse(report).getroot().iter("testcase")
    except (OSError, xml.ParseError):
        return {}
    return {f"{case.get('classname')}.{case.get('name')}": case for case in cases if case.get("status") != "notrun"}


def play(piece: Piece, scratch: Path, output: list) -> list:
    """Runs a piece; returns a case of a JUnit report for each of its cases."""
    report = scratch / f"{id(piece)}.xml"
    command = piece.command + ([FILTER + ":".join(piece.cases), "--gtest_brief=1", f"--gtest_output=xml:{report}"] if piece.cases else [])
    begin = time.monotonic()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=piece.folder,
                              timeout=piece.limit_s * (PATIENCE if len(piece.cases) > 1 else 1), env=os.environ | piece.environment)
        ended, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        ended, text = "too late", (late.stdout or b"").decode(errors="replace")
    seconds = time.monotonic() - begin
    if not piece.cases:
        if ended:
            output.append(text)
            return [failed(piece.names[0], f"ended with {ended}\n{text[-6000:]}", seconds)]
        return [xml.Element("testcase", classname=piece.names[0], name=piece.names[0], time=f"{seconds:.2f}")]

    said = said_of(report)
    report.unlink(missing_ok=True)
    complete = all(case in said for case in piece.cases)
    told = any(case.find("failure") is not None for case in said.values())
    if complete and bool(ended) == told:
        if ended:
            output.append(text)
        return [said[case] for case in piece.cases]
    if len(piece.cases) == 1:
        output.append(text)
        return [failed(piece.names[0], f"ended with {ended}\n{text[-6000:]}", seconds)]
    output.append(f"{Path(piece.command[0]).name}: {len(piece.cases)} cases from {piece.cases[0]} ended with {ended}; each is run alone\n"
                  + text[-6000:])
    cases = [case for at in range(len(piece.cases)) for case in play(piece.alone(at), scratch, output)]
    if not any(case.find("failure") is not None for case in cases):
        cases.append(failed(f"{Path(piece.command[0]).name}.together",
                            f"{piece.names[0]} and the {len(piece.names) - 1} after it pass alone, and end with {ended} in one process", seconds))
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="tests whose name, or whose program's, holds this")
    args = parser.parse_args()
    tests = [test for test in drawn(known_to_ctest(args.build.resolve()), os.environ.get("SEGUE_SEED"))
             if args.only in test["name"] or args.only in Path(test.get("command", [""])[0]).name]
    root, output, begin = xml.Element("testsuite", name="unit"), [], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        for cases in pool.map(lambda piece: play(piece, Path(scratch), output), pieces_of(tests)):
            root.extend(cases)
            while output:
                print(output.pop(0), flush=True)
    bad = sum(case.find("failure") is not None for case in root)
    print(f"{len(root)} cases, {bad} failed, {time.monotonic() - begin:.0f} s")
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        xml.ElementTree(root).write(args.report)
    return 1 if bad or not len(root) else 0


if __name__ == "__main__":
    sys.exit(main())
