# ===- autocast.py - casts that PyTorch's autocast makes while it runs -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The casts of `torch.autocast`, for graphs that were captured before it makes them.

`torch.export` captures above autocast: shapes and element types of the nodes are
those under it, but the casts are not there. Which operators cast follows
PyTorch's lists for the CPU and for CUDA (ATen/autocast_mode.h); the element type that PyTorch
has for each result is compared afterwards, so a list that has changed is noticed.
"""

from __future__ import annotations

import contextlib
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch.utils import _pytree as pytree

from .writer import GraphWriter, Value


class _Lists(NamedTuple):
    """The operators that cast to the element type of autocast, to f32, and to the widest of their operands."""

    to_half: frozenset[str]
    to_float: frozenset[str]
    to_widest: frozenset[str]


_LISTS = {
    "cpu": _Lists(
        frozenset({
            "linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
            "conv_transpose2d", "conv_transpose3d", "_convolution", "convolution", "scaled_dot_product_attention"}),
        frozenset({
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "cross_entropy_loss", "kl_div",
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "prod", "cosine_embedding_loss", "hinge_embedding_loss",
            "poisson_nll_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "cdist", "trace"}),
        frozenset({"cat", "stack", "index_copy"})),
    "cuda": _Lists(
        frozenset({
            "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
            "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
            "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention"}),
        frozenset({
            "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan", "pow",
            "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm", "nuclear_norm", "cosine_similarity",
            "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
            "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
            "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
            "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
            "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
            "upsample_bicubic2d", "_upsample_bicubic2d_aa", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm",
            "linalg_matrix_norm", "sum", "norm"}),
        frozenset({"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add"})),
}


def place_of(tensors: Iterable[torch.Tensor]) -> str:
    """Whose autocast casts a call with these tensors: ``cuda`` or ``cpu``."""
    return "cuda" if any(t.is_cuda for t in tensors) else "cpu"


class Around(NamedTuple):
    """The element types of the autocasts around a call, by the place of its tensors; None without one."""

    cpu: torch.dtype | None = None
    cuda: torch.dtype | None = None

    @classmethod
    def now(cls) -> "Around":
        if not torch._C._is_any_autocast_enabled():
            return cls()
        return cls(*(torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None for place in cls._fields))

    def of(self, place: str) -> torch.dtype | None:
        dtype: torch.dtype | None = getattr(self, place)
        return dtype

    def within(self, place: str, dtype: torch.dtype | None, enabled: bool) -> "Around":
        """In a region of ``torch.autocast(place, dtype, enabled)``."""
        if place not in self._fields:
            return self
        return self._replace(**{place: (dtype or torch.get_autocast_dtype(place)) if enabled else None})

    @contextlib.contextmanager
    def entered(self, **options: bool) -> Iterator[None]:
        """A context with these autocasts and no others."""
        with contextlib.ExitStack() as stack:
            for place, dtype in self._asdict().items():
                if dtype is not None or torch.is_autocast_enabled(place):
                    stack.enter_context(torch.autocast(place, dtype, enabled=dtype is not None, **options))
            yield


class Autocast:
    """Casts the operands of operators as the autocast around them would, of tensors in a place; without one leaves them as they are."""

    def __init__(self, writer: GraphWriter, around: Around, place: str):
        self.around, self.place = around, place
        self._dtype, self._lists = around.of(place), _LISTS[place]
        self._writer = writer
        self._casts: dict[tuple[str, torch.dtype], Value] = {}  # a weight that is read often is cast once, as in PyTorch

    def operands(self, target: object, args: Sequence[object],
                 kwargs: Mapping[str, object]) -> tuple[Sequence[object], Mapping[str, object]]:
        """The operands of an operator."""
        if self._dtype is None or not isinstance(target, torch._ops.OpOverload):
            return args, kwargs
        name = target._schema.name.removeprefix("aten::")
        floats = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Value) and x.is_float]
        if name in self._lists.to_half:
            wanted = self._dtype
        elif name in self._lists.to_float or name in self._lists.to_widest and any(x.dtype == torch.float32 for x in floats):
            wanted = torch.float32
        else:
            return args, kwargs
        # Autocast leaves float64 alone.
        cast = lambda x: self._cast(x, wanted) if x.is_float and x.dtype != torch.float64 else x  # noqa: E731
        args, kwargs = pytree.tree_map_only(Value, cast, (args, kwargs))
        return args, kwargs

    def _cast(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype == dtype:
            return x
        if (x.name, dtype) not in self._casts:
            self._casts[x.name, dtype] = self._writer.cast(x, dtype)
        return self._casts[x.name, dtype]
