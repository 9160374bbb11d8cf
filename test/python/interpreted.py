# ===- interpreted.py - IR in the reference interpreter, for tests -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Runs passes, reads signatures, and computes functions by `segue-opt --segue-interpret`."""

import os
import re
import shutil
import subprocess

import torch

ROOT = os.path.join(os.path.dirname(__file__), "../..")
SEGUE_OPT = os.environ.get("SEGUE_OPT") or shutil.which("segue-opt") or os.path.join(ROOT, "build/bin/segue-opt")


def segue_opt(text: str, *options: str) -> str:
    run = subprocess.run([SEGUE_OPT, "-", *options], input=text, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[:4000]
    return run.stdout


def signature(text: str, function: str):
    """(name, type) of each argument and of each result."""
    line = next(line for line in text.splitlines() if f"@{function}(" in line)
    entry = re.compile(r"(tensor<[^>]*>) \{([^}]*)\}")
    sides = line.split(") -> (") if ") -> (" in line else (line, "")
    return [[(re.search(r'segue\.name = "([^"]+)"', attrs)[1], type_) for type_, attrs in entry.findall(side)]
            for side in sides]


def constant(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex().upper()
    return f'dense<"0x{data}">'


def run_main(text: str, body: list, values: list) -> list:
    """Adds a `@main` of these lines that returns `values`, pairs of SSA name and type; what it gives, as floats."""
    types = ", ".join(type_ for _, type_ in values)
    main = [f"  func.func @main() -> ({types}) {{", *body,
            f"    return {', '.join(name for name, _ in values)} : {types}", "  }", "}"]
    end = text.rstrip().rfind("}")
    out = segue_opt(text[:end] + "\n".join(main) + "\n", "--segue-interpret=print", "-o", os.devnull)
    found = re.findall(r"main result \d+: \w+(?:\[[^\]]*\])? (.*)", out)
    assert len(found) == len(values), out[:2000]
    return [[float(x) for x in line.split()] for line in found]
