"""The folders of the runtime include each other in one direction: runtime/layers.txt."""

import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = ROOT / "runtime/include/segue/runtime"
PRIVATE = ROOT / "runtime/lib"


def layers(text):
    """The rank of each folder."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {folder: rank for rank, folders in enumerate(lines) for folder in folders}


def folder_of(path):
    return path.parts[0] if len(path.parts) > 1 else "Base"


def resolve(source, included):
    """The path of an included file within its tree; None for one that is not the runtime's."""
    if included.startswith("segue/runtime/"):
        return pathlib.Path(included.removeprefix("segue/runtime/"))
    near = pathlib.Path(os.path.normpath(source.parent / included))
    for path in (near, pathlib.Path(included)):
        if (PRIVATE / path).exists():
            return path
    return None


def includes():
    """Pairs of a file and one that it includes, by their paths within the runtime."""
    for tree in (PUBLIC, PRIVATE):
        for path in sorted(tree.rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            source = path.relative_to(tree)
            for name in re.findall(r'^#include "(.+?)"', path.read_text(), re.MULTILINE):
                if (included := resolve(source, name)) is not None:
                    yield source, included


def upward(ranks, pairs):
    """Of the pairs, those that the order does not have, as text."""
    found = []
    for source, included in pairs:
        here, there = folder_of(source), folder_of(included)
        if unknown := {here, there} - ranks.keys():
            found.append(f"{source}: {' and '.join(sorted(unknown))} not in runtime/layers.txt")
        elif ranks[here] < ranks[there]:
            found.append(f"{source} includes {included}: {here} lies below {there}")
    return found


def test_folders_include_each_other_in_one_direction():
    ranks = layers((ROOT / "runtime/layers.txt").read_text())
    # Runtime.h is the header for those who want everything.
    pairs = [pair for pair in includes() if str(pair[0]) != "Runtime.h"]
    assert len(pairs) > 800
    assert upward(ranks, pairs) == []
    assert {folder_of(source) for source, _ in pairs} == ranks.keys(), "a folder without files"


def test_an_edge_upward_is_seen():
    ranks = layers("# a comment\nBase\nTensor Device\nSession\n")
    path = pathlib.Path
    assert upward(ranks, [(path("Session/A.h"), path("Tensor/B.h")), (path("Tensor/B.h"), path("Device/C.h")),
                          (path("Device/C.h"), path("Error.h"))]) == []
    assert upward(ranks, [(path("Tensor/B.h"), path("Session/A.h"))]) == [
        "Tensor/B.h includes Session/A.h: Tensor lies below Session"]
    assert upward(ranks, [(path("Plan/B.h"), path("Tensor/A.h"))]) == ["Plan/B.h: Plan not in runtime/layers.txt"]
