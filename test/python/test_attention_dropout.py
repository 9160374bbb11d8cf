# ===- test_attention_dropout.py - attention that drops weights, as one operator --------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Attention with dropout is one operator: its values and gradients are those of PyTorch's formula with the mask that a dropout of the
same seed draws, and no matrix of weights is ever whole."""

import math

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close
from op_cases import Apply
from torch import nn
from torch.utils.checkpoint import checkpoint

import segue

pytestmark = pytest.mark.usefixtures("fresh_backend")

P = 0.3


def in_segue(function, *examples):
    return segue.compile(Apply(function), tuple(x.detach() for x in examples))


def in_torch_compile(function, *_):
    torch.compiler.reset()
    return torch.compile(function, backend="segue", dynamic=False, options={"fallback": "error"})


def kept(ways, shape, seed):
    """The mask that the first dropout of a module draws."""
    x = torch.ones(shape)
    drop = ways(lambda x: F.dropout(x, P), x)
    torch.manual_seed(seed)
    return drop(x) != 0


def by_formula(q, k, v, kept, mask=None, causal=False, scale=None):
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1) * kept / (1 - P)) @ v


CASES = {
    "plain": ({}, (2, 3, 6, 5, 8), torch.float32, 1e-5),
    "causal": ({"is_causal": True}, (1, 2, 40, 40, 16), torch.float32, 1e-5),
    "bool_mask": ({"attn_mask": torch.arange(7) % 3 < 2}, (2, 2, 5, 7, 4), torch.float32, 1e-5),
    "float_mask": ({"attn_mask": torch.linspace(-2, 2, 35).reshape(5, 7), "scale": 0.7}, (2, 2, 5, 7, 4), torch.float32, 1e-5),
    "bf16": ({"is_causal": True}, (2, 2, 8, 8, 8), torch.bfloat16, 2e-2),
    "f64": ({"is_causal": True}, (1, 2, 6, 6, 4), torch.float64, 1e-12),
}


@pytest.mark.parametrize("ways", [in_segue, in_torch_compile])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, ways):
    options, (batch, heads, rows, keys, dim), dtype, tolerance = CASES[case]
    options = dict(options)
    if (mask := options.get("attn_mask")) is not None:
        options["attn_mask"] = mask if mask.dim() == 2 else mask.expand(rows, keys)
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, n, dim).to(dtype).requires_grad_() for n in (rows, keys, keys))
    weight = torch.randn(batch, heads, rows, dim).to(dtype)
    attend = ways(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P, **options), q, k, v)
    mask = kept(ways, (batch, heads, rows, keys), seed=5)
    torch.manual_seed(5)
    y = attend(q, k, v)
    found = torch.autograd.grad((y * weight).sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = by_formula(*exact, mask, options.get("attn_mask"), options.get("is_causal", False), options.get("scale"))
    grads = torch.autograd.grad((wanted * weight.double()).sum(), exact)
    for actual, expected in zip((y, *found), (wanted, *grads), strict=True):
        assert actual.dtype == dtype
        assert_close(actual.double(), expected, tolerance)


def test_heads_share_keys():
    """Queries of four heads, two to a head of keys."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(2, 2, 6, 8, requires_grad=True)
    for ways in (in_segue, in_torch_compile):
        attend = ways(lambda q, k: F.scaled_dot_product_attention(q, k, k, dropout_p=P, enable_gqa=True), q, k)
        mask = kept(ways, (2, 4, 6, 6), seed=2)
        torch.manual_seed(2)
        found = torch.autograd.grad(attend(q, k).square().sum(), (q, k))
        whole = k.repeat_interleave(2, 1)
        wanted = torch.autograd.grad(by_formula(q, whole, whole, mask).square().sum(), (q, k))
        for actual, expected in zip(found, wanted, strict=True):
            assert_close(actual, expected, 1e-5)


def test_no_weights_are_saved():
    """Backward of a loop of PyTorch keeps what it keeps without dropout; so it does with hooks, which see all that is saved."""
    saved = []
    for p in (0.0, P):
        torch.compiler.reset()
        torch.manual_seed(0)
        x = torch.randn(2, 2, 64, 8, requires_grad=True)
        attend = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=p).sum(), backend="segue",
                               options={"fallback": "error"})
        torch.manual_seed(1)
        attend(x).backward()
        saved.append(segue.backend_report().segments[0].saved_bytes)
        expected, x.grad = x.grad, None
        seen = []

        def pack(t, seen=seen):
            seen.append(t.numel())
            return t.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            torch.manual_seed(1)
            loss = attend(x)
        loss.backward()
        assert torch.equal(x.grad, expected)
        assert seen and max(seen) <= x.numel()
    assert saved[0] == saved[1] > 0


@pytest.mark.parametrize("masked", [False, True])
def test_layers_of_pytorch_attend_whole(masked):
    """Their attention is within a function of PyTorch's, and drops a tenth by default."""
    saved = []
    for p in (0.0, 0.1):
        torch.compiler.reset()
        torch.manual_seed(0)
        layer, x = nn.TransformerEncoderLayer(32, 4, 64, dropout=p, batch_first=True), torch.randn(2, 64, 32)
        hidden = {"src_key_padding_mask": torch.arange(64).expand(2, 64) > 50} if masked else {}
        torch.compile(lambda x: layer(x, **hidden).square().sum(), backend="segue", options={"fallback": "error"})(x).backward()
        saved.append(segue.backend_report().segments[0].saved_bytes)
    assert saved[1] <= saved[0] + 4 * x.numel()  # an activation that is dropped; weights would be eight times that


def test_what_a_region_computes_again_drops_the_same():
    torch.manual_seed(0)
    x = torch.randn(2, 2, 12, 8, requires_grad=True)

    def region(x):
        return F.scaled_dot_product_attention(x.sin(), x, x, dropout_p=P, is_causal=True)

    found = []
    for again in (False, True):
        torch.compiler.reset()
        ours = torch.compile(lambda x: (checkpoint(region, x, use_reentrant=False) if again else region(x)).square().sum(), backend="segue",
                             options={"fallback": "error"})
        torch.manual_seed(4)
        found.append(torch.autograd.grad(ours(x), x)[0])
    assert_close(found[0], found[1], 1e-6)


class Attends(nn.Module):

    def __init__(self, p):
        super().__init__()
        self.p, self.qkv, self.out = p, nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2)).square().mean()


def test_a_trainer_drops_anew_at_each_step_and_not_in_evaluation():
    """The weights of a step would take 4 MiB; all that it takes is less, and what a budget has it do again drops the same."""
    losses, peaks = {}, {}
    for p in (0.0, P):
        torch.manual_seed(0)
        x = torch.randn(2, 512, 16)
        compiled = segue.compile(Attends(p), (x,))
        least = compiled.memory(optimizer=segue.optimizers.SGD(lr=0.0)).smallest_budget_bytes
        for budget in (2**26, least):
            trainer = segue.Trainer(compiled, optimizer=segue.optimizers.SGD(lr=0.0), seed=7, device="sim", budget=budget)
            losses[p, budget > least] = [trainer.step(x) for _ in range(3)]
            peaks[p, budget > least] = trainer.peak_bytes
            (evaluated,) = trainer.evaluate(x).values()
            assert evaluated.item() == pytest.approx(losses[0.0, True][0], rel=1e-6)
    assert len(set(losses[P, True])) == 3 and len(set(losses[0.0, True])) == 1
    assert losses[P, True] == losses[P, False]
    assert peaks[P, False] <= peaks[P, True] < peaks[0.0, True] + 1024 < 2**21
