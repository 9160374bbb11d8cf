# ===- test_empty.py - tensors without elements -----------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A dimension may be 0 wherever PyTorch allows it: no op computes what has no elements, sums of it are 0."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close

import segue
from segue.frontend.writer import GraphWriter, Value

NONE, SOME, WEIGHT = torch.zeros(0, 3), torch.linspace(-1, 1, 6).view(2, 3), torch.linspace(-1, 1, 12).view(3, 4)

#: Several functions at a time, since each compilation takes a while. Arguments, function.
CASES = {
    "nothing_comes_in_or_out": ((NONE,), lambda z: (z * 2 + 1, z.exp())),
    "made_from_nothing": ((SOME,), lambda x: (torch.eye(0), torch.eye(0, 3), x.new_zeros((2, 0)), x.new_ones((0,)),
                                              x.new_empty((0, 2)), torch.arange(0), torch.full((0, 2), 3.0), x.exp())),
    "products": ((NONE, WEIGHT, torch.ones(2, 0), torch.ones(0, 4)),
                 lambda z, w, a, b: ((z @ w).exp(), a @ b + 1, torch.addmm(w[0], a, b))),
    "reductions": ((NONE, SOME), lambda z, x: (z.sum(0) + x, z.mean(0) + x, (z > 0).any(0), (z > 0).all(), z.logsumexp(0),
                                               z.sum(1), z.norm(), z.amax(1))),
    "joins": ((NONE, SOME, torch.zeros(0)), lambda z, x, e: (torch.cat([z, x * 2, z]) * 3, torch.cat([e, x * 2]), torch.cat([z, z]),
                                                             torch.stack([z, z]))),
    "parts": ((SOME,), lambda x: (x[:0] * 2, x[2:].exp(), x[1:1, 2:0], x.split([0, 2])[0].sum() + x.split([0, 2])[1],
                                  x[1:].exp(), x.narrow(1, 3, 0))),
    "padding": ((NONE,), lambda z: (F.pad(z * 2, (0, 0, 1, 2), value=3.0) * 2, F.pad(z, (1, 1)))),
    "moves": ((NONE,), lambda z: (z.t() * 2, z.reshape(3, 0, 5), z[:, None].expand(0, 4, 3), torch.roll(z, 1, 0), z.repeat(2, 2),
                                  z.flip(0), torch.tril(z), z.unsqueeze(0))),
    "lookups": ((SOME, torch.zeros(0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64)),
                lambda x, i, j: (x[i] * 2, F.embedding(j, x) * 2, torch.index_select(x, 1, i), x.gather(1, j))),
    "layers": ((NONE, torch.zeros(1, 2, 0, 8)), lambda z, q: (F.layer_norm(z, (3,)), z.softmax(0), z.softmax(1), z.cumsum(0),
                                                              F.scaled_dot_product_attention(q, q, q), F.gelu(z))),
    "losses": ((torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), NONE),
               lambda y, t, z: (F.cross_entropy(y, t, reduction="sum"), F.cross_entropy(y, t), F.mse_loss(z, z + 1, reduction="sum"))),
    "choices": ((NONE, SOME), lambda z, x: (torch.where(z > 0, z, 0.0), F.dropout(z, 0.5).sum() + x, z.clamp(0, 1))),
    "passed_through": ((NONE, SOME), lambda z, x: (z, x * 2, z * x[:0])),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    torch.compiler.reset()
    inputs, function = CASES[name]
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    trained = [x for x in inputs if x.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("error", segue.FallbackWarning)
        results = torch.compile(function, backend="segue", dynamic=False, options={"fallback": "error"})(*inputs)
    for number, (a, e) in enumerate(zip(results, function(*inputs), strict=True)):
        assert a.shape == e.shape and a.dtype == e.dtype, number
        assert torch.allclose(a, e, equal_nan=True), (number, a, e)
        assert a.requires_grad == e.requires_grad, number
        if e.requires_grad:
            found, wanted = (torch.autograd.grad(t.sum(), trained, retain_graph=True, allow_unused=True) for t in (a, e))
            for x, g, w in zip(trained, found, wanted):  # AOTAutograd gives zeros where eager mode gives nothing
                g, w = (torch.zeros_like(x) if t is None else t for t in (g, w))
                assert g.shape == w.shape and torch.allclose(g, w, equal_nan=True), (number, g, w)
    (segment,) = segue.backend_report().segments
    assert segment.compiled


def test_an_op_with_results_from_nothing_is_refused_by_name():
    """Where nobody has said what an op gives for no elements, it is a refusal, and never in the text."""
    writer = GraphWriter()
    with pytest.raises(segue.InvalidArgumentError, match="segue.softmax of a tensor without elements"):
        writer.emit("softmax", "%x", "", [((2,), torch.float32)], [Value("%x", (2, 0), torch.float32)])
    assert writer.body() == ""


def test_a_model_with_a_batch_of_none():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    y = torch.compile(layer, backend="segue", options={"fallback": "error"})(NONE)
    assert y.shape == (0, 2)
    y.sum().backward()
    for p in layer.parameters():
        assert_close(p.grad, torch.zeros_like(p))


# --- segue.compile: arguments, parameters and results are there, without elements ------------------------------


class Parts(torch.nn.Module):
    """A parameter without elements, one that meets none, and results of both kinds."""

    def __init__(self):
        super().__init__()
        self.none = torch.nn.Parameter(torch.zeros(0, 3))
        self.weight = torch.nn.Parameter(WEIGHT.clone())

    def forward(self, z, x):
        rows = torch.cat([z, self.none])
        return {"rows": rows * 2, "product": (rows @ self.weight).tanh(), "given": z, "sum": x * 2 + rows.sum(0), "loss": (x @ self.weight).mean()}


def test_a_module_with_parts_of_none():
    ours, reference = Parts(), Parts()
    compiled = segue.compile(ours, (NONE, SOME))
    found = []
    for module, run in ((ours, compiled), (reference, reference)):
        z, x = NONE.clone().requires_grad_(), SOME.clone().requires_grad_()
        results = run(z, x)
        sum(r.sum() for r in results.values()).backward()
        found.append((results, [z.grad, x.grad, *(p.grad for p in module.parameters())]))
    (results, gradients), (expected, right) = found
    assert {n: r.shape for n, r in results.items()} == {n: r.shape for n, r in expected.items()}
    for name in expected:
        assert_close(results[name], expected[name], what=name)
    for a, e in zip(gradients, right, strict=True):
        assert a.shape == e.shape
        assert_close(a, e)


def test_a_compiled_model_with_a_batch_of_none_and_of_some():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    compiled = segue.compile(layer, NONE)
    y = compiled(NONE)
    assert y.shape == (0, 2) and y.requires_grad
    y.sum().backward()
    for p in layer.parameters():
        assert_close(p.grad, torch.zeros_like(p))
    with torch.no_grad():
        assert_close(compiled(SOME), layer(SOME))
        assert compiled(NONE).shape == (0, 2)


def test_what_has_no_answer_is_refused_by_name():
    class Table(torch.nn.Module):

        def forward(self, i, table):
            return F.embedding(i, table)

    with pytest.raises(segue.UnsupportedOpError, match="aten.embedding.default.*segue.gather of a tensor without elements"):
        segue.compile(Table(), (torch.tensor([0, 1]), NONE))
