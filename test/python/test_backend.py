# ===- test_backend.py - torch.compile(model, backend="segue") --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The backend of torch.compile: models train as in eager mode, pieces are stitched, nothing falls back in silence."""

import copy
import gc
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import warm
from compare import assert_close, losses_close

import segue
from segue import compile_process
from segue.dynamo import report, variant
from segue.dynamo.segment import Segment
from segue.frontend.ops import OPS

ROOT = os.path.join(os.path.dirname(__file__), "../..")
sys.path.insert(0, os.path.join(ROOT, "examples"))

from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora  # noqa: E402

SMALL = GPTConfig(layers=2, dim=48, heads=6, seq=32)


pytestmark = pytest.mark.usefixtures("fresh_backend")


def compiled(model, **options):
    return torch.compile(model, backend="segue", options=options or None)


def tokens(generator=torch.Generator().manual_seed(7)):
    window = torch.randint(0, 256, (4, 33), generator=generator)
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def train_both(model, batches, segments, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-2), tolerance=1e-4, **options):
    """Steps in Segue and in eager mode from the same weights: losses, outputs, all gradients, buffers agree."""
    reference = copy.deepcopy(model)
    ours, theirs = compiled(model, **options), reference
    trained = [[p for p in m.parameters() if p.requires_grad] for m in (model, reference)]
    optimizers = [optimizer(ps) for ps in trained]
    losses = [], []
    for batch in batches:
        results = [m(*batch) for m in (ours, theirs)]
        totals = [r if isinstance(r, torch.Tensor) else r[0] for r in results]
        totals = [t if t.ndim == 0 else t.square().mean() for t in totals]
        for total, found in zip(totals, losses):
            total.backward()
            found.append(total.item())
        for (name, a), e in zip(model.named_parameters(), reference.parameters()):
            if e.grad is not None:
                assert_close(a.grad, e.grad, tolerance, f"gradient of {name}")
            else:  # AOTAutograd gives zeros where eager mode gives nothing
                assert a.grad is None or not a.grad.any(), name
        for one in optimizers:
            one.step()
            one.zero_grad(set_to_none=True)
    losses_close(*losses)
    for (name, a), e in zip(model.named_buffers(), reference.buffers()):
        assert_close(a, e, tolerance, name)
    result = segue.backend_report()
    assert (result.compiled, result.fallen_back) == (segments, 0), str(result)
    assert all(s.forward_calls == len(batches) for s in result.segments), str(result)
    assert all(s.backward_calls == len(batches) for s in result.segments if s.trains), str(result)
    return result


class Mlp(nn.Module):

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, y):
        return F.mse_loss(self.b(torch.tanh(self.a(x))), y)


def pairs(count=5, rows=8):
    return [(torch.randn(rows, 6), torch.randn(rows, 3)) for _ in range(count)]


# --- models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["min_cut", "default"])
def test_mlp(partition):
    result = train_both(Mlp(), pairs(), segments=1, partition=partition)
    assert result.counters["inputs_converted"] == 0


def test_values_are_verified_where_the_environment_asks(monkeypatch, caplog):
    monkeypatch.setenv("SEGUE_VERIFY", "values")
    model = compiled(Mlp())
    for x, y in pairs(2):
        model(x, y).backward()
    assert sum("agree with the reference interpreter" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("make", [lambda: GPT(SMALL), lambda: Llama(LlamaConfig())], ids=["gpt", "llama"])
def test_language_models(make):
    train_both(make(), [tokens() for _ in range(5)], segments=1, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3))


def test_a_convolutional_network():
    layers = [nn.Conv2d(2, 8, 3, 2, "valid"), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=4),
              nn.Flatten(), nn.Linear(4 * 7 * 5, 3)]
    train_both(nn.Sequential(*layers), [(torch.randn(4, 2, 9, 8),) for _ in range(5)], segments=1)


def test_lora_with_a_frozen_base():
    model = add_lora(GPT(SMALL), 4, ("qkv", "proj"))
    for name, parameter in model.named_parameters():
        if name.endswith("b.weight"):  # zero at first: the gradient of a would be zero too
            nn.init.normal_(parameter, std=0.02)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    train_both(model, [tokens() for _ in range(5)], segments=1, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3))
    assert frozen and all(torch.equal(p, model.get_parameter(n)) for n, p in frozen.items())


def test_tied_weights():

    class Tied(nn.Module):

        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids, targets):
            return F.cross_entropy(self.head(torch.tanh(self.embedding(ids))), targets)

    batches = [(torch.randint(0, 11, (9,)), torch.randint(0, 11, (9,))) for _ in range(5)]
    train_both(Tied(), batches, segments=1)


