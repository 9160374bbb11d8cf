# ===- test_supported.py - what is said of PyTorch's operators --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.supported_ops()` and docs/operators.md say what the frontend's own tables and the code of its lowerings say."""

import inspect
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
import torch

import segue
from segue import supported
from segue.frontend.decompositions import DECOMPOSITIONS
from segue.frontend.ops import OPS, ordering
from segue.frontend.ops.table import Unsupported
from segue.frontend.writer import Value

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_in_step():
    assert (ROOT / "docs" / "operators.md").read_text() == supported.page(), "run `make docs`"


def test_the_polynomials_are_in_step():
    tool = ROOT / "tools" / "fit_functions.py"
    printed = subprocess.run([sys.executable, tool], capture_output=True, text=True, timeout=120, check=True).stdout
    assert (ROOT / "python/segue/frontend/decompositions/fits.py").read_text() == printed, f"run {tool}, whose first lines say where to"


def test_every_lowering_is_listed_and_nothing_else_is_lowered():
    assert {o.name for o in segue.supported_ops().that_are("lowered")} == {name for name in OPS if not name.startswith("segue.")}


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
    assert any("2,147,483,647 are sorted" in limit for limit in segue.supported_ops()["aten.topk.default"].limits)
    monkeypatch.setattr(ordering, "_LONGEST_ROW", 77)
    assert any("77 are sorted" in limit for limit in supported.limits_of(OPS["aten.topk.default"]))


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


# --- types ----------------------------------------------------------------------------------------

#: What PyTorch gives for the kinds of arguments that schemas have; to type checkers a whole number and a truth value are floats, too.
_GIVEN = {"number": float, "Scalar": float, "int": int, "SymInt": int, "float": float, "bool": bool, "str": str, "ScalarType": torch.dtype,
          "Layout": torch.layout, "Device": torch.device, "MemoryFormat": torch.memory_format, "Generator": torch.Generator}


def _members(annotation):
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return {m for a in typing.get_args(annotation) for m in _members(a)} if is_union else {annotation}


def _given(kind, tensor):
    """The types of what PyTorch gives for an argument of this kind."""
    if optional := re.fullmatch(r"Optional\[(.*)\]", kind):
        return _given(optional[1], tensor) | {type(None)}
    if several := re.fullmatch(r"List\[(.*)\]", kind):
        element, *others = _given(several[1], tensor) - {type(None)}
        assert not others, kind
        return {typing.Sequence[element | None if several[1].startswith("Optional") else element]}
    return {tensor if kind == "Tensor" else _GIVEN[kind]}


def _mismatches(name, function, behind, tensor):
    """Where a function cannot be called as an operator of PyTorch is; `behind` so many arguments of its own."""
    namespace, base, overload = name.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), base), overload)._schema
    function = inspect.unwrap(function)
    hints, parameters = typing.get_type_hints(function), list(inspect.signature(function).parameters.values())[behind:]
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, argument in enumerate(schema.arguments):
        found = [p for p in parameters if p.name == argument.name] if argument.kwarg_only else by_position[place : place + 1]
        if not found:
            others = inspect.Parameter.VAR_KEYWORD if argument.kwarg_only else inspect.Parameter.VAR_POSITIONAL
            if argument.name != "generator" and all(p.kind is not others for p in parameters):
                yield f"{name}: {argument.name} is not taken"
            continue
        taken, kind = _members(hints[found[0].name]), str(argument.real_type)
        if not taken & {object, typing.Any} and not _given(kind, tensor) <= taken:
            yield f"{name}: {found[0].name} is not what PyTorch gives for {argument.name}, {kind}"
        if argument.has_default_value() and found[0].default is inspect.Parameter.empty:
            yield f"{name}: {found[0].name} has no default, and PyTorch leaves {argument.name} out"


def test_types_are_those_of_schemas():
    """mypy sees no call of these functions: that they take what PyTorch gives, in its order, is compared here."""
    found = []
    for name, lowering in OPS.items():
        if name.startswith(("aten.", "prims.")):
            found += _mismatches(name, lowering, 1, Value)
    for operator, function in DECOMPOSITIONS.items():
        if inspect.unwrap(function).__module__.startswith("segue."):
            found += _mismatches(str(operator), function, 0, torch.Tensor)
    assert found == []


def test_another_order_of_arguments_is_noticed():
    """As that of `gather`, which was entered for this operator, too."""
    assert list(_mismatches("aten.take_along_dim.default", OPS["aten.gather.default"], 1, Value)) == [
        "aten.take_along_dim.default: dim is not what PyTorch gives for indices, Tensor",
        "aten.take_along_dim.default: index is not what PyTorch gives for dim, Optional[int]",
        "aten.take_along_dim.default: index has no default, and PyTorch leaves dim out"]
