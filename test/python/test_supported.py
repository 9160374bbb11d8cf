# ===- test_supported.py - what is said of PyTorch's operators --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.supported_ops()` and docs/operators.md say what the frontend's own tables and the code of its lowerings say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import segue
from segue import supported
from segue.frontend.decompositions import DECOMPOSITIONS
from segue.frontend.ops import OPS, ordering
from segue.frontend.ops.table import Unsupported

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_in_step():
    assert (ROOT / "docs" / "operators.md").read_text() == supported.page(), "run `make docs`"


def test_the_polynomials_are_in_step():
    tool = ROOT / "tools" / "fit_functions.py"
    printed = subprocess.run([sys.executable, tool], capture_output=True, text=True, timeout=120, check=True).stdout
    assert (ROOT / "python/segue/frontend/decompositions/fits.py").read_text() == printed, f"run {tool}, whose first lines say where to"


def test_every_lowering_is_listed_and_nothing_else_is_lowered():
    assert {o.name for o in segue.supported_ops().that_are("lowered")} == set(OPS)


def test_what_is_taken_apart_is_not_lowered_too():
    """Such a lowering would never be reached."""
    assert not {str(op) for op in DECOMPOSITIONS} & set(OPS)


@pytest.mark.parametrize("name, how, reason", [
    ("aten.relu.default", "lowered", ""), ("aten.hardswish.default", "decomposed", ""), ("aten.hinge_embedding_loss.default", "decomposed", ""),
    ("aten.fft_fft.default", "lacking", "Fourier"), ("aten.view_as_complex.default", "lacking", "complex"),
    ("aten.linalg_lu_solve.default", "lacking", "LAPACK"), ("aten.nonzero.default", "lacking", "depends on values")])
def test_what_becomes_of_an_operator(name, how, reason):
    operator = segue.supported_ops(name)[name]
    assert operator.how == how and reason in operator.reason and bool(reason) == bool(operator.reason)


def test_a_limit_is_the_refusal_in_the_code(monkeypatch):
    """Of a function that a lowering calls, too, with the number of the constant in it."""
    assert any("1,024 are compared" in limit for limit in segue.supported_ops()["aten.topk.default"].limits)
    monkeypatch.setattr(ordering, "_LONGEST_ROW", 77)
    assert any("77 are compared" in limit for limit in supported.limits_of(OPS["aten.topk.default"]))


def _lowering(b, x, k):
    if k > 3:
        raise Unsupported(f"k={k}, which is more than 3" if x.rank else "a scalar")
    return x


def test_both_sides_of_a_choice_are_limits():
    assert supported.limits_of(_lowering) == ("k={k}, which is more than 3", "a scalar")


def test_a_part_of_the_table():
    some = segue.supported_ops("argsort")
    assert list(some) == ["aten.argsort.default", "aten.argsort.dimname", "aten.argsort.stable"][::2]
    assert str(some).endswith("2 operators: 2 lowered, 0 decomposed, 0 lacking")
    assert "aten.argsort.stable: lowered; refuses " in str(some)


def test_what_is_changed_in_place_is_not_listed():
    own = set(segue.supported_ops()) - set(OPS)
    assert own and not [name for name in own if name.endswith((".out", "_.default", "_.Tensor"))]
