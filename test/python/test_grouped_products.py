# ===- test_grouped_products.py - mixtures of experts ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A mixture of experts is one program, and groups that no router makes read nothing outside of their tensors."""

import torch
import torch.nn.functional as F
from compare import assert_close
from op_cases import experts
from torch import nn

import segue


class Mixture(nn.Module):
    """As Hugging Face writes it for `grouped_mm`: rows are sorted by expert, multiplied group by group, and put back."""

    def __init__(self, width=16, experts=5, chosen=2):
        super().__init__()
        self.count, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, 2 * 24, width) / 4)
        self.down = nn.Parameter(torch.randn(experts, width, 24) / 4)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(self.chosen)
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.histc(flat.float(), bins=self.count, min=0, max=self.count - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        rows = x.repeat_interleave(self.chosen, 0)[order]
        gate, up = experts(rows, self.up.transpose(1, 2), ends).chunk(2, -1)
        rows = experts(F.silu(gate) * up, self.down.transpose(1, 2), ends)
        rows = (rows * weights.reshape(-1)[order][:, None])[order.argsort()]
        return rows.reshape(x.shape[0], self.chosen, -1).sum(1)


def test_a_mixture_of_experts_is_one_program():
    torch.manual_seed(0)
    net, x = Mixture(), torch.randn(40, 16)
    torch.compiler.reset()
    actual, expected = torch.compile(net, backend="segue", dynamic=False, options={"fallback": "error"})(x), net(x)
    assert_close(actual, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), net.parameters()) for y in (actual, expected))
    for (name, _), a, e in zip(net.named_parameters(), ours, theirs):
        assert_close(a, e, what=name)
    assert segue.backend_report().compiled == 1


def test_ends_beyond_the_rows_or_below_the_one_before_are_no_groups():
    x, w = torch.randn(7, 4), torch.randn(5, 4, 3)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, w, ends: experts(x, w, ends), backend="segue", options={"fallback": "error"})
    for given, meant in [([2, 100, 3, 200, 7], [2, 7, 7, 7, 7]), ([-5, 3, 1, 2, 5], [0, 3, 3, 3, 5]), ([0] * 5, [0] * 5)]:
        weights = w.clone().requires_grad_()
        y = compiled(x, weights, torch.tensor(given))
        assert_close(y, experts(x, w, torch.tensor(meant)))
        y.sum().backward()
        _, gradient = torch.ops.transformers.grouped_mm_fallback_backward(x, w, torch.tensor(meant), torch.ones(7, 3))
        assert_close(weights.grad, gradient)
