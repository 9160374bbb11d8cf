# ===- test_backend_sizes.py - torch.compile for sizes that change ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Sizes that change under torch.compile: symbols, bounded variants, and what PyTorch runs beyond them."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close

import segue

pytestmark = pytest.mark.usefixtures("fresh_backend")


def test_other_sizes_recompile():
    f = torch.compile(lambda x: (x.sin() * 2).sum(), backend="segue", dynamic=False)
    for rows in (3, 5, 3, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        f(x).backward()
        assert_close(x.grad, 2 * x.cos())
    result = segue.backend_report()
    assert result.compiled == 3 and [s.variants for s in result.segments] == [1, 1, 1]


def test_symbolic_sizes_are_specialised(caplog):
    """One segment, one variant for each size. Beyond the most, sizes that come again replace the oldest, each one later."""
    w = torch.randn(5, 6, requires_grad=True)

    def f(x):
        y = (x @ w).view(x.shape[0] // 2, 2, 6)
        return y.exp().reshape(-1, 12).sum(1) * x.shape[0]

    ours = torch.compile(f, backend="segue", dynamic=True, options={"max_variants": 2})
    in_pytorch = []
    for rows in (8, 12, 14, 14, 14, 16, 16, 16, 16, 12):
        x = torch.randn(rows, 5)
        (actual,), (expected,) = (torch.autograd.grad(g(x).sum(), w) for g in (ours, f))
        assert_close(actual, expected)
        (segment,) = segue.backend_report().segments
        assert segment.compiled and segment.variants <= 2
        in_pytorch.append(segment.pytorch_calls)
    assert in_pytorch == [0, 0, 1, 2, 2, 3, 4, 5, 5, 6]
    assert segment.forward_calls == segment.backward_calls == 4
    assert "compiling one more variant, for" in caplog.text and "of at most 2 kept" in caplog.text
    assert caplog.text.count("other sizes run in PyTorch") == 1 and "6 calls in PyTorch" in str(segue.backend_report())
    assert 0 < segue.backend_report().time_in_segue < 1


def test_a_cache_that_grows_is_not_compiled_for_each_length(caplog):
    """Generation: each token has another length."""
    torch.manual_seed(0)
    model, head = nn.Linear(8, 24), nn.Linear(8, 11)

    def token(x, cache):
        q, k, v = model(x).chunk(3, -1)
        keys, values = (torch.cat((past, new), 1) for past, new in zip(cache, (k, v)))
        y = F.scaled_dot_product_attention(q[:, None], keys[:, None], values[:, None])[:, 0]
        return head(y), (keys, values)

    def generate(f, count):
        x, cache, found = torch.ones(2, 1, 8), (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8)), []
        for _ in range(count):
            logits, cache = f(x, cache)
            x = logits[..., :8].tanh()
            found.append(logits)
        return torch.cat(found, 1)

    with torch.no_grad():
        ours, expected = generate(torch.compile(token, backend="segue", options={"max_variants": 3}), 20), generate(token, 20)
    assert_close(ours, expected, 1e-5)
    assert caplog.text.count("compiling one more variant") == 2 and segue.backend_report().segments[-1].variants == 3


def test_backward_of_a_call_that_pytorch_ran():
    """A program for its sizes that came in the meantime is not for what PyTorch saved."""
    f = torch.compile(lambda x: F.dropout(x.sin(), 0.5), backend="segue", dynamic=True, options={"max_variants": 1})
    f(torch.randn(4, requires_grad=True))
    x = torch.randn(60, requires_grad=True)
    first = f(x)
    for _ in range(3):
        last = f(x)
    (segment,) = segue.backend_report().segments
    assert (segment.pytorch_calls, segment.forward_calls) == (2, 3)
    for y in (first, last):
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert_close(grad, 2 * (y != 0) * x.cos())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):  # hooks get what a program saves
        x = torch.randn(80, requires_grad=True)
        y = f(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert_close(grad, 2 * (y != 0) * x.cos())


def test_views_by_symbolic_sizes_are_made_again_in_backward():
    """What backward reads is a view of what was saved; its extents are arguments of forward."""
    w = torch.randn(6, 6, requires_grad=True)

    def f(x):
        q = F.linear(x, w).view(x.shape[0], x.shape[1], 2, 3).permute(0, 2, 1, 3)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).exp().sum()

    ours = torch.compile(f, backend="segue", dynamic=True)
    for rows, length in ((2, 4), (3, 5)):
        x = torch.randn(rows, length, 6)
        (actual,), (expected,) = (torch.autograd.grad(g(x), w) for g in (ours, f))
        assert_close(actual, expected)


def test_a_mean_over_a_symbolic_length():
    """PyTorch computes the count of elements in float64, from the symbol."""
    model = nn.Sequential(nn.Conv1d(1, 4, 3, 2), nn.GroupNorm(2, 4))
    ours = torch.compile(model, backend="segue", dynamic=True, options={"fallback": "error"})
    for length in (16, 21):
        x = torch.randn(2, 1, length)
        (actual,), (expected,) = (torch.autograd.grad(f(x).exp().sum(), model[0].weight) for f in (ours, model))
        assert_close(actual, expected, 1e-4)


