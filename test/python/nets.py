# ===- nets.py - small models that several tests train -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Small models that several tests train."""

import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from models.lora import LoraLinear  # noqa: E402


class Net(nn.Module):
    """gelu of linear layers, and the mean squared error of what they give."""

    def __init__(self, width=64, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x, y):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.mse_loss(x, y)


class Adapters(nn.Module):
    """Four frozen layers with adapters, whose factors say how large their gradients are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.h = nn.ModuleList(LoraLinear(nn.Linear(64, 64), 4, scale) for scale in (0.02, 1.0, 0.05, 2.0))
        for layer in self.h:
            nn.init.normal_(layer.b.weight, std=0.1)

    def forward(self, x, targets):
        for layer in self.h:
            x = x + nn.functional.gelu(layer(x))
        return ((x - targets) ** 2).mean()