def test_two_outputs_of_which_one_is_not_used():

    class Two(nn.Module):

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x, y):
            return self.a(x).sin(), self.b(x).cos()

    train_both(Two(), pairs(), segments=1)


def test_buffers_that_change():
    """Running statistics and counters: AOTAutograd returns new values, and they arrive in the buffers."""

    class Counted(nn.Module):

        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.BatchNorm1d(6), nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("total", torch.zeros(6))

        def forward(self, x, y):
            self.calls += 1
            self.total.add_(x.mean(0).detach())
            return F.mse_loss(self.fc(self.norm(x)), y)

    model = Counted()
    train_both(model, pairs(), segments=1)
    assert model.calls == 5 and model.norm.num_batches_tracked == 5


def test_training_and_evaluation_take_turns():

    class Switched(nn.Module):

        def __init__(self):
            super().__init__()
            self.norm, self.drop, self.fc = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(self.drop(self.norm(x)))

    model, x = Switched(), torch.randn(8, 6)
    ours = compiled(model)
    for _ in range(2):
        model.train()
        assert not torch.equal(ours(x), ours(x))  # another mask
        model.eval()
        assert_close(ours(x), model(x))
        with torch.no_grad():
            assert_close(ours(x), model(x))
    result = segue.backend_report()
    assert (result.compiled, result.fallen_back) == (3, 0)
    assert [s.trains for s in result.segments] == [True, True, False]


# --- functions and calls ------------------------------------------------------------------------


def test_a_function_of_integers_and_floats():

    @torch.compile(backend="segue")
    def f(x, i, scale, flag):
        y = x[i] * scale
        return (y.sin() if flag else y.cos()), i + 1

    x, i = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 2])
    for flag in (True, False):
        y, j = f(x, i, 2.0, flag)
        assert_close(y, (x[i] * 2.0).sin() if flag else (x[i] * 2.0).cos())
        assert torch.equal(j, i + 1)
    assert segue.backend_report().compiled == 2


def test_without_gradients_only_forward_is_compiled():
    model, (x, y) = Mlp(), pairs(1)[0]
    with torch.no_grad():
        assert_close(compiled(model)(x, y), model(x, y))
    (segment,) = segue.backend_report().segments
    assert segment.compiled and not segment.trains and segment.saved_bytes == 0


def test_an_argument_that_is_changed_in_place():

    @torch.compile(backend="segue")
    def f(x, w):
        x.mul_(2).add_(1)
        return x * w

    x, w = torch.randn(4, 3), torch.randn(3, requires_grad=True)
    expected = x * 2 + 1
    f(x, w).sum().backward()
    assert_close(x, expected)
    assert_close(w.grad, expected.sum(0))
    assert segue.backend_report().compiled == 1


def test_several_calls_before_one_backward():
    model, reference = Mlp(), None
    reference = copy.deepcopy(model)
    ours = compiled(model)
    batches = pairs(3)
    sum(ours(*b) for b in batches).backward()
    sum(reference(*b) for b in batches).backward()
    for (name, a), e in zip(model.named_parameters(), reference.named_parameters()):
        assert_close(a.grad, e[1].grad, what=name)


def test_backwards_in_any_order():
    w = torch.randn(4, requires_grad=True)
    f = torch.compile(lambda x: (x * w).exp().sum(), backend="segue")
    xs = [torch.randn(3, 4) for _ in range(3)]
    losses = [f(x) for x in xs]
    for at in (1, 2, 0):
        w.grad = None
        losses[at].backward()
        assert_close(w.grad, (xs[at] * (xs[at] * w).exp()).sum(0))


def test_backward_twice_over_a_kept_graph():
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.compile(lambda x: (x.sin().exp() * x).sum(), backend="segue")(x)
    y.backward(retain_graph=True)
    first = x.grad.clone()
    x.grad = None
    y.backward()
    assert torch.equal(x.grad, first)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_results_keep_the_strides_that_pytorch_gives_them():
    """The caller may make views that need them."""
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    y = torch.compile(lambda x: (x * 2).permute(0, 2, 3, 1).exp().permute(0, 3, 1, 2), backend="segue")(x)
    expected = (x * 2).permute(0, 2, 3, 1).exp().permute(0, 3, 1, 2)
    assert y.stride() == expected.stride()
    assert y.permute(0, 2, 3, 1).view(2, 20, 3).shape == (2, 20, 3)
    assert_close(y, expected)
    weight = torch.randn_like(y)
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weight).sum(), x)
    assert_close(grad, wanted)


# --- what is saved ------------------------------------------------------------------------------


