# ===- encoders.py - layers of an encoder that PyTorch has as one operator --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`nn.TransformerEncoderLayer` in evaluation without gradients, which PyTorch runs as one operator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .table import writes

aten = torch.ops.aten

#: What a mask hides: of each query some keys, or of each row of the batch some keys. Others have all four dimensions.
_OF_QUERIES, _OF_ROWS = 0, 1


@writes(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(
        src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool,
        norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor,
        ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None) -> Tensor:
    """Attention and a feed-forward part; whatever a mask has that is not zero hides."""

    def attended(x: Tensor) -> Tensor:
        q, k, v = F.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if mask is None:
            found = F.scaled_dot_product_attention(q, k, v)
        else:  # a row with nothing to see is NaN in PyTorch, and 0 where attention is one operator
            hidden = mask.to(torch.bool)
            if mask_type == _OF_ROWS:
                hidden = hidden[:, None, None, :]
            elif mask_type == _OF_QUERIES:
                hidden = hidden[None, None]
            scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
            found = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return F.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def fed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first_norm(src))
        return x + fed_forward(second_norm(x))
    x = first_norm(src + attended(src))
    return second_norm(x + fed_forward(x))
