# ===- autocast.py - casts that PyTorch's autocast makes while it runs -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The casts of `torch.autocast("cpu")`, for graphs that were captured before it makes them.

`torch.export` captures above autocast: shapes and element types of the nodes are
those under it, but the casts are not there. Which operators cast follows
PyTorch's lists for the CPU (ATen/autocast_mode.h); the element type that PyTorch
has for each result is compared afterwards, so a list that has changed is noticed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from .writer import GraphWriter, Value

_TO_HALF = {
    "linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "_convolution", "convolution", "scaled_dot_product_attention",
}
_TO_FLOAT = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "cross_entropy_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "prod", "cosine_embedding_loss", "hinge_embedding_loss",
    "poisson_nll_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "cdist", "trace",
}
_TO_WIDEST = {"cat", "stack", "index_copy"}


def ambient() -> torch.dtype | None:
    """The element type of the autocast around this call, or None without one."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class Autocast:
    """Casts the operands of operators as autocast to `dtype` would; without a `dtype` leaves them as they are."""

    def __init__(self, writer: GraphWriter, dtype: torch.dtype | None):
        self.dtype = dtype
        self._writer = writer
        self._casts: dict[tuple[str, torch.dtype], Value] = {}  # a weight that is read often is cast once, as in PyTorch

    def operands(self, target: Any, args, kwargs):
        """The operands of an operator."""
        if self.dtype is None or not isinstance(target, torch._ops.OpOverload):
            return args, kwargs
        name = target._schema.name.removeprefix("aten::")
        floats = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Value) and x.is_float]
        if name in _TO_HALF:
            wanted = self.dtype
        elif name in _TO_FLOAT or name in _TO_WIDEST and any(x.dtype == torch.float32 for x in floats):
            wanted = torch.float32
        else:
            return args, kwargs
        # Autocast leaves float64 alone.
        cast = lambda x: self._cast(x, wanted) if x.is_float and x.dtype != torch.float64 else x  # noqa: E731
        return pytree.tree_map_only(Value, cast, (args, kwargs))

    def _cast(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype == dtype:
            return x
        if (x.name, dtype) not in self._casts:
            self._casts[x.name, dtype] = self._writer.cast(x, dtype)
        return self._casts[x.name, dtype]
