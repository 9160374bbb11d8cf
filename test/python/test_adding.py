# ===- test_adding.py - what is added is built, tested and found -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A step of docs/guides/adding.md that is forgotten, and that no compiler misses, is named here with the file where it belongs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Sources that are compiled by hand, against a toolkit, and one that is a part of every test (cmake/SegueBuild.cmake).
ELSEWHERE = {"CheckBlasApi.cpp", "CheckDriver.cpp", "CheckDriverApi.cpp", "CheckNcclApi.cpp", "TestEnvironment.cpp"}


def lists_of(source: Path) -> list[Path]:
    """The CMakeLists.txt that may name a source: of its folder and of those above."""
    return [folder / "CMakeLists.txt" for folder in source.parents if folder.is_relative_to(ROOT) and (folder / "CMakeLists.txt").exists()]


def is_listed(source: Path) -> bool:
    for lists in lists_of(source):
        text = lists.read_text()
        folder = source.parent.relative_to(lists.parent)
        if re.search(rf"\b{re.escape(source.stem)}\b", text) or f"{folder}/*.cpp" in text or f"{folder}/{source.stem[:6]}*.cpp" in text:
            return True
    return False


@pytest.mark.parametrize("tree, least", [("lib", 100), ("runtime/lib", 150), ("runtime/test", 100), ("test/unit", 10), ("test/stitch", 30),
                                         ("test/fuzz", 6), ("tools", 40), ("python/src", 8)])
def test_every_source_is_compiled(tree, least):
    """One that no list has is not compiled, and its tests never run."""
    sources = [path for path in sorted((ROOT / tree).rglob("*.cpp")) if path.name not in ELSEWHERE]
    missed = {str(path.relative_to(ROOT)): str(lists_of(path)[0].relative_to(ROOT)) for path in sources if not is_listed(path)}
    assert len(sources) >= least and not missed, f"nobody compiles these; add each to the CMakeLists.txt beside it: {missed}"


# --- passes -------------------------------------------------------------------------------


def passes() -> dict[str, Path]:
    """Name on the command line -> the file that defines it."""
    return {name: path for path in (ROOT / "include").rglob("*.td") for name in re.findall(r'^def \w+\s*:\s*Pass<"([\w-]+)"', path.read_text(), re.M)}


LIT = {path: path.read_text() for path in (ROOT / "test").rglob("*") if path.suffix in (".mlir", ".test")}
PASSES = passes()


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_has_a_lit_test_of_its_name(name):
    """`segue-plan-saved` has plan-saved.mlir; `segue-to-prog`, which is a conversion, the folder SegueToProg."""
    short, folder = name.partition("-")[2], "".join(part.capitalize() for part in name.split("-"))
    own = [path for path, text in LIT.items() if (path.stem == short or path.parent.name == folder) and name in text]
    assert own, f"add test/{PASSES[name].parent.parent.relative_to(ROOT / 'include/segue')}/{short}.mlir, which runs --{name}"


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_that_refuses_has_a_test_of_errors(name):
    source = "".join(part.capitalize() for part in name.split("-")[1:])
    refuses = [path for path in (ROOT / "lib").rglob(f"{source}.cpp") if re.search(r"emit(Op)?Error\(", path.read_text())]
    tested = any(name in text and re.search(r"expected-error|not (%\w+ )?segue-opt", text) for text in LIT.values())
    assert not refuses or tested, f"{refuses[0].relative_to(ROOT)} has errors: add {name.partition('-')[2]}-errors.mlir with each"


# --- tools ----------------------------------------------------------------------------------


def test_each_output_of_the_compiler_is_looked_at():
    tool = (ROOT / "tools/segue-compile/segue-compile.cpp").read_text()
    names = re.findall(r'clEnumValN\(Emit::\w+, "(\w+)"', tool)
    tested = "\n".join([*LIT.values(), *(path.read_text() for path in (ROOT / "test/python").glob("test_*.py"))])
    assert len(names) >= 10
    assert [name for name in names if name != "binary" and f"--emit={name}" not in tested] == [], "add a line to test/tools/segue-compile.test"


