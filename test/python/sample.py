# ===- sample.py - a part of a long list of cases -------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a check tries of many cases: a part, drawn with SEGUE_SEED, which tools/check.py sets and prints. Without it, all."""

import os


def drawn(cases, of: int, what: str) -> list:
    """All of `cases`, or of a sample one in `of`: others with each seed and for each `what`. As many seeds in a row try all."""
    seed = os.environ.get("SEGUE_SEED")
    return list(cases) if seed is None else list(cases)[(int(seed) + sum(map(ord, what))) % of :: of]
