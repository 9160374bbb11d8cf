#!/usr/bin/env python3
"""Builds the runtime under sanitizers and runs what belongs there.

    tools/sanitized.py fuzz [--seconds 15]     fuzz targets and the tests of programs, address and undefined behaviour
    tools/sanitized.py threads [--whole]       stitching tests, under the thread sanitizer
    tools/sanitized.py address                 all tests of the runtime, address and undefined behaviour

The builds lie in <build>/fuzz, <build>/threads and <build>/address: clang, the
runtime alone, compiled in few large sources. `threads` plays programs that the
build in <build> has compiled. With --report, a JUnit file is written. Exit
status 0 only if all was built and nothing was found.

`tools/check.py --only threads,fuzz` runs the first two; `make check-sanitizers` all of
them, whole. docs/guides/testing.md says what to do with what they find.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILER = "clang++-22"
PACKAGES = "clang-22 libclang-rt-22-dev"

# Fuzz target: its seeds.
FUZZERS = {
    "segue-fuzz-binary": ["test/fuzz/corpus/binary/*", "test/corpus/*/*.segue"],
    "segue-fuzz-config": ["test/fuzz/corpus/config/*", "test/tools/segue-run/Inputs/*.json"],
    "segue-fuzz-replay": ["test/fuzz/corpus/replay/*", "test/tools/segue-run/replay/*.json"],
    "segue-fuzz-safetensors": ["test/fuzz/corpus/safetensors/*"],
    "segue-fuzz-slab": ["test/fuzz/corpus/slab/*"],
}

# Targets that make thousands of runs a second: this part of the time does for them.
QUICK = ("segue-fuzz-config", "segue-fuzz-safetensors", "segue-fuzz-slab")
QUICK_PART = 0.4

# A target that writes whole files anew needs room for them at once.
FUZZER_FLAGS = {"segue-fuzz-binary": ["-max_len=65536", "-len_control=0"]}

# Test program: the cases that stitch, on every device and from several threads, and those of the threads themselves.
STITCHING = {
    "SegueEngineTests": "Thread*",
    "SegueQueuedTests": "*",
    "SegueRanksTests": "*",
    "SegueSessionTests": "*Stitcher*:*Devices*",
    "SegueStitchTests": "*",
    "SegueRandomStitchTests": "*",
}
# The other tests of the runtime.
OTHERS = [
    "SegueDeviceTests",
    "SegueDiskTests",
    "SeguePlanTests",
    "SegueProgramTests",
    "SegueServiceTests",
    "SegueSquareQTests",
    "SegueStreamingTests",
    "SegueTensorTests",
]
# The tests that the fuzz build, which has the runtime under these sanitizers anyway, runs besides:
# programs and hostile files. The normal build, which is ten times as fast, changes each byte of them to
# each other value; here, with SEGUE_SAMPLE, one bit of each is changed, on each device another.
ADDRESSED = {"SegueProgramTests": "*"}
# The number of random stitchings that run here; the normal build has compiled them before.
RANDOM_STITCHINGS = 16


class Report:
    """Cases, as text while they end and as a JUnit file at the end."""

    def __init__(self, suite: str):
        self.root = xml.Element("testsuite", name=suite)

    def add(self, name: str, seconds: float, failure: str = "", note: str = "") -> None:
        case = xml.SubElement(self.root, "testcase", classname=self.root.get("name"), name=name, time=f"{seconds:.1f}")
        if failure:
            xml.SubElement(case, "failure", message=failure[:200]).text = re.sub(r"[^\t\n\x20-\x7e]", "?", failure)
        print(f"{'FAILED' if failure else 'passed'}  {name} ({seconds:.0f} s) {note}", flush=True)
        if failure:
            print(failure, flush=True)

    def add_gtest(self, path: Path) -> None:
        """The cases of a GoogleTest report."""
        for case in xml.parse(path).getroot().iter("testcase"):
            case.set("classname", f"{self.root.get('name')}.{case.get('classname')}")
            self.root.append(case)

    def failed(self) -> bool:
        return self.root.find("testcase/failure") is not None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        xml.ElementTree(self.root).write(path)


def run(command: list, limit_s: int, environment: dict) -> tuple:
    """Exit status, or a sentence, and all that was said."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=limit_s, env=os.environ | environment)
    except subprocess.TimeoutExpired as late:
        return f"nothing after {limit_s} s", (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


def build(preset: str, folder: Path, jobs: int, targets: list, *options: str) -> str:
    """Configures and builds; returns what went wrong, or ""."""
    if not shutil.which(COMPILER):
        return f"{COMPILER} is not there: install {PACKAGES} (tools/setup does, from the source of llvm-22)"
    configure = ["cmake", "--preset", preset, "-B", folder, *options]
    for command in (configure, ["cmake", "--build", folder, "-j", str(jobs), "--target", *targets]):
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return (f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-2000:]}\nNeighbours are compiled as one source: "
                    "none of them may share a name with another (runtime/lib/CMakeLists.txt, and segue_unity for tests)")
    return ""


