# ===- hooks.py - what mkdocs does besides, for the site ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Brings pages into the site that are made of other files, and makes the links of all pages lead there.

Pages in docs/ link to files anywhere in the repository, as they are read there. Pages from outside of docs/ (SECURITY.md) are pages of the site; a
link to any other file leads to a page that shows that file, so that the site is whole by itself, without a network. Python-Markdown, which
mkdocs uses, wants lists within lists indented by four columns and an empty line before a list, where GitHub does not: pages are written for the
latter, and `indented` rewrites them.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from pathlib import Path

import config_keys
import headers
import notebooks
import schemas
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: Pages that lie outside of docs/, by the name that they have in the site.
OUTSIDE = {
    "SECURITY.md": "trust.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "bench/RESULTS.md": "measurements.md",
    "bench/cuda/README.md": "measurements-cuda.md", "test/fuzz/README.md": "fuzzing.md", "examples/cpp-stitch/README.md": "guides/cpp.md",
    "README.md": "index.md",
}
LANGUAGES = {".py": "python", ".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".td": "tablegen", ".mlir": "text", ".json": "json", ".fbs": "c", ".toml": "toml"}
LINK = re.compile(r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|`[^`\n]*`)|\]\((?P<target>[^()\s]+)\)", re.M | re.S)

#: Where a page of the site comes from: its path in the repository by its name in the site.
sources: dict[str, str] = {}


def name_in_site(path: str) -> str | None:
    """The page, or file, of the site that a path of the repository is; None if there is none as yet."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).is_file() else None


def page_of(path: str) -> str:
    """The name of the page that shows a file or folder that is no page itself."""
    return f"source/{path}.md" if (ROOT / path).is_file() else f"source/{path}/index.md"


def rewritten(text: str, source: str, page: str, shown: set[str]) -> str:
    """The text with links that lead where things are in the site. `shown` gets the files that need a page."""

    def replaced(match: re.Match) -> str:
        target = match["target"]
        if match["code"] is not None or re.match(r"[a-z]+:|#", target):
            return match.group(0)
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if not (ROOT / path).exists():
            return match.group(0)  # mkdocs says so
        there = name_in_site(path)
        if there is None:
            shown.add(path)
            there = page_of(path)
        link = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"]({link}{'#' + anchor if anchor else ''})"

    return LINK.sub(replaced, text)


def indented(text: str) -> str:
    """The text with what belongs to an item of a list indented by four columns per level."""
    out: list[str] = []
    columns: list[int] = []  # where the text of each open item begins
    fence = ""
    blank = True
    for line in text.split("\n"):
        stripped = line.lstrip(" ")
        column = len(line) - len(stripped)
        if fence:
            out.append(" " * 4 * len(columns) + line[min(column, columns[-1]) :] if columns else line)
            fence = "" if stripped.startswith(fence) else fence
            continue
        if not stripped:
            out.append("")
            blank = True
            continue
        item = re.match(r"(?:[-*+]|\d+\.) +", stripped)
        was_open = bool(columns)
        if item or blank:
            while columns and column < columns[-1]:
                columns.pop()
        if item and column <= (columns[-1] + 3 if columns else 3):
            if not was_open and not blank:
                out.append("")
            out.append(" " * 4 * len(columns) + item.group(0).rstrip().ljust(4) + stripped[item.end() :])
            columns.append(column + item.end())
        else:
            out.append(" " * 4 * len(columns) + (stripped if columns else line))
        opened = re.match(r"```+|~~~+", stripped)
        fence = opened.group(0) if opened else ""
        blank = False
    return "\n".join(out)


def shown_page(path: str) -> str:
    """A page with the text of a file, or the names in a folder."""
    if (ROOT / path).is_dir():
        names = subprocess.run(["git", "ls-files", path], cwd=ROOT, capture_output=True, text=True).stdout.split()
        return f"# {path}\n\n```text\n" + "\n".join(names) + "\n```\n"
    fence = "`" * 6
    return f"# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{(ROOT / path).read_text()}{fence}\n"


def on_files(files, config):
    made: dict[str, str] = {"reference/config.md": config_keys.page(ROOT), "reference/file-format.md": schemas.page(ROOT)}
    sources.clear()
    for name, text in headers.pages(ROOT).items():
        made[f"api/cpp/{name}.md"] = text
    for name, text, pictures in notebooks.pages(ROOT, Path(config.site_dir).parent):
        made[f"notebooks/{name}.md"] = text
        sources[f"notebooks/{name}.md"] = f"examples/notebooks/{name}.ipynb"
        for picture, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{picture}", content=content))
    for path, page in OUTSIDE.items():
        if page != "index.md":
            made[page], sources[page] = (ROOT / path).read_text(), path
    shown: set[str] = set()
    for page, text in made.items():
        sources.setdefault(page, f"docs/{page}")
        rewritten(text, sources[page], page, shown)
    for file in files.documentation_pages():
        sources[file.src_uri] = f"docs/{file.src_uri}"
        rewritten(file.content_string, sources[file.src_uri], file.src_uri, shown)
    for path in shown:
        made[page_of(path)] = shown_page(path)
        sources[page_of(path)] = path
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    return indented(rewritten(markdown, sources[uri], uri, set()))


def on_page_context(context, page, config, nav):
    """Search finds code of others by their pages' names alone, and generated listings not before prose."""
    if page.file.src_uri.startswith("source/"):
        page.meta.setdefault("search", {})["exclude"] = True
    return context
