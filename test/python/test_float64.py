# ===- test_float64.py - models and scalars in float64 ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What computes in float64 keeps its digits: values and gradients are PyTorch's to 1e-12, or the operator is named."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import segue


@pytest.fixture(autouse=True)
def no_segment_of_another_test():
    torch.compiler.reset()


def close(actual, expected, what="", tolerance=1e-12):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    same = torch.isfinite(expected)
    assert torch.equal(same, torch.isfinite(actual)), what
    difference = (actual - expected)[same].detach().double().norm()
    scale = expected[same].detach().double().norm()
    assert difference <= tolerance * max(scale.item(), 1e-3), f"{what}: {difference:.3g} of {scale:.3g}"


def check(function, *inputs, tolerance=1e-12):
    """All of it in Segue, values and gradients in float64."""
    compiled = torch.compile(function, backend="segue", dynamic=False, options={"fallback": "error"})
    found = []
    for run in (compiled, function):
        given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        results = run(*given)
        results = list(results) if isinstance(results, tuple) else [results]
        graded = [r for r in results if r.requires_grad]
        draw = torch.Generator().manual_seed(1)
        weights = [torch.randn(r.shape, generator=draw, dtype=r.dtype) for r in graded]
        wanted = [x for x in given if x.requires_grad]
        found.append((results, torch.autograd.grad(graded, wanted, weights, allow_unused=True) if graded else []))
    (results, gradients), (expected, right) = found
    for i, (a, e) in enumerate(zip(results, expected, strict=True)):
        close(a, e, f"result {i}", tolerance)
    for i, (a, e) in enumerate(zip(gradients, right, strict=True)):
        close(torch.zeros_like(inputs[i]) if a is None else a, torch.zeros_like(inputs[i]) if e is None else e, f"gradient {i}", tolerance)
    assert [s.compiled for s in segue.backend_report().segments] == [True]


def spread(low, high, count=4001):
    return torch.linspace(low, high, count, dtype=torch.float64)


FUNCTIONS = {
    "exponentials": ((spread(-20, 20), spread(-700, 700)), lambda x, far: (x.exp(), x.expm1(), torch.sigmoid(x), F.silu(x), F.softplus(x), far.exp())),
    "logarithms": ((spread(1e-3, 50), spread(-0.9, 3)), lambda x, y: (x.log(), x.log2(), y.log1p(), x.sqrt(), x.rsqrt(), (y * 1e-9).log1p(),
                                                                      (x * 1e300).log(), (x * 1e-300).log())),
    "bells": ((spread(-7, 7),), lambda x: (x.tanh(), x.erf(), F.gelu(x), F.gelu(x, approximate="tanh"), (x * 1e-8).tanh(), (x * 1e-8).expm1())),
    "waves": ((spread(-40, 40), spread(1e6, 1e6 + 50)), lambda x, y: (x.sin(), x.cos(), y.sin(), y.cos())),
    "powers": ((spread(0.01, 9), spread(-3, 3)), lambda x, y: (x ** y, x ** 2.5, 2.0 ** y, x ** 3, x.reciprocal(), (x ** -1.5) * y)),
    "arithmetic": ((spread(-3, 3), spread(1, 2)), lambda x, y: (x * y + x / y - 0.1, torch.maximum(x, y), x.clamp(-1, 1.5), x.abs() * x.floor(),
                                                               torch.where(x > y, x, y * 0.3), x.round() + x.ceil() * y, torch.lerp(x, y, 0.3))),
    "reductions": ((torch.randn(64, 65, generator=torch.Generator().manual_seed(0), dtype=torch.float64),),
                   lambda x: (x.sum(), x.mean(0), x.var(1), x.softmax(0), x.log_softmax(1), x.logsumexp(0), x.cumsum(1), x.amax(1), x.norm(),
                              (x * 1e8 + 1e-3).sum(1), x.max(0).values, x.topk(3).values)),
    "normalisations": ((torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64), spread(0.5, 1.5, 8), spread(-1, 1, 8)),
                       lambda x, g, c: (F.layer_norm(x, (8,), g, c), F.rms_norm(x, (8,), g), F.group_norm(x.transpose(1, 2), 4))),
    "moves": ((spread(0, 1, 24).view(4, 6), torch.tensor([[0, 3], [2, 2]])),
              lambda x, i: (x[i] * 2, x.t().reshape(3, 8), F.pad(x, (1, 2), value=0.1), torch.cat([x, x * 3], 1), x.flip(0), x.tril(),
                            F.avg_pool1d(x, 2), F.embedding(i, x))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    inputs, function = FUNCTIONS[name]
    check(function, *inputs)


def test_products():
    draw = torch.Generator().manual_seed(0)
    a, b, c, bias = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((3, 37, 65), (3, 65, 29), (29, 65), (29,)))
    check(lambda a, b, c, bias: (a @ b, F.linear(a, c, bias), a.transpose(1, 2) @ a, torch.einsum("zik,jk->ijz", a, c), a[0].T @ a[1], c @ a[0, 0]),
          a, b, c, bias)