def test_each_kernel_of_the_runtime_for_gpus_is_launched():
    """A line of the list that nobody launches is code that no test has run."""
    table = (ROOT / "runtime/lib/Cuda/Builtin/BuiltinArgs.h").read_text().partition("#define SEGUE_BUILTIN_FILES")[0]
    names = re.findall(r"X\(\w+, (\w+), \w+, \d+\)", table)
    sources = "\n".join(path.read_text() for path in (ROOT / "runtime/lib/Cuda").glob("*.cpp"))
    assert len(names) > 40 and [name for name in names if f"Builtin::{name}" not in sources] == []


# --- services -------------------------------------------------------------------------------


def replayed() -> dict[str, Path]:
    """Service, as logs call it -> the file that makes its policy."""
    folder = ROOT / "tools/segue-run/replay"
    return {name: path for path in folder.glob("Replay*.cpp") for name in re.findall(r'ReplayService replayOf\w+\(\) \{ return \{"(\w+)"', path.read_text())}


def test_every_service_that_replays_has_golden_logs():
    services, folder = replayed(), ROOT / "test/tools/segue-run/replay"
    assert len(services) >= 7
    logs = [json.loads(path.read_text())["service"] for path in folder.glob("*.json")]
    assert services.keys() - set(logs) == set(), f"add a log, {folder.relative_to(ROOT)}/<service>-<what>.json, whose events say what they expect"
    known = re.search(r'"service": "([^"]*)"', (ROOT / "docs/specs/replay.md").read_text()).group(1).split(" | ")
    assert sorted(known) == sorted(services), "docs/specs/replay.md names each, and has its events or says which page has them"


def test_every_page_of_the_specs_is_listed():
    nav, index = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs/specs/README.md").read_text()
    pages = [path.name for path in (ROOT / "docs/specs").glob("*.md") if path.name != "README.md"]
    assert len(pages) >= 8
    assert [page for page in pages if f"specs/{page}" not in nav] == [], "add a line to the nav of mkdocs.yml"
    assert [page for page in pages if f"({page})" not in index] == [], "add a row to docs/specs/README.md"


# --- the guide ------------------------------------------------------------------------------


def test_the_files_that_the_guide_names_are_there():
    """A path may leave out where it begins, as `IR/ShapeOps.cpp`."""
    text = (ROOT / "docs/guides/adding.md").read_text()
    known = {f"/{path.relative_to(ROOT)}" for tree in ("docs", "include", "lib", "python", "runtime", "schemas", "test", "tools") for path in (ROOT / tree).rglob("*")}
    paths = re.findall(r"`([\w./-]+/[\w.-]+[\w-])/?`", text) + re.findall(r"`([\w-]+\.(?:cpp|h|td|py|md|mlir|test|json|cu))`", text)
    assert len(paths) > 60
    assert [path for path in paths if not any(name.endswith(f"/{path}") for name in known)] == []


def test_the_tests_that_the_guide_names_are_there():
    text = (ROOT / "docs/guides/adding.md").read_text()
    names = set(re.findall(r"`((?:test_\w+\.py::)?test_\w+)`", text)) - {path.stem for path in LIT}
    sources = {path.name: path.read_text() for path in (ROOT / "test/python").glob("test_*.py")}
    assert len(names) > 10
    for name in names:
        file, _, test = name.rpartition("::")
        assert any(f"def {test}(" in source for path, source in sources.items() if not file or path == file), name
    suites = "\n".join(path.read_text() for tree in ("runtime/test", "test") for path in (ROOT / tree).rglob("*.cpp"))
    for suite, test in re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", text):
        assert re.search(rf"TEST(_[FP])?\({suite}, {test}\)", suites), f"{suite}.{test}"
