# ===- nodes.py - from the nodes of a graph to ops ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Translates the nodes of an FX graph, whoever captured it.

Every op is given its place (block of the model, module path, source line), and
each lowering is checked against the shape and element type that PyTorch
computed. Symbolic sizes, where a graph has them, are replaced by the numbers
of one call.
"""

from __future__ import annotations

import operator
import os
import re
from typing import Any, Callable, Iterable, Mapping, Sequence, cast, overload

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError, UnsupportedOpError
from . import lacking, ops
from .autocast import Around, Autocast
from .fx import attribute, autocast_of, placeholders, submodule
from .ops.table import Lowered, NodeBuilder, Unsupported
from .parts import Operand, parts_of
from .writer import ELEMENT_TYPES, GraphWriter, Value, tensor_type

TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

#: What the nodes of a graph are in the program: a `Value` for a tensor, a list of them for several tensors, and what it
#: is in Python for anything else.
Values = dict[Node, object]
#: The numbers that stand for the symbols of symbolic shapes.
Symbols = Mapping[object, object]

# Checks that hold by construction once shapes are static.
_IGNORED = {
    "aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_scalar.default",
    "aten.sym_constrain_range_for_size.default", "aten.sym_constrain_range.default",
}


class NodeTranslator:
    """Writes the nodes of a graph with `writer`.

    Parameters
    ----------
    symbols : mapping, optional
        The number that stands for each symbol of symbolic shapes.
    refusals : list, optional
        Where given, an operator that cannot be translated is entered here, as the error that it would
        raise, and what depends on it is tried nevertheless: so that all of them can be named at once.
    autocast : Around
        What the graph was captured under, where its casts are not in the graph.
    place : str
        Of its tensors, ``cpu`` or ``cuda``.
    takes_apart : bool
        Operators without a lowering are written in terms of others, where PyTorch or Segue knows how.
    """

    def __init__(self, writer: GraphWriter, symbols: Symbols | None = None,
                 refusals: list[UnsupportedOpError] | None = None, autocast: Around = Around(), place: str = "cpu",
                 takes_apart: bool = False) -> None:
        self.writer = writer
        self.takes_apart = takes_apart
        self._whole: Node | None = None  # the node of which parts are being translated
        self.autocast = Autocast(writer, autocast, place)
        self.symbols = symbols or {}
        self.refusals = refusals

    def translate(self, graph_module: GraphModule, env: Values, nodes: Iterable[Node] | None = None) -> object:
        """Translates `nodes` (default: all) of a graph; `env` has the values of its placeholders, and gets the others.

        Returns what the output node gives, if it is among the nodes.
        """
        for node in graph_module.graph.nodes if nodes is None else nodes:
            if node.op == "call_function":
                env[node] = self._guarded(graph_module, node, env)
            elif node.op == "get_attr" and isinstance(found := attribute(graph_module, str(node.target)), torch.Tensor):
                env[node] = self.writer.constant_tensor(found)
            elif node.op == "output":
                return pytree.tree_map_only(Node, lambda n: env.get(n), node.args[0])
        return None

    @overload
    def number(self, x: int) -> int: ...

    @overload
    def number(self, x: object) -> object: ...

    def number(self, x: object) -> object:
        """A symbolic number as the one of this call; others as they are."""
        if not isinstance(x, _NUMBERS):
            return x
        value = x.node.expr.xreplace(self.symbols)
        if getattr(value, "free_symbols", None):  # numbers have none
            raise UnsupportedOpError(f"the size {x.node.expr} depends on values", report={"op": "size"})
        kinds: dict[type, Callable[[Any], object]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
        return kinds[type(x)](value)

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(self.number(d) for d in x.shape)

    def _expected(self, x: object) -> object:
        if isinstance(x, torch.Tensor) and any(isinstance(d, torch.SymInt) for d in x.shape):
            return torch.empty(self.shape(x), dtype=x.dtype, device="meta")
        return x

    def _guarded(self, graph_module: GraphModule, node: Node, env: Values) -> object:
        if self.refusals is None:
            return self._run_node(graph_module, node, env)
        if any(env.get(n) is Refused for n in node.all_input_nodes):
            return Refused
        try:
            return self._run_node(graph_module, node, env)
        except UnsupportedOpError as refusal:
            self.refusals.append(refusal)
        except Exception as error:
            self.refusals.append(unsupported(node, f"{type(error).__name__}: {error}"))
        return pytree.tree_map(self._stand_in, node.meta.get("val"))

    def _stand_in(self, x: object) -> "Value | type[Refused]":
        """Returns a value in the place of what was refused, so that what reads it is tried as well."""
        if isinstance(x, torch.Tensor) and x.dtype in ELEMENT_TYPES:
            return Value("%refused", self.shape(x), x.dtype)
        return Refused

    def _run_node(self, graph_module: GraphModule, node: Node, env: Values) -> object:
        target = str(node.target)
        read: Callable[[Any], Any] = lambda tree: pytree.tree_map_only(Node, lambda n: env[n], tree)  # noqa: E731
        expected = node.meta.get("val")
        if node.target is operator.getitem:
            return read(node.args[0])[node.args[1]]
        if target in _IGNORED:
            return None
        if isinstance(expected, _NUMBERS):
            try:
                return self.number(expected)
            except UnsupportedOpError:
                raise unsupported(node, "it makes a Python number of what a tensor holds (.item(), float(), int(), .tolist()), and a program is "
                                        "compiled before it holds anything; keep it a tensor") from None
        if target in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            return self._run_wrapped(graph_module, node, read)
        self._move_to(node)
        if isinstance(node.target, torch._ops.HigherOrderOperator) and any(n not in env for n in node.all_input_nodes):
            raise self._unsupported(node, "it calls graphs of its own, as torch.cond does, and a program has one; use torch.where, or choose before the module is called")
        lowering = ops.OPS.get(target)
        if lowering is None and not self.takes_apart:
            raise self._without_lowering(node)
        if any(isinstance(x, torch.Tensor) and x.is_complex() for x in pytree.tree_leaves(expected)):
            raise self._unsupported(node, lacking.reason(operator_of(node)) or lacking.COMPLEX)
        try:
            several = expected if isinstance(expected, (list, tuple)) else [expected]
            results = cast(list[torch.Tensor], [self._expected(x) for x in several])
        except UnsupportedOpError:
            raise self._unsupported(node, "how many elements it gives depends on values of a tensor (a mask as an index, nonzero, unique), and the shapes "
                                          "of a program are fixed; use torch.where, or multiply by the mask") from None
        used = {cast(int, user.args[1]) for user in node.users if user.target is operator.getitem and user.users}
        first = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
        layout = None
        if isinstance(first, torch.Tensor):
            layout = ([self.number(s) for s in first.stride()], self.number(cast(int, first.storage_offset())))
        builder = NodeBuilder(self.writer, results, used, layout)
        args, kwargs = self.autocast.operands(node.target, read(node.args), read(node.kwargs))
        self.writer.cast_to.clear()
        try:
            if lowering is None:
                answer = self._run_parts(node, env, args, kwargs, used)
            elif _counts_dims_of_a_scalar(node.target, args):
                answer = self._run_on_rows(lowering, builder, args, kwargs)
            else:
                answer = lowering(builder, *args, **kwargs)
            self._check_digits(args, results)
            for place, (value, wanted) in enumerate(zip(answer if isinstance(answer, list) else [answer], results)):
                if value is None and wanted is not None and place in used:
                    raise Unsupported(f"its lowering does not give result {place}, which is read")
                if value is not None and (value.shape != tuple(wanted.shape) or value.dtype != wanted.dtype):
                    raise Unsupported(
                        f"its lowering gives {value.type}, PyTorch {tensor_type(tuple(wanted.shape), wanted.dtype)}")
        except UnsupportedOpError:
            raise
        except Unsupported as reason:
            raise self._unsupported(node, str(reason)) from None
        except InvalidArgumentError as error:
            raise self._unsupported(node, str(error)) from error
        except Exception as error:  # a case that its lowering was not written for
            how = "taking it apart" if lowering is None else "its lowering"
            raise self._unsupported(node, f"{how} fails with {type(error).__name__}: {error}") from error
        return answer

    def _run_parts(self, node: Node, env: Values, args: Sequence[object], kwargs: Mapping[str, object],
                   used: set[int]) -> Lowered:
        """Translates what an operator without a lowering is in terms of others, in its place."""
        read = [(env[n], n.meta.get("val")) for n in node.all_input_nodes]
        strides = {v.name: tuple(map(self.number, x.stride())) for v, x in read if isinstance(v, Value) and isinstance(x, torch.Tensor)}
        values: list[Value] = []

        def operand(value: Value) -> Operand:
            values.append(value)
            return Operand(value.shape, strides.get(value.name) or torch.empty(value.shape, device="meta").stride(), value.dtype)

        args, kwargs = pytree.tree_map_only(Value, operand, (tuple(args), dict(kwargs)))
        parts = parts_of(node.target, args, kwargs, used, self.autocast.around, self.autocast.place)
        if parts is None:
            raise self._without_lowering(node)
        around, self._whole = self._whole, self._whole or node
        try:
            given: Values = dict(zip(placeholders(parts.graph), values))
            answer = self.translate(parts, given)
            return list(answer) if isinstance(answer, tuple) else cast(Lowered, answer)
        finally:
            self._whole = around

    def _without_lowering(self, node: Node) -> UnsupportedOpError:
        why = lacking.reason(operator_of(node))
        return self._unsupported(node, f"it has no lowering: {why}" if why else "it has no lowering")

    def _unsupported(self, node: Node, reason: str) -> UnsupportedOpError:
        return unsupported(node, reason, self._whole)

    def _check_digits(self, args: Sequence[object], results: Sequence[object]) -> None:
        """Whoever computes in float64 wants its digits: a lowering that goes through f32 would lose them in silence."""
        types = {x.dtype for x in results if isinstance(x, torch.Tensor)}
        given = {v.dtype for v in pytree.tree_leaves(args) if isinstance(v, Value)}
        if torch.float64 in types | given and self.writer.cast_to - types - {torch.float64}:
            raise Unsupported("float64, which its lowering would compute in float32")

    def _run_on_rows(self, lowering: Callable[..., Lowered], builder: NodeBuilder, args: Sequence[object],
                     kwargs: Mapping[str, object]) -> Lowered:
        """A scalar has the dimension 0 in PyTorch: the lowering is given rows of one element in the place of scalars."""
        as_row = lambda v: builder.reshape(v, (1,)) if v.rank == 0 else v  # noqa: E731
        args, kwargs = pytree.tree_map_only(Value, as_row, (tuple(args), dict(kwargs)))
        answer = lowering(builder, *args, **kwargs)
        values = answer if isinstance(answer, list) else [answer]
        shaped = [None if v is None else builder.reshape(v, tuple(r.shape)) for v, r in zip(values, builder.results)]
        return shaped if isinstance(answer, list) else cast(Value, shaped[0])

    def _run_wrapped(self, graph_module: GraphModule, node: Node, read: Callable[[Any], Any]) -> object:
        """A region under no_grad or autocast is translated in place."""
        regions = [a for a in node.args if isinstance(a, Node) and a.op == "get_attr"]
        inner = submodule(graph_module, str(regions[0].target))
        operands = [read(a) for a in node.args[node.args.index(regions[0]) + 1 :]]
        around = self.autocast
        if str(node.target) == "wrap_with_autocast":
            self.autocast = Autocast(self.writer, around.around.within(*autocast_of(node)), around.place)
        answer = self.translate(inner, dict(zip(placeholders(inner.graph), operands)))
        self.autocast = around
        if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
            answer = pytree.tree_map_only(Value, self.writer.detach, answer)
        return answer

    def _move_to(self, node: Node) -> None:
        node = self._whole or node
        path, source = module_path(node), source_of(node)
        self.writer.block = _block(path)
        file, line = source or ("<unknown>", 0)
        self.writer.move_to(file, line, path)


def _counts_dims_of_a_scalar(target: object, args: Sequence[object]) -> bool:
    """True for an operator along a dimension whose first operand has none."""
    if not (args and isinstance(args[0], Value) and args[0].rank == 0 and isinstance(target, torch._ops.OpOverload)):
        return False
    if target._schema.name.endswith("_backward") or target._schema.name == "aten::unsqueeze":
        return False  # their dimension is one of the result
    schema = [(a.name, str(a.type)) for a in target._schema.arguments]
    return any(name in ("dim", "dim0") and kind in ("int", "Optional[int]") or
               name == "dims" and kind == "List[int]" and place < len(args) and args[place]
               for place, (name, kind) in enumerate(schema))


class Refused:
    """Stands for the value of a node that was not translated."""


def unsupported(node: Node, reason: str, whole: Node | None = None) -> UnsupportedOpError:
    """The error for an operator that cannot be translated; `whole` is the node that it is a part of, if it is one."""
    path, source = module_path(whole or node), source_of(whole or node)
    where = f"{source[0]}:{source[1]}" if source else "an unknown line"
    operator = str(operator_of(node))
    error = UnsupportedOpError(
        f"operator {operator} in module {path or '<top>'!r} at {where} is not supported: {reason}",
        report={"op": operator, "module": path, "source": where})
    error.node = node
    return error


def operator_of(node: Node) -> object:
    """What a node calls; of one that keeps its order among effects, as checks have, what it wraps."""
    return node.args[1] if str(node.target) == "with_effects" else node.target


def module_path(node: Node) -> str:
    """Path of the module that the node comes from, as in `named_modules`; of the forward's node for one of backward."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    path = next(reversed(stack.values()))[0] if stack else ""
    # Dynamo writes "L['self'].h.0" or "L['self']._modules['h']".
    path = re.sub(r"^[LG]\['[^']*'\]\.?", "", path)
    return re.sub(r"_modules\['([^']*)'\]", r"\1", path)


def source_of(node: Node) -> tuple[str, int] | None:
    """File and line of the innermost frame outside of PyTorch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not f[0].startswith((TORCH, "<eval_with_key>"))]
    chosen = (own or frames)[-1:]
    return (chosen[0][0], int(chosen[0][1])) if chosen else None


def _block(path: str) -> str | None:
    """The outermost numbered module on the path: "h.3" of "h.3.mlp.0.fc"."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: i + 1])
    return None
