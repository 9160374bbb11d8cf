# ===- headers.py - pages of the C++ API, from the headers ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Turns C++ headers into Markdown: one page for each folder of the runtime's public headers, and one for the compiler's.

The headers are written to be read: a banner with what the file is and a short sequence of calls, then declarations, each with a
comment about ownership, order, failure and cost. A page keeps that order. tree-sitter parses a header, so that private members,
bodies of functions and friends can be left out; everything that is shown is text of the header itself.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

PARSER = Parser(Language(tree_sitter_cpp.language()))
TYPES = {"class_specifier": "class", "struct_specifier": "struct", "enum_specifier": "enum"}
#: What ends a declaration and says nothing by itself.
SKIPPED = {";", "{", "}", "friend_declaration", "preproc_include", "preproc_def", "preproc_call", "identifier", "#ifndef", "#ifdef", "#endif"}


@dataclass
class Piece:
    """A comment and the declarations that it is about, up to the next comment or empty line."""

    comment: list[str]
    code: list[str]
    node: Node | None = None  # of a type with a body


def text_of(node: Node) -> str:
    return node.text.decode()


def prose(lines: list[str]) -> str:
    """Lines of a comment as Markdown: what is indented is code, and < begins no HTML."""
    out, code = [], []

    def end_code() -> None:
        while code and not code[-1].strip():
            code.pop()
        if code:
            out.extend(["", "```cpp", *textwrap.dedent("\n".join(code)).splitlines(), "```", ""])
            code.clear()

    for line in lines:
        if line.startswith("  ") and line.strip() and (code or not out or not out[-1].strip()):
            code.append(line)
        elif code and not line.strip():
            code.append("")
        else:
            end_code()
            parts = re.split(r"(`[^`]*`)", line)
            out.append("".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts))
    end_code()
    return "\n".join(out).strip()


def uncommented(comment: str) -> list[str]:
    return [re.sub(r"^\s*///? ?", "", line) for line in comment.splitlines()]


def banner(text: str) -> tuple[str, list[str]]:
    """What the first line says the file is, and the paragraphs below the licence."""
    head = re.match(r"//===- \S+ - (.*?) -*(?:\*- C\+\+ -\*-)?=+//", text)
    assert head, text[:80]
    rules = list(re.finditer(r"^//===-+===//$", text, re.M))
    below = text[rules[0].end() : rules[1].start()] if len(rules) > 1 else ""
    return head.group(1), uncommented(below.strip("\n"))


def signature(node: Node) -> str:
    """A declaration without its body, at the left margin."""
    body = next((child for kind in ("body",) if (child := node.child_by_field_name(kind))), None)
    if node.type == "template_declaration":
        inner = node.children[-1]
        if inner.type == "function_definition":
            return text_of(node)[: inner.start_byte - node.start_byte] + signature(inner)
    source = text_of(node)
    if node.type == "function_definition" and body is not None:
        initialisers = next((child for child in node.children if child.type == "field_initializer_list"), None)
        source = node.text[: (initialisers or body).start_byte - node.start_byte].decode().rstrip() + ";"
    # clang-format has indented the first line by its column, which the text of a node lacks.
    return textwrap.dedent(" " * node.start_point.column + source)


def body_of(node: Node) -> Node | None:
    """The type with a body that a node declares, or nothing."""
    if node.type == "template_declaration":
        node = node.children[-1]
    return node if node.type in TYPES and node.child_by_field_name("body") else None


def pieces(parent: Node, *, public: bool = True) -> list[Piece]:
    found: list[Piece] = []
    comment: list[str] = []
    last_row, open_piece = -2, False
    for child in parent.children:
        row = child.start_point.row
        if child.type == "access_specifier":
            public, comment, open_piece = text_of(child) == "public", [], False
        elif not public:
            continue
        elif child.type == "comment":
            if row == last_row and found and found[-1].code:
                found[-1].code[-1] += "  " + text_of(child)
            elif comment and row == last_row + 1:
                comment += uncommented(text_of(child))
            else:
                comment, open_piece = uncommented(text_of(child)), False
        elif child.type in SKIPPED:
            pass
        elif child.type in TYPES and body_of(child) is None:
            comment = []  # a declaration of a name alone
        else:
            code, kind = signature(child), body_of(child)
            if kind is not None or child.type in ("declaration", "field_declaration", "alias_declaration", "using_declaration", "template_declaration",
                                                  "function_definition", "static_assert_declaration"):
                # tree-sitter has the semicolon of a type apart.
                code += "" if code.endswith((";", "}")) and kind is None else ";"
                continues = open_piece and not comment and row <= last_row + 1 and kind is None and found[-1].node is None
                if continues:
                    found[-1].code.append(code)
                else:
                    found.append(Piece(comment, [code], kind))
                comment, open_piece = [], True
        last_row = child.end_point.row if child.type != ";" else last_row
        if child.type == "comment" and child.end_point.column == 0:
            last_row -= 1
    return found


