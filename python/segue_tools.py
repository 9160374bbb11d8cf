# ===- segue_tools.py - the tools as commands -------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Commands of the wheel: each becomes the program of its name in ``segue/bin``.

This module lies beside the package, not in it: whoever imports ``segue`` waits a second for PyTorch, and none of the tools needs it.
"""

import os
import sys
from typing import NoReturn

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "segue", "bin")

#: What there is, with what each is for.
TOOLS = {
    "segue-run": "runs, trains, inspects and compares .segue files",
    "segue-compile": "compiles MLIR to a .segue file",
    "segue-opt": "runs passes on MLIR",
    "segue-translate": "translates between MLIR and .segue files",
    "segue-lsp-server": "serves an editor that shows MLIR of Segue",
}


def become(tool: str, arguments: list[str]) -> NoReturn:
    """Replaces this process by a tool, so that signals, pipes and the exit status are the tool's own."""
    program = os.path.join(FOLDER, tool)
    if sys.prefix != sys.base_prefix:  # there tools look for NVIDIA's packages
        os.environ["VIRTUAL_ENV"] = sys.prefix
    try:
        os.execv(program, [tool, *arguments])
    except OSError as error:
        sys.exit(f"{tool}: {program} cannot be run: {error.strerror}; install segue again, or build the target {tool}")


def segue_compile() -> NoReturn:
    become("segue-compile", sys.argv[1:])


def segue_lsp_server() -> NoReturn:
    become("segue-lsp-server", sys.argv[1:])


def segue_opt() -> NoReturn:
    become("segue-opt", sys.argv[1:])


def segue_run() -> NoReturn:
    become("segue-run", sys.argv[1:])


def segue_translate() -> NoReturn:
    become("segue-translate", sys.argv[1:])
