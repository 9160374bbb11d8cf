# ===- test_in_backward.py - parameters that are updated in the midst of backward -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`AdamW(in_backward=True)`: the bits of a run that updates after backward, whatever the budget; less memory; and clear errors where it
cannot be."""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import segue
from known_optimizers import KNOWN, ours
from nets import Net
from service_configs import services

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))
STEPS = 5
STREAMS = "sim:streams,dram=64MiB,link=1GB/s,adversarial=7"


class Tied(nn.Module):
    """A table that embeds and predicts, blocks with dropout and a norm between, and a frozen scale."""

    def __init__(self, width=32, words=64):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1),
                                                  nn.Linear(4 * width, width)) for _ in range(3))
        self.scale = nn.Parameter(torch.full((width,), 0.7), requires_grad=False)

    def forward(self, tokens, targets):
        x = self.table(tokens) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(x @ self.table.weight.t(), targets)


def made(kind):
    """A model of that kind, and batches for it."""
    torch.manual_seed(1)
    if kind == "net":
        return Net(), [(torch.randn(32, 64), torch.randn(32, 64)) for _ in range(STEPS)]
    return Tied(), [(torch.randint(64, (48,)), torch.randint(64, (48,))) for _ in range(STEPS)]


def trained(optimizer, kind, device="cpu", **options):
    """Losses, norms of gradients and trained weights of a run, and its highest peak."""
    model, batches = made(kind)
    module = segue.compile(model, batches[0], device=device, optimizer=optimizer)
    trainer = segue.Trainer([module], optimizer=optimizer, **options)
    losses, norms = [], []
    for first, second in batches:
        name = "tokens" if kind == "tied" else "x"
        losses.append(trainer.step(**{name: first, "targets" if kind == "tied" else "y": second}))
        norms.append(trainer.last.grad_norm)
    trainer.sync()
    weights = {name: value.clone() for name, value in model.named_parameters()}
    return losses, norms, weights, trainer.peak_bytes


def assert_same(found, want):
    assert found[0] == want[0]
    assert found[1] == pytest.approx(want[1], rel=1e-6)  # a sum, which kernels of other shapes take in another order
    assert all(torch.equal(found[2][name], want[2][name]) for name in want[2])


def adamw(**more):
    return segue.AdamW(lr=1e-2, weight_decay=0.1, groups=[segue.Group("*.bias", weight_decay=0.0, lr=3e-2)], **more)


@pytest.mark.parametrize("kind, optimizer, device", [
    *(("net", name, "cpu") for name in KNOWN), *(("tied", name, STREAMS) for name in ("adamw", "nesterov", "nadam", "radam", "sgd"))])
def test_no_bit_differs(kind, optimizer, device):
    assert_same(trained(ours(optimizer, in_backward=True), kind, device), trained(ours(optimizer), kind, device))


def test_no_step_holds_all_gradients():
    make = adamw
    model, batches = made("net")
    gradients = sum(p.numel() for p in model.parameters()) * 4
    plain, fused = (segue.compile(model, batches[0], optimizer=make(in_backward=b), device="sim:dram=64MiB,link=1GB/s").memory()
                    for b in (False, True))
    assert plain.unconstrained.peak_bytes - fused.unconstrained.peak_bytes > gradients / 2


@pytest.mark.parametrize("mode", ["planned", "watermark", "ring"])
@pytest.mark.parametrize("device", ["sim:dram=1MiB,link=1GB/s", "sim:streams,dram=1MiB,link=1GB/s,adversarial=3"])
def test_services_change_no_bit(mode, device):
    make, wide = adamw, re.sub("1MiB", "64MiB", device)
    want = trained(make(), "net", wide)
    found = trained(make(in_backward=True), "net", device, config=services((mode,), (1 << 20) * 9 // 10 if mode == "planned" else 1 << 20))
    assert_same(found, want)
    assert found[3] <= 1 << 20


@pytest.mark.parametrize("name", ["adamw", "nadam", "rmsprop-centered"])  # two states, one of them a number, three
def test_a_budget_with_a_disk_changes_no_bit(name):
    folder = BUILD / "check" / "in-backward"
    folder.mkdir(parents=True, exist_ok=True)
    want = trained(ours(name), "net")
    for budget, in_backward in (("600KiB", False), ("350KiB", True)):
        found = trained(ours(name, in_backward=in_backward), "net", budget=budget, spill_dir=folder, spill_capacity="16MiB")
        assert_same(found, want)


def resumed(optimizer, path, device="cpu", **options):
    """The model, its trainer and the losses of a run with a last partial batch, which goes back to a checkpoint and takes a step again."""
    model, batches = made("net")
    trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer, device=device)], optimizer=optimizer, **options)
    losses = [trainer.step(x=x, y=y) for x, y in batches[:2]]
    losses.append(trainer.step(x=batches[2][0][:7], y=batches[2][1][:7]))
    trainer.save(path)
    losses.append(trainer.step(x=batches[3][0], y=batches[3][1]))
    trainer.resume(path)
    assert trainer.step(x=batches[3][0], y=batches[3][1]) == losses[-1]
    return model, trainer, losses


def course(run):
    """What `assert_same` compares of a run that has come to its end."""
    model, trainer, losses = run
    trainer.sync()
    return losses, [], {name: value.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}])
def test_a_partial_batch_and_a_resumed_run_have_the_bits(tmp_path, options):
    assert_same(*(course(resumed(adamw(in_backward=b), tmp_path / "saved.safetensors", **options)) for b in (True, False)))


def test_gradients_are_refused_with_what_to_do():
    model, batches = made("net")
    optimizer = adamw(in_backward=True)
    trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer)
    with pytest.raises(segue.InvalidArgumentError, match="compile it without in-backward to see them"):
        trainer.gradients(x=batches[0][0], y=batches[0][1])
    assert trainer.step(x=batches[0][0], y=batches[0][1]) > 0


def test_pytorch_still_gets_gradients():
    model, batches = made("net")
    module = segue.compile(model, batches[0], optimizer=adamw(in_backward=True))
    module(*batches[0]).backward()
    want, _ = made("net")
    want(*batches[0]).backward()
    for (name, found), (_, other) in zip(model.named_parameters(), want.named_parameters()):
        torch.testing.assert_close(found.grad, other.grad, msg=name)


def test_a_file_remembers(tmp_path):
    model, batches = made("net")
    optimizer = adamw(in_backward=True)
    segue.compile(model, batches[0], optimizer=optimizer).save(tmp_path / "net.segue", weights=True)
    loaded = segue.load(tmp_path / "net.segue", weights=tmp_path / "net.safetensors")
    trainer = segue.Trainer([loaded], optimizer=optimizer)
    losses = [trainer.step(x=x, y=y) for x, y in batches]
    assert losses == trained(adamw(), "net")[0]
    with pytest.raises(segue.InvalidArgumentError, match="in-backward=true"):
        segue.Trainer([loaded], optimizer=adamw())


@pytest.mark.parametrize("options, said", [({"clip_grad_norm": 1.0}, "norm of all gradients"), ({"grad_accumulation": 2}, "several batches")])
def test_what_needs_all_gradients_is_refused(options, said):
    model, batches = made("net")
    optimizer = adamw(in_backward=True)
    with pytest.raises(segue.InvalidArgumentError, match=said):
        segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer, **options)


def test_a_parameter_of_two_modules_is_refused():
    class Half(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared

        def forward(self, x):
            return self.shared(x).tanh()

    class End(Half):
        def forward(self, x):
            return self.shared(x).square().mean()

    shared, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = adamw(in_backward=True)
    modules = [segue.compile(Half(shared), (x,), name="first"), segue.compile(End(shared), (x,), name="last")]
    with pytest.raises(segue.Error, match="other modules have gradients of it, too; compile it without in-backward"):
        segue.Trainer(modules, optimizer=optimizer)


def test_a_loss_that_is_none_updates_nothing():
    model, batches = made("net")
    optimizer = adamw(in_backward=True)
    trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(segue.NanLossError, match="are those of step 0"):
        trainer.step(x=batches[0][0] * float("nan"), y=batches[0][1])
    trainer.sync()
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    trainer.step(x=batches[0][0], y=batches[0][1])


class Steep(nn.Module):
    """A small loss whose gradient for the first layer alone is none: the root of 0."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        root = self.first(x).sum() * 0.0
        return self.last(x).square().mean() + root.sqrt()


def test_a_gradient_that_is_none_ends_the_run_until_a_checkpoint(tmp_path):
    torch.manual_seed(0)
    model, x = Steep(), torch.randn(4, 8)
    optimizer = segue.SGD(lr=0.1, momentum=0.5, in_backward=True)
    trainer = segue.Trainer([segue.compile(model, (x,), optimizer=optimizer)], optimizer=optimizer)
    trainer.save(tmp_path / "start.safetensors")
    with pytest.raises(segue.StateTornError, match="had updated parameters when this was found: .*norm of the gradients is") as torn:
        trainer.step(x=x)
    assert "are those of step" not in str(torn.value)
    with pytest.raises(segue.StateTornError):
        trainer.step(x=x)
    trainer.resume(tmp_path / "start.safetensors")
    assert trainer.step_count == 0
