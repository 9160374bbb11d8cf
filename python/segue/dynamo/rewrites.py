# ===- rewrites.py - calls that AOTAutograd takes apart badly ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Calls of TorchDynamo's graph in the place of which AOTAutograd traces other ones.

Decompositions come too late for these: what PyTorch's autograd makes of them has
sizes that depend on values, or an operator that nothing can take apart. The
graph itself is as it was afterwards, for PyTorch to run what Segue refuses.
"""

from __future__ import annotations

import contextlib
import operator

import torch

from ..frontend.decompositions import BEFORE_AUTOGRAD
from ..frontend.recurrent import lstm


def put_by_mask(x: torch.Tensor, mask: torch.Tensor, value) -> None:
    """``x[mask] = value``, for one value or row, without looking for the places: the gradient of `value` is a sum."""
    rest = x.dim() - mask.dim()
    if isinstance(value, torch.Tensor) and value.dim() > rest:
        value = value[0]
    x.copy_(torch.where(mask.reshape(mask.shape + (1,) * rest), value, x))


def _replacement(node: torch.fx.Node):
    """What is called in the place of a node, or None."""
    if node.target is operator.setitem and _puts_one_by_mask(*node.args):
        return put_by_mask
    # The third argument is the list of weights, which it is not for packed sequences.
    if node.target is torch.lstm and len(node.args) == 9 and isinstance(node.args[3], bool):
        return lstm
    return BEFORE_AUTOGRAD.get(node.target) if node.op == "call_function" else None


def _puts_one_by_mask(x, index, value) -> bool:
    example = lambda n: n.meta.get("example_value") if isinstance(n, torch.fx.Node) else n  # noqa: E731
    x, mask, value = example(x), example(index), example(value)
    if not all(isinstance(t, torch.Tensor) for t in (x, mask)) or mask.dtype != torch.bool:
        return False
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float))
    rest = x.dim() - mask.dim()
    return value.dim() <= rest or value.dim() == rest + 1 and value.shape[0] == 1


@contextlib.contextmanager
def rewritten(graph_module: torch.fx.GraphModule):
    """While it is entered, the graph calls the replacements."""
    found = [(n, new, n.target) for n in graph_module.graph.nodes if n.op == "call_function" and (new := _replacement(n))]
    try:
        for node, new, _ in found:
            node.target = new
        if found:
            graph_module.recompile()
        yield
    finally:
        for node, _, old in found:
            node.target = old
        if found:
            graph_module.recompile()