class Block(nn.Module):
    """A decoder of one layer: what most of a language model is made of."""

    def __init__(self, width=32, heads=4, words=50):
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.norm, self.out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, words)

    def forward(self, tokens, targets, mask=None):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.projection(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.out(x))))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten(), label_smoothing=0.1)


def same_training(ours, reference, given, steps=3):
    """Losses and gradients of some steps of SGD."""
    for model in (ours, reference):
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        losses = []
        for model in (ours, reference):
            model.optimizer.zero_grad()
            loss = model.run(*given)
            loss.backward()
            losses.append(loss)
        close(*losses, f"loss of step {step}")
        for (name, a), e in zip(ours.named_parameters(), reference.parameters()):
            close(a.grad, e.grad, f"gradient of {name} in step {step}", 1e-11)
        for model in (ours, reference):
            model.optimizer.step()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", ["torch.compile", "segue.compile"])
def test_a_model_trains_as_in_pytorch(way, masked):
    torch.manual_seed(0)
    reference = Block().double()
    ours = copy.deepcopy(reference)
    tokens, targets = torch.randint(0, 50, (2, 2, 16))
    mask = torch.rand(2, 1, 16, 16) < 0.7
    mask[0, 0, 3] = False  # a row that sees nothing
    given = (tokens, targets, mask | torch.eye(16, dtype=torch.bool) if way == "segue.compile" else mask)[: 2 + masked]
    reference.run = reference
    if way == "torch.compile":
        ours.run = torch.compile(ours, backend="segue", options={"fallback": "error"})
    else:
        object.__setattr__(ours, "run", segue.compile(ours, given))
    same_training(ours, reference, given)


def test_a_schedule_of_floats_that_change():
    """With `dynamic=True` PyTorch makes float64 scalars of Python's floats."""

    def f(x, rate, positions):
        angles = positions.double() * math.pi * rate
        return x * rate + angles.sin().float(), (angles * 1e-3).cos()

    compiled = torch.compile(f, backend="segue", dynamic=True, options={"fallback": "error"})
    for rate in (0.5, 0.25, 0.1):
        x, positions = torch.randn(7), torch.arange(7)
        for a, e in zip(compiled(x, rate, positions), f(x, rate, positions)):
            assert a.dtype == e.dtype
            torch.testing.assert_close(a, e, rtol=1e-6 if e.dtype == torch.float32 else 1e-12, atol=1e-7)


def test_casts_round_as_pytorch_does():
    values = torch.tensor([1 / 3, -2.7, 1e300, -1e300, float("nan"), float("inf"), 2.0**53 + 2, 1 + 2.0**-30, 0.0, -0.0], dtype=torch.float64)
    whole = torch.tensor([2**53 + 1, -(2**62) - 1, 3, -7, 2**31, 0, 1, 2, 3, 4])

    def f(x, n):
        return (x.float(), x.bfloat16(), x.half(), x.bool(), n.double(), (n % 2 == 0).double(), x.float().double(), n.int().double(),
                x[:2].long(), x[6:8].long(), x[:2].int())

    for i, (a, e) in enumerate(zip(torch.compile(f, backend="segue", options={"fallback": "error"})(values, whole), f(values, whole))):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True, msg=f"cast {i}: {a} {e}")


def test_a_lowering_that_would_lose_digits_is_refused_by_name():
    """And what has no float64, as convolutions: both run in PyTorch."""
    x = torch.randn(1, 2, 8, dtype=torch.float64)
    with pytest.raises(Exception, match="aten.histc.default.*float64, which its lowering would compute in float32"):
        torch.compile(lambda x: x.histc(4, -1, 1), backend="segue", options={"fallback": "error"})(x)
    torch.compiler.reset()
    layer = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    with pytest.warns(segue.FallbackWarning, match="aten.convolution.default.*float64"):
        y = torch.compile(layer, backend="segue")(x)
    close(y, layer(x))
    assert segue.backend_report().compiled == 1


def test_numpy_and_files(tmp_path):
    layer = nn.Linear(5, 3).double()
    x = np.linspace(-1, 1, 10).reshape(2, 5)
    compiled = segue.compile(layer, x)
    expected = layer(torch.from_numpy(x)).detach().numpy()
    assert compiled(x).dtype == np.float64
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-14)
    compiled.save(tmp_path / "layer.segue", weights=True)
    np.testing.assert_allclose(segue.load(tmp_path / "layer.segue", tmp_path / "layer.safetensors")(x), expected, rtol=1e-14)


def test_a_trainer_says_that_it_has_no_optimizer_for_it():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x).square().mean()

    x = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(segue.CompileError, match="is f64, but learning rates and states of optimizers are f32"):
        segue.Trainer([segue.compile(Loss().double(), (x,))], optimizer=segue.SGD(lr=0.1)).step(x=x)
