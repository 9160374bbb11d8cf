# ===- graphs.py - from the graphs of AOTAutograd to the segue dialect -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Translates the forward and backward graphs that AOTAutograd makes of a piece of a program.

Both become functions of one module, so that the compiler knows what forward
saves for backward. In AOTAutograd's convention forward returns what the caller
wants, then every saved tensor; backward takes these and the gradients. Here a
saved tensor is one of three things:

- an input of the caller or an output to him: both functions share it by name;
- a *base*: a value that forward keeps for backward (role `saved`);
- something seen through, or generated: a view of a base, or a value that depends on
  no input (a constant mask, random numbers). Backward computes it again: views
  of one base are saved once, and a dropout mask is saved as its seed.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Iterable, Mapping, NamedTuple, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from ..errors import UnsupportedOpError
from .fx import node_in, placeholders, results
from .nodes import NodeTranslator, Refused, Symbols, Values
from .ops.sources import RANDOM
from .writer import GraphWriter, Value, element_type, nothing, port_attributes, tensor_type

SEED = "seed"

_SAME_SIZE_VIEWS = {
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.permute.default", "aten.transpose.int",
    "aten.t.default", "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
    "aten.detach.default", "aten.alias.default", "aten.expand.default",
}
_PARTIAL_VIEWS = {"aten.select.int", "aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"}
_CASTS = {"aten._to_copy.default", "prims.convert_element_type.default"}
# Ops that cost more to compute again than to keep, whatever their operands are.
_NEVER_AGAIN = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}


_CPU = torch.device("cpu")


class Output(NamedTuple):
    """An output of the program, by its place among them. With `order`, it lies so that its dimensions in this order are
    dense. `device` is where PyTorch has it, here and in the next ones."""

    place: int
    order: tuple[int, ...] | None = None
    device: torch.device = _CPU


class Given(NamedTuple):
    """An argument of the call itself."""

    position: int


class Constant(NamedTuple):
    """A number or None."""

    value: object


