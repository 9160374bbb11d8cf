# ===- distances.py - distances between rows, sums of products ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Distances between rows, and their derivatives, which are 0 where a distance is; sums of products that no `einsum` writes."""

from __future__ import annotations

import math

import torch

from .table import writes

aten = torch.ops.aten


def _slopes(difference, distance, p: float):
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
def dist(x, y, p=2):
    return torch.linalg.vector_norm(x - y, p)


@writes(aten._cdist_forward.default)
def cdist(x, y, p, compute_mode):
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


@writes(aten._cdist_backward.default)
def cdist_backward(grad, x, y, p, distance):
    slopes = _slopes(x.unsqueeze(-2) - y.unsqueeze(-3), distance, p)
    return (slopes * grad.unsqueeze(-1)).sum(-2).sum_to_size(x.shape)  # one `x` may have met several `y`


def _pairs(x):
    return torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)


@writes(aten._pdist_forward.default)
def pdist(x, p=2):
    first, second = _pairs(x)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


@writes(aten._pdist_backward.default)
def pdist_backward(grad, x, p, distance):
    first, second = _pairs(x)
    parts = _slopes(x[first] - x[second], distance, p) * grad.unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, first, parts).index_add(0, second, -parts)


@writes(aten.addbmm.default)
def addbmm(x, left, right, *, beta=1, alpha=1):
    total = torch.bmm(left, right).sum(0, dtype=x.dtype)
    if not x.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    total = total if alpha == 1 else alpha * total
    return total if beta == 0 else x * beta + total


@writes(aten._trilinear.default)
def trilinear(x, y, z, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """What `bilinear` and its derivatives are."""
    product = 1
    for part, dims in ((x, expand1), (y, expand2), (z, expand3)):
        for dim in sorted(dims):
            part = part.unsqueeze(dim)
        product = part * product
    return product.sum(sumdim) if sumdim else product
