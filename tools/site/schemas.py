# ===- schemas.py - the page of the file format, from the schemas ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Turns schemas/*.fbs into one Markdown page: every table, enum and union with its comment, as it stands in the schema."""

from __future__ import annotations

import re
from pathlib import Path

DECLARATION = re.compile(r"(?P<comment>(?:^///[^\n]*\n)*)(?P<code>^(?P<kind>table|struct|enum|union) (?P<name>\w+)[^{]*\{.*?\})", re.M | re.S)


def schema(path: Path) -> str:
    text = path.read_text()
    head, *about = re.match(r"(?://.*\n)+", text).group(0).splitlines()
    summary = re.match(r"// \S+ - (.*)", head).group(1)
    out = [f"## {path.name}", f"{summary[0].upper()}{summary[1:]}", "\n".join(line.removeprefix("//").removeprefix(" ") for line in about)]
    for match in DECLARATION.finditer(text):
        comment = "\n".join(line.removeprefix("///").strip() for line in match["comment"].splitlines())
        out += [f"### {match['kind']} `{match['name']}`", comment.replace("<", "&lt;"), f"```c\n{match['code']}\n```"]
    return "\n\n".join(part for part in out if part.strip())


def page(root: Path) -> str:
    intro = """# The file format

A `.segue` file is a FlatBuffer with segments of machine code and constants behind it. The schemas below are its contract, of which this page
is made. Fields are only ever added; a file of a later minor version is read as far as its fields are known, one of another major version is
refused (`VERSION_UNSUPPORTED`). `segue-run inspect FILE` shows what a file holds, and `segue-translate --flatbuffer-to-prog FILE` turns it
back into IR. What is verified before anything runs, and what machine code in a file means, is in [the trust model](../../SECURITY.md).
"""
    return intro + "\n" + "\n\n".join(schema(root / "schemas" / name) for name in ("binary.fbs", "program.fbs", "types.fbs")) + "\n"
