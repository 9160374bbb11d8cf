# ===- views.py - results that are views of arguments -------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Results of a graph that share memory with its arguments or with each other, made as views of these.

A caller may write through such a result. AOTAutograd makes those of arguments, and those of a tensor that it has the graph return for this,
again from the whole tensor, with the sizes and strides of what the graph gave. A program gives each result in a tensor of its own, in a row: with
its strides the view would show other elements. (AOTAutograd repeats the views themselves where it can, but not symbolic sizes.) Other results that
share memory are left to the graph altogether.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from ..frontend.fx import node_in, placeholders, results
from .boxed import Flat

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta


class Views:
    """Makes the results of a graph that are views of others, or of arguments.

    `with_bases` is the graph with further results, `added` in number, behind those that are no saved tensors: what several results are views of
    and it does not return.
    """

    def __init__(self, graph: GraphModule, sources: dict[int, Node], count: int):
        """`sources` says by position of which node a result is a view; saved tensors come from `count` on."""
        given = list(results(graph.graph))
        self._positions, self._count = tuple(sources), count
        bases = list(dict.fromkeys(node for node in sources.values() if node.op != "placeholder"))
        added = [node for node in bases if node not in given[:count]]
        self.added = len(added)
        returned = [*given[:count], *added]
        self.with_bases: GraphModule | None = _with_results(graph, [*returned, *given[count:]]) if added else graph
        self._bases = [returned.index(node) for node in bases]
        needed, waiting = set[Node](), [node_in(given[p]) for p in sources]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += () if node in bases else node.all_input_nodes
        views = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        arguments = placeholders(graph.graph)
        self._arguments = [i for i, node in enumerate(arguments) if node in needed]
        for i in self._arguments:
            copies[arguments[i]] = views.node_copy(arguments[i])
        for i, node in enumerate(bases):
            copies[node] = views.placeholder(f"base_{i}")
        for node in graph.graph.nodes:
            if node in needed and node not in copies:
                copies[node] = views.node_copy(node, copies.__getitem__)
        views.output(tuple(copies[node_in(given[p])] for p in sources))
        self._views = GraphModule(graph, views)
        make_strides_free(self._views)

    def graph(self) -> GraphModule:
        """The graph with bases, as long as it is kept."""
        assert self.with_bases is not None, "it was kept for other sizes alone"
        return self.with_bases

    def arguments(self, args: Flat) -> Flat:
        """What `place` needs of the arguments. The others need not be kept."""
        return [args[i] for i in self._arguments]

    def place(self, arguments: Flat, results: Flat) -> None:
        """Puts the views where they belong among what `with_bases` gave, and removes the bases that were added."""
        for position, view in zip(self._positions, self._views.forward(*arguments, *(results[b] for b in self._bases))):
            results[position] = view
        del results[self._count : self._count + self.added]


def views_of(graph: GraphModule, metadata: ViewAndMutationMeta, count: int) -> Views | None:
    """What makes the views among the first `count` results of `graph`, which are no saved tensors; None if there are none. `metadata` is
    AOTAutograd's."""
    given = results(graph.graph)
    first = len(metadata.mutated_inp_runtime_indices)  # their new values come first
    of_arguments = {first + i for i, info in enumerate(metadata.output_info) if info.output_type.name == "alias_of_input"}
    found = {p: _source(node) for p, node in enumerate(given[:count]) if isinstance(node, Node)}
    sources: dict[int, Node] = {}
    for position, source in found.items():
        if source.op == "placeholder":
            if position in of_arguments and source is not given[position]:
                sources[position] = source
        elif source is not given[position] and list(found.values()).count(source) > 1:
            sources[position] = source
    return Views(graph, sources, count) if sources else None


def _source(node: Node) -> Node:
    """The node of which this one is a view; itself, where it is none."""
    while True:
        view = node_in(node.args[0]) if node.target is operator.getitem else node
        if not (view.op == "call_function" and isinstance(view.target, torch._ops.OpOverload) and view.target.is_view):
            return node
        node = node_in(view.args[0])


def _with_results(graph: GraphModule, wanted: Sequence[Argument]) -> GraphModule:
    copy = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    copy.graph_copy(graph.graph, copies)
    output = copy.output([copies.get(node, node) if isinstance(node, Node) else node for node in wanted])
    output.meta = dict(graph.graph.output_node().meta)
    return GraphModule(graph, copy)


def make_strides_free(graph: GraphModule | None) -> None:
    """Strides of real kernels are not always those that were traced, which views would refuse."""
    if graph is not None:
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        graph.recompile()
