# ===- test_docs.py - the site builds, its links lead somewhere, its code runs ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The site is built strictly, with the notebooks as they run here; the tutorial's blocks run in order; pages that list things of the code list all of them."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import segue
from segue import errors

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "tools" / "site"))
import architecture  # noqa: E402
import headers  # noqa: E402
import pictures  # noqa: E402
import schemas  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # the first test builds the site, beside whatever else runs
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


IDS = re.compile(r'\sid="([^"]*)"')
LINKS = re.compile(r'<(?:a|link)\b[^>]*?\shref="([^"]*)"|<(?:img|script)\b[^>]*?\ssrc="([^"]*)"')


class Page:
    """The links of a page, and what they can lead to."""

    def __init__(self, text: str):
        self.links = [html.unescape(a or b) for a, b in LINKS.findall(text)]
        self.ids = {html.unescape(name) for name in IDS.findall(text)}


def dead_links(site: Path) -> list[str]:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("mailto", "data", "http", "https", "javascript"):
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if not target.is_file():
                dead.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                dead.append(f"{path.relative_to(site)}: {link}: no such place")
    return dead


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """A build folder with the notebooks as they ran."""
    build = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, ROOT / "tools/site/notebooks.py", build], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return build


@pytest.fixture(scope="module")
def site(notebooks):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", notebooks / "site"], cwd=ROOT,
                          env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return notebooks / "site"


def test_no_link_of_the_site_is_dead(site):
    assert len(list(site.rglob("*.html"))) > 80
    assert dead_links(site) == []


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">x</a><a href="b.html#gone">y</a><img src="gone.png"><a href="https://x.org/gone">z</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    assert dead_links(tmp_path) == ["a.html: b.html#gone: no such place", "a.html: gone.png"]


def test_the_site_asks_nothing_of_a_network(site):
    for path in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)"', path.read_text())
        assert loaded == [], path


def test_every_public_name_has_its_place_in_the_api(site):
    ids = set().union(*(Page(path.read_text()).ids for path in (site / "api" / "python").glob("*.html")))
    assert [name for name in segue.__all__ if f"segue.{name}" not in ids] == []
    assert "segue.Trainer.step" in ids and "segue.Trainer.memory" in ids  # inherited ones, too


def test_the_site_shows_what_the_notebooks_printed(site):
    assert "equal" in (site / "notebooks" / "train_under_a_cap.html").read_text()
    assert "within" in (site / "notebooks" / "train_under_a_cap.html").read_text()
    assert list((site / "notebooks").glob("*_files/*.png")) or "data:image/png" in (site / "notebooks" / "train_under_a_cap.html").read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)


def shape(text: str) -> str:
    """The text without its digits, which depend on the machine."""
    return re.sub(r"\d+(?:\.\d+)?", "#", text)


def test_the_tutorial_runs_and_prints_what_it_says(tmp_path):
    found = blocks("tutorial.md")
    program = "\n".join(text + "\nprint('-----', flush=True)" if kind == "python" else "" for kind, text in found)
    path = tmp_path / "tutorial.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.split("-----\n")
    said, place = [], 0
    for (kind, text), (after, output) in zip(found, [*found[1:], ("", "")]):
        if kind == "python":
            if after == "text":
                said.append(output)
                assert shape(printed[place]) == shape(output)
            place += 1
    assert len(said) >= 6
    for kind, text in found:
        if kind == "sh":
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                                  env=os.environ | {"PATH": f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}"})
            assert done.returncode == 0, done.stderr[-3000:]


def test_every_error_code_has_its_entry():
    said = {}
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines():
        if row := re.match(r"\| `([A-Z_]+)` \| (?:`(\w+)`)? *\|(.*)\|(.*)\|$", line):
            said[row[1]] = row[2]
            assert row[3].strip() and row[4].strip(), line
    codes = set(re.findall(r'return "([A-Z_]+)";', (ROOT / "runtime" / "lib" / "Error.cpp").read_text())) - {"UNKNOWN"}
    enumerators = re.search(r"enum class ErrorCode \{(.*?)\};", (ROOT / "runtime/include/segue/runtime/Error.h").read_text(), re.S).group(1)
    words = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in re.findall(r"^  (\w+),$", enumerators, re.M)}
    assert words == codes, "the words of runtime/lib/Error.cpp are the names of Error.h"
    classes = {code: kind.__name__ for code, kind in errors._BY_CODE.items()}
    assert (codes | set(classes)) - set(said) == set(), "add a row for each to docs/errors.md, with cause and way out"
    assert set(said) - (codes | set(classes)) == set(), "neither Error.cpp nor errors.py has these"
    assert {code: kind for code, kind in said.items() if kind} == classes, "the class of a code is that of errors.py"


def test_every_public_header_has_its_place():
    pages = headers.pages(ROOT)
    names = {path.name for path in (ROOT / "runtime" / "include").rglob("*.h")}
    assert names <= {name for page in pages.values() for name in re.findall(r"^## (\w+\.h)$", page, re.M)}
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in pages if f"api/cpp/{name}.md" not in nav] == []
    session = pages["Session"]
    assert "### class `Session`" in session and "StepResult step(" in session and "private" not in session
    assert "friend class" not in pages["Tensor"] and "descHash_" not in pages["Tensor"]


def test_lists_are_read_as_github_reads_them():
    import markdown
    from hooks import indented

    text = "before\n- a\n  goes on\n- b\n\n  second\n\n  ```sh\n  x\n    y\n  ```\n\nafter\n\n1. one\n   - two\n     - three\n2. four\n"
    shown = re.sub(r"\s+(?=<)", "", markdown.markdown(indented(text), extensions=["pymdownx.superfences"]))
    assert shown.startswith("<p>before</p><ul><li>a\n    goes on</li><li><p>b</p><p>second</p><div")
    assert shown.endswith("<p>after</p><ol><li>one<ul><li>two<ul><li>three</li></ul></li></ul></li><li>four</li></ol>")


def test_every_table_of_the_schemas_has_its_place():
    page = schemas.page(ROOT)
    for name in ("binary", "program", "types"):
        text = (ROOT / "schemas" / f"{name}.fbs").read_text()
        for kind, table in re.findall(r"^(table|struct|enum|union) (\w+)", text, re.M):
            assert f"### {kind} `{table}`" in page
    assert "offset:uint64 = 0;" in page


@pytest.mark.parametrize("name, drawn", [("step", pictures.picture), ("architecture", architecture.picture)])
def test_the_picture_is_the_one_that_is_drawn(name, drawn):
    assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == drawn(), "run `make docs`"


def test_no_page_has_a_drawing_that_only_a_script_draws():
    assert [path for path in (ROOT / "docs").rglob("*.md") if "```mermaid" in path.read_text()] == []


def test_pages_of_the_project_are_there():
    assert re.search(r"^## \[Unreleased\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
