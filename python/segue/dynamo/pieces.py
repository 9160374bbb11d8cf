# ===- pieces.py - cuts a graph at what Segue lacks ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Cuts the graph that TorchDynamo captured into pieces for Segue and pieces for PyTorch.

The graph is cut before AOTAutograd makes forward and backward of it: each piece
then has a backward of its own, PyTorch's autograd joins them as at a graph
break, and no derivative is written here. A node joins the first piece of its
kind in which all that it reads is there, so that code which depends on nothing
that Segue makes (masks, positions) runs before the first program.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Iterator, Mapping, NamedTuple, Sequence, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from ..frontend.autocast import Around
from ..frontend.fx import autocast_of, node_in, placeholders
from ..frontend.writer import ELEMENT_TYPES

#: Key of `node.meta["custom"]`: the node of TorchDynamo's graph that one of AOTAutograd's comes from.
ORIGIN = "segue"

#: Modules of functions that change how what follows them is run: levels of vmap and of derivatives.
_CONTEXTS = ("torch.amp", "torch._functorch", "torch._C._functorch", "torch.autograd")
#: Calls that only note that something was used: `nn.Module.__init__` has one, which is traced where a function makes its loss.
_NOTES = (torch._C._log_api_usage_once,)
_CHEAP = {
    "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "contiguous", "size", "flatten",
    "getitem", "getattr", "to", "float", "long", "type", "detach", "unbind", "split", "chunk", "expand_as", "view_as", "dim",
    "int", "bool", "select", "narrow", "unflatten", "type_as", "clone", "arange", "zeros", "ones", "full",
}
#: Operators that are worth a program of their own.
_DEAR = {
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention", "layer_norm", "rms_norm",
    "embedding", "cross_entropy", "softmax", "log_softmax", "group_norm", "conv1d", "conv2d", "conv3d", "bilinear",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "multi_head_attention_forward", "dot", "mv", "outer",
    "tag_activation_checkpoint", "lstm", "gru", "rnn_tanh", "rnn_relu", "grouped_mm", "_grouped_mm", "grouped_mm_fallback",
}
#: Computing operators that are worth a program together.
_ENOUGH = 4


class Mode(NamedTuple):
    """The way a node is run: whether gradients are enabled, and under which autocasts."""

    grad: bool
    autocast: Around

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """A context for tracing or running what belongs to the mode."""
        with torch.set_grad_enabled(self.grad), self.autocast.entered():
            yield


class CannotCut(Exception):
    """Pieces of this graph would not do what the whole does; the text says why."""


class Piece(NamedTuple):
    """Nodes that run together.

    Attributes
    ----------
    module : GraphModule
        Takes and returns the values below, in their order.
    inputs, outputs : list of Node
        Of the whole graph.
    in_segue : bool
    mode : Mode
        How it runs.
    """

    module: GraphModule
    inputs: list[Node]
    outputs: list[Node]
    in_segue: bool
    mode: Mode


def mark_origins(graph_module: GraphModule) -> None:
    """Lets nodes that are traced from these say where they come from; those of a region are all of the node that calls it."""
    for node in graph_module.graph.nodes:
        for one in (node, *_inner(graph_module, node)):
            one.meta["custom"] = {**one.meta.get("custom", {}), ORIGIN: node.name}


def _inner(graph_module: GraphModule, node: Node) -> Iterator[Node]:
    """The nodes of the regions that a node calls: those under `torch.utils.checkpoint`, above all."""
    for region in node.all_input_nodes if node.op == "call_function" else ():
        path = str(region.target)
        called = getattr(graph_module, path, None) if region.op == "get_attr" and "." not in path else None
        if isinstance(called, GraphModule):
            for inner in called.graph.nodes:
                yield inner
                yield from _inner(called, inner)


def origin_of(node: Node) -> str | None:
    """Name of the node of TorchDynamo's graph that this one was traced from."""
    origin: str | None = node.meta.get("custom", {}).get(ORIGIN)
    return origin


def operators_in(graph_module: GraphModule) -> int:
    """Calls of functions and methods that are more than bookkeeping."""
    return sum(_is_operator(one) for n in graph_module.graph.nodes for one in list(_inner(graph_module, n)) or [n])


