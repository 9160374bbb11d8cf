# ===- quantising.py - what training for integers computes with -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`fake_quantize`: the values that are left when a tensor is stored in few integers, and which of these were within their range."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import writes

aten = torch.ops.aten


def _quantised(x: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    code = torch.round(x * (1.0 / scale)) + zero_point
    within = (code >= quant_min) & (code <= quant_max)
    return ((code.clamp(quant_min, quant_max) - zero_point) * scale).to(x.dtype), within


@writes(aten.fake_quantize_per_tensor_affine_cachemask.default)
def per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    return _quantised(x, scale, zero_point, quant_min, quant_max)


@writes(aten.fake_quantize_per_channel_affine_cachemask.default)
def per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    shape = [1] * x.dim()
    shape[axis] = -1
    return _quantised(x, scale.reshape(shape), zero_point.reshape(shape).to(scale.dtype), quant_min, quant_max)
