# ===- equal_nodes.py - computes equal values of a graph once ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Merges equal nodes of a joint graph before it is cut.

The cut weighs each value that forward would save, so two nodes of the same value must be
one by then; the compiler, which merges equal ops too, sees the halves alone. PyTorch's
partitioner can do it, but imports half of inductor for that (1 s of a first step).
"""

from __future__ import annotations

import operator
from typing import Hashable

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef

#: Functions of Python's that graphs apply to sizes and to results of several tensors.
_PLAIN = {operator.getitem, *(getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg"))}


def merge_equal(graph: torch.fx.Graph) -> int:
    """Has each call of the same operator with the same arguments read the first one's results; returns how many went.

    Results that the caller gets stay apart, with all that shares their memory: in PyTorch they
    are tensors of their own. So do random numbers, memory without values, and what is read
    before and after a change in place.
    """
    kept_apart = {StorageWeakRef(s) for n in graph.output_node().all_input_nodes for s in _storages(n)}
    first: dict[Hashable, Node] = {}
    merged = 0
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            first.clear()
        if not _is_function(node) or any(StorageWeakRef(s) in kept_apart for s in _storages(node)):
            continue
        try:
            same = first.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        except TypeError:  # an argument that cannot be compared
            continue
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            merged += 1
    return merged


def _is_function(node: Node) -> bool:
    """True where equal arguments give equal results, whenever it runs."""
    if node.target in _PLAIN:
        value = node.meta.get("val")
        return not (isinstance(value, torch.SymInt) and free_unbacked_symbols(value))
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or node.target.overloadpacket is torch.ops.aten.empty:
        return False
    return bool(_tensors(node.meta.get("val")))


def _tensors(value: object) -> list[torch.Tensor]:
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]


def _storages(node: Node) -> list[torch.UntypedStorage]:
    try:
        return [v.untyped_storage() for v in _tensors(node.meta.get("val"))]
    except NotImplementedError:  # sparse ones have none
        return []


def _key(value: object) -> Hashable:
    """What two arguments have in common only if they are the same: 1 is not 1.0, and 0.0 is not -0.0."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(v)) for name, v in sorted(value.items()))
    if isinstance(value, slice):
        return "slice", _key([value.start, value.stop, value.step])
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(value), value.node.expr
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return type(value), value
