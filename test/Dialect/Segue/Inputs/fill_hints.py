#===- fill_hints.py - hints for the programs of a file --------------------===#
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
#===------------------------------------------------------------------------===#
"""Writes hints with SIGNATURE replaced by the interface hash of @forward.

    fill_hints.py hints.json inspected.json
"""

import json
import pathlib
import sys

programs = json.loads(pathlib.Path(sys.argv[2]).read_text())[0]["programs"]
signature = next(p["interface_hash"] for p in programs if p["name"] == "forward")
print(pathlib.Path(sys.argv[1]).read_text().replace("SIGNATURE", signature))
