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

from op_cases import CASES, Apply
from reference import Reference, differentiate, interpret


def test_values_and_gradients():
    references = [Reference(case, Apply(case.function)) for case in CASES]
    differentiate(references)
    modules = {r.case.name: r.with_main() for r in references}
    if interpret(modules.values()).returncode != 0:
        failed = {name: interpret([text]) for name, text in modules.items()}
        failed = {name: run.stderr.splitlines()[0] for name, run in failed.items() if run.returncode != 0}
        assert not failed, failed


def test_a_wrong_value_is_noticed():
    case, = (c for c in CASES if c.name == "mm-5x7x3")
    reference = Reference(case, Apply(case.function))
    differentiate([reference])
    text = reference.with_main()
    assert interpret([text]).returncode == 0
    last = list(re.finditer("dense<\"0x[0-9A-F]{8}", text))[-1]
    run = interpret([text[: last.end() - 8] + "0000803F" + text[last.end() :]])
    assert run.returncode != 0 and "does not hold at [0, 0]" in run.stderr