#: Results that share memory: with an argument, with each other, with a tensor that is no result.
SHARING = [
    lambda x: (x * 2, x[: x.shape[0] - 2, 1:3]),
    lambda x: (x * 2, x[:, None].expand(x.shape[0], 3, x.shape[1])),
    lambda x: (x * 2, x.as_strided((x.shape[0] - 1, 2, x.shape[1]), (x.shape[1], x.shape[1], 1))),
    lambda x: (lambda y: (y, y[:, 1:3], y.t()[1:]))(x * 2),
    lambda x: (lambda y: (y[:, 1:3], y[1:, : y.shape[1] - 1]))(x * 2),
    lambda x: (lambda y: (*y.split(3, 1), y.view(-1)))(x * 2),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", range(len(SHARING)))
def test_results_that_share_memory(function, dynamic):
    f = SHARING[function]
    ours = torch.compile(f, backend="segue", dynamic=dynamic)
    for rows, trains, is_view in ((8, False, False), (8, True, False), (9, False, True), (9, True, True)):
        found = {}
        for g in (f, ours):
            whole = torch.arange(rows * 7.0 + 14).reshape(rows + 2, 7)
            x = (whole[2:] if is_view else whole[2:].clone()).requires_grad_(trains)
            results = g(x)
            gradients = torch.autograd.grad(sum((i + 1) * (r * r).sum() for i, r in enumerate(results)), x) if trains else ()
            values = [r.detach().clone() for r in results]
            with torch.no_grad():
                results[-1].zero_()  # whoever shares its memory sees that
                x.add_(1)
            found[g] = [*gradients, *values, *(r.detach() for r in results), x.detach()]
        for expected, actual in zip(found[f], found[ours], strict=True):
            assert_close(actual, expected)
    assert all(s.compiled for s in segue.backend_report().segments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_share_memory_with_a_changed_argument(dynamic):
    def f(x):
        y = x.mul_(2)
        return y.t(), x[: x.shape[0] - 2, 1:3], x[None].expand(2, x.shape[0], x.shape[1])

    ours = torch.compile(f, backend="segue", dynamic=dynamic)
    for rows in (8, 9):
        found = []
        for g in (f, ours):
            x = torch.arange(rows * 7.0).reshape(rows, 7)
            results = g(x)
            values = [r.clone() for r in results]
            x.add_(1)
            found.append([*values, *results, x])
        for expected, actual in zip(*found, strict=True):
            assert_close(actual, expected)
    assert all(s.compiled for s in segue.backend_report().segments)


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_that_change(dynamic):
    """The sizes that backward reads belong to parts of inputs which it does not read itself."""

    class Shifted(nn.Module):

        def __init__(self):
            super().__init__()
            self.table, self.drop = nn.Embedding(11, 8), nn.Dropout(0.5)

        def forward(self, ids, mask, scale):
            h = self.table(ids)
            bias = (1.0 - mask[:, None, None, :].to(h.dtype)) * torch.finfo(h.dtype).min * scale
            q = h.view(*h.shape[:2], 2, 4).transpose(1, 2)
            h = F.scaled_dot_product_attention(q, q, q, attn_mask=bias).transpose(1, 2).reshape(h.shape)
            logits = self.drop(h) @ self.table.weight.T
            return F.cross_entropy(logits[:, :-1].reshape(-1, 11), ids[:, 1:].reshape(-1))

    model = Shifted().eval()
    ours = torch.compile(model, backend="segue", dynamic=dynamic)
    for rows, length in ((2, 6), (3, 9), (4, 5))[: 2 if dynamic else 3]:
        ids, mask = torch.randint(0, 11, (rows, length)), torch.ones(rows, length, dtype=torch.int64)
        mask[0, 2:] = 0
        (actual,), (expected,) = (torch.autograd.grad(f(ids, mask, 0.5 + rows), model.table.weight) for f in (ours, model))
        assert_close(actual, expected)
    assert all(s.compiled for s in segue.backend_report().segments)
    if not dynamic:
        return
    model.train()
    kept = {}
    for model.drop.p in (0.5, 0.0):
        ours(ids, mask, 1.0).backward()
        kept[model.drop.p] = segue.backend_report().segments[-1].saved_bytes
    assert kept[0.5] == kept[0.0] > 0  # the mask of dropout is drawn again


def test_backward_of_a_variant_that_went():
    """The saved values of a call keep their programs."""
    f = torch.compile(lambda x: x.sin().exp().sum(), backend="segue", dynamic=True, options={"max_variants": 1})
    xs = [torch.randn(n, requires_grad=True) for n in (4, 6, 6, 6)]
    losses = [f(x) for x in xs]
    (segment,) = segue.backend_report().segments
    assert segment.variants == 1 and segment.forward_calls == 2
    for x, loss in zip(xs, losses):
        loss.backward()
        assert_close(x.grad, x.sin().exp() * x.cos())
