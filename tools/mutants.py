#!/usr/bin/env python3
"""Changes the code in small ways and says which changes no test notices.

    tools/mutants.py [--only PART ...] [--list] [--tree build/mutants] [--preset dev]

tools/mutants.toml names the changes: a file, a text that occurs in it exactly
once, what stands there instead, and the test that must fail then:

    [[mutant]]
    name = "clip-scales-up"
    file = "runtime/lib/Session/Session.cpp"
    before = '''...'''
    after = '''...'''
    gtest = "SegueSessionTests SessionTest.Clip*"   # or lit = "PATH", pytest = "FILE [-k EXPRESSION]"
    targets = ["SegueSessionTests"]                 # what is built for it, where that is not the usual

Each is made in a copy of this checkout, which is built there once and from then
on where it changed. Every test runs without a change first: one that fails by
itself shows nothing. Exit status 0 only if every mutant was killed; 1 if one
survived, 2 if one could not be tried (its text is not there once, it does not
compile, its test fails anyway).

Takes a build of what the chosen tests need and then seconds to minutes per
mutant: run by hand, after changes to tests or to what they are about.
test/python/test_mutants.py keeps the list true in every `make check`.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
# The targets that a lit test may call, and those that Python imports.
USUAL_TARGETS = {"lit": ["segue-opt", "segue-translate", "segue-compile", "segue-run"], "pytest": ["_runtime", "_compiler"]}


@dataclass(frozen=True)
class Test:
    """One command, and what must be built for it."""

    kind: str
    words: tuple
    targets: tuple

    def command(self, build: Path) -> list:
        if self.kind == "gtest":
            return [build / "bin" / self.words[0], f"--gtest_filter={self.words[1]}", "--gtest_brief=1"]
        if self.kind == "lit":
            return [sys.executable, "-c", "from lit.main import main; main()", "-q", *(build / "test" / word for word in self.words)]
        return [sys.executable, "-m", "pytest", "-q", "-x", *self.words]

    def __str__(self) -> str:
        return f"{self.kind} {shlex.join(self.words)}"


@dataclass
class Mutant:
    name: str
    file: str
    before: str
    after: str
    test: Test
    outcome: str = field(default="", compare=False)

    def changed(self, text: str) -> str:
        """The file's text with the change; raises ValueError if its place is not there once."""
        found = text.count(self.before)
        if found != 1:
            raise ValueError(f"{self.name}: the text occurs {found} times in {self.file}, not once")
        return text.replace(self.before, self.after)


def read(path: Path = LIST) -> list:
    mutants = []
    for entry in tomllib.loads(path.read_text())["mutant"]:
        kinds = [kind for kind in ("gtest", "lit", "pytest") if kind in entry]
        unknown = set(entry) - {"name", "file", "before", "after", "targets", "gtest", "lit", "pytest"}
        if len(kinds) != 1 or unknown:
            raise ValueError(f"{path}: mutant {entry.get('name')!r} needs one of gtest, lit, pytest" + (f" and has {sorted(unknown)}" if unknown else ""))
        words = tuple(shlex.split(entry[kinds[0]]))
        test = Test(kinds[0], words, tuple(entry.get("targets", USUAL_TARGETS.get(kinds[0], words[:1]))))
        mutants.append(Mutant(entry["name"], entry["file"], entry["before"].strip("\n"), entry["after"].strip("\n"), test))
    return mutants


class Copy:
    """This checkout, copied; only files that differ are written, so that builds go on where they were."""

    def __init__(self, tree: Path, preset: str, jobs: int):
        self.tree, self.build, self.jobs = tree, tree / "build", jobs
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
        files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
        for name in files:
            self.write(name, (ROOT / name).read_bytes())
            shutil.copymode(ROOT / name, tree / name)
        known = tree / ".files"
        for gone in set(known.read_text().splitlines() if known.exists() else []) - set(files):
            (tree / gone).unlink(missing_ok=True)
        known.write_text("\n".join(files))
        self.run(["cmake", "--preset", preset, "-B", self.build, f"-DPython_EXECUTABLE={sys.executable}"], 600)

    def write(self, name: str, content: bytes) -> None:
        path = self.tree / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def run(self, command: list, limit_s: int) -> tuple:
        environment = os.environ | {"PYTHONPATH": str(self.build / "python"), "SEGUE_BUILD": str(self.build)}
        try:
            done = subprocess.run([str(word) for word in command], cwd=self.tree, env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit_s)
        except subprocess.TimeoutExpired:
            return -1, f"nothing after {limit_s} s"
        return done.returncode, done.stdout

    def compile(self, test: Test) -> str:
        """Returns what went wrong, or ""."""
        if not test.targets:
            return ""
        status, output = self.run(["cmake", "--build", self.build, "-j", self.jobs, "--target", *test.targets], 3600)
        return output[-3000:] if status else ""

    def passes(self, test: Test) -> bool:
        return self.run(test.command(self.build), 600)[0] == 0


def attempt(mutant: Mutant, copy: Copy, good: dict) -> str:
    """killed, survived, or why it could not be tried."""
    original = (ROOT / mutant.file).read_bytes()
    try:
        changed = mutant.changed(original.decode())
    except ValueError as error:
        return str(error)
    if mutant.test not in good:
        failure = copy.compile(mutant.test)
        good[mutant.test] = failure or ("" if copy.passes(mutant.test) else "its test fails without the change")
    if good[mutant.test]:
        return good[mutant.test]
    copy.write(mutant.file, changed.encode())
    try:
        if failure := copy.compile(mutant.test):
            return "it does not compile: " + failure
        return "survived" if copy.passes(mutant.test) else "killed"
    finally:
        copy.write(mutant.file, original)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="mutants whose name or file has this in it")
    parser.add_argument("--list", action="store_true", help="names the chosen ones and their tests")
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "mutants", help="where the copy is made and built")
    parser.add_argument("--preset", default="dev", help="of CMake; dev compiles source by source")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    chosen = [m for m in read() if not args.only or any(part in m.name or part in m.file for part in args.only)]
    if not chosen:
        parser.error(f"no mutant has {' or '.join(args.only)} in its name or file")
    if args.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {mutant.file}: {mutant.test}")
        return 0
    copy, good = Copy(args.tree.resolve(), args.preset, args.jobs), {}
    for mutant in sorted(chosen, key=lambda m: (str(m.test), m.file)):
        begin = time.monotonic()
        mutant.outcome = attempt(mutant, copy, good)
        print(f"{mutant.outcome if len(mutant.outcome) < 10 else 'ERROR':9} {mutant.name:32} {mutant.test} ({time.monotonic() - begin:.0f} s)", flush=True)
        if len(mutant.outcome) >= 10:
            print(mutant.outcome, flush=True)
    count = {what: sum(m.outcome == what for m in chosen) for what in ("killed", "survived")}
    untried = len(chosen) - sum(count.values())
    print(f"{count['killed']} killed, {count['survived']} survived, {untried} could not be tried")
    return 2 if untried else 1 if count["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
