# ===- test_pieces.py - graphs that are cut at what Segue lacks -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""An operator that Segue lacks takes no other operator along, and values and gradients stay those of PyTorch."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close
from in_pieces import check
from torch import nn

import segue
from segue.frontend.ops import OPS


@pytest.fixture(autouse=True)
def no_segment_of_another_test(without_a_sine):
    torch.compiler.reset()


class Sine(nn.Module):

    def forward(self, x):
        return torch.sin(x)


def layers(*parts):
    """Modules by letters: l a linear layer with tanh, s the sine, d dropout."""
    torch.manual_seed(0)
    made = {"l": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()), "s": Sine, "n": lambda: nn.LayerNorm(6)}
    return nn.Sequential(*(made[p]() for p in "".join(parts)))


@pytest.mark.parametrize("parts, pieces", [
    ("lsl", ["segue", "torch", "segue"]), ("sln", ["torch", "segue"]), ("lns", ["segue", "torch"]),
    ("lslsl", ["segue", "torch"] * 2 + ["segue"]), ("ss", ["torch"])])
def test_the_neighbours_stay_in_segue(parts, pieces):
    result = check(layers(parts), torch.randn(4, 6), pieces=pieces)
    count = {"l": 2, "n": 1, "s": 1}
    wanted = sum(count[p] for p in parts if p != "s") / sum(count[p] for p in parts)
    assert result.operators_in_segue == pytest.approx(wanted)
    assert (0 < result.time_in_segue < 1) == ("segue" in pieces)
    assert f"in Segue: {wanted:.0%} of the operators" in str(result)


class TwoLayers(nn.Module):

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)


class Loop(nn.Module):

    def __init__(self, turns=3):
        super().__init__()
        self.cell, self.turns = nn.Linear(6, 6), turns

    def forward(self, x):
        h = x
        for _ in range(self.turns):
            h = torch.sin(self.cell(h)) + x
        return h


def test_what_the_compiler_refuses_is_cut_off_as_well(monkeypatch):
    """The compiler knows the line, not the operator."""

    def twisted(b, x):
        b.emit("reshape", x.name, f"{x.type} -> tensor<7xf32>", [((7,), x.dtype)])
        return x

    monkeypatch.setitem(OPS, "aten.sin.default", twisted)
    model, x = layers("lsl"), torch.randn(4, 6)
    with pytest.warns(segue.FallbackWarning, match="the compiler refused .*test_pieces.py:.*It runs in PyTorch, what surrounds"):
        y = torch.compile(model, backend="segue")(x)
    (actual,), (expected,) = (torch.autograd.grad(z.sum(), model[0][0].weight) for z in (y, model(x)))
    assert_close(actual, expected)
    assert [s.compiled for s in segue.backend_report().segments] == [True, False, True]


def test_in_a_loop_over_one_layer():
    """One weight is read by several pieces, and an input by all."""
    check(Loop(), torch.randn(4, 6), pieces=["segue", "torch"] * 3)


class Positions(nn.Module):
    """A table that depends on no parameter, beside a deep model."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("places", torch.arange(6.0))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(h + torch.sin(self.places * 0.1))


def test_what_depends_on_nothing_runs_first():
    check(Positions(), torch.randn(4, 6), pieces=["torch", "segue"])


class Frozen(TwoLayers):

    def forward(self, x):
        with torch.no_grad():
            scale = torch.sin(self.first(x)).mean()
        return self.second(torch.tanh(self.first(x)) * scale)


class HalfInside(nn.Module):
    """Positions without autocast, as in the models of Hugging Face, and a region that has it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            places = (torch.arange(6.0) * 0.1).cos()
        h = torch.tanh(self.first(x)) * places
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.second(torch.sin(self.second(h)))
        return self.last(torch.tanh(h.float()))


def test_a_region_under_autocast():
    """Each piece is traced with the autocast of its place."""
    check(HalfInside(), torch.randn(4, 6), pieces=["segue"] * 2 + ["torch"] + ["segue"] * 2, tolerance=2e-2)