def _is_operator(node: Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module") and _name(node) not in (
        "getitem", "size", "getattr", "_enter_autocast", "_exit_autocast")


def cut(graph_module: GraphModule, refused: set[str]) -> list[Piece]:
    """The pieces in the order in which they run.

    Parameters
    ----------
    refused : set of str
        Names of nodes that must run in PyTorch.

    Raises
    ------
    CannotCut
        For contexts and changes in place that reach over a cut.
    """
    graph = graph_module.graph
    nodes = [n for n in graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    modes, switches = _modes(nodes)
    nodes = [n for n in nodes if n not in switches and n.target not in _NOTES]
    for node in nodes:
        if (getattr(node.target, "__module__", None) or "").startswith(_CONTEXTS) or not (
                node.users or _changed(node) or isinstance(node.meta.get("example_value"), torch.Tensor)):
            raise CannotCut(f"{node.name} changes how what follows it is run")
    changed = {storage for n in nodes for storage in _changed(n)}
    in_order = bool(changed) or len({modes[n] for n in nodes}) > 1
    given = [n.meta.get("example_value") for n in placeholders(graph)]
    changed -= {_storage(v) for v in given if isinstance(v, torch.Tensor)}  # AOTAutograd writes these back
    outside = {n for n in nodes if n.name in refused or any(map(_lacks, (n, *n.all_input_nodes)))}
    outside |= _before_all_parameters(nodes, outside)
    while True:
        levels = _levels(nodes, outside, modes, in_order)
        torn = _torn(nodes, levels, changed)
        more = (_poor(nodes, levels, outside) | torn) - outside
        if not more:
            break
        outside |= more
    if torn:
        raise CannotCut(f"{next(n.name for n in nodes if n in torn)} is changed in place, or viewed, in several pieces")
    return [_piece(graph_module, level, [n for n in nodes if levels[n] == level], modes)
            for level in sorted(set(levels.values()))]


def _lacks(node: Node) -> bool:
    """True for a tensor of an element type that Segue lacks."""
    value = node.meta.get("example_value")
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and v.dtype not in ELEMENT_TYPES for v in values)


def _before_all_parameters(nodes: Sequence[Node], outside: set[Node]) -> set[Node]:
    """What leads to a refused node without a parameter or a product: masks and positions, made by PyTorch in one go."""
    reads: dict[Node, bool] = {}
    for node in nodes:
        reads[node] = _name(node) in _DEAR or any(
            reads.get(n, isinstance(n.meta.get("example_value"), torch.nn.Parameter)) for n in node.all_input_nodes)
    found, pending = set[Node](), [n for n in outside if not reads[n]]
    while pending:
        node = pending.pop()
        if node in reads and node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _modes(nodes: Sequence[Node]) -> tuple[dict[Node, Mode], set[Node]]:
    """Returns how each node is run, and the nodes that only say so."""
    mode = Mode(torch.is_grad_enabled(), Around.now())
    modes: dict[Node, Mode] = {}
    entered: dict[Node, Mode] = {}
    switches: set[Node] = set()
    for node in nodes:
        if node.target is torch._C._set_grad_enabled:
            mode = mode._replace(grad=cast(bool, node.args[0]))
            switches.add(node)
        elif node.target is torch.amp.autocast_mode._enter_autocast:
            entered[node] = mode
            mode = mode._replace(autocast=mode.autocast.within(*autocast_of(node)))
            switches.add(node)
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            mode = mode._replace(autocast=entered[node_in(node.args[0])].autocast)
            switches.add(node)
        modes[node] = mode
    return modes, switches


def _levels(nodes: Sequence[Node], outside: set[Node], modes: Mapping[Node, Mode], in_order: bool) -> dict[Node, int]:
    """The number of the piece of each node: even ones run in PyTorch, odd ones in Segue."""
    levels: dict[Node, int] = {}
    least = 0
    mode: Mode | None = None
    for node in nodes:
        if _is_part(node) and (whole := node_in(node.args[0])) in levels:
            levels[node] = levels[whole]
            if whole in outside:
                outside.add(node)
            continue
        level = max([least] + [levels[n] for n in node.all_input_nodes if n in levels])
        if mode is not None and modes[node] != mode:
            level = max(level, *levels.values()) + 1
        mode = modes[node]
        if level % 2 == (node in outside):
            level += 1
        levels[node] = level
        if in_order:
            least = level
    return levels


