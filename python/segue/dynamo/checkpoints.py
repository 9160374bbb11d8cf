# ===- checkpoints.py - random numbers of what is computed again -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Random operators in regions under `torch.utils.checkpoint`.

PyTorch's partitioner computes such a region again in backward, and wraps each
random operator there so that it takes the state of the generator with which
forward ran. Segue's random numbers follow from a seed and a number per
operator, so no state is needed: backward is given the random tensor as if it
were saved, and draws it again from the seed of the call (`frontend.graphs`).

Within a budget a region is a hint. What PyTorch would compute again because it lies in a
region is saved like anything else, and the plan of a step decides value by value what
stays, what leaves the device and what is computed again.
"""

from __future__ import annotations

import operator

from typing import cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument
from torch.utils.checkpoint import CheckpointPolicy

from ..frontend.fx import Operator, node_in, placeholders, results
from ..frontend.ops.sources import RANDOM

_SAVE = torch.ops.higher_order.run_and_save_rng_state
_REPLAY = torch.ops.higher_order.run_with_rng_state


def forget_regions(joint: GraphModule) -> int:
    """Has the partitioner treat what lies in regions as it does the rest; returns how many regions there were."""
    regions: set[int | None] = set()
    for node in joint.graph.nodes:
        if node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
            del node.meta["recompute"]
            regions.add(node.meta.get("ac_graph_id"))
    return len(regions)


def unwrap_random(forward: GraphModule, backward: GraphModule) -> None:
    """Takes the states of the generator out of both graphs.

    Operators that merely may be random, such as attention without dropout, are computed again as any other.
    """
    if not forward.graph.find_nodes(op="call_function", target=_SAVE):
        return
    # Backward takes the states in the order in which forward returns them.
    for node, call in zip(_unwrap_forward(forward), _replays(backward), strict=True):
        state = node_in(call.args[0])
        if str(call.args[1]) in RANDOM:
            with backward.graph.inserting_before(state):
                again = backward.graph.placeholder(node.name)
        else:
            with backward.graph.inserting_before(call):
                again = _unwrapped(backward.graph, call, 1)
        again.meta = dict(node.meta)
        call.replace_all_uses_with(again)
        backward.graph.erase_node(call)
        backward.graph.erase_node(state)
    backward.recompile()


def _unwrapped(graph: Graph, call: Node, place: int) -> Node:
    """A call of the operator that is an argument of another call, with the arguments behind it."""
    return graph.call_function(cast(Operator, call.args[place]), tuple(call.args[place + 1 :]), dict(call.kwargs))


def _unwrap_forward(forward: GraphModule) -> list[Node]:
    """The operators themselves, in the order of their states among the results; the random ones take the place of these."""
    graph = forward.graph
    unwrapped: list[Node] = []
    wrappers: list[Node] = []
    returned: list[Argument] = []
    for state in results(graph):
        call = node_in(state.args[0]) if isinstance(state, Node) and state.target is operator.getitem else None
        if not isinstance(state, Node) or call is None or call.target is not _SAVE:
            returned.append(state)
            continue
        value = next(n for n in call.users if n.args[1] == 1)
        with graph.inserting_before(call):
            node = _unwrapped(graph, call, 0)
        node.meta = dict(value.meta)
        value.replace_all_uses_with(node)
        unwrapped.append(node)
        wrappers += (state, value, call)
        if str(node.target) in RANDOM:
            returned.append(node)
    graph.output_node().args = (tuple(returned),)
    for wrapper in wrappers:
        graph.erase_node(wrapper)
    forward.recompile()
    return unwrapped


def _replays(backward: GraphModule) -> list[Node]:
    """The wrapped operators in the order of their states among the arguments."""
    states = {node: place for place, node in enumerate(placeholders(backward.graph))}
    return sorted(backward.graph.find_nodes(op="call_function", target=_REPLAY), key=lambda call: states[call.args[0]])