@pytest.mark.parametrize("around", [True, False])
def test_autocast_around_the_call(around):
    """A region without autocast is a region of its own only where there is some around it."""

    class Model(HalfInside):

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                places = self.first((torch.arange(6.0) * 0.1).cos())
            return self.last(torch.tanh(self.second(torch.sin(self.second(x * places)))).float())

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
        result = check(Model(), torch.randn(4, 6), pieces=["segue"] * (1 + around) + ["torch", "segue"],
                       tolerance=2e-2 if around else 1e-5)
    assert result.operators_in_segue > 0.8


def test_a_region_without_gradients():
    model, x = Frozen(), torch.randn(4, 6)
    reference = copy.deepcopy(model)
    with pytest.warns(segue.FallbackWarning, match="aten.sin"):
        y = torch.compile(model, backend="segue")(x)
    y.sum().backward()
    reference(x).sum().backward()
    for a, e in zip(model.parameters(), reference.parameters()):
        assert_close(a.grad, e.grad)
    assert segue.backend_report().compiled == 2 and torch.is_grad_enabled()


def test_without_gradients():
    model, x = layers("lsl"), torch.randn(4, 6)
    with torch.no_grad(), pytest.warns(segue.FallbackWarning):
        assert_close(torch.compile(model, backend="segue")(x), model(x))
    assert [s.trains for s in segue.backend_report().segments] == [False] * 3


def test_dropout_on_both_sides():
    """What was dropped in forward is dropped in backward."""
    w = torch.randn(64, 64)

    def f(x):
        a = F.dropout(x @ w, 0.5)
        return F.dropout(torch.sin(a) @ w, 0.5), a

    x = torch.randn(64, 64, requires_grad=True)
    with pytest.warns(segue.FallbackWarning):
        y, a = torch.compile(f, backend="segue")(x)
    assert segue.backend_report().compiled == 2
    assert abs((y == 0).float().mean() - 0.5) < 0.05
    (grad,) = torch.autograd.grad(y.sum(), x)
    upper = (y != 0).float() * 2  # the masks, from what came out
    lower = (a != 0).float() * 2
    assert_close(grad, ((upper @ w.T) * torch.cos(a) * lower) @ w.T, 1e-4)


class Counted(nn.Module):
    """Changes a buffer in place behind the cut."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        h = torch.sin(self.first(x))
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.second(h - self.mean)


def test_a_buffer_that_is_changed():
    check(Counted(), torch.randn(4, 6), pieces=["segue", "torch", "segue"])


class MakesItsLoss(TwoLayers):

    def forward(self, x):
        return nn.SmoothL1Loss(reduction="none")(self.second(torch.sin(self.first(x))), x.detach())


def test_a_module_that_is_made_within():
    check(MakesItsLoss(), torch.randn(4, 6), pieces=["segue", "torch", "segue"])


class InPlace(TwoLayers):
    """Segue lacks what changes a tensor in place: who makes that goes with it."""

    def forward(self, x):
        h = self.first(x)
        return self.second(h * torch.ones_like(h).mul_(0.5).sin_() + h.clone().sin_())


def test_what_is_changed_in_place_goes_with_its_maker():
    check(InPlace(), torch.randn(4, 6), pieces=["segue", "torch", "segue"])


class Overwritten(TwoLayers):
    """Changes in place, with what comes of it, what another piece would have made."""

    def forward(self, x):
        h = self.first(x)
        row = h[0]
        h[1] = torch.sin(h[2]).detach()
        return self.second(h + 0) + row


def test_what_is_changed_by_what_comes_of_it():
    check(Overwritten(), torch.randn(4, 6), pieces=["torch", "segue"])


class ChangedTwice(TwoLayers):
    """Changes in place what both pieces around Segue's would make and change: this is not cut."""

    def forward(self, x):
        kept = torch.zeros_like(x)
        kept[0] = torch.sin(self.first(x))[0]
        h = self.second(torch.sin(x + kept))
        kept[1] = torch.sin(h)[1]
        return self.first(kept * 2)


