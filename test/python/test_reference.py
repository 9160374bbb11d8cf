# ===- test_reference.py - frontend and derivatives in the reference interpreter === #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every case of op_cases.py in the reference interpreter: values and derived gradients are PyTorch's.

When test_ops.py fails and this passes, look at lowerings, kernels and runtime;
when both fail, at the frontend or the derivative.
"""

import re

import pytest
from op_cases import CASES, Apply
from reference import module_of, segue_opt


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_values_and_gradients(case):
    run = segue_opt(module_of(case, Apply(case.function)), "--segue-interpret")
    assert run.returncode == 0, run.stderr[:1000]


def test_a_wrong_value_is_noticed():
    (case,) = (c for c in CASES if c.name == "mm-5x7x3")
    text = module_of(case, Apply(case.function))
    last = list(re.finditer("dense<\"0x[0-9A-F]{8}", text))[-1]
    run = segue_opt(text[: last.end() - 8] + "0000803F" + text[last.end() :], "--segue-interpret")
    assert run.returncode != 0 and "does not hold at [0, 0]" in run.stderr
