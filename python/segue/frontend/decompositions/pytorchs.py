# ===- pytorchs.py - decompositions of PyTorch's that its own tables leave out ----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Decompositions of PyTorch's that neither AOTAutograd's core table nor that of `torch.export` has."""

import torch

from .table import writes

aten = torch.ops.aten

for _operator in (
        aten.triu_indices.default, aten.tril_indices.default, aten.as_strided_copy.default, aten.native_batch_norm.default,
        aten._native_batch_norm_legit.no_stats, aten._batch_norm_with_update_functional.default, aten.batch_norm_backward.default,
        aten.rrelu_with_noise_backward.default, aten.narrow_copy.default, aten.view_copy.default, aten.permute_copy.default,
        aten.unbind_copy.int, aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default, aten.upsample_trilinear3d.default):
    writes(_operator)(torch._decomp.global_decomposition_table["post_autograd"][_operator])
