# ===- config_keys.py - the page of the config's keys, from the specs -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Collects the tables of keys of all sections of a run's config on one page.

A table stands where the rules of its service are, below a heading "Config: `section`"; test/python/test_config_keys.py holds it against
the code that reads the section.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADING = re.compile(r"^## Config: `(?P<section>[\w.]+)`.*$", re.M)
HEAD = "| key | type | default | valid |"


@dataclass(frozen=True)
class Section:
    path: str
    page: Path
    anchor: str
    lines: list[str]  # of the table

    def rows(self) -> list[list[str]]:
        """The cells of each row."""
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in self.lines[2:]]


def sections(root: Path) -> list[Section]:
    """All sections that a page has a table of, in the order of their paths."""
    found = []
    for page in sorted((root / "docs").rglob("*.md")):
        text = page.read_text()
        for heading in HEADING.finditer(text):
            table = text[text.index(HEAD, heading.end()) :]
            lines = table[: table.index("\n\n")].splitlines()
            anchor = re.sub(r"[^\w\- ]", "", heading.group(0).removeprefix("## ").lower()).replace(" ", "-")
            found.append(Section(heading["section"], page.relative_to(root), anchor, lines))
    return sorted(found, key=lambda section: section.path)


def page(root: Path) -> str:
    """The page; its links are as those of a page in docs/reference."""
    out = ["""# The config of a run

`segue.Trainer(modules, config=...)` takes a mapping or the path of a JSON file, `segue-run train --config` and `segue-run fit --config` take the file.
A service that has no section is off, and nothing of it is constructed. An unknown key is an error that names the nearest known one, and all
values are checked before anything is allocated (`CONFIG_INVALID`). Keys that end in `_mb` are MiB, `_bytes` bytes, `_ms` milliseconds.

Most runs need none of this: `Trainer(budget="2GiB")` and `segue-run train --budget 2GiB` write the sections that they need
([guide](../guides/memory-budget.md)).

```json
{"memory": {"stagehand": {
  "conductor_config": {"enabled": true, "vram_hard_cap_mb": 512, "vram_soft_cap_mb": 512},
  "activation_stagehand": {"enabled": true, "mode": "planned"}}}}
```

The tables are those of the pages where the rules of each section stand; **v0** and **code** there say where a default comes from."""]
    for section in sections(root):
        title = re.search(r"^# (.*)$", (root / section.page).read_text(), re.M).group(1)
        link = f"../{section.page.relative_to('docs')}#{section.anchor}"
        prefix = f"../{section.page.relative_to('docs').parent}/"
        lines = [re.sub(r"\]\((?!\w+:|#)([^)]+)\)", lambda match: f"]({prefix}{match[1]})", line) for line in section.lines]
        out.append(f"## `{section.path}`\n\n[{title}]({link}) has the rules.\n\n" + "\n".join(lines))
    return "\n\n".join(out) + "\n"
