# ===- padding.py - whether padding to a longer length changes anything --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Shows that a module gives the same results for inputs that are padded to a bucket, or says which operator does not.

Whether padding is masked cannot be read off single operators: a mask is a value
that is computed somewhere and added elsewhere. So it is tried. The module is
captured at the least length that a bucket takes and at that of the bucket, and
both graphs run side by side in double precision, on drawn inputs of which one
is the other padded, with drawn weights (those of a model at its beginning hide
much behind zeros). What differs in a result by more than rounding depends on
the padding or on the length. The graphs are static, so that what is found once
holds for every value but those of a set that is never drawn.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError, UnsupportedOpError
from .fx import Operator, attribute, node_in, placeholders, results, target_of
from .nodes import Values, module_path, source_of

#: Results agree to this part of their largest element.
_TOLERANCE = 1e-8

_LOSSES = {"aten.cross_entropy_loss.default": 4, "aten.nll_loss_nd.default": 4, "aten.nll_loss.default": 4}
_MOVES = {
    "aten.view.default", "aten.reshape.default", "aten.slice.Tensor", "aten.pad.default", "aten.constant_pad_nd.default",
    "aten.flatten.using_ints", "aten.contiguous.default", "aten.clone.default", "aten.to.dtype", "aten.to.device", "aten.to.dtype_layout",
    "aten.squeeze.dim", "aten.squeeze.default", "aten.unsqueeze.default", "aten._unsafe_view.default", "aten.transpose.int",
    "aten.permute.default", "aten.alias.default", "aten.detach.default", "aten._to_copy.default",
}


@dataclass(frozen=True)
class Padding:
    """How calls of a program are padded.

    Attributes
    ----------
    length : int
        That of the program: the bucket.
    fills : dict
        For each input that is padded, by name, what it is padded with.
    cuts : dict
        For each result, by its number, the dimensions that are longer by the padding.
    """

    length: int
    fills: dict[str, object]
    cuts: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def cut(self, number: int, result: torch.Tensor, length: int) -> torch.Tensor:
        """What a call of this length gets of a result."""
        for dim in self.cuts.get(number, ()):
            result = result.narrow(dim, 0, result.shape[dim] - (self.length - length))
        return result


def fills_of(program: ExportedProgram, names: list[str], padded: Mapping[str, torch.dtype],
             given: Mapping[str, object]) -> dict[str, object]:
    """What each of the inputs `padded`, of which it has the element types, is padded with, by name.

    A target of a loss with the index that the loss ignores, all others with zeros: masks with what hides, tokens with one
    that any table has. `given` goes before.
    """
    fills = {name: given.get(name, 0) for name in padded}
    by_node = dict(zip((n.name for n in _inputs(program)), names))
    for node in program.graph.nodes:
        place = _LOSSES.get(str(node.target))
        if place is None:
            continue
        ignored = node.args[place] if len(node.args) > place else node.kwargs.get("ignore_index", -100)
        source = node.args[1]
        while isinstance(source, Node) and str(source.target) in _MOVES:
            source = source.args[0]
        name = by_node.get(getattr(source, "name", ""))
        if name is not None and name in padded and name not in given and not padded[name].is_floating_point:
            fills[name] = ignored
    return fills


def show_exact(module: torch.nn.Module, short: ExportedProgram, long: ExportedProgram, names: list[str],
               short_leaves: Sequence[object], long_leaves: Sequence[object], longer: int,
               what: str) -> dict[int, tuple[int, ...]]:
    """Raises UnsupportedOpError where a result of the module depends on padding; else the dimensions of results to cut.

    Parameters
    ----------
    short, long : torch.export.ExportedProgram
        The module at a length and at that of the bucket.
    names, short_leaves, long_leaves
        Of the inputs; those of `long` are those of `short`, padded.
    longer : int
        By how much.
    what : str
        For messages: the module and the bucket.
    """
    for drawn in (True, False):
        runs = _Run(module, short, short_leaves, drawn), _Run(module, long, long_leaves, drawn)
        try:
            culprit, cuts, finite = _compared(*runs, longer)
        except IndexError as error:
            raise InvalidArgumentError(
                f"{what}: an index is outside of its table, by what inputs are padded with: {error}. Say what to pad with: "
                f"segue.Buckets([...], fill={{name: value}}); inputs are {names}") from error
        if finite:
            break
    else:
        raise InvalidArgumentError(f"{what}: results are not finite, so that nothing can be said of the padding")
    if culprit is not None:
        raise _refusal(culprit, what)
    return cuts


def _refusal(node: Node, what: str) -> UnsupportedOpError:
    path, source = module_path(node), source_of(node)
    where = f"{source[0]}:{source[1]}" if source else "an unknown line"
    error = UnsupportedOpError(
        f"{what}: results for padded inputs are not those without padding, from operator {node.target} in module {path or '<top>'!r} at {where} on. "
        "Give the model an attention mask as an input, let attention be causal and losses ignore targets, or leave the buckets away",
        report={"op": str(node.target), "module": path, "source": where})
    error.node = node
    return error


