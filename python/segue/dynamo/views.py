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

import torch


class Views:
    """Makes the results of a graph that are views of others, or of arguments.

    `with_bases` is the graph with further results, `added` in number, behind those that are no saved tensors: what several results are views of
    and it does not return.
    """

    def __init__(self, graph: torch.fx.GraphModule, sources: dict[int, torch.fx.Node], count: int):
        """`sources` says by position of which node a result is a view; saved tensors come from `count` on."""
        results = list(graph.graph.find_nodes(op="output")[0].args[0])
        self._positions, self._count = tuple(sources), count
        bases = list(dict.fromkeys(node for node in sources.values() if node.op != "placeholder"))
        added = [node for node in bases if node not in results[:count]]
        self.added = len(added)
        self.with_bases = _with_results(graph, results[:count] + added + results[count:]) if added else graph
        self._bases = [(results[:count] + added).index(node) for node in bases]
        needed, waiting = set(), [results[p] for p in sources]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += () if node in bases else node.all_input_nodes
        views, copies = torch.fx.Graph(), {}
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._arguments = [i for i, node in enumerate(placeholders) if node in needed]
        for i in self._arguments:
            copies[placeholders[i]] = views.node_copy(placeholders[i])
        for i, node in enumerate(bases):
            copies[node] = views.placeholder(f"base_{i}")
        for node in graph.graph.nodes:
            if node in needed and node not in copies:
                copies[node] = views.node_copy(node, copies.__getitem__)
        views.output(tuple(copies[results[p]] for p in sources))
        self._views = torch.fx.GraphModule(graph, views)
        make_strides_free(self._views)

    def arguments(self, args: list) -> list:
        """What `place` needs of the arguments. The others need not be kept."""
        return [args[i] for i in self._arguments]

    def place(self, arguments: list, results: list) -> None:
        """Puts the views where they belong among what `with_bases` gave, and removes the bases that were added."""
        for position, view in zip(self._positions, self._views.forward(*arguments, *(results[b] for b in self._bases))):
            results[position] = view
        del results[self._count : self._count + self.added]


def views_of(graph: torch.fx.GraphModule, metadata, count: int) -> Views | None:
    """What makes the views among the first `count` results of `graph`, which are no saved tensors; None if there are none. `metadata` is
    AOTAutograd's."""
    results = graph.graph.find_nodes(op="output")[0].args[0]
    first = len(metadata.mutated_inp_runtime_indices)  # their new values come first
    of_arguments = {first + i for i, info in enumerate(metadata.output_info) if info.output_type.name == "alias_of_input"}
    found = {p: _source(node) for p, node in enumerate(results[:count]) if isinstance(node, torch.fx.Node)}
    sources = {}
    for position, source in found.items():
        if source.op == "placeholder":
            if position in of_arguments and source is not results[position]:
                sources[position] = source
        elif source is not results[position] and list(found.values()).count(source) > 1:
            sources[position] = source
    return Views(graph, sources, count) if sources else None


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """The node of which this one is a view; itself, where it is none."""
    while True:
        view = node.args[0] if node.target is operator.getitem else node
        if not (view.op == "call_function" and isinstance(view.target, torch._ops.OpOverload) and view.target.is_view):
            return node
        node = view.args[0]


def _with_results(graph: torch.fx.GraphModule, results: list) -> torch.fx.GraphModule:
    copy, copies = torch.fx.Graph(), {}
    copy.graph_copy(graph.graph, copies)
    output = copy.output([copies.get(node, node) if isinstance(node, torch.fx.Node) else node for node in results])
    output.meta = dict(graph.graph.find_nodes(op="output")[0].meta)
    return torch.fx.GraphModule(graph, copy)


def make_strides_free(graph):
    """Strides of real kernels are not always those that were traced, which views would refuse."""
    if graph is not None:
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        graph.recompile()
