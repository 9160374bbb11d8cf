#!/usr/bin/env python3
"""Runs all tests of Segue and prints one summary.

    tools/check.py --build build [--only lit,unit,python,threads,fuzz]

lit runs the IR and tool tests, tools/unit.py the C++ ones, pytest the Python ones;
threads are the stitching tests under the thread sanitizer, fuzz is bounded
fuzzing under the address and undefined behaviour sanitizers (tools/sanitized.py).
As many processes run side by side as there are processors, each into a log that is
shown when it ends. The Python tests come last: they have a process for each place that
becomes free, and these share the files among them (test/python/claims.py), so that all
places end at nearly the same time. Tests wait now and then: for a disk, for each other, for
a limit of time. What is compiled for a suite alone is compiled meanwhile, by compilers that
take what nobody else wants of a processor, so that no test is slower for it. When that is
done, a Python process ends after the file that it is at, and makes room for the suite.
Each suite writes a JUnit file into <build>/check/, which the summary is read
from; a suite that writes none, or runs no test, has failed, and so has a file
or a GoogleTest suite all of whose tests were skipped. Tests that are DISABLED_
are run by hand and count for nothing. What a benchmark missed (the property
"missed" of a case) is shown and fails nothing: machines differ. Last come the
slowest steps, of the tests and of the build that lies there.
Exit status 0 only if every suite ran and nothing failed.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

SLOWEST = 10  # steps to be shown
MOST_LINES, LONGEST_LINE = 12, 200  # of what a failure says
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Suite:
    name: str
    command: list
    report: Path
    limit_s: int  # a runaway process is stopped
    workers: int = 1  # processes that share the suite; each has a report
    compiling: list = field(default_factory=list)  # a command that compiles what the suite needs, beside others
    passed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)
    missed: list = field(default_factory=list)
    ended: list = field(default_factory=list)  # how, where a process did not end well
    steps: list = field(default_factory=list)  # seconds and name of each case
    seconds: float = 0.0  # of all its processes

    def report_of(self, worker: int) -> Path:
        return self.report.with_stem(f"{self.report.stem}-{worker + 1}") if worker else self.report


def draw_seed() -> str:
    """What samples are drawn with, where tests try a part of many cases: others for each commit."""
    if seed := os.environ.get("SEGUE_SEED"):
        return seed
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return str(int(commit[:6] or "0", 16))


def suites(build: Path) -> list:
    """Returns the suites: those that cannot be shared come first, and of these those that take longest."""
    out = build / "check"
    processors = os.cpu_count()
    jobs = str(max(1, processors // 2))  # of a suite that runs beside others

    def sanitized(what: str) -> Suite:
        command = [sys.executable, ROOT / "tools" / "sanitized.py", what, "--build", build]
        report = out / f"{what}.xml"
        return Suite(what, [*command, "--jobs", jobs, "--report", report], report, 2400, compiling=[*command, "--jobs", processors, "--compile"])

    return [
        sanitized("threads"),
        sanitized("fuzz"),
        Suite(
            "unit",
            [sys.executable, ROOT / "tools" / "unit.py", "--build", build, "--jobs", jobs, "--report", out / "unit.xml"],
            out / "unit.xml",
            2400,
        ),
        Suite(
            "lit",
            [sys.executable, "-c", "from lit.main import main; main()", "-q", "--timeout", "120", "-j", jobs, "--xunit-xml-output", out / "lit.xml", build / "test"],
            out / "lit.xml",
            1200,
        ),
        Suite(
            "python",
            [sys.executable, "-m", "pytest", "-q", "--junitxml", out / "python.xml", ROOT / "test" / "python"],
            out / "python.xml",
            2400,
            workers=min(processors, 8),
        ),
    ]


def group_of(case: xml.Element) -> str:
    """The file, or the GoogleTest suite, that a case belongs to."""
    name, group = case.get("name") or "", case.get("classname") or ""
    if group in ("", name):  # ctest; pytest of a file that skips itself
        group = name.split(".")[0] if "/" in name or name.count(".") == 1 else name
    # An instance of a suite is named before it, a type after it.
    return next((part for part in reversed(group.split("/")) if not part.isdigit()), group)


def reason(case: xml.Element) -> str:
    """What the failures of a case say, in a few lines: of a long log only the end is kept, and this comes last."""
    said = [failure.get("message") or failure.text or "" for failure in [*case.findall("failure"), *case.findall("error")]]
    lines = [line[:LONGEST_LINE] for text in said for line in text.strip().splitlines()]
    return "".join(f"\n    {line}" for line in lines[:MOST_LINES])


def read_report(suite: Suite) -> None:
    """Counts the cases of the JUnit files of `suite` into it."""
    cases = []
    for report in map(suite.report_of, range(suite.workers)):
        if report.exists():
            cases += xml.parse(report).getroot().iter("testcase")
        else:
            suite.failures.append("(the suite wrote no report)")
    if not cases and not suite.failures:
        suite.failures.append("(the suite ran no test)")
    ran, skipped = set(), set()
    for case in cases:
        if case.get("status") == "disabled":  # by its name, to be run by hand
            continue
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        suite.steps.append((float(case.get("time") or 0), f"{suite.name}: {name}"))
        suite.missed += [f"{name}: {p.get('value')}" for p in case.findall("properties/property") if p.get("name") == "missed"]
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            suite.failures.append(name + reason(case))
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            suite.skipped += 1
            skipped.add(group_of(case))
            continue
        else:
            suite.passed += 1
        ran.add(group_of(case))
    suite.failures += [f"(every test of {group} was skipped)" for group in sorted(skipped - ran)]


shown = threading.Lock()


def claims_of(suite: Suite) -> Path:
    """The folder of test/python/claims.py."""
    return suite.report.with_name(f"{suite.name}-claims")


def run(suite: Suite, worker: int = 0) -> str:
    """Runs one process of `suite`, and shows what it said. Returns what went wrong with it as a whole, or ""."""
    report = suite.report_of(worker)
    report.unlink(missing_ok=True)
    title = suite.name + f", process {worker + 1} of {suite.workers}" * (suite.workers > 1)
    with shown:
        print(f"== {title}", flush=True)
    # Threads that wait for their turn must not keep a processor from the others.
    environment = os.environ | {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"), "SEGUE_SEED": draw_seed()}
    if suite.workers > 1:
        environment |= {"SEGUE_TEST_CLAIMS": str(claims_of(suite)), "SEGUE_TEST_PROCESS": str(worker)}
    wrong, start = "", time.monotonic()
    with open(report.with_suffix(".log"), "w+") as log:
        try:
            code = subprocess.run([str(report if word == suite.report else word) for word in suite.command], cwd=ROOT, timeout=suite.limit_s,
                                  env=environment, stdout=log, stderr=log).returncode
            wrong = f"(the runner exited with {code})" if code else ""
        except subprocess.TimeoutExpired:
            wrong = f"(stopped after {suite.limit_s} s)"
        seconds = time.monotonic() - start
        log.seek(0)
        with shown:
            suite.seconds += seconds
            print(f"== {title}, ended after {seconds:.0f} s\n{log.read()}", end="", flush=True)
    return wrong


def compile_for(suite: Suite) -> None:
    """Compiles what `suite` needs, at the least priority. What goes wrong, the suite says when it runs."""
    with shown:
        print(f"== {suite.name}, compiles", flush=True)
    start = time.monotonic()
    with open(suite.report.with_name(f"{suite.name}-compiled.log"), "w") as log:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(["chrt", "--idle", "0", *map(str, suite.compiling)], cwd=ROOT, timeout=suite.limit_s, stdout=log, stderr=log)
    seconds = time.monotonic() - start
    suite.steps.append((seconds, f"{suite.name}: compiled beside others"))
    with shown:
        print(f"== {suite.name}, compiled after {seconds:.0f} s", flush=True)


class Places:
    """What runs where: the first that is ready wherever a place is free, until nothing is left or to come."""

    def __init__(self, chosen: list):
        # The first process of each in their order, then those that help.
        self.ready = [(suite, worker) for worker in range(max(suite.workers for suite in chosen)) for suite in chosen
                      if worker < suite.workers and not suite.compiling]
        self.compiling = [suite for suite in chosen if suite.compiling]
        self.running = []
        self.changed = threading.Condition()

    def compile(self) -> None:
        for suite in list(self.compiling):
            compile_for(suite)
            with self.changed:
                self.compiling.remove(suite)
                self.ready.insert(0, (suite, 0))
                for shared in {id(other): other for other, _ in self.running if other.workers > 1}.values():
                    (claims_of(shared) / f"room-for-{suite.name}").touch()
                self.changed.notify_all()

    def play(self) -> None:
        while True:
            with self.changed:
                # A process that runs may leave files to another.
                self.changed.wait_for(lambda: self.ready or not (self.compiling or self.running))
                if not self.ready:
                    return
                suite, worker = place = self.ready.pop(0)
                self.running.append(place)
                for shared, _ in self.running:
                    (claims_of(shared) / f"room-for-{suite.name}").unlink(missing_ok=True)
            wrong = run(suite, worker)
            with self.changed:
                self.running.remove(place)
                if wrong.startswith("(stopped"):
                    suite.failures.append(wrong)
                elif wrong:
                    suite.ended.append(wrong)
                if (claims_of(suite) / f"made-room-{worker}").exists():
                    self.ready.append((suite, suite.workers))
                    suite.workers += 1
                self.changed.notify_all()


def run_all(chosen: list, places: int) -> None:
    """Runs the suites side by side, and reads what they report."""
    for suite in chosen:
        shutil.rmtree(claims_of(suite), ignore_errors=True)
        if suite.workers > 1:
            claims_of(suite).mkdir(parents=True)
    board = Places(chosen)
    with ThreadPoolExecutor(places + 1) as pool:
        for ended in [pool.submit(board.compile), *(pool.submit(board.play) for _ in range(places))]:
            ended.result()
    for suite in chosen:
        read_report(suite)
        if not suite.failures:
            suite.failures += suite.ended


def build_steps(build: Path) -> list:
    """Seconds and output of each step of the builds in and below `build`, as ninja logged them last."""
    steps = {}
    for log in build.rglob(".ninja_log"):
        for line in log.read_text().splitlines()[1:]:
            begin, end, _, output, _ = line.split("\t")
            steps[log.parent / output] = (int(end) - int(begin)) / 1000
    return [(seconds, f"build: {os.path.relpath(output, build)}") for output, seconds in steps.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--only", help=f"suites to run, separated by commas: lit, unit, python, threads, fuzz; default: all")
    args = parser.parse_args()
    build = args.build.resolve()
    (build / "check").mkdir(parents=True, exist_ok=True)

    chosen = suites(build)
    names = args.only.split(",") if args.only else [suite.name for suite in chosen]
    unknown = set(names) - {suite.name for suite in chosen}
    if unknown:
        parser.error(f"no suite is called {', '.join(sorted(unknown))}; there are {', '.join(suite.name for suite in chosen)}")
    chosen = [suite for suite in chosen if suite.name in names]
    run_all(chosen, os.cpu_count())

    print("\nsuite     passed  failed skipped  seconds")
    for suite in chosen:
        print(f"{suite.name:8} {suite.passed:7} {len(suite.failures):7} {suite.skipped:7} {suite.seconds:8.0f}")
        for failure in suite.failures:
            print(f"  FAILED {failure}")
        for row in suite.missed:
            print(f"  missed {row}")
    passed, failed, skipped = (
        sum(s.passed for s in chosen),
        sum(len(s.failures) for s in chosen),
        sum(s.skipped for s in chosen),
    )
    print("slowest steps, in seconds")
    for seconds, name in sorted(sum((suite.steps for suite in chosen), build_steps(build)), reverse=True)[:SLOWEST]:
        print(f"{seconds:7.0f}  {name}")
    print(f"samples are drawn with SEGUE_SEED={draw_seed()}; make check-long tries all")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
