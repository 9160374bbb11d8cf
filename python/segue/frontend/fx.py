# ===- fx.py - what graphs of torch.fx hold, by type --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What graphs of `torch.fx` hold, by type.

An argument of a node is a node, a number, a text, or a list, tuple or dictionary of such (`torch.fx.node.Argument`).
Which of these it is follows from the operator that takes it: code that knows the operator says here what it expects.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.export.graph_signature import InputSpec
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

#: An operator of PyTorch's, one overload of it.
Operator = torch._ops.OpOverload[..., Any]


def node_in(argument: Argument) -> Node:
    """The argument, which is a node."""
    assert isinstance(argument, Node), f"{argument!r} is no node"
    return argument


def placeholders(graph: Graph) -> list[Node]:
    """The nodes of the arguments of a graph, in their order."""
    return graph.find_nodes(op="placeholder")


def results(graph: Graph) -> Sequence[Argument]:
    """What a graph returns that returns several values."""
    found = graph.output_node().args[0]
    assert isinstance(found, (list, tuple)), f"{found!r} is one result"
    return found


def attribute(module: torch.nn.Module, path: str) -> Any:
    """What a dotted path leads to: a parameter, a buffer, a submodule."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def autocast_of(node: Node) -> tuple[str, torch.dtype | None, bool]:
    """What the entry of an autocast begins with: the place, the element type, and whether it is enabled."""
    place, dtype, enabled = node.args[:3]
    assert isinstance(place, str) and isinstance(enabled, bool), f"{node.name} enters no autocast"
    assert dtype is None or isinstance(dtype, torch.dtype), f"{node.name} has no element type"
    return place, dtype, enabled


def submodule(module: torch.nn.Module, path: str) -> GraphModule:
    """The region of a graph, such as one without gradients, that a dotted path leads to."""
    found = attribute(module, path)
    assert isinstance(found, GraphModule), f"{path} is no graph"
    return found


def target_of(spec: InputSpec) -> str:
    """The path of the parameter, buffer or constant that an input of an exported graph stands for."""
    assert spec.target is not None, f"{spec} stands for none"
    return spec.target
