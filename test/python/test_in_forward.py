# ===- test_in_forward.py - parameters that are updated right before the next forward ---------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`AdamW(in_forward=True)`: the bits of a run that updates after backward, clipped and with several batches too, whatever the budget
and whoever reads between two steps."""

import os
from pathlib import Path

import pytest
import torch

import segue
from known_optimizers import KNOWN, ours
from service_configs import services
from test_in_backward import STREAMS, adamw, assert_same, course, made, resumed

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))
STEPS = 5


def trained(optimizer, kind, device="cpu", between=lambda trainer, step: None, parts=1, **options):
    """Losses, norms of gradients and trained weights of a run, and its highest peak."""
    model, batches = made(kind)
    first, second = ("tokens", "targets") if kind == "tied" else ("x", "y")
    module = segue.compile(model, [part.chunk(parts)[0] for part in batches[0]], device=device, optimizer=optimizer)
    trainer = segue.Trainer([module], optimizer=optimizer, grad_accumulation=parts, **options)
    losses, norms = [], []
    for step, (x, y) in enumerate(batches):
        losses.append(trainer.step(**{first: x, second: y}))
        norms.append(trainer.last.grad_norm)
        between(trainer, step)
    trainer.sync()
    return losses, norms, {name: value.clone() for name, value in model.named_parameters()}, trainer.peak_bytes


@pytest.mark.parametrize("kind, optimizer, device, parts", [
    *(("net", name, "cpu", 1) for name in KNOWN),
    *(("tied", name, STREAMS, parts) for name, parts in (("adamw", 1), ("nadam", 2), ("adafactor", 1), ("radam", 2)))])
def test_no_bit_differs(kind, optimizer, device, parts):
    runs = [trained(ours(optimizer, in_forward=b), kind, device, parts=parts, clip_grad_norm=0.5) for b in (True, False)]
    assert_same(*runs)


def test_the_update_is_in_the_next_forward():
    """Between two steps, memory that PyTorch shares has the values of one step before; whoever asks for them has the new ones."""
    model, batches = made("net")
    optimizer = adamw(in_forward=True)
    module = segue.compile(model, batches[0], optimizer=optimizer)
    trainer = segue.Trainer([module], optimizer=optimizer)
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer.step(x=batches[0][0], y=batches[0][1])
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    trainer.sync()
    assert not any(torch.equal(value, before[name]) for name, value in model.named_parameters())


def read(trainer, step):
    trainer.parameters() if step % 2 else trainer.sync()


def evaluated(trainer, step):
    x, y = made("net")[1][step]
    trainer.evaluate(x=x, y=y)


@pytest.mark.parametrize("between", [read, evaluated])
@pytest.mark.parametrize("mode", [None, "planned"])
def test_who_reads_between_steps_changes_no_bit(mode, between):
    config = services((mode,), (1 << 20) * 9 // 10) if mode else None
    device = "sim:streams,dram=64MiB,link=1GB/s,adversarial=3"
    want = trained(adamw(), "net", device, clip_grad_norm=0.5)
    device = device.replace("64MiB", "1MiB") if mode else device
    assert_same(trained(adamw(in_forward=True), "net", device, between, config=config, clip_grad_norm=0.5), want)


@pytest.mark.parametrize("parts, kib", [(1, 1024), (2, 640), (1, 400)])
@pytest.mark.parametrize("device", ["sim", "sim:streams,adversarial=3"])
def test_plans_change_no_bit(device, parts, kib):
    """The device is as large as the cap, and somebody reads between the steps."""
    device += ("," if ":" in device else ":") + "link=1GB/s,dram="
    want = trained(adamw(), "net", device + "64MiB", clip_grad_norm=0.5, parts=parts)
    found = trained(adamw(in_forward=True), "net", f"{device}{kib}KiB", read, config=services(("planned",), kib << 10), clip_grad_norm=0.5, parts=parts)
    assert_same(found, want)
    assert found[3] <= kib << 10


@pytest.mark.parametrize("name, budget", [("adamw", "600KiB"), ("adamw", "400KiB"), ("nadam", "600KiB"), ("rmsprop-centered", "500KiB")])
def test_a_budget_with_a_disk_changes_no_bit(name, budget):
    folder = BUILD / "check" / "in-forward"
    folder.mkdir(parents=True, exist_ok=True)
    want = trained(ours(name), "net", clip_grad_norm=0.5)
    between = evaluated if budget == "400KiB" else lambda trainer, step: None
    assert_same(trained(ours(name, in_forward=True), "net", between=between, budget=budget, spill_dir=folder, spill_capacity="16MiB", clip_grad_norm=0.5), want)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"precision": "f16-mixed", "loss_scale": True},
                                     {"config": services(("planned",), (1 << 20) * 9 // 10)}])
def test_a_partial_batch_and_a_resumed_run_have_the_bits(tmp_path, options):
    if options.get("loss_scale"):
        options = options | {"loss_scale": segue.LossScale(2.0**20, growth_interval=2)}  # some steps are skipped
    device = "sim:dram=64MiB,link=1GB/s" if "config" in options else "cpu"
    free = {name: value for name, value in options.items() if name != "config"}

    def run(in_forward, **options):
        optimizer = adamw(in_forward=in_forward, ema_decay=0.9)
        model, trainer, losses = resumed(optimizer, tmp_path / "saved.safetensors", device, clip_grad_norm=1.0, **options)
        return model, trainer, losses + [value.double().sum().item() for value in trainer.averages().values()]

    assert_same(course(run(True, **options)), course(run(False, **free)))


def test_sealed_checkpoints_have_the_bits():
    folder = BUILD / "check" / "in-forward-sealed"
    folder.mkdir(parents=True, exist_ok=True)

    def run(in_forward, **options):
        model, batches = made("net")
        optimizer = adamw(in_forward=in_forward)
        trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer, clip_grad_norm=0.5, **options)
        losses = []
        for step, (x, y) in enumerate(batches):
            losses.append(trainer.step(x=x, y=y))
            if options and step in (1, 3):
                trainer.seal()
        if options:  # back to the seal, with an update that waits
            trainer.resume(folder / "run.seal")
            assert trainer.step(x=batches[4][0], y=batches[4][1]) == losses[4]
        return model, trainer, losses

    found = run(True, budget="600KiB", spill_dir=folder, spill_capacity="24MiB", seal=folder / "run.seal")
    assert_same(course(found), course(run(False)))


def test_a_step_that_fails_leaves_the_one_before():
    def run(in_forward):
        model, batches = made("net")
        optimizer = adamw(in_forward=in_forward)
        trainer = segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer)
        trainer.step(x=batches[0][0], y=batches[0][1])
        with pytest.raises(segue.NanLossError, match="optimizer state are those of step 1"):
            trainer.step(x=batches[1][0] * float("nan"), y=batches[1][1])
        return model, trainer, [trainer.step(x=x, y=y) for x, y in batches[2:]]

    assert_same(course(run(True)), course(run(False)))


def test_hooks_on_gradients_have_the_bits():
    def hooked(trainer, step):
        if step == 0:
            trainer.on_gradient("*.weight", lambda gradient: gradient * 0.5)

    runs = [trained(adamw(in_forward=b), "net", between=hooked, clip_grad_norm=0.5) for b in (True, False)]
    assert_same(*runs)


def test_freezing_in_between_has_the_bits():
    def freeze(trainer, step):
        if step == 1:
            trainer.freeze("*.bias")

    runs = [trained(adamw(in_forward=b), "net", between=freeze, clip_grad_norm=0.5) for b in (True, False)]
    assert_same(*runs)


def test_what_cannot_be_had():
    model, batches = made("net")
    optimizer = adamw(in_forward=True, in_backward=True)
    with pytest.raises(segue.Error, match="leave one away|give one of them"):
        segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer)], optimizer=optimizer)
    for mode in ("watermark", "ring"):
        optimizer = adamw(in_forward=True)
        with pytest.raises(segue.Error, match="by a plan alone"):
            segue.Trainer([segue.compile(model, batches[0], optimizer=optimizer, device="sim:dram=1MiB,link=1GB/s")], optimizer=optimizer,
                          config=services((mode,), 1 << 20))
