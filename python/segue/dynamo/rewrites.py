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
from typing import Any, Callable, Iterator

import torch
from torch.fx.node import Argument
from torch.types import Number

from ..frontend.decompositions import BEFORE_AUTOGRAD
from ..frontend.parts import without_cudnn
from ..frontend.recurrent import lstm
from .attention import whole_attention


def put_by_mask(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | Number) -> None:
    """``x[mask] = value``, for one value or row, without looking for the places: the gradient of `value` is a sum."""
    rest = x.dim() - mask.dim()
    if isinstance(value, torch.Tensor) and value.dim() > rest:
        value = value[0]
    x.copy_(torch.where(mask.reshape(mask.shape + (1,) * rest), value, x))


def _replacement(node: torch.fx.Node) -> Callable[..., Any] | None:
    """What is called in the place of a node, or None."""
    if node.target is operator.setitem and _puts_one_by_mask(*node.args):
        return put_by_mask
    # The third argument is the list of weights, which it is not for packed sequences.
    if node.target is torch.lstm and len(node.args) == 9 and isinstance(node.args[3], bool):
        return lstm
    return BEFORE_AUTOGRAD.get(node.target) if callable(node.target) else None


def _puts_one_by_mask(*arguments: Argument) -> bool:
    x, mask, value = (a.meta.get("example_value") if isinstance(a, torch.fx.Node) else a for a in arguments)
    if not isinstance(x, torch.Tensor) or not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        return False
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float))
    rest = x.dim() - mask.dim()
    return value.dim() <= rest or value.dim() == rest + 1 and value.shape[0] == 1


@contextlib.contextmanager
def rewritten(graph_module: torch.fx.GraphModule) -> Iterator[None]:
    """While it is entered, the graph calls the replacements, and so do the functions that it calls; none of cuDNN."""
    found = [(n, new, n.target) for n in graph_module.graph.nodes if n.op == "call_function" and (new := _replacement(n))]
    try:
        for node, new, _ in found:
            node.target = new
        if found:
            graph_module.recompile()
        with whole_attention(), without_cudnn():
            yield
    finally:
        for node, _, old in found:
            node.target = old
        if found:
            graph_module.recompile()
