# ===- nets.py - small models that several tests train -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Small models that several tests train."""

import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    """gelu of linear layers, and the mean squared error of what they give."""

    def __init__(self, width=64, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x, y):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.mse_loss(x, y)