def test_saved_values_are_one_token_that_goes_with_the_graph():
    model = GPT(SMALL)
    ours = compiled(model)
    loss = ours(*tokens())
    (segment,) = segue.backend_report().segments
    assert segment.saved_bytes > 100_000
    assert len(variant._alive) == 1
    saved = loss.grad_fn.saved_tensors
    # What PyTorch holds besides parameters, inputs and outputs is one byte, many times the same.
    own = {p.data_ptr() for p in (*model.parameters(), *model.buffers())}
    others = {t.data_ptr(): t.numel() for t in saved if t.data_ptr() not in own and t.dtype == torch.int8}
    assert list(others.values()) == [1]
    assert sum(t.dtype.is_floating_point and t.data_ptr() not in own for t in saved) == 0
    del saved
    loss.backward()
    del loss
    gc.collect()
    assert not variant._alive


def test_saved_values_go_when_backward_never_runs():
    x = torch.randn(64, requires_grad=True)
    f = torch.compile(lambda x: x.sin().exp().sum(), backend="segue")
    losses = [f(x) for _ in range(4)]
    assert len(variant._alive) == 4
    del losses
    gc.collect()
    assert not variant._alive


def test_views_of_one_value_are_saved_once():
    """Query, key and value are views of one product; PyTorch saves three."""
    w = torch.randn(24, 8, requires_grad=True)

    def f(x):
        q, k, v = F.linear(x, w).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum()

    torch.compile(f, backend="segue")(torch.randn(2, 5, 8)).backward()
    (segment,) = segue.backend_report().segments
    product, attended, lse = 2 * 5 * 24 * 4, 2 * 5 * 8 * 4, 2 * 2 * 5 * 4
    assert segment.saved_bytes == product + attended + lse


def test_a_dropout_mask_is_drawn_again_and_not_saved():
    x = torch.ones(64, 512, requires_grad=True)
    f = torch.compile(lambda x: F.dropout(x, 0.25), backend="segue")
    y = f(x)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)
    (segment,) = segue.backend_report().segments
    assert segment.compiled and segment.saved_bytes == 0
    torch.manual_seed(3)
    first = f(x)
    assert not torch.equal(first, f(x))
    torch.manual_seed(3)
    assert torch.equal(first, f(x))


def test_masks_of_several_calls_are_their_own():
    x = torch.ones(256, requires_grad=True)
    f = torch.compile(lambda x: F.dropout(x, 0.5), backend="segue")
    a, b = f(x), f(x)
    for y in (b, a):
        x.grad = None
        y.sum().backward()
        assert torch.equal(x.grad != 0, y != 0)


def test_saved_tensor_hooks_see_the_values():
    x = torch.randn(4, 5, requires_grad=True)
    f = torch.compile(lambda x: F.dropout(x.sin().exp(), 0.5).sum(), backend="segue")
    torch.manual_seed(0)
    f(x).backward()
    expected, x.grad = x.grad, None
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        torch.manual_seed(0)
        y = f(x)
    assert packed
    y.backward()
    assert torch.equal(x.grad, expected)
    with torch.autograd.graph.save_on_cpu():
        f(x).backward()


# --- graph breaks -----------------------------------------------------------------------------------


