# ===- test_checkpointing.py - torch.utils.checkpoint under torch.compile ----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Regions under `torch.utils.checkpoint` run in Segue as a whole; what is computed again has the random numbers of forward."""

import copy

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close
from torch import nn
from torch.utils.checkpoint import checkpoint

import segue
from segue.frontend.ops import OPS
from segue.frontend.ops.sources import RANDOM


pytestmark = pytest.mark.usefixtures("fresh_backend")


class Block(nn.Module):

    def __init__(self, dim=32, p=0.0):
        super().__init__()
        self.p, self.norm, self.qkv, self.out = p, nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(p), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Model(nn.Module):

    def __init__(self, p=0.0, reentrant=None):
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(Block(p=p) for _ in range(2)), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


def one_segment():
    (segment,) = segue.backend_report().segments
    assert segment.compiled and segment.trains, str(segue.backend_report())
    return segment


@pytest.mark.parametrize("reentrant, p", [(False, 0.0), (True, 0.0), (False, 0.2)])
def test_blocks_with_attention_keep_less(reentrant, p):
    torch.manual_seed(0)
    saved = []
    for kind in (reentrant, None):
        torch.compiler.reset()
        model = Model(p, kind)
        reference, x = copy.deepcopy(model), torch.randn(2, 16, 32, requires_grad=True)
        ours = torch.compile(model, backend="segue")
        for _ in range(2):
            ours(x).backward()
        saved.append(one_segment().saved_bytes)
        grads = [x.grad, *(q.grad for q in model.parameters())]
        assert all(torch.isfinite(g).all() for g in grads)
        if not p:
            y = x.detach().clone().requires_grad_()
            for _ in range(2):
                reference(y).backward()
            for actual, expected in zip(grads, [y.grad, *(q.grad for q in reference.parameters())], strict=True):
                assert_close(actual, expected, 1e-5)
    assert 0 < saved[0] < saved[1] / 2, saved


@pytest.mark.parametrize("partition", ["min_cut", "default"])
def test_what_is_drawn_again_is_what_was_drawn(partition):
    """Two masks of one shape and different chances; backward meets them in the other order."""

    def region(x, y):
        a = F.dropout(x.sin(), 0.3)
        return a, F.dropout((y + a.detach()).cos(), 0.6)

    ours = torch.compile(lambda x, y: checkpoint(region, x, y, use_reentrant=False), backend="segue",
                         options={"partition": partition})
    for _ in range(2):
        x, y = (torch.randn(40, 30, requires_grad=True) for _ in range(2))
        a, b = ours(x, y)
        assert 0.6 < (a != 0).float().mean() < 0.8 and 0.3 < (b != 0).float().mean() < 0.5
        (a.sum() + 2 * b.sum()).backward()
        assert_close(x.grad, (a != 0) * x.cos() / 0.7, 1e-5)
        assert_close(y.grad, -2 * (b != 0) * (y + a).sin() / 0.4, 1e-5)
    assert one_segment().backward_calls == 2


def test_random_operators_are_known_as_such():
    """One that is missing from the table would be drawn anew in backward."""
    tagged = set()
    for name in OPS:
        library, _, rest = name.partition(".")
        packet = getattr(getattr(torch.ops, library, None), rest.partition(".")[0], None)
        op = getattr(packet, rest.partition(".")[2], None)
        if isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags:
            tagged.add(name)
    # Neither dropout comes out of AOTAutograd (decompositions.py); attention is refused where it would drop.
    assert tagged - RANDOM == {"aten.dropout.default", "aten.native_dropout.default",
                               "aten.scaled_dot_product_attention.default",
                               "aten._scaled_dot_product_flash_attention_for_cpu.default"}


def test_a_region_with_what_segue_lacks(monkeypatch):
    """It runs in PyTorch; its neighbours stay."""
    monkeypatch.delitem(OPS, "aten.sin.default")
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)

    def f(x):
        x = torch.tanh(first(x))
        x = checkpoint(lambda x: F.gelu(torch.sin(x)), x, use_reentrant=False)
        x = checkpoint(lambda x: torch.tanh(last(x)), x, use_reentrant=False)
        return x.square().mean()

    x = torch.randn(5, 8)
    with pytest.warns(segue.FallbackWarning, match="aten.sin.default.*It runs in PyTorch, what surrounds it in Segue"):
        torch.compile(f, backend="segue")(x).backward()
    found = [p.grad.clone() for m in (first, last) for p in m.parameters()]
    first.zero_grad(), last.zero_grad()
    f(x).backward()
    for actual, expected in zip(found, (p.grad for m in (first, last) for p in m.parameters()), strict=True):
        assert_close(actual, expected, 1e-5)
    assert [s.compiled for s in segue.backend_report().segments] == [True, False, True]
