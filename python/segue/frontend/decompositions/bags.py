# ===- bags.py - sums, means and maxima of looked up rows ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`embedding_bag`: sums, means and maxima of looked up rows, by bags that begin at offsets. And `max_norm` of tables."""

from __future__ import annotations

import math

import torch

from .table import Attempt, writes

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)


@writes(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False,
                  mode: int = SUM, sparse: bool = False, per_sample_weights: torch.Tensor | None = None,
                  include_last_offset: bool = False,
                  padding_idx: int = -1) -> Attempt[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The bags; and for backward the bag of each index, how many each bag has, and where the maxima are."""
    if sparse:
        return NotImplemented
    begins = offsets[:-1] if include_last_offset else offsets
    bags, dtype = begins.shape[0], indices.dtype
    bag = (torch.arange(indices.shape[0], device=indices.device).unsqueeze(1) >= begins.unsqueeze(0)).sum(1) - 1
    counts = indices != padding_idx
    inside = counts.unsqueeze(0) & (bag.unsqueeze(0) == torch.arange(bags, device=indices.device).unsqueeze(1))  # [bags, indices]
    size = inside.sum(1)
    rows = weight[indices]
    if mode == MAX:
        spread = torch.where(inside.unsqueeze(2), rows.unsqueeze(0), -math.inf)
        found, at = spread.max(1)
        some = (size > 0).unsqueeze(1)
        return (torch.where(some, found, 0.0), bag.to(dtype), size.to(dtype), torch.where(some, indices[at], -1).to(dtype))
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(1)
    rows = torch.where(counts.unsqueeze(1), rows, 0.0)
    found = rows.new_zeros(bags, weight.shape[1]).index_add(0, bag, rows)
    if mode == MEAN:
        found = found / size.clamp(min=1).to(found.dtype).unsqueeze(1)
    return found, bag.to(dtype), size.to(dtype), size.to(dtype)


@writes(aten._embedding_bag_backward.default)
def embedding_bag_backward(grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, offset2bag: torch.Tensor,
                           bag_size: torch.Tensor, maximum_indices: torch.Tensor, num_weights: int,
                           scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: torch.Tensor | None,
                           padding_idx: int = -1) -> Attempt[torch.Tensor]:
    if sparse:
        return NotImplemented
    zeros = grad.new_zeros(num_weights, grad.shape[1])
    if mode == MAX:
        some = maximum_indices >= 0
        return zeros.scatter_add(0, maximum_indices.clamp(min=0).long(), torch.where(some, grad, 0.0))
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).to(grad.dtype).unsqueeze(1)
    rows = grad[offset2bag]
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        times = torch.zeros(num_weights, dtype=grad.dtype, device=grad.device).index_add(0, indices, torch.ones_like(indices, dtype=grad.dtype))
        rows = rows / times[indices].unsqueeze(1)
    return zeros.index_add(0, indices, torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0))


@writes(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(grad: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor,
                                              offsets: torch.Tensor, offset2bag: torch.Tensor, mode: int,
                                              padding_idx: int = -1) -> torch.Tensor:
    parts = (grad[offset2bag] * weight[indices]).sum(1)
    return torch.where(indices != padding_idx, parts, 0.0)


@writes(aten.embedding_renorm.default)
def embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """The table, in which rows that are looked up and are longer than that have this norm."""
    looked_up = torch.zeros(weight.shape[0], device=weight.device).scatter(0, indices.reshape(-1).long(), 1.0) > 0
    norms = torch.linalg.vector_norm(weight, norm_type, -1)
    factors = torch.where(looked_up & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
    return weight * factors.unsqueeze(-1).to(weight.dtype)