def is_verbatim(node: Node) -> bool:
    """An enum, and a type that is data alone, is read best as it stands in the header."""
    if node.type == "enum_specifier":
        return True
    body = node.child_by_field_name("body")
    allowed = {"field_declaration", "comment", "{", "}", ";", "alias_declaration"}
    return all(child.type in allowed and "function_declarator" not in str(child) for child in body.children)


def name_of(node: Node) -> str:
    return text_of(node.child_by_field_name("name"))


def fenced(code: str) -> str:
    return f"```cpp\n{code}\n```"


def entries(parent: Node, level: int, prefix: str = "", *, public: bool = True) -> list[str]:
    out = []
    for piece in pieces(parent, public=public):
        node = piece.node
        if node is None:
            out += [fenced("\n".join(piece.code)), prose(piece.comment)]
            continue
        name = prefix + name_of(node)
        out.append(f"{'#' * min(level, 6)} {TYPES[node.type]} `{name}`")
        out.append(prose(piece.comment))
        if is_verbatim(node):
            out.append(fenced(piece.code[0]))
        else:
            bases = next((text_of(child) for child in node.children if child.type == "base_class_clause"), "")
            if bases:
                out.append(f"Derives {bases.removeprefix(':').strip().replace('public ', 'from `', 1)}`.")
            out += entries(node.child_by_field_name("body"), level + 1, name + "::", public=node.type != "class_specifier")
    return out


def spaces(node: Node) -> list[Node]:
    """The namespaces of the file, and within the include guard."""
    found = []
    for child in node.children:
        if child.type in ("preproc_ifdef", "preproc_if", "linkage_specification"):
            found += spaces(child)
        elif child.type == "namespace_definition":
            found.append(child)
    return found


def header(path: Path, include: str) -> str:
    """One header: its banner, then what it declares."""
    text = path.read_text()
    summary, head = banner(text)
    out = [f"## {path.name}", f"{summary[0].upper()}{summary[1:]}. `#include \"{include}\"`", prose(head)]
    for space in spaces(PARSER.parse(text.encode()).root_node):
        out += namespace(space)
    return "\n\n".join(part for part in out if part)


def namespace(space: Node) -> list[str]:
    body = space.child_by_field_name("body")
    inner = [child for child in body.children if child.type == "namespace_definition"]
    out = entries(body, 3)
    for child in inner:
        name = text_of(child.child_by_field_name("name")) if child.child_by_field_name("name") else ""
        if name not in ("detail", ""):
            out += [f"### namespace `{name}`", *namespace(child)]
    return out


def pages(root: Path) -> dict[str, str]:
    """Pages by name: one for each folder of the runtime's headers, one for those beside the folders, and the compiler's."""
    runtime = root / "runtime" / "include"
    folders: dict[str, list[Path]] = {}
    for path in sorted((runtime / "segue" / "runtime").rglob("*.h")):
        where = path.parent.relative_to(runtime / "segue" / "runtime")
        folders.setdefault(where.parts[0] if where.parts else "Basics", []).append(path)
    found = {}
    for folder, paths in sorted(folders.items()):
        body = [header(path, str(path.relative_to(runtime))) for path in paths]
        found[folder] = f"# {folder}\n\n" + "\n\n".join(body) + "\n"
    compiler = sorted((root / "include" / "segue" / "Compiler").glob("*.h"))
    found["Compiler"] = "# Compiler\n\n" + "\n\n".join(header(path, str(path.relative_to(root / "include"))) for path in compiler) + "\n"
    return found