class Broken(nn.Module):
    """Two pieces, or three: a print between them, and a choice by a value."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x, y):
        x = torch.tanh(self.a(x))
        torch._dynamo.graph_break()
        x = torch.tanh(self.b(x))
        if x.sum() > 0:
            x = x * 2
        return F.mse_loss(self.c(x), y)


def test_pieces_are_stitched_without_a_copy():
    model, batches = Broken(), pairs(6)
    reference = copy.deepcopy(model)
    ours = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    losses = [], []
    for batch in batches:
        for m, optimizer, found in zip((ours, reference), optimizers, losses):
            loss = m(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    losses_close(*losses)
    result = segue.backend_report()
    assert result.compiled >= 3 and result.fallen_back == 0
    assert result.counters["inputs"] == result.counters["inputs_elided"] > 0
    assert result.counters["inputs_converted"] == result.counters["converted_bytes"] == 0


class WithUnknown(nn.Module):

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, y):
        x = torch.tanh(self.a(x))
        torch._dynamo.graph_break()
        x = torch.sin(x)
        torch._dynamo.graph_break()
        return F.mse_loss(self.b(x), y)


def test_a_piece_with_an_unknown_operator_runs_in_pytorch_and_says_so(without_a_sine):
    model, batches = WithUnknown(), pairs(3)
    reference = copy.deepcopy(model)
    ours = compiled(model)
    with pytest.warns(segue.FallbackWarning) as caught:
        ours(*batches[0]).backward()
    (message,) = [str(w.message) for w in caught if "operator aten.sin" in str(w.message)]
    line = WithUnknown.forward.__code__.co_firstlineno + 3
    assert "aten.sin.default" in message and f"{os.path.basename(__file__)}:{line}" in message
    assert "runs in PyTorch" in message
    reference(*batches[0]).backward()
    for batch in batches[1:]:
        ours(*batch).backward()
        reference(*batch).backward()
    for (name, a), e in zip(model.named_parameters(), reference.parameters()):
        assert_close(a.grad, e.grad, what=name)
    result = segue.backend_report()
    assert [s.compiled for s in result.segments] == [True, False, True]
    assert "aten.sin.default" in result.segments[1].reasons[0]
    assert "in PyTorch" in str(result)


def test_every_unknown_operator_is_named_once(without_a_sine):
    class Odd(nn.Module):

        def forward(self, x):
            return torch.sin(x) + torch.sin(x * 2) + torch.expm1(x)

    model = nn.Sequential(nn.Linear(4, 4), Odd())
    with pytest.warns(segue.FallbackWarning) as caught:
        compiled(model)(torch.randn(3, 4))
    texts = [str(w.message) for w in caught if w.category is segue.FallbackWarning]
    assert sum("aten.sin.default" in t for t in texts) == 1
    assert sum("aten.expm1.default" in t for t in texts) == 1
    assert all("in module '1'" in t for t in texts)


def test_an_element_type_that_segue_lacks():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    with pytest.warns(segue.FallbackWarning, match="input 'x': element type torch.complex64"):
        y = torch.compile(lambda x: x.sin(), backend="segue")(x)
    y.abs().sum().backward()
    (expected,) = torch.autograd.grad(x.sin().abs().sum(), x)
    assert_close(torch.view_as_real(x.grad), torch.view_as_real(expected))


# --- a run never ends because Segue cannot compile a piece of it ------------------------------------------


def trains_in_pytorch(function, match):
    """The function falls back with a warning that matches; values and gradients are those of eager mode."""
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.warns(segue.FallbackWarning, match=match):
        y = torch.compile(function, backend="segue")(x)
    (actual,), (expected,) = (torch.autograd.grad(z.square().sum(), x) for z in (y, function(x)))
    assert_close(y, function(x))
    assert_close(actual, expected)
    (segment,) = segue.backend_report().segments
    assert not segment.compiled and re.search(match, segment.reasons[0])


def test_a_lowering_that_fails_is_a_fallback_that_names_its_operator(monkeypatch):

    def broken(b, x):
        return [][x.rank]

    monkeypatch.setitem(OPS, "aten.sin.default", broken)
    line = test_a_lowering_that_fails_is_a_fallback_that_names_its_operator.__code__.co_firstlineno + 7
    trains_in_pytorch(lambda x: x.sin() * 2, f"aten.sin.default in module '<top>' at .*test_backend.py:{line} is not "
                      "supported: its lowering fails with IndexError: list index out of range")


def test_a_compiler_that_dies_is_a_fallback(monkeypatch, tmp_path):
    server = tmp_path / "server.py"
    server.write_text("import os, sys\nsys.stdin.buffer.read(8)\nprint('LLVM ERROR: out of memory', file=sys.stderr, flush=True)\n"
                      "os.kill(os.getpid(), 11)\n")
    monkeypatch.setattr(compile_process, "_SERVER", str(server))
    monkeypatch.setattr(compile_process, "_idle", [])
    trains_in_pytorch(lambda x: x.sin() * 2, "the compiler was ended by SIGSEGV while it compiled .*LLVM ERROR: out of memory")


def test_a_graph_that_pytorch_cannot_trace_runs_as_it_is(monkeypatch):

    def partition(self, *_, **__):
        raise ValueError("no cut")

    monkeypatch.setattr(Segment, "partition", partition)
    trains_in_pytorch(lambda x: x.sin() * 2, "test_backend.py:.*: ValueError: no cut")
    with pytest.raises(Exception, match="no cut") as caught:
        torch.compile(lambda x: x.cos(), backend="segue", options={"fallback": "error"})(torch.ones(2, requires_grad=True))
    assert isinstance(caught.value.inner_exception, segue.CompileError)


def test_what_the_compiler_refuses_is_named_by_its_line(monkeypatch):

    def twisted(b, x):
        b.emit("reshape", x.name, f"{x.type} -> tensor<7xf32>", [((7,), x.dtype)])
        return x

    monkeypatch.setitem(OPS, "aten.sin.default", twisted)
    line = test_what_the_compiler_refuses_is_named_by_its_line.__code__.co_firstlineno + 8
    trains_in_pytorch(lambda x: x.sin() * 2, f"the compiler refused .* at .*test_backend.py:{line}: 'segue.reshape' op")


def test_a_segment_that_fell_back_stays_in_the_report(without_a_sine):
    with pytest.warns(segue.FallbackWarning, match="aten.sin"):
        torch.compile(lambda x: torch.sin(x), backend="segue")(torch.ones(3))
    gc.collect()
    assert segue.backend_report().fallen_back == 1


def test_scalars_have_the_dimension_zero():
    """PyTorch lets operators go along dimension 0 or -1 of a tensor that has none."""

    def f(x, i):
        return (torch.max(x, 0).values, torch.min(x, -1)[1], x.transpose(0, -1), torch.index_select(x, 0, i), x.cumsum(0),
                torch.index_add(x, 0, i, x), torch.softmax(x, 0), x.gather(0, i[0]), x.sum(-1), x.unsqueeze(-1),
                torch.logsumexp(x, 0), x.argmax(0), torch.flip(x, [0]), x.amax(0, keepdim=True))

    x, i = torch.tensor(3.0, requires_grad=True), torch.tensor([0])
    results = torch.compile(f, backend="segue")(x, i)
    for number, (a, e) in enumerate(zip(results, f(x, i), strict=True)):
        assert a.shape == e.shape and a.dtype == e.dtype, number
        assert_close(a, e)
        if e.requires_grad:
            (actual,), (expected,) = (torch.autograd.grad(t.sum(), x, retain_graph=True) for t in (a, e))
            assert_close(actual, expected)


def test_fallback_can_be_an_error(without_a_sine):
    with pytest.raises(Exception, match="aten.sin.default in module .* is not supported") as caught:
        compiled(WithUnknown(), fallback="error")(*pairs(1)[0])
    assert isinstance(caught.value.inner_exception, segue.UnsupportedOpError)


# --- options and registration ------------------------------------------------------------------------


@pytest.mark.parametrize("options, message", [
    ({"threds": 2}, "unknown option 'threds' of the backend 'segue'; the nearest is 'threads'"),
    ({"fallback": "never"}, "option 'fallback' is 'never'; it takes 'warn' or 'error'"),
    ({"threads": 0}, "option 'threads' is 0; it takes an integer of at least 1"),
    ({"device": 3}, "option 'device' is 3; it takes a spec"),
    ({"device": "gpu"}, "gpu"),
])
def test_options_are_checked(options, message):
    with pytest.raises(Exception, match=message) as caught:
        torch.compile(lambda x: x + 1, backend="segue", options=options)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, segue.InvalidArgumentError)


def test_modes_are_refused():
    with pytest.raises(Exception, match="has no modes"):
        torch.compile(lambda x: x + 1, backend="segue", mode="max-autotune")(torch.ones(2))


def test_threads():
    f = torch.compile(lambda x: x + 1, backend="segue", options={"threads": 1, "fallback": "error"})
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))


def test_found_without_importing_segue():
    """PyTorch finds the backend by its entry point."""
    program = ("import torch, sys\n"
               "assert 'segue' not in sys.modules\n"
               "assert 'segue' in torch.compiler.list_backends()\n"
               "f = torch.compile(lambda x: (x * 2).sum(), backend='segue', options={'fallback': 'error'})\n"
               "print(f(torch.ones(3)).item())\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6.0"]


def test_importing_segue_does_not_import_the_compiler_of_pytorch():
    """It costs a second; only who uses torch.compile pays it."""
    done = subprocess.run([sys.executable, "-c", "import segue, sys; assert 'torch._dynamo' not in sys.modules"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_reset_empties_the_report_although_a_segment_is_kept_alive():
    compiled = torch.compile(lambda x: x * 2, backend="segue")
    compiled(torch.ones(3))
    kept = set(report._segments)
    assert len(kept) == len(segue.backend_report().segments) == 1
    torch.compiler.reset()
    assert segue.backend_report().segments == ()
    assert compiled(torch.ones(3))[0] == 2


def test_an_empty_report():
    assert segue.backend_report().segments == () and str(segue.backend_report()) == "no segments"


def test_the_guide_is_true():
    """Its example runs as it is written, in Segue."""
    with open(os.path.join(ROOT, "docs/guides/torch-compile.md")) as guide:
        example = guide.read().split("```python\n")[1].split("```")[0]
    done = subprocess.run([warm.python(), "-c", example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "in Segue, 20 forward and 20 backward calls" in done.stdout and "0 converted" in done.stdout
