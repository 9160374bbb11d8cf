# ===- __main__.py - python -m segue ----------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""``python -m segue TOOL ...`` runs a tool of the Segue that this Python imports, whatever PATH says; without a tool it lists them."""

import difflib
import sys

from segue_tools import TOOLS, become

from . import __version__


def _listing() -> str:
    lines = [f"  {name.removeprefix('segue-'):12} {what}" for name, what in TOOLS.items()]
    return "\n".join([f"Segue {__version__}: python -m segue TOOL [arguments]; TOOL --help says more", "", *lines])


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_listing())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"segue {__version__}")
        return 0
    tool = "segue-" + arguments[0].removeprefix("segue-")
    if tool in TOOLS:
        become(tool, arguments[1:])
    near = difflib.get_close_matches(tool.removeprefix("segue-"), [name.removeprefix("segue-") for name in TOOLS], 1)
    meant = f"did you mean {near[0]}?" if near else "python -m segue lists them"
    print(f"segue: there is no tool {arguments[0]!r}; {meant}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