class Empty(NamedTuple):
    """A tensor without elements: no program gives it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = _CPU


class Saved(NamedTuple):
    """A saved tensor that stays in the runtime; `name` of the base behind it, if there is one."""

    name: str | None
    device: torch.device = _CPU


class Gradient(NamedTuple):
    """The gradient that backward gives for the input of that name."""

    name: str
    device: torch.device = _CPU


#: What stands for a result of forward, and for one of backward.
ForwardResult = Output | Given | Empty | Constant | Saved
BackwardResult = Gradient | Given | Empty | Constant


@dataclass
class BackwardPlan:
    """The plan by which a call of the backward graph becomes one of the program.

    Attributes
    ----------
    saved : list of (position, base or None)
        Arguments that stand for saved tensors.
    values : list of (position, name)
        Arguments that backward reads again: inputs and outputs of forward.
    gradients : list of (position, name of the output, order of its dimensions or None)
    results : list of Gradient, Given, Empty or Constant
    """

    placeholders: list[str] = field(default_factory=list)
    saved: list[tuple[int, str | None]] = field(default_factory=list)
    values: list[tuple[int, str]] = field(default_factory=list)
    gradients: list[tuple[int, str, tuple[int, ...] | None]] = field(default_factory=list)
    results: list[BackwardResult] = field(default_factory=list)


@dataclass
class CapturedGraphs:
    """Graphs as a module of the `segue` dialect, and the way from calls to it.

    Attributes
    ----------
    text : str
        The MLIR module: `@forward`, and `@backward` where there is one.
    inputs : list of (position, name)
        Arguments of the call that the program takes.
    results : list of Output, Given, Empty, Constant or Saved
        What a call returns.
    random : bool
        Takes the input `seed` besides.
    backward : BackwardPlan or None
    """

    text: str
    inputs: list[tuple[int, str]]
    results: list[ForwardResult]
    random: bool
    backward: BackwardPlan | None


class Port(NamedTuple):
    """A result of `@forward`."""

    value: Value
    name: str
    role: str  # output, saved
    order: tuple[int, ...] | None = None  # of its dimensions, as in Output


@dataclass(frozen=True)
class Primal:
    """An argument as far as it is known: a name for people, its role, and whether the call changes it in place."""

    name: str
    role: str  # input, parameter, frozen
    changes: bool = False


def capture_graphs(forward: GraphModule, backward: GraphModule | None, primals: list[Primal], outputs: int,
                   symbols: Symbols | None = None) -> CapturedGraphs | list[UnsupportedOpError]:
    """Translate a forward graph, and the backward graph that belongs to it or None.

    Parameters
    ----------
    primals : list
        One for each placeholder of `forward`; their names are unique.
    outputs : int
        How many results of `forward` are for the caller; the others are saved.
    symbols : mapping
        Numbers for the symbols of symbolic shapes.

    Returns
    -------
    The captured graphs, or everything that cannot be translated.
    """
    refusals: list[UnsupportedOpError] = []
    captured = _Capture(forward, backward, primals, outputs, symbols or {}, refusals).run()
    return refusals if captured is None else captured


class _Capture:

    def __init__(self, forward: GraphModule, backward: GraphModule | None, primals: list[Primal], outputs: int,
                 symbols: Symbols, refusals: list[UnsupportedOpError]) -> None:
        self.forward, self.backward = forward, backward
        self.placeholders = placeholders(forward.graph)
        self.primals = dict(zip(self.placeholders, primals, strict=True))
        self.positions = {node: i for i, node in enumerate(self.placeholders)}
        returned = list(results(forward.graph))
        self.returned, self.kept = returned[:outputs], returned[outputs:]
        self.symbols, self.refusals = symbols, refusals
        self.locations: dict[str, int] = {}
        self.random_ids: dict[Node, int] = {}
        self.results: list[Port] = []
        self.indices: dict[Node, int] = {}  # of nodes that are results of @forward as they are
        self.inputs: dict[Node, Value] = {}

    def run(self) -> CapturedGraphs | None:
        writer, translator = self._function()
        env = self._bind_inputs(translator)
        self._translate(translator, self.forward, env)
        if self.refusals:
            if self.backward is not None:  # names all that is in the way; values do not matter
                self._run_backward(self.backward, writer.random_id, {}, dict.fromkeys(self.forward.graph.nodes, None))
            return None
        given = [self._return(writer, translator, env, node, i) for i, node in enumerate(self.returned)]
        bases = self._bases(translator)
        given += [self._keep(translator, env, node, bases) for node in self.kept]
        plan, text = None, ""
        if self.backward is not None:
            plan, text, random = self._run_backward(self.backward, writer.random_id, bases, env)
            if self.refusals:
                return None
            writer.uses_random |= random
        ports = [(port.value, port_attributes(port.name, port.role)) for port in self.results]
        forward = writer.function("forward", self._ports(writer), ports)
        locations = "\n".join(f"#loc{number} = loc({at})" for at, number in self.locations.items())
        inputs = [(self.positions[node], self.primals[node].name) for node in self.inputs]
        return CapturedGraphs(f"module {{\n{forward}\n{text}}}\n{locations}\n", inputs, given, writer.uses_random, plan)

    def _function(self) -> tuple[GraphWriter, NodeTranslator]:
        writer = GraphWriter(self.locations, counts_steps=False)  # each call has a seed of its own
        return writer, NodeTranslator(writer, self.symbols, self.refusals)

    def _translate(self, translator: NodeTranslator, graph_module: GraphModule, env: Values,
                   nodes: Iterable[Node] | None = None) -> None:
        """Translates node by node, so that a random one has the same id wherever it is translated."""
        writer = translator.writer
        for node in graph_module.graph.nodes if nodes is None else nodes:
            if node in self.random_ids:
                following, writer.random_id = writer.random_id, self.random_ids[node]
                translator.translate(graph_module, env, [node])
                writer.random_id = following
            else:
                before = writer.random_id
                translator.translate(graph_module, env, [node])
                if writer.random_id != before:
                    self.random_ids[node] = before

    # --- forward --------------------------------------------------------------------

    def _bind_inputs(self, translator: NodeTranslator) -> Values:
        env: Values = {}
        read = {node for node in self.placeholders if node.users}
        for node, primal in self.primals.items():
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                env[node] = translator.number(value)
            elif node in read:
                shape = translator.shape(value)
                if refusal := _refusal(primal.name, value.dtype):
                    refusal.node = node
                    self.refusals.append(refusal)
                    env[node] = Refused
                    continue
                if 0 in shape:
                    env[node] = nothing(shape, value.dtype)
                    continue
                env[node] = self.inputs[node] = Value(f"%arg{len(self.inputs)}", shape, value.dtype)
        return env

    def _ports(self, writer: GraphWriter) -> list[tuple[Value, str]]:
        ports = [(v, port_attributes(self.primals[n].name, self.primals[n].role)) for n, v in self.inputs.items()]
        if writer.uses_random:
            ports.append(_seed_port())
        return ports

    def _return(self, writer: GraphWriter, translator: NodeTranslator, env: Values, node: Argument,
                index: int) -> ForwardResult:
        """Returns what the caller gets at this place."""
        if not isinstance(node, Node):
            return Constant(node)
        if node in self.positions:
            return Given(self.positions[node])
        value = env[node]
        if not isinstance(value, Value):
            return Constant(value)
        if value.is_empty:
            return Empty(value.shape, value.dtype, node.meta["val"].device)
        order = _order(node.meta["val"], translator)
        if order is not None:
            value = writer.transpose(value, order)
        else:
            self.indices.setdefault(node, len(self.results))
        self.results.append(Port(value, f"out{index}", "output", order))
        return Output(len(self.results) - 1, order, node.meta["val"].device)

    def _bases(self, translator: NodeTranslator) -> dict[Node, Node | None]:
        """Returns for each saved node what must be kept for it: the node of a base, or None where nothing must."""
        kept = [n for n in self.kept if isinstance(n, Node) and isinstance(n.meta.get("val"), torch.Tensor)
                and 0 not in translator.shape(n.meta["val"])]
        whole = {n: self._weight_behind(n) or _behind(n, _SAME_SIZE_VIEWS | _PARTIAL_VIEWS) for n in kept}
        # Parts are seen through where that keeps no more bytes than the parts.
        parts: dict[Node, int] = {}
        for node, base in whole.items():
            parts[base] = parts.get(base, 0) + _size(_behind(node, _SAME_SIZE_VIEWS))
        bases: dict[Node, Node | None] = {}
        for node, base in whole.items():
            available = self._stays(base) or base in self.indices
            chosen = base if available or parts[base] >= _size(base) else _behind(node, _SAME_SIZE_VIEWS)
            bases[node] = None if _is_generated(chosen) else chosen
        return bases

    def _weight_behind(self, node: Node) -> Node | None:
        """The parameter or buffer that the node has with another element type, if it is one.

        It is there until backward anyhow; a copy, as autocast makes of each weight, is made again.
        """
        source = _behind(node, _SAME_SIZE_VIEWS | _CASTS)
        return source if self._stays(source) and self.primals[source].role != "input" else None

    def _stays(self, node: Node) -> bool:
        """True for an argument that backward can read as it was: not for one that the call changes in place."""
        return node in self.primals and not self.primals[node].changes

    def _keep(self, translator: NodeTranslator, env: Values, node: Argument,
              bases: Mapping[Node, Node | None]) -> ForwardResult:
        """Returns what stands for a saved tensor among the results of the call."""
        if not isinstance(node, Node):
            return Constant(node)
        value = node.meta["val"]
        if node not in bases:
            return Empty(translator.shape(value), value.dtype, value.device) if isinstance(value, torch.Tensor) else Constant(
                translator.number(value))
        base = bases[node]
        if base is None:
            return Saved(SEED if any(str(n.target) in RANDOM for n in _cone(node, None)) else None, value.device)
        if self._stays(base):
            return Given(self.positions[base])
        if base not in self.indices:
            self.indices[base] = len(self.results)
            self.results.append(Port(_value(env, base), f"saved.{base.name}", "saved"))
        port = self.results[self.indices[base]]
        return Output(self.indices[base], device=value.device) if port.role == "output" else Saved(port.name, value.device)

    # --- backward -------------------------------------------------------------------

    def _is_itself(self, saved: Node | None, bases: Mapping[Node, Node | None]) -> bool:
        """True for an argument of backward that is the tensor: not for one in the place of which something else was kept."""
        return saved is None or saved not in bases or bases[saved] is saved and self._stays(saved)

    def _run_backward(self, backward: GraphModule, random_id: int, bases: Mapping[Node, Node | None],
                      forward_env: Values) -> tuple[BackwardPlan | None, str, bool]:
        """The plan of backward, its function, and whether it draws random numbers; with refusals none of these."""
        writer, translator = self._function()
        writer.random_id = random_id
        plan, env = BackwardPlan(), Values()
        arguments: dict[str, tuple[Value, str]] = {}
        # Values that are computed again may read the numbers that forward was given.
        again = {n: forward_env[n] for n in self.forward.graph.nodes if _is_number(n)}
        by_name = {n.name: n for n in self.kept if isinstance(n, Node)}
        free: dict[str, list[Port]] = {}  # outputs that no gradient belongs to yet, by type
        for port in self.results:
            if port.role == "output":
                shape = port.value.shape if port.order is None else _reordered(port.value.shape, _inverse(port.order))
                free.setdefault(tensor_type(shape, port.value.dtype), []).append(port)

        def argument(name: str, role: str, value: Value, of: str = "") -> Value:
            if name not in arguments:
                port = Value(f"%arg{len(arguments)}", value.shape, value.dtype)
                arguments[name] = (port, port_attributes(name, role, of))
            return arguments[name][0]

        given = placeholders(backward.graph)
        for position, node in enumerate(given):
            plan.placeholders.append(node.name)
            saved = by_name.get(node.name)
            if not isinstance(node.meta.get("val"), torch.Tensor):
                env[node] = translator.number(node.meta.get("val"))
            elif 0 in translator.shape(node.meta["val"]) and not _refusal("", node.meta["val"].dtype):
                env[node] = nothing(translator.shape(node.meta["val"]), node.meta["val"].dtype)
            elif saved is None:
                shape, dtype = translator.shape(node.meta["val"]), node.meta["val"].dtype
                if refusal := _refusal(node.name, dtype):
                    self.refusals += [] if self.refusals else [refusal]  # its output has said so
                    env[node] = Refused
                elif node.users and not self.refusals:
                    # Whichever output of this type: the name only joins what comes in to what takes it.
                    of = free[tensor_type(shape, dtype)].pop(0)
                    gradient = argument(f"grad.{of.name}", "gradient", of.value, of.name)
                    plan.gradients.append((position, of.name, of.order))
                    env[node] = gradient if of.order is None else writer.transpose(gradient, _inverse(of.order))
                else:
                    env[node] = Value("%gradient", shape, dtype)
            elif self.refusals:
                shape, dtype = translator.shape(saved.meta["val"]), saved.meta["val"].dtype
                env[node] = Refused if _refusal("", dtype) else Value("%saved", shape, dtype)
            else:
                base = bases[saved]
                if base is None:
                    random = any(str(n.target) in RANDOM for n in _cone(saved, None))
                    plan.saved.append((position, SEED if random else None))
                elif self._stays(base):
                    primal = self.primals[base]
                    again[base] = argument(primal.name, primal.role, _value(forward_env, base))
                    plan.values.append((position, primal.name))
                else:
                    port = self.results[self.indices[base]]
                    again[base] = argument(port.name, "saved", port.value)
                    (plan.saved if port.role == "saved" else plan.values).append((position, port.name))
                self._translate(translator, self.forward, again, [n for n in _cone(saved, base) if n not in again])
                env[node] = again[saved]
        self._translate(translator, backward, env)
        if self.refusals:
            return None, "", False
        gradients: list[tuple[Value, str]] = []
        for result, primal in zip(results(backward.graph), self.primals.values()):
            if not isinstance(result, Node):
                plan.results.append(Constant(result))
            elif result in given and self._is_itself(by_name.get(result.name), bases):
                plan.results.append(Given(given.index(result)))
            elif not isinstance(value := env[result], Value):
                plan.results.append(Constant(value))
            elif value.is_empty:
                plan.results.append(Empty(value.shape, value.dtype, result.meta["val"].device))
            else:
                gradients.append((value, port_attributes(f"grad.{primal.name}", "gradient", primal.name)))
                plan.results.append(Gradient(primal.name, result.meta["val"].device))
        ports = list(arguments.values()) + ([_seed_port()] if writer.uses_random else [])
        return plan, writer.function("backward", ports, gradients) + "\n", writer.uses_random


def _reordered(values: Sequence[int], order: Iterable[int]) -> tuple[int, ...]:
    return tuple(values[i] for i in order)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _seed_port() -> tuple[Value, str]:
    return Value("%seed", (), torch.int64), port_attributes(SEED, "hyper")


def _refusal(name: str, dtype: torch.dtype) -> UnsupportedOpError | None:
    """Why a tensor cannot enter a program, or None."""
    try:
        element_type(dtype)
    except ValueError as error:
        return UnsupportedOpError(f"input {name!r}: {error}", report={"op": f"input {name!r}", "module": "", "source": ""})
    return None


def _value(env: Values, node: Node) -> Value:
    """The tensor that a node is in the program."""
    value = env[node]
    assert isinstance(value, Value), f"{node.name} is no tensor"
    return value


def _behind(node: Node, views: set[str]) -> Node:
    """The node that this one is a view of."""
    while node.op == "call_function":
        source = node.args[0] if str(node.target) in views else None
        if source is None and node.target is operator.getitem:
            several = node_in(node.args[0])
            source = several.args[0] if str(several.target) in views else None
        if source is None:
            break
        node = node_in(source)
    return node


def _is_number(node: Node) -> bool:
    """True for what a call knows before it runs, sizes above all: no tensor needs to be there to compute it."""
    return isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_generated(node: Node) -> bool:
    """True if the node depends on no tensor that is given, and is cheap to compute again."""
    pending, seen = [node], set[Node]()
    while pending:
        one = pending.pop()
        if _is_number(one):
            continue
        if one.op == "placeholder" or str(one.target) in _NEVER_AGAIN:
            return False
        if one not in seen:
            seen.add(one)
            pending += one.all_input_nodes
    return True


def _cone(node: Node, base: Node | None) -> list[Node]:
    """The nodes from `base`, without it, to `node`, in order; without those of numbers."""
    found: dict[Node, None] = {}

    def visit(one: Node) -> None:
        if one is base or one in found or _is_number(one):
            return
        for source in one.all_input_nodes:
            visit(source)
        found[one] = None

    visit(node)
    return list(found)


def _size(node: Node) -> int:
    """Elements, with hints for symbolic sizes: for comparing only."""
    total = 1
    for extent in node.meta["val"].shape:
        total *= extent if isinstance(extent, int) else extent.node.hint or 1
    return total


def _order(value: torch.Tensor, translator: NodeTranslator) -> tuple[int, ...] | None:
    """Dimensions from the outermost to the innermost in memory, if PyTorch would lay this result out
    otherwise than row-major: views that a caller makes of it depend on that."""
    shape, strides = translator.shape(value), [translator.number(s) for s in value.stride()]
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], i))
    kept = [i for i in order if shape[i] != 1]
    if kept == sorted(kept):
        return None
    step = 1
    for i in reversed(kept):
        if strides[i] != step:
            return None  # overlaps or has gaps; row-major is as good
        step *= shape[i]
    return tuple(order)

