# ===- decompositions.py - operators that PyTorch writes in terms of others ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The operators that AOTAutograd writes in terms of others while it traces.

Those that the frontend has a lowering for stay whole; all others are taken
apart where PyTorch knows how.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

import torch

from ..frontend.decompositions import DECOMPOSITIONS
from ..frontend.decompositions.table import Attempt, Written
from ..frontend.fx import Operator
from ..frontend.ops import OPS

# The core table keeps these whole; the first has a lowering that refuses what training needs.
_TAKEN_APART = (torch.ops.aten._native_batch_norm_legit_functional.default, torch.ops.aten.native_batch_norm_backward.default,
                torch.ops.aten.native_group_norm.default, torch.ops.aten.native_group_norm_backward.default)


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask depends on no value: backward draws it again from the seed, and it is never saved."""
    if train is False or p == 0:
        return x, torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if p >= 1:
        return torch.zeros_like(x), torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    mask = torch.rand(x.shape, dtype=torch.float32, device=x.device) >= p
    return torch.where(mask, x * (1.0 / (1.0 - p)), 0.0).to(x.dtype), mask


def _native_layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None,
                       bias: torch.Tensor | None,
                       eps: float) -> Attempt[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """PyTorch keeps the statistics of bf16 rows in bf16, which costs backward half of its digits; here they are f32."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented
    weight, bias = (None if p is None else p.float() for p in (weight, bias))
    y, mean, rstd = torch.ops.aten.native_layer_norm.default(x.float(), normalized_shape, weight, bias, eps)
    return y.to(x.dtype), mean, rstd


def _batch_norm_no_training(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                            running_mean: torch.Tensor, running_var: torch.Tensor, momentum: float,
                            eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalises by the running statistics; nothing is kept of the batch."""
    channels = (x.shape[1],) + (1,) * (x.dim() - 2)
    y = (x - running_mean.view(channels)) * torch.rsqrt(running_var + eps).view(channels)
    y = y if weight is None else y * weight.view(channels)
    y = y if bias is None else y + bias.view(channels)
    return y.to(x.dtype), x.new_empty((0,)), x.new_empty((0,))


@lru_cache(maxsize=None)
def decompositions() -> dict[Operator, Written]:
    """Operator to function, as AOTAutograd takes it."""
    known = torch._decomp.core_aten_decompositions()
    chosen = {op: function for op, function in known.items() if str(op) not in OPS}
    table = torch._decomp.global_decomposition_table["post_autograd"]
    chosen |= {op: table[op] for op in _TAKEN_APART if op in table}
    chosen |= DECOMPOSITIONS
    chosen[torch.ops.aten.native_dropout.default] = _native_dropout
    chosen[torch.ops.aten.native_layer_norm.default] = _native_layer_norm
    chosen[torch.ops.aten._native_batch_norm_legit_no_training.default] = _batch_norm_no_training
    return chosen
