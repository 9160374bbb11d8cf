# ===- attention.py - attention as one operator while AOTAutograd traces ----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`scaled_dot_product_attention` as the operators that the frontend knows: that of PyTorch's CPU, wherever the tensors lie, and our own
where weights are dropped. PyTorch's operators of GPUs keep statistics and random numbers in forms of their own, and its CPU writes
attention with dropout out in products over whole matrices of weights."""

from __future__ import annotations

import math
from functools import lru_cache
from types import FunctionType
from typing import Any, Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
              enable_gqa: bool = False) -> torch.Tensor:
    """`scaled_dot_product_attention` of `torch.nn.functional`."""
    aten = torch.ops.aten
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (_cast(x, dtype) for x in (query, key, value))
        attn_mask = None if attn_mask is None else _cast(attn_mask, dtype)
    drops_whole = 0 < dropout_p < 1 and query.dtype != torch.float64  # the library has no attention in f64
    if dropout_p and not drops_whole or not _is_fused(query, key, value, attn_mask, enable_gqa):
        whole: tuple[torch.Tensor, torch.Tensor] = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return whole[0]
    if drops_whole:
        return _dropped(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    fused: tuple[torch.Tensor, torch.Tensor] = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    return fused[0]


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An operand as autocast makes it."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def _dropped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
             is_causal: bool, scale: float | None) -> torch.Tensor:
    heads = query.shape[1]
    if key.shape[1] != heads:
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        mask = mask if mask.dtype == torch.bool else mask.to(query.dtype)
    noise = torch.rand((*query.shape[:3], key.shape[2]), dtype=torch.float32, device=query.device)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.segue.dropped_attention(query, key, value, mask, noise, dropout_p, is_causal, scale)
    return found[0]


def _is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, enable_gqa: bool) -> bool:
    """Whether PyTorch attends in one operator on the CPU (use_flash_attention_cpp of sdp_utils_cpp.cpp) where nothing is dropped."""
    tensors = (query, key, value)
    if any(x.dim() != 4 or x.stride(-1) != 1 or 0 in x.shape for x in tensors):
        return False
    if len({(x.shape[0], x.shape[3]) for x in tensors}) > 1 or key.shape[1] != value.shape[1]:
        return False
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return False
    return mask is None or mask.dim() in (2, 4) and not mask.requires_grad


def _attend(*args: Any, **kwargs: Any) -> torch.Tensor:
    query = args[0] if args else kwargs["query"]
    dropout_p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    function = attention if query.device.type == "cuda" or dropout_p else F.scaled_dot_product_attention
    return function(*args, **kwargs)


@lru_cache(maxsize=None)
def _multi_head_attention() -> Callable[..., Any]:
    """PyTorch's function, which attends by `_attend`: what it calls no mode sees, as that which is entered sees it itself."""
    function = F.multi_head_attention_forward
    ours = FunctionType(function.__code__, {**vars(F), "scaled_dot_product_attention": _attend}, argdefs=function.__defaults__)
    ours.__kwdefaults__ = function.__kwdefaults__
    return ours


class whole_attention(TorchFunctionMode):
    """While it is entered, tensors of a GPU, and all where weights are dropped, attend as `attention` has it."""

    def __torch_function__(self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if function is F.scaled_dot_product_attention:
            function = _attend
        elif function is F.multi_head_attention_forward:
            function = _multi_head_attention()
        return function(*args, **(kwargs or {}))