def fuzz(args, report: Report) -> None:
    folder = args.build / "fuzz"
    start = time.monotonic()
    failure = build("fuzz", folder, args.jobs, ["segue-fuzzers", *ADDRESSED])
    report.add("build", time.monotonic() - start, failure)
    if failure or args.compile:
        return

    def play(target: str) -> tuple:
        # The seeds first, then what grows out of them.
        corpus, found = args.build / "check" / "fuzz" / target, args.build / "check" / "fuzz" / f"{target}-found-"
        shutil.rmtree(corpus, ignore_errors=True)
        corpus.mkdir(parents=True)
        seeds = [seed for pattern in FUZZERS[target] for seed in ROOT.glob(pattern)]
        for seed in seeds:
            shutil.copy(seed, corpus / "-".join(seed.relative_to(ROOT).parts))
        begin = time.monotonic()
        seconds = round(args.seconds * QUICK_PART) if target in QUICK else args.seconds
        ended, output = run(
            [folder / "bin" / target, f"-max_total_time={max(1, seconds)}", "-timeout=20", "-rss_limit_mb=2048", f"-seed={args.seed}",
             "-close_fd_mask=1", "-print_final_stats=1", f"-artifact_prefix={found}", *FUZZER_FLAGS.get(target, []), corpus],
            args.seconds + 300, {"OMP_NUM_THREADS": "1", "ASAN_OPTIONS": "allocator_may_return_null=1"})
        runs = int((re.search(r"number_of_executed_units:\s*(\d+)", output) or [0, 0])[1])
        # A target says what it reached in a line such as "reached: 12 loads, 3 steps".
        idle = re.findall(r"\b0 (\w+)", (re.search(r"^reached: (.*)$", output, re.M) or ["", ""])[1])
        failure = ""
        if ended or not seeds or runs < len(seeds) or idle:
            failure = (f"{target} ended with {ended} after {runs} runs of {len(seeds)} seeds"
                       f"{', without ' + ', '.join(idle) if idle else ''}; what it found is {found}*: once it is "
                       f"understood, it belongs into {Path(FUZZERS[target][0]).parent}\n{output[-6000:]}")
        return target, time.monotonic() - begin, failure, f"{runs} runs from {len(seeds)} seeds"

    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(play, FUZZERS):
            report.add(*result)
    run_tests(report, ADDRESSED, folder, {"SEGUE_SAMPLE": "1", "OMP_NUM_THREADS": "2", "ASAN_OPTIONS": "allocator_may_return_null=1"})


def matching_nothing(program: Path, cases: str) -> list:
    """The patterns of a filter that choose no test."""
    return [pattern for pattern in cases.split(":")
            if "\n  " not in run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], 60, {})[1]]


def run_tests(report: Report, programs: dict, folder: Path, environment: dict) -> None:
    for program, cases in programs.items():
        path = folder / f"{program}.xml"
        path.unlink(missing_ok=True)
        begin = time.monotonic()
        if nothing := matching_nothing(folder / "bin" / program, cases):
            report.add(program, time.monotonic() - begin, f"{program} has no test that is called {' or '.join(nothing)}")
            continue
        ended, output = run([folder / "bin" / program, f"--gtest_filter={cases}", f"--gtest_output=xml:{path}"], 1800, environment)
        found = re.findall(r"(?:WARNING|ERROR): \w+Sanitizer.*|runtime error:.*", output)
        failure = ""
        if ended or found or not path.exists():
            first = output.find("Sanitizer")
            shown = output[max(0, first - 200):first + 8000] if first >= 0 else output[-6000:]
            failure = f"{program} ended with {ended}, {len(found)} reports of the sanitizer\n{shown}"
        if path.exists():
            report.add_gtest(path)
        report.add(program, time.monotonic() - begin, failure)


def tests(args, report: Report) -> None:
    folder = args.build / args.what
    programs = STITCHING if args.what == "threads" and not args.whole else {name: "*" for name in [*STITCHING, *OTHERS]}
    start = time.monotonic()
    failure = build(args.what, folder, args.jobs, list(programs), f"-DSEGUE_STITCH_BINARIES={args.build / 'test' / 'stitch'}")
    report.add("build", time.monotonic() - start, failure)
    if failure or args.compile:
        return
    # The compiler is not part of this: the normal build compiles the random
    # models, and says whether they pass there. Graphs whose plans are tried are played there only.
    pieces = folder / "pieces"
    shutil.rmtree(pieces, ignore_errors=True)
    pieces.mkdir()
    environment = {"SEGUE_PIECES": str(pieces), "SEGUE_STITCHINGS": str(RANDOM_STITCHINGS), "OMP_NUM_THREADS": "2",
                   "ASAN_OPTIONS": "allocator_may_return_null=1"}
    if programs is STITCHING:  # which the normal build tries at every call
        environment["SEGUE_SAMPLE"] = "1"
    begin = time.monotonic()
    ended, output = run([args.build / "bin" / "SegueRandomStitchTests", "--gtest_filter=-PlannedGraphs.*"], 600, environment)
    report.add("random models compiled", time.monotonic() - begin, f"ended with {ended}\n{output[-6000:]}" if ended else "")
    run_tests(report, programs, folder, environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["fuzz", "threads", "address"])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seconds", type=int, default=15, help="of fuzzing, per target; 0.4 of it for those that make thousands of runs in one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="to run at a time; default: one per processor")
    parser.add_argument("--seed", type=int, default=1, help="of fuzzing")
    parser.add_argument("--compile", action="store_true", help="compile what would run, and no more")
    parser.add_argument("--whole", action="store_true", help="all tests of the runtime, not only those that stitch")
    args = parser.parse_args()
    args.build = args.build.resolve()
    report = Report(args.what)
    fuzz(args, report) if args.what == "fuzz" else tests(args, report)
    if args.report:
        report.write(args.report)
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
