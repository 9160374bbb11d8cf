# ===- test_links.py - pages link to what is there --------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Links of the pages lead to files and headings that exist, and so do the pages that sources name."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Written by another repository's people, or made by a tool that has its own test.
FOREIGN = ("docs/reference/",)


def tracked(*patterns: str) -> list[str]:
    run = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        pytest.skip("this is no checkout")
    return [name for name in run.stdout.splitlines() if (ROOT / name).is_file()]


def prose(text: str) -> str:
    """The text without code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: str, text: str, root: Path = ROOT) -> list[str]:
    """What the links of a page lead to that is not there."""
    found = []
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (root / page).parent / name if name else root / page
        if not path.exists():
            found.append(f"{page}: {target}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            found.append(f"{page}: {target}: no such heading")
    return found


def test_links_of_pages_lead_somewhere():
    pages = [page for page in tracked("*.md") if not page.startswith(FOREIGN)]
    assert len(pages) > 20
    assert [line for page in pages for line in broken(page, (ROOT / page).read_text())] == []


def test_pages_that_sources_name_exist():
    missing = []
    sources = ("*.cpp", "*.h", "*.py", "*.td", "*.cmake", "*CMakeLists.txt", "*.test", "*.mlir", "Makefile")
    for source in tracked(*sources):
        for page in re.findall(r"\bdocs/[\w./-]+\.md", (ROOT / source).read_text(errors="replace")):
            if not (ROOT / page).exists():
                missing.append(f"{source}: {page}")
    assert missing == []


def test_files_that_the_architecture_names_exist():
    """`runtime/lib/Program/RunProgram.cpp` and `lib/Target/CPU`, and the end of a path where the folder was said before."""
    names = re.findall(r"`([\w./-]+)`", (ROOT / "docs" / "architecture.md").read_text())
    paths = {name.rstrip("/") for name in names if "/" in name or re.search(r"\.(cpp|h|td|py|fbs)$", name)}
    files = tracked()
    missing = [p for p in sorted(paths) if not any(f"/{f}".endswith(f"/{p}") or f"/{p}/" in f"/{f}" for f in files)]
    assert len(paths) > 20 and missing == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# One Two: `three`\n")
    text = "[a](there.md) [b](gone.md) [c](there.md#one-two-three) [d](there.md#four) `[e](gone.md)` [f](https://x.org/gone)"
    assert broken("page.md", text, tmp_path) == ["page.md: gone.md", "page.md: there.md#four: no such heading"]
