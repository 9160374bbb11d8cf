# ===- test_convolutions.py - a convolutional network trains as in PyTorch -------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A small convolutional network, cut in two: its losses are PyTorch's, on every device and under a budget."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import losses_close

import segue


class Features(nn.Module):

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, stride=2, padding="valid", groups=2)
        self.c = nn.Conv2d(16, 16, 3, padding=2, dilation=2, bias=False)

    def forward(self, x):
        x = F.relu(self.b(F.relu(self.a(x))))
        return x + torch.tanh(self.c(x))


class Head(nn.Module):

    def __init__(self):
        super().__init__()
        self.pointwise = nn.Conv2d(16, 12, 1)
        self.classes = nn.Linear(12, 5)

    def forward(self, z, y):
        return F.cross_entropy(self.classes(F.gelu(self.pointwise(z)).mean((2, 3))), y)


def halves():
    torch.manual_seed(2)
    return Features(), Head()


def batches(count=8):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 3, 13, 12, generator=generator), torch.randint(0, 5, (4,), generator=generator))
            for _ in range(count)]


def reference_losses(given):
    features, head = halves()
    optimizer = torch.optim.AdamW([*features.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for x, y in given:
        optimizer.zero_grad()
        loss = head(features(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trainer_on(device, config=None):
    features, head = halves()
    x, y = batches(1)[0]
    optimizer = segue.AdamW(lr=1e-2, weight_decay=1e-2)
    modules = [segue.compile(features, x, optimizer=optimizer),
               segue.compile(head, (features(x).detach(), y), optimizer=optimizer)]
    return segue.Trainer(modules, optimizer=optimizer, device=device, config=config)


@pytest.mark.parametrize("device", ["cpu", "sim:dram=16MiB", "sim:streams,dram=16MiB,adversarial=2"])
def test_two_halves_train_to_the_losses_of_pytorch(device):
    given = batches()
    trainer = trainer_on(device)
    losses_close([trainer.step(x=x, y=y) for x, y in given], reference_losses(given))


def test_a_step_is_planned_to_a_budget_that_a_run_then_keeps():
    """The twin that a step is planned on knows the costs and sizes of library calls, and runs none."""
    given = batches(3)
    free = trainer_on("sim:dram=16MiB,link=16GB/s")
    losses = [free.step(x=x, y=y) for x, y in given]
    told = free.memory()
    cap = told.smallest_budget_bytes
    assert cap < 0.9 * told.unconstrained.peak_bytes
    mib = cap / 2**20
    kept = trainer_on(f"sim:dram={cap},link=16GB/s", {"memory": {"stagehand": {
        "conductor_config": {"enabled": True, "vram_hard_cap_mb": mib, "vram_soft_cap_mb": mib, "telemetry_enabled": False},
        "activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_enabled": False}}}})
    assert [kept.step(x=x, y=y) for x, y in given] == losses
