# ===- scalars.py - arithmetic of Python's floats before a program ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Takes the arithmetic of float64 scalars out of a graph.

Once a Python float has changed between two calls, PyTorch makes a tensor of it,
float64 and without dimensions, computes with that as Python would, and converts
what meets other tensors. These few numbers are computed in PyTorch before each
call, so that no program has kernels of one element for them, and what they are
converted to is given to it.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from ..frontend.fx import placeholders
from .boxed import Flat


class Scalars:
    """What a graph computes of its float64 scalars alone."""

    def __init__(self, module: GraphModule, positions: list[int]):
        self._module, self._positions = module, positions

    def __call__(self, args: Flat) -> Flat:
        """The arguments, and behind them what was computed of them."""
        return [*args, *self._module(*(args[position] for position in self._positions))]


def take_scalars(graph_module: GraphModule) -> Scalars | None:
    """Makes arguments, the last ones before tangents, of what other nodes read of the scalars; None where there are none."""
    graph = graph_module.graph
    arguments = [n for n in placeholders(graph) if "tangents" not in str(n.target)]
    given = [n for n in arguments if _is_scalar(n) and n.meta["val"].dtype == torch.float64]
    if not given:
        return None
    own: dict[Node, None] = dict.fromkeys(given)
    for node in graph.nodes:
        if node.op == "call_function" and _is_scalar(node) and isinstance(node.target, torch._ops.OpOverload) and (
                not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags):
            made_of_nothing = not node.all_input_nodes and node.meta["val"].dtype == torch.float64
            if made_of_nothing or node.all_input_nodes and all(n in own for n in node.all_input_nodes):
                own[node] = None
    read = [n for n in own if n.op != "placeholder" and any(user not in own for user in n.users)]
    if not read:
        return None
    before = Graph()
    copies: dict[Node, Node] = {}
    for node in own:
        copies[node] = before.node_copy(node, copies.__getitem__)
    before.output([copies[n] for n in read])
    before.eliminate_dead_code()
    behind = arguments[-1]
    for number, node in enumerate(read):
        with graph.inserting_after(behind):
            behind = graph.placeholder(f"primals_scalar_{number}")
        behind.meta = {"val": node.meta["val"]}
        for user in [u for u in node.users if u not in own]:
            user.replace_input_with(node, behind)
    graph.eliminate_dead_code()
    graph_module.recompile()
    return Scalars(GraphModule(graph_module, before), [arguments.index(n) for n in given])


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0 and not value.requires_grad
