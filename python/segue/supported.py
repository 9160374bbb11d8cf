# ===- supported.py - which of PyTorch's operators Segue has ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.supported_ops()`: what becomes of each of PyTorch's operators.

Nothing is written down here. What is lowered is the frontend's own table, what
a lowering refuses are the refusals in its code, and what is taken apart is what
AOTAutograd is given.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Iterable, Iterator

import torch

from .dynamo.decompositions import decompositions
from .frontend import lacking
from .frontend.ops import OPS
from .frontend.ops.table import Unsupported
from .notebooks import grid

LOWERED, DECOMPOSED, LACKING = "lowered", "decomposed", "lacking"

#: Operators for tensors, devices and libraries that Segue has nothing to do with.
_ELSEWHERE = re.compile(
    r"sparse|quantize|_int8|qint|q_|mkldnn|cudnn|miopen|fbgemm|nested|jagged|padded_dense|foreach|fused_|amp_|batch_norm_(?:elemt|"
    r"gather|stats|backward_)|values$|indices$|coalesce|to_dense|to_padded|_copy$|record_stream|pin_memory|rename|names|resize_as|"
    r"lift|_thnn|segment_reduce|sym_|is_set_to|set$|set_data|retain_grad|requires_grad|output_nr|_version|choose_qparams|chalf|"
    r"get_gradients|^data$|from_file|^s?smm$|sspaddmm|slow_conv|infinitely_|dense_tensors|hash_tensor|^resize$|_jvp$|_overrideable")


@dataclass(frozen=True)
class Operator:
    """One of PyTorch's operators.

    Attributes
    ----------
    name : str
        With its overload: "aten.sort.default".
    how : str
        "lowered": Segue has it; "decomposed": it is written in terms of others, of which each counts; "lacking": PyTorch runs it.
    limits : tuple of str
        What its lowering refuses, as the error says it; words for values stand for those of the call.
    reason : str
        Of one that is lacking: why, where that is more than that it has no lowering yet.
    """

    name: str
    how: str
    limits: tuple[str, ...] = ()
    reason: str = ""


