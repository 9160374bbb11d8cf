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
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch.fx.node import Argument
from torch.overrides import TorchFunctionMode
from torch.types import Number

from ..frontend.decompositions import BEFORE_AUTOGRAD
from ..frontend.parts import without_cudnn
from ..frontend.recurrent import lstm


def put_by_mask(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | Number) -> None:
    """``x[mask] = value``, for one value or row, without looking for the places: the gradient of `value` is a sum."""
    rest = x.dim() - mask.dim()
    if isinstance(value, torch.Tensor) and value.dim() > rest:
        value = value[0]
    x.copy_(torch.where(mask.reshape(mask.shape + (1,) * rest), value, x))


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
              enable_gqa: bool = False) -> torch.Tensor:
    """`scaled_dot_product_attention` in the operators that PyTorch has for it on the CPU, wherever the tensors lie: those of a GPU keep
    statistics and random numbers in forms of their own."""
    aten = torch.ops.aten
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (_cast(x, dtype) for x in (query, key, value))
        attn_mask = None if attn_mask is None else _cast(attn_mask, dtype)
    if not _is_fused(query, key, value, attn_mask, dropout_p, enable_gqa):
        whole: tuple[torch.Tensor, torch.Tensor] = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return whole[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    fused: tuple[torch.Tensor, torch.Tensor] = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    return fused[0]


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An operand as autocast makes it."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def _is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
              enable_gqa: bool) -> bool:
    """Whether PyTorch attends in one operator on the CPU (use_flash_attention_cpp of sdp_utils_cpp.cpp)."""
    tensors = (query, key, value)
    if dropout_p or any(x.dim() != 4 or x.stride(-1) != 1 or 0 in x.shape for x in tensors):
        return False
    if len({(x.shape[0], x.shape[3]) for x in tensors}) > 1 or key.shape[1] != value.shape[1]:
        return False
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return False
    return mask is None or mask.dim() in (2, 4) and not mask.requires_grad


class _AttentionOfCpu(TorchFunctionMode):
    """While it is entered, tensors of a GPU attend as `attention` has it, called from whatever function of PyTorch."""

    def __torch_function__(self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            if query.device.type == "cuda":
                return attention(*args, **kwargs)
        return function(*args, **kwargs)


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
        with _AttentionOfCpu(), without_cudnn():
            yield
    finally:
        for node, _, old in found:
            node.target = old
        if found:
            graph_module.recompile()