class _Run:
    """One of the two graphs, node by node in double precision."""

    def __init__(self, module: torch.nn.Module, program: ExportedProgram, leaves: Sequence[object], drawn: bool):
        self._module, self.program, self._drawn = module, program, drawn
        self.graph_module = program.graph_module
        self.nodes = list(program.graph.nodes)
        self.env: Values = {}
        self._weights: dict[Node, InputSpec] = {}
        given = iter(leaves)
        by_name = {n.name: n for n in placeholders(program.graph)}
        for spec in program.graph_signature.input_specs:
            node = by_name[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                leaf = next(given)
                self.env[node] = _double(leaf) if isinstance(leaf, torch.Tensor) else leaf
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self.env[node] = _double(program.constants[target_of(spec)])
            else:
                self._weights[node] = spec
        self._readers = {n: len(n.users) for n in self.nodes}

    def step(self, node: Node) -> object:
        """The value of the next node."""
        if node.op == "placeholder":
            if node in self._weights:
                self.env[node] = self._weight(self._weights[node])
        elif node.op == "output":
            return None
        else:
            self.env[node] = self._compute(self.graph_module, node, self.env)
        return self.env[node]

    def forget(self, node: Node) -> None:
        """Frees what nobody reads any more."""
        for source in node.all_input_nodes:
            self._readers[source] -= 1
            if not self._readers[source] and source.op != "output":
                self.env.pop(source, None)

    def _weight(self, spec: InputSpec) -> torch.Tensor:
        target = target_of(spec)
        is_parameter = spec.kind is InputKind.PARAMETER
        tensor = self._module.get_parameter(target) if is_parameter else attribute(self._module, target)
        if not is_parameter or not self._drawn or not tensor.is_floating_point():
            return _double(tensor)
        draw = torch.Generator().manual_seed(sum(map(ord, target)))
        values = torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
        return values / math.sqrt(tensor.shape[-1]) if tensor.dim() > 1 else 1 + values / 4

    def _compute(self, graph_module: GraphModule, node: Node, env: Values) -> object:
        read: Callable[[Any], Any] = lambda tree: pytree.tree_map_only(Node, env.__getitem__, tree)  # noqa: E731
        if node.op == "get_attr":
            found = attribute(graph_module, str(node.target))
            return _double(found) if isinstance(found, torch.Tensor) else found
        args, kwargs = read(node.args), read(dict(node.kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        inner = next((a for a in args if isinstance(a, GraphModule)), None)
        if inner is not None:  # a region under no_grad or autocast
            return self._region(inner, args[args.index(inner) + 1 :])
        name = str(node.target)
        if "_assert" in name or "sym_constrain" in name:
            return None
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            return _without_chance(node, node.target, args, kwargs)
        args, kwargs = pytree.tree_map_only(torch.dtype, _wide, (args, kwargs))
        assert callable(node.target), f"{node.name} calls a method"
        return node.target(*args, **kwargs)

    def _region(self, graph_module: GraphModule, operands: Sequence[object]) -> object:
        env = dict(zip(placeholders(graph_module.graph), operands))
        for node in graph_module.graph.nodes:
            if node.op == "output":
                return pytree.tree_map_only(Node, env.__getitem__, node.args[0])
            if node.op != "placeholder":
                env[node] = self._compute(graph_module, node, env)
        return None


def _without_chance(node: Node, operator: Operator, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Dropout drops nothing, and what is drawn is one number: draws of other lengths are others anyway."""
    name = str(operator)
    if "attention" in name:
        kwargs = {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        return operator(*args[:4], *(0.0 for _ in args[4:5]), *args[5:], **kwargs)
    if "dropout" in name:
        x = args[0]
        if isinstance(x, torch.Tensor) and isinstance(node.meta["val"], tuple):
            return x, torch.ones_like(x, dtype=torch.bool)
        return x
    return pytree.tree_map_only(torch.Tensor, lambda v: torch.full(v.shape, 0.5).to(_wide(v.dtype)), node.meta["val"])


def _compared(short: _Run, long: _Run, longer: int) -> tuple[Node | None, dict[int, tuple[int, ...]], bool]:
    """The node that makes a result differ, or None; the dimensions of results to cut; whether all of them are finite."""
    aligned = [(a.op, str(a.target)) for a in short.nodes] == [(b.op, str(b.target)) for b in long.nodes]
    differs: dict[Node, bool] = {}
    poisoned: Node | None = None
    with torch.no_grad(), _double_by_default():
        if aligned:
            for a, b in zip(short.nodes, long.nodes):
                x, y = short.step(a), long.step(b)
                differs[b] = _differ(x, y, longer, any(differs.get(n, False) for n in b.all_input_nodes))
                if poisoned is None and _is_poisoned(x, y):
                    poisoned = b
                if a.op != "output":
                    short.forget(a)
                    long.forget(b)
        else:
            for run in (short, long):
                for node in run.nodes:
                    run.step(node)
    cuts: dict[int, tuple[int, ...]] = {}
    finite = True
    both = zip(results(short.program.graph), results(long.program.graph))
    for number, (of_short, of_long) in enumerate(both):
        if not isinstance(of_long, Node):
            continue
        x, y = short.env[node_in(of_short)], long.env[of_long]
        if not isinstance(y, torch.Tensor):
            continue
        assert isinstance(x, torch.Tensor), "both graphs return tensors at the same places"
        finite &= not y.is_floating_point() or bool(torch.isfinite(_prefix(x, y)).all())
        if _differ(x, y, longer, True):
            return _root(of_long, differs) if aligned else _first_other(short.nodes, long.nodes), {}, finite
        if poisoned is not None:
            return poisoned, {}, finite
        cuts[number] = tuple(dim for dim, (m, n) in enumerate(zip(x.shape, y.shape)) if m != n)
    return None, cuts, finite


def _differ(x: object, y: object, longer: int, unknown: bool) -> bool:
    """True if `x` is not the first part of `y`, in dimensions that are longer; `unknown` where the two cannot be compared."""
    if isinstance(y, (tuple, list)):
        return isinstance(x, (tuple, list)) and any(_differ(a, b, longer, unknown) for a, b in zip(x, y))
    if not isinstance(y, torch.Tensor) or not isinstance(x, torch.Tensor):
        return False
    if x.dim() != y.dim() or any(n - m not in (0, longer) for m, n in zip(x.shape, y.shape)):
        return unknown  # as where the length is one dimension with another
    part = _prefix(x, y)
    if not x.is_floating_point():
        return not torch.equal(x, part)
    scale = x[torch.isfinite(x)].abs().max().item() if torch.isfinite(x).any() else 0.0
    return not torch.allclose(part, x, rtol=1e-7, atol=_TOLERANCE * max(scale if scale < 1e30 else 0.0, 1e-30), equal_nan=True)


def _is_poisoned(x: object, y: object) -> bool:
    """True where padding alone makes a NaN: no result shows it, and every gradient that it is multiplied with is one."""
    if isinstance(y, (tuple, list)):
        return isinstance(x, (tuple, list)) and any(_is_poisoned(a, b) for a, b in zip(x, y))
    if not isinstance(y, torch.Tensor) or not isinstance(x, torch.Tensor) or not y.is_floating_point():
        return False
    return bool(torch.isnan(y).any()) and not torch.isnan(x).any()


def _prefix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for dim, extent in enumerate(x.shape):
        if y.shape[dim] > extent:
            y = y.narrow(dim, 0, extent)
    return y


def _root(node: Node, differs: Mapping[Node, bool]) -> Node:
    """The first node on the way to this one that differs although what it reads does not."""
    while True:
        before = [n for n in node.all_input_nodes if differs.get(n)]
        if not before:
            return node
        node = before[-1]


def _first_other(short: Sequence[Node], long: Sequence[Node]) -> Node:
    """The node at which the graphs part."""
    return next((b for a, b in zip(short, long) if (a.op, str(a.target)) != (b.op, str(b.target)) and b.op == "call_function"),
                next(n for n in reversed(long) if n.op == "call_function"))


def _inputs(program: ExportedProgram) -> list[Node]:
    """The nodes of the arguments of the module."""
    by_name = {n.name: n for n in placeholders(program.graph)}
    return [by_name[s.arg.name] for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]


def draw_inputs(program: ExportedProgram, leaves: Sequence[object]) -> list[object]:
    """Inputs of the same shapes: floats, and indices that go into a table directly, are drawn anew."""
    draw = torch.Generator().manual_seed(7)
    drawn: list[object] = []
    for node, leaf in zip(_inputs(program), leaves):
        if not isinstance(leaf, torch.Tensor):
            drawn.append(leaf)
        elif leaf.is_floating_point():
            drawn.append(torch.randn(leaf.shape, generator=draw).to(leaf.dtype))
        else:
            rows = _rows_of_table(node)
            drawn.append(leaf if rows is None else torch.randint(0, rows, leaf.shape, generator=draw).to(leaf.dtype))
    return drawn


def _rows_of_table(node: Node) -> int | None:
    """Of the smallest table that the argument is an index of, as it is or moved."""
    pending = [node]
    rows: list[int] = []
    while pending:
        one = pending.pop()
        for user in one.users:
            if str(user.target) == "aten.embedding.default" and user.args[1] is one:
                rows.append(node_in(user.args[0]).meta["val"].shape[0])
            elif str(user.target) in _MOVES:
                pending.append(user)
    return min(rows, default=None)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


class _double_by_default:
    """For operators that make floats of nothing."""

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self._before)