def _poor(nodes: Sequence[Node], levels: Mapping[Node, int], outside: set[Node]) -> set[Node]:
    """Nodes of pieces for Segue that are not worth a program."""
    pieces: dict[int, list[Node]] = {}
    for node in nodes:
        if node not in outside:
            pieces.setdefault(levels[node], []).append(node)
    found: set[Node] = set()
    for piece in pieces.values():
        names = [_name(n) for n in piece]
        if not _DEAR & set(names) and sum(n not in _CHEAP for n in names) < _ENOUGH:
            found.update(piece)
    return found


def _piece(whole: GraphModule, level: int, nodes: list[Node], modes: Mapping[Node, Mode]) -> Piece:
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs: list[Node] = []
    outputs: list[Node] = []
    own = set(nodes)

    def enter(node: Node) -> None:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
        else:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
            setattr(copies[node], "_dynamo_source", getattr(node, "_dynamo_source", None))
            inputs.append(node)

    outer = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in own)
    for node in sorted(outer, key=lambda n: n.op == "get_attr"):  # placeholders come first
        enter(node)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in nodes:
        if any(user not in own for user in node.users):
            if not isinstance(node.meta.get("example_value"), (torch.Tensor, torch.SymInt, int)):
                raise CannotCut(f"{node.name}, which is no tensor, is read behind the cut")
            outputs.append(node)
    graph.output(tuple(copies[n] for n in outputs))
    module = GraphModule(whole, graph)
    # AOTAutograd asks this of a graph of TorchDynamo.
    module.meta = whole.meta
    setattr(module, "_param_name_to_source", getattr(whole, "_param_name_to_source", {}))
    return Piece(module, inputs, outputs, level % 2 == 1, modes[nodes[0]])


def _is_part(node: Node) -> bool:
    """True for an element of what another node gives: that is never cut off."""
    return node.target is operator.getitem and isinstance(node.args[0], Node) and not isinstance(
        node.args[0].meta.get("example_value"), torch.Tensor)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _changed(node: Node) -> list[int]:
    """The storages that a node changes in place."""
    name = _name(node)
    targets: list[Argument] = []
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        targets = list(node.all_input_nodes)
    elif name == "setitem" or name.endswith("_") and not name.endswith("__"):
        targets = [node.args[0]]
    elif node.op == "call_function" and node.target in (
            operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand, operator.ior, operator.ixor):
        targets = [node.args[0]]
    elif name in ("batch_norm", "instance_norm"):  # the running statistics
        targets = list(node.args[1:3]) + [node.kwargs.get("running_mean"), node.kwargs.get("running_var")]
    elif name in ("embedding", "embedding_bag"):  # rows above `max_norm` are scaled
        limit = node.kwargs.get("max_norm", node.args[3] if len(node.args) > 3 else None)
        targets = list(node.args[1:2]) if isinstance(limit, (int, float)) and not isinstance(limit, bool) else []
    if node.kwargs.get("inplace") is True and node.args:
        targets = [node.args[0]]
    if isinstance(node.kwargs.get("out"), Node):
        targets.append(node.kwargs["out"])
    found = []
    for target in targets:
        if isinstance(target, Node) and isinstance(value := target.meta.get("example_value"), torch.Tensor):
            found.append(_storage(value))
    return found


def _storage(value: torch.Tensor) -> int:
    address: int = value.untyped_storage()._cdata
    return address


def _torn(nodes: Sequence[Node], levels: Mapping[Node, int], changed: set[int]) -> set[Node]:
    """The nodes that make, view or change what is made in the graph and changed in place, where that is in more than one piece."""
    touching: dict[int, list[Node]] = {}
    for node in nodes:
        value = node.meta.get("example_value")
        values = value if isinstance(value, (list, tuple)) else [value]
        for storage in {_storage(v) for v in values if isinstance(v, torch.Tensor)} | set(_changed(node)):
            if storage in changed:
                touching.setdefault(storage, []).append(node)
    return {n for several in touching.values() if len({levels[n] for n in several}) > 1 for n in several}
