# ===- distances.py - distances between rows, sums of products ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Distances between rows, and their derivatives, which are 0 where a distance is; sums of products that no `einsum` writes."""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch.types import Number

from .table import writes

aten = torch.ops.aten


def _slopes(difference: torch.Tensor, distance: torch.Tensor, p: float) -> torch.Tensor:
    """The derivative of the norm of `difference` along the last dimension."""
    if p == 0:
        return torch.zeros_like(difference)
    distance = distance.unsqueeze(-1)
    if p == math.inf:
        return torch.where(difference.abs() == distance, torch.sign(difference), 0.0)
    if p == 1:
        return torch.sign(difference)
    some = (distance != 0) & (difference != 0)
    ratio = torch.where(some, difference.abs() / torch.where(distance == 0, 1.0, distance), 1.0)
    return torch.where(some, torch.sign(difference) * ratio ** (p - 1), 0.0)


@writes(aten.dist.default)
def dist(x: torch.Tensor, y: torch.Tensor, p: Number = 2) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(x - y, p)
    return norm


@writes(aten._cdist_forward.default)
def cdist(x: torch.Tensor, y: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)
    return norms


@writes(aten._cdist_backward.default)
def cdist_backward(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, p: float,
                   distance: torch.Tensor) -> torch.Tensor:
    slopes = _slopes(x.unsqueeze(-2) - y.unsqueeze(-3), distance, p)
    return (slopes * grad.unsqueeze(-1)).sum(-2).sum_to_size(x.shape)  # one `x` may have met several `y`


def _pairs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)


@writes(aten._pdist_forward.default)
def pdist(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    first, second = _pairs(x)
    norms: torch.Tensor = torch.linalg.vector_norm(x[first] - x[second], p, -1)
    return norms


@writes(aten._pdist_backward.default)
def pdist_backward(grad: torch.Tensor, x: torch.Tensor, p: float, distance: torch.Tensor) -> torch.Tensor:
    first, second = _pairs(x)
    parts = _slopes(x[first] - x[second], distance, p) * grad.unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, first, parts).index_add(0, second, -parts)


@writes(aten.addbmm.default)
def addbmm(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: Number = 1,
           alpha: Number = 1) -> torch.Tensor:
    total = torch.bmm(left, right).sum(0, dtype=x.dtype)
    if not x.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    total = total if alpha == 1 else alpha * total
    return total if beta == 0 else x * beta + total


@writes(aten._trilinear.default)
def trilinear(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, expand1: Sequence[int], expand2: Sequence[int],
              expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1) -> torch.Tensor:
    """What `bilinear` and its derivatives are."""
    parts = []
    for part, dims in ((x, expand1), (y, expand2), (z, expand3)):
        for dim in sorted(dims):
            part = part.unsqueeze(dim)
        parts.append(part)
    first, second, third = parts
    product = third * (second * first)
    return product.sum(tuple(sumdim)) if sumdim else product
