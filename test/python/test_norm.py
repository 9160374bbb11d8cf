# ===- test_norm.py - the norm by which gradients are clipped ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The norm of the gradients has the same bits whether backward gives their squares or it is taken from them later, reads nothing
that has left in the first case, and is PyTorch's."""

import copy
import math
import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import segue
from service_configs import services
from test_in_backward import STREAMS, adamw, made

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))


def clipped(kind, device="cpu", watched=None, optimizer=adamw, **options):
    """Losses, norms and weights of a run that clips, and the bytes that two steps, which go by the first plan, brought to the device. Somebody
    looks at the gradient of `watched`, so that norms are taken after backward."""
    model, batches = made(kind)
    first, second = ("tokens", "targets") if kind == "tied" else ("x", "y")
    trainer = segue.Trainer([segue.compile(model, batches[0], device=device, optimizer=optimizer())], optimizer=optimizer(),
                            clip_grad_norm=1e-3, **options)
    if watched:
        trainer.on_gradient(watched, lambda gradient: None)
    course = []
    for x, y in batches:
        course.append((trainer.step(**{first: x, second: y}), trainer.last.grad_norm, trainer.last.clip))
        if len(course) == 2:
            brought = trainer.traffic()["in"]["bytes"]
    trainer.sync()
    assert all(clip < 1 for *_, clip in course)
    return course, {name: value.clone() for name, value in model.named_parameters()}, brought


def assert_same(found, want):
    assert found[0] == want[0]
    assert all(torch.equal(found[1][name], want[1][name]) for name in want[1])


@pytest.mark.parametrize("kind, device", [("net", "cpu"), ("tied", STREAMS)])
def test_both_ways_give_the_same_bits(kind, device):
    watched = "layers.2.bias" if kind == "net" else "blocks.1.1.bias"
    assert_same(clipped(kind, device), clipped(kind, device, watched))


@pytest.mark.parametrize("in_forward", [False, True])
@pytest.mark.parametrize("device", ["sim:link=1GB/s,dram=330KiB", "sim:streams,adversarial=3,link=1GB/s,dram=330KiB", "disk"])
def test_a_budget_changes_no_bit(device, in_forward):
    """The device is as large as the budget, or memory is, with a disk. There, gradients of 16 KiB have left by the end of backward."""
    options = {"device": device, "config": services(("planned",), 330 << 10)}
    if device == "disk":
        folder = BUILD / "check" / "norm"
        folder.mkdir(parents=True, exist_ok=True)
        options = {"budget": "200KiB", "spill_dir": folder, "spill_capacity": "16MiB"}
    want = clipped("net", "cpu" if device == "disk" else re.sub("330KiB", "64MiB", device))
    here, later = (clipped("net", watched=watched, optimizer=lambda: adamw(in_forward=in_forward), **options) for watched in (None, "layers.0.bias"))
    assert_same(here, want)
    assert_same(later, want)
    if device == "disk":  # one of them at least, and not more than each once in both steps, is read for the norm, but for the one that is watched
        gradient = 64 * 64 * 4
        assert gradient <= later[2] - here[2] - 2 * 64 * 4 <= 2 * 6 * gradient


class Given(nn.Module):
    """Gradients that a test says: those of the weights are the inputs."""

    def __init__(self, dtype):
        super().__init__()
        self.matrix, self.vector, self.number = (nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((40, 130), (300,), (1,)))

    def forward(self, a, b, c):
        return sum((weight * gradient).float().sum() for weight, gradient in ((self.matrix, a), (self.vector, b), (self.number, c)))


def gradients_of(what, dtype):
    torch.manual_seed(3)
    given = [torch.randn(shape) for shape in ((40, 130), (300,), (1,))]
    if what == "zero":
        given = [torch.zeros_like(each) for each in given]
    elif what == "large":
        given = [each * 1e15 for each in given]
    elif what in ("inf", "nan", "1e30"):
        given[1][17] = float(what)
    return [each.to(dtype) for each in given]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("what", ["usual", "zero", "large", "inf", "nan", "1e30"])
def test_the_norm_is_that_of_pytorch(what, dtype):
    given, model = gradients_of(what, dtype), Given(dtype)
    reference = copy.deepcopy(model)
    sgd = segue.SGD(lr=0.25)
    trainer = segue.Trainer([segue.compile(model, given, optimizer=sgd)], optimizer=sgd, clip_grad_norm=2.0)
    batch = dict(zip("abc", given))
    for parameter, gradient in zip(reference.parameters(), given):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 2.0).item()
    if not math.isfinite(norm):
        with pytest.raises(segue.NanLossError, match="the loss is|norm of the gradients is (inf|-?nan)"):
            trainer.step(**batch)
        return
    trainer.step(**batch)
    exact = math.sqrt(sum(gradient.double().square().sum().item() for gradient in given))
    assert trainer.last.grad_norm == pytest.approx(exact, rel=2e-6)
    assert norm == pytest.approx(exact, rel=1e-5 if dtype == torch.float32 else 1e-2)
    torch.optim.SGD(reference.parameters(), lr=0.25).step()
    for found, want in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(found, want, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


class Half(nn.Module):
    """A layer that another module has, too, and one of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.own = layer, nn.Linear(8, 8)

    def forward(self, x):
        return self.own(self.layer(x)).tanh()


class End(Half):
    def forward(self, hidden):
        return super().forward(hidden).square().mean()


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_of_two_modules_and_of_several_batches_are_summed_first(parts):
    torch.manual_seed(2)
    layer, x = nn.Linear(8, 8), torch.randn(6, 8)
    models = [Half(layer), End(layer)]
    want_models = copy.deepcopy(models)
    sgd = segue.SGD(lr=0.1)
    modules = [segue.compile(model, (x[:6 // parts],), name=name, optimizer=sgd) for model, name in zip(models, ("first", "last"))]
    trainer = segue.Trainer(modules, optimizer=sgd, clip_grad_norm=0.01, grad_accumulation=parts)
    trainer.step(x=x)
    want_models[1](want_models[0](x)).backward()
    want = {id(p): p for model in want_models for p in model.parameters()}.values()
    norm = torch.nn.utils.clip_grad_norm_(want, 0.01).item()
    assert trainer.last.grad_norm == pytest.approx(norm, rel=1e-5)


def test_a_norm_is_of_gradients_changed_by_a_hook():
    """Also where a hook comes in mid-run, and goes."""
    model, batches = made("net")
    reference = copy.deepcopy(model)
    sgd = segue.SGD(lr=0.1)
    trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=sgd)], optimizer=sgd, clip_grad_norm=0.05)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches[:3]):
        theirs.zero_grad()
        reference(x, y).backward()
        hook = trainer.on_gradient("layers.1.weight", lambda gradient: gradient * 3) if step == 1 else None
        if hook:
            reference.layers[1].weight.grad *= 3
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05).item()
        theirs.step()
        trainer.step(x=x, y=y)
        assert trainer.last.grad_norm == pytest.approx(norm, rel=1e-4)
        if hook:
            hook.remove()