class Operators(Mapping[str, Operator]):
    """Operators by their names, in order."""

    def __init__(self, operators: dict[str, Operator]):
        self._operators = operators

    def __getitem__(self, name: str) -> Operator:
        return self._operators[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def that_are(self, how: str) -> list[Operator]:
        """Those that are "lowered", "decomposed" or "lacking"."""
        return [o for o in self.values() if o.how == how]

    def _counts(self) -> str:
        return ", ".join(f"{len(self.that_are(how))} {how}" for how in (LOWERED, DECOMPOSED, LACKING))

    def __repr__(self) -> str:
        return f"Operators({len(self)}: {self._counts()})"

    def _repr_html_(self) -> str:
        return grid(f"{len(self)} operators: {self._counts()}", ("operator", "what becomes of it", "refuses, or why not"), (
            (operator.name, operator.how, "; ".join(operator.limits) or operator.reason) for operator in self.values()))

    def __str__(self) -> str:
        lines = []
        for operator in self.values():
            more = "; ".join(operator.limits) if operator.limits else operator.reason
            lines.append(f"{operator.name}: {operator.how}" + (f"; refuses {more}" if operator.limits else f": {more}" if more else ""))
        return "\n".join([*lines, f"{len(self)} operators: {self._counts()}"])


def supported_ops(part: str = "") -> Operators:
    """What becomes of PyTorch's operators in Segue: of all, or of those in whose name `part` is.

    Operators that change a tensor in place or write to one that is given (`add_`, `out=`) are what the operator is that
    gives a new one; they are not listed. The page docs/operators.md is made of this.

    >>> print(segue.supported_ops("sort"))
    """
    return Operators({name: operator for name, operator in _all().items() if part in name})


@lru_cache(maxsize=None)
def _all() -> dict[str, Operator]:
    apart = {str(op) for op in decompositions()}
    known = {str(op): op for op in _of_pytorch()}
    # Operators of ours stand for what PyTorch has in other forms.
    return {name: _operator(name, known.get(name), apart) for name in sorted({*known, *OPS}) if not name.startswith("segue.")}


def _operator(name: str, overload: Any, apart: set[str]) -> Operator:
    if name in OPS:
        return Operator(name, LOWERED, limits_of(OPS[name]))
    why = lacking.reason(overload)
    if not why and (name in apart or _has_kernel(overload, "CompositeImplicitAutograd")):
        return Operator(name, DECOMPOSED)
    return Operator(name, LACKING, reason=why)


def _has_kernel(overload: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)


def _of_pytorch() -> Iterator[torch._ops.OpOverload]:
    """Operators of ATen that give new dense tensors on a CPU."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or _ELSEWHERE.search(base):
            continue
        found = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if found is None or base.startswith("_") and torch.Tag.core not in found.tags:
            continue
        schema = found._schema
        if (schema.is_mutable or not any("Tensor" in str(r.type) for r in schema.returns)
                or any("Dimname" in str(a.type) for a in schema.arguments)):
            continue
        if any(_has_kernel(found, key) for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd",
                                                   "CompositeExplicitAutogradNonFunctional")):
            yield found


# --- limits: the refusals in the code of a lowering -------------------------------------------


def limits_of(lowering: Callable[..., Any]) -> tuple[str, ...]:
    """What a lowering, or a function that it calls, may raise `Unsupported` for."""
    found: dict[str, None] = {}
    _add_limits(lowering, found, set())
    return tuple(found)


def _add_limits(function: Callable[..., Any], found: dict[str, None], seen: set[Any]) -> None:
    function = inspect.unwrap(function)
    if function in seen or not isinstance(function, types.FunctionType):
        return
    seen.add(function)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = function.__globals__.get(node.func.id)
            if called is None:
                continue
            if called is Unsupported:
                found.update(dict.fromkeys(_texts(node.args[0], function.__globals__)))
            elif getattr(called, "__module__", "").startswith("segue.frontend.ops."):
                _add_limits(called, found, seen)


def _texts(node: ast.AST, names: dict[str, Any]) -> list[str]:
    """What the text of a refusal may be, with the names of values in their place and the numbers of constants."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body, names) + _texts(node.orelse, names)
    if isinstance(node, ast.JoinedStr):
        return ["".join(_placed(part.value, names) if isinstance(part, ast.FormattedValue) else ast.literal_eval(part) for part in node.values)]
    return [str(node.value)] if isinstance(node, ast.Constant) else ["{" + ast.unparse(node) + "}"]


def _placed(node: ast.AST, names: dict[str, Any]) -> str:
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    return f"{value:,}" if isinstance(value, int) else "{" + ast.unparse(node) + "}"


# --- the page -----------------------------------------------------------------------------------


def page() -> str:
    """docs/operators.md."""
    operators = supported_ops()
    lowered, decomposed, lacked = (operators.that_are(how) for how in (LOWERED, DECOMPOSED, LACKING))
    lines = [
        "# PyTorch's operators", "",
        "<!-- `make docs` writes this page from the frontend's own tables; do not edit it. -->", "",
        "What becomes of each operator of a model. `segue.supported_ops(\"sort\")` says it in Python. Operators that change a",
        "tensor in place, or write to `out=`, are the ones that give a new tensor. Of "
        f"{len(operators)} operators {len(lowered)} are lowered,",
        f"{len(decomposed)} are written in terms of others, and {len(lacked)} are lacking.", "",
        "## Lowered", "",
        "They run in Segue. A call that its lowering refuses runs in PyTorch under `torch.compile` (a warning names operator, module and",
        "line) and is an error of `segue.compile`; names in code stand for what the call has there.", "",
        "| operator | refuses |", "| --- | --- |",
    ]
    lines += [f"| {names} | {_in_code('<br>'.join(limits))} |" for names, limits in _joined(lowered)]
    lines += ["", "## Written in terms of others", "", "PyTorch or the frontend takes them apart; what comes of it counts, each for itself.", ""]
    lines += _wrapped(decomposed, lowered + lacked)
    lines += ["", "## Lacking", "",
              "PyTorch runs them, and what surrounds them stays in Segue. Those that have just no lowering yet come first.", ""]
    by_reason: dict[str, list[Operator]] = {"": []}
    for operator in lacked:
        by_reason.setdefault(operator.reason, []).append(operator)
    for why, some in by_reason.items():
        lines += [f"### {why[0].upper() + why[1:]}" if why else "### Not yet", "", *_wrapped(some, lowered + decomposed), ""]
    return "\n".join(lines).rstrip() + "\n"


def _in_code(limits: str) -> str:
    return re.sub(r"\{(.*?)\}", r"`\1`", limits).replace("|", "\\|")


def _base(operator: Operator) -> str:
    return operator.name.rpartition(".")[0].removeprefix("aten.")


def _joined(operators: Iterable[Operator]) -> list[tuple[str, tuple[str, ...]]]:
    """Overloads of one operator that refuse the same are one line."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for operator in operators:
        groups.setdefault((_base(operator), operator.limits), []).append(operator.name.rpartition(".")[2])
    return [(f"`{base}`" + (f" ({', '.join(overloads)})" if overloads != ["default"] else ""), limits)
            for (base, limits), overloads in groups.items()]


def _wrapped(operators: Iterable[Operator], others: Iterable[Operator]) -> list[str]:
    """Names, with overloads of those of which others have some."""
    elsewhere = {_base(o) for o in others}
    names = [f"`{_base(o)}`" for o in operators if _base(o) not in elsewhere]
    names += [name for name, _ in _joined([o for o in operators if _base(o) in elsewhere])]
    return textwrap.wrap(", ".join(sorted(set(names))), 120, break_on_hyphens=False, break_long_words=False)
