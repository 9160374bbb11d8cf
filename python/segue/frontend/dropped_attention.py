# ===- dropped_attention.py - attention whose weights are dropped, as one operator ------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Attention with dropout as an operator of PyTorch, `segue::dropped_attention`, which PyTorch has on GPUs alone.

It takes the numbers by which weights are dropped as a tensor, `noise`, [batch, heads, rows, keys]: so PyTorch knows what is drawn where,
in regions that are computed again, too. No program has that tensor: where `torch.rand` gave it, `segue.attention` draws the numbers by
itself, and its gradient draws them again. It is traced and lowered, and nobody computes it otherwise: a graph that runs in PyTorch has
`scaled_dot_product_attention` as before.

Queries are [batch, heads, rows, dim], keys and values [batch, heads, keys, dim], a mask has four dimensions that broadcast. Results are
as the queries, and f32 [batch, heads, rows]: the logarithms of sums of exponentials.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SIGNATURE = "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor noise"
torch.library.define("segue::dropped_attention", f"({_SIGNATURE}, float p, bool causal, float scale) -> (Tensor, Tensor)")
torch.library.define(
    "segue::dropped_attention_backward",
    f"(Tensor grad, {_SIGNATURE}, Tensor out, Tensor lse, float p, bool causal, float scale) -> (Tensor, Tensor, Tensor)")


def _shapes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, noise: Tensor, p: float, causal: bool,
            scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query, memory_format=torch.contiguous_format), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _shapes_of_gradients(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    return query, key, value


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    query, key, value, mask, noise, ctx.p, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, mask, noise, *output)


def _backward(ctx, grad, _):  # type: ignore[no-untyped-def]
    found = torch.ops.segue.dropped_attention_backward(grad, *ctx.saved_tensors, ctx.p, ctx.causal, ctx.scale)
    return (*found, None, None, None, None, None)


torch.library.register_fake("segue::dropped_attention", _shapes)
torch.library.register_fake("segue::dropped_attention_backward", _shapes_of_gradients)
torch.library.register_autograd("segue::dropped_attention", _backward, setup_context=_setup)