def test_what_is_changed_around_another_piece_is_not_cut():
    check(ChangedTwice(), torch.randn(4, 6), pieces=["torch"])


class OneNormTwice(nn.Module):
    """The running statistics are those of both calls, in their order: the second call depends on nothing that is cut off."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(torch.sin(self.first(x))) + self.norm(self.first(x * 2).tanh() * 3 + 1)


def test_running_statistics_are_written_in_order():
    model, x = OneNormTwice(), torch.randn(4, 6)
    reference = copy.deepcopy(model)
    with pytest.warns(segue.FallbackWarning, match="aten.sin"):
        assert_close(torch.compile(model, backend="segue")(x), reference(x))
    for (name, a), e in zip(model.named_buffers(), reference.buffers()):
        assert_close(a, e, what=name)


def test_a_mistake_in_cutting_ends_no_run(monkeypatch):

    def broken(*_):
        raise KeyError("example_value")

    monkeypatch.setattr("segue.dynamo.backend.cut", broken)
    model, x = layers("lsl"), torch.randn(4, 6)
    with pytest.warns(segue.FallbackWarning, match="KeyError: 'example_value'. The whole segment runs in PyTorch"):
        y = torch.compile(model, backend="segue")(x)
    assert_close(y, model(x))


def test_levels_of_vmap_are_not_cut():
    layer, x = nn.Linear(6, 6), torch.randn(4, 6)

    def f(x):
        return torch.vmap(lambda row: torch.sin(layer(row)))(layer(x)) + layer(x).tanh()

    with pytest.warns(segue.FallbackWarning, match="aten.sin"):
        assert_close(torch.compile(f, backend="segue")(x), f(x))


def test_an_element_type_that_segue_lacks_is_cut_off():
    layer = nn.Linear(6, 6)

    def f(x):
        return layer((x.to(torch.uint8) * 2).float() + x).tanh()

    x = torch.randn(4, 6, requires_grad=True)
    with pytest.warns(segue.FallbackWarning, match="uint8"):
        y = torch.compile(f, backend="segue")(x)
    (actual,), (expected,) = (torch.autograd.grad(z.sum(), x) for z in (y, f(x)))
    assert_close(actual, expected)
    assert [s.compiled for s in segue.backend_report().segments] == [False, True]


def test_sizes_that_change():
    model = layers("lsl")
    ours = torch.compile(model, backend="segue", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", segue.FallbackWarning)
        for rows in (4, 7, 5):
            x = torch.randn(rows, 6, requires_grad=True)
            (actual,), (expected,) = (torch.autograd.grad(m(x).square().sum(), x) for m in (ours, model))
            assert_close(actual, expected)
    assert segue.backend_report().compiled >= 2


def test_an_error_names_the_operator():
    with pytest.raises(Exception, match="aten.sin.default in module '1'") as caught:
        torch.compile(layers("lsl"), backend="segue", options={"fallback": "error"})(torch.randn(4, 6))
    assert isinstance(caught.value.inner_exception, segue.UnsupportedOpError)


def test_what_has_a_size_that_depends_on_values_is_left_to_pytorch_by_name():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x, mask):
            return self.last(self.first(x).tanh()[mask]).square().sum()

    net, x, mask = Chosen(), torch.randn(6, 8), torch.arange(6) % 2 == 0
    torch.compiler.reset()
    actual, expected = torch.compile(net, backend="segue", options={"fallback": "error"})(x, mask), net(x, mask)
    torch.testing.assert_close(actual, expected)
    for a, e in zip(torch.autograd.grad(actual, net.parameters()), torch.autograd.grad(expected, net.parameters())):
        torch.testing.assert_close(a, e)
    report = segue.backend_report()
    assert report.compiled == 2 and report.fallen_back == 0
    assert any("aten.nonzero.default" in what for what in report.graph_breaks), report.graph_breaks
