# ===- test_sealed.py - checkpoints that stay where they lie on the disk -------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A run within a budget seals its checkpoints on the disk: `segue-run train --save-every`, `Trainer(seal=)`, `segue-run export`. Kills of such runs
are in test_killed.py."""

import gc
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import segue

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
INPUTS = ROOT / "test/tools/segue-run/Inputs"
MIB = 1 << 20


@pytest.fixture
def folder():
    """An empty one on the disk of the build: a folder for temporary files may lie in memory."""
    path = BUILD / "check" / "sealed"
    (path / "spill").mkdir(parents=True, exist_ok=True)
    for file in [*path.glob("*.*"), *(path / "spill").iterdir()]:
        file.unlink()
    return path


def trainer_of(frozen=(), **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))
    for layer in frozen:
        model[layer].requires_grad_(False)

    class Loss(nn.Module):

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, y):
            return nn.functional.mse_loss(self.model(x), y)

    x, y = torch.randn(32, 64), torch.randn(32, 64)
    return segue.Trainer(segue.compile(Loss(), (x, y)), optimizer=segue.AdamW(lr=1e-2), **options), {"x": x, "y": y}


def test_a_trainer_seals_and_another_goes_on(folder):
    """The losses of the unbroken run, in memory and on the disk; what PyTorch writes after a seal is not in it."""
    free, batch = trainer_of()
    losses = free.fit([batch] * 6)
    disk = dict(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="16MiB")
    trainer, _ = trainer_of(**disk, seal=folder / "run.seal")
    assert trainer.fit([batch] * 2) == losses[:2]
    figures = trainer.seal()
    assert figures["sealed_bytes"] > 3 * 4 * 98000 and figures["file_bytes"] < 64 << 10
    assert figures["written_bytes"] <= sum(trainer.held()["device_dram"].values()) + 64 << 10
    assert trainer.seal()["written_bytes"] == 0
    assert trainer.fit([batch] * 2) == losses[2:4]
    trainer.resume(folder / "run.seal")
    assert trainer.step_count == 2 and trainer.fit([batch]) == losses[2:3]
    assert trainer.seal()["seconds"] > 0
    with torch.no_grad():
        for tensor in trainer.modules["0"].parameters():
            tensor.zero_()
    with pytest.raises(segue.FileError, match="still at work"):
        segue.export_checkpoint(folder / "run.seal", folder / "early.safetensors")
    del trainer, tensor
    gc.collect()
    assert len(list((folder / "spill").iterdir())) == 1
    segue.export_checkpoint(folder / "run.seal", folder / "whole.safetensors")
    with pytest.raises(segue.InvalidArgumentError, match="the checkpoint itself"):
        segue.export_checkpoint(folder / "run.seal", folder / "run.seal")
    for checkpoint, options in (("run.seal", {}), ("whole.safetensors", disk), ("run.seal", disk | {"budget": "3MiB"})):
        again, _ = trainer_of(**options)
        again.resume(folder / checkpoint)
        assert again.fit([batch] * 3) == losses[3:]
        del again
        gc.collect()


def test_fit_seals_where_its_checkpoints_are(folder):
    """The place in the data is sealed with the rest."""
    free, batch = trainer_of()
    losses = free.fit([batch] * 6)
    disk = dict(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="16MiB", seal=folder / "run.seal")
    trainer, _ = trainer_of(**disk)
    assert trainer.fit([batch] * 6, steps=4, checkpoint=folder / "run.seal", save_every=3) == losses[:4]
    assert b'"segue.sealed.file"' in (folder / "run.seal").read_bytes()
    del trainer
    gc.collect()
    again, _ = trainer_of(**disk)
    assert again.fit([batch] * 6, checkpoint=folder / "run.seal", resume=True) == losses[4:]


def test_a_checkpoint_that_was_moved_keeps_its_spill_file(folder, caplog):
    """Another run that seals where it was takes nothing from it, and names the file for who has removed the checkpoint."""
    disk = dict(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="16MiB")
    trainer, batch = trainer_of(**disk, seal=folder / "run.seal")
    losses = trainer.fit([batch] * 2)
    trainer.seal()
    del trainer
    gc.collect()
    (spill_file,) = (folder / "spill").iterdir()
    (folder / "run.seal").rename(folder / "moved.seal")
    caplog.clear()
    trainer, _ = trainer_of(**disk, seal=folder / "run.seal")
    losses += trainer.fit([batch] * 3)[2:]
    trainer.seal()
    trainer.seal()
    assert caplog.text.count(f"{spill_file}: holds an earlier checkpoint of {folder / 'run.seal'}, which is not there any more") == 1
    del trainer
    gc.collect()
    again, _ = trainer_of()
    for checkpoint, steps in (("moved.seal", 2), ("run.seal", 3)):
        again.resume(folder / checkpoint)
        assert again.step_count == steps
    again.resume(folder / "moved.seal")
    assert again.fit([batch]) == losses[2:]


def test_a_spill_file_that_is_gone_seals_nothing(folder, caplog):
    """Somebody has cleared the folder: no checkpoint names what is not there. `fit` and segue-run write whole ones from then on."""
    disk = dict(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="16MiB", seal=folder / "run.seal")
    trainer, batch = trainer_of(**disk)
    clear = lambda: [file.unlink() for file in (folder / "spill").iterdir()]  # noqa: E731
    on_step = lambda self, run: clear() if run.step == 2 else None  # noqa: E731
    losses = trainer.fit([batch] * 6, steps=3, checkpoint=folder / "run.seal", save_every=1, callbacks=[type("Clears", (segue.Callback,), {"on_step": on_step})()])
    assert [text.split(":")[0] for text in caplog.messages if "checkpoint" in text] == ["checkpoints of this run are written whole from here on"]
    assert "the spill file is not there any more" in caplog.text
    with pytest.raises(segue.UnsupportedError, match="removed or has another name"):
        trainer.seal()
    del trainer
    gc.collect()
    again, _ = trainer_of()
    assert len(losses) == 3 and len(again.fit([batch] * 6, steps=6, checkpoint=folder / "run.seal", resume=True)) == 3


def test_what_a_seal_cannot_be_is_said(folder):
    with pytest.raises(segue.InvalidArgumentError, match="give budget and spill_dir, too"):
        trainer_of(seal=folder / "run.seal")
    with pytest.raises(segue.OutOfMemoryError, match="give it a capacity of"):
        trainer_of(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="2MiB", seal=folder / "run.seal")
    trainer, _ = trainer_of(budget="1300KiB", spill_dir=folder / "spill", spill_capacity="16MiB")
    with pytest.raises(segue.InvalidArgumentError, match="where to seal"):
        trainer.seal()


def test_the_room_for_seals_is_known_before_a_run(folder):
    """What a trainer takes of the disk for seals is what the forecast says, to the block; weights that are not trained need none."""
    disk = dict(frozen=[2], budget="600KiB", spill_dir=folder / "spill", seal=folder / "run.seal")
    trainer, batch = trainer_of(**disk, spill_capacity="16MiB")
    memory = trainer.memory("600KiB")
    tier = memory.plan.tiers["disk"]
    homes = sum(trainer.held()["disk"].values())
    blocks = lambda count: (4 * count + 4095) // 4096 * 4096  # noqa: E731
    assert tier["seal_bytes"] == 3 * sum(map(blocks, (64 * 256, 256, 256 * 64, 64)))
    assert f"{tier['seal_bytes']} bytes more for sealed checkpoints" in str(memory)
    trainer.fit([batch])
    assert trainer.seal()["sealed_bytes"] == tier["seal_bytes"] + blocks(256 * 256) + blocks(256), "frozen weights lie in a sealed checkpoint, too"
    module = trainer.modules["0"]
    assert "seal_bytes" not in trainer.memory("600KiB", seal=False).plan.tiers["disk"] and "for sealed" not in module.memory("600KiB", optimizer=trainer.optimizer).text
    assert module.memory("600KiB", optimizer=trainer.optimizer, seal=True).plan.tiers["disk"]["seal_bytes"] == tier["seal_bytes"]
    # A run that seals has its weights and states on the disk, also where nothing has to leave.
    ample = trainer.memory("64MiB")
    assert ample.plan.what == "unconstrained" and ample.plan.tiers["disk"]["seal_bytes"] == tier["seal_bytes"]
    assert "disk" not in trainer.memory("64MiB", seal=False).plan.tiers
    small = trainer.memory("600KiB", device=f"cpu:dram=4MiB,disk={folder / 'spill'}?capacity={homes + tier['seal_bytes'] - 4096}")
    assert not small.fits and f"{tier['seal_bytes']} bytes of them for sealed checkpoints, and there are" in small.why
    with pytest.raises(segue.UnsupportedError, match="no disk below its memory"):
        trainer.memory("600KiB", device="sim:dram=4MiB,link=2GB/s")
    del trainer
    gc.collect()
    # A trainer begins with what weights, states and seals take together, and not with a block less.
    trainer_of(**disk, spill_capacity=homes + tier["seal_bytes"])
    gc.collect()
    with pytest.raises(segue.OutOfMemoryError, match="both of which segue-run fit --seal counts"):
        trainer_of(**disk, spill_capacity=homes + tier["seal_bytes"] - 4096)


def test_what_is_frozen_elsewhere_is_sealed_once(folder):
    """A tied embedding, which no block brings, stays in memory: the forecast counts a copy of it, the first seal writes it, and who resumes has it."""
    torch.manual_seed(0)

    class Tied(nn.Module):

        def __init__(self):
            super().__init__()
            self.table, self.layers = nn.Embedding(512, 64).requires_grad_(False), nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.layers(self.table(x)) @ self.table.weight.T, y)

    x, y = torch.randint(0, 512, (32,)), torch.randint(0, 512, (32,))
    batch = {"x": x, "y": y}
    torch.manual_seed(1)
    model = Tied()
    make = lambda **options: segue.Trainer(segue.compile(model, (x, y)), optimizer=segue.AdamW(lr=1e-2), **options)  # noqa: E731
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = make().fit([batch] * 5)
    model.load_state_dict(state)
    disk = dict(budget="900KiB", spill_dir=folder / "spill", spill_capacity="16MiB", seal=folder / "run.seal")
    trainer = make(**disk)
    table = 512 * 64 * 4
    assert trainer.memory("900KiB").plan.tiers["disk"]["seal_bytes"] == table + 3 * 4 * (2 * 64 * 256 + 1024 + 1024)
    assert trainer.fit([batch] * 2) == losses[:2]
    first, again = trainer.seal(), trainer.seal()
    assert first["written_bytes"] >= table > first["file_bytes"] and again["written_bytes"] == 0 and again["file_bytes"] < table
    assert trainer.fit([batch]) == losses[2:3] and trainer.seal()["sealed_bytes"] == first["sealed_bytes"] >= table
    model = Tied()  # the other one lies on the trainer's disk, and keeps it
    del trainer
    gc.collect()
    resumed = make()
    resumed.resume(folder / "run.seal")
    assert resumed.fit([batch] * 2) == losses[3:]


def test_a_disk_below_a_host_is_sealed_too(folder):
    """What lies on the disk stays there, what the host or the device holds is written; the forecast knows the room, and another trainer goes on."""
    free, batch = trainer_of()
    losses = free.fit([batch] * 5)
    tiers = lambda capacity: {"memory": {"tiers": {"device_dram_mb": 1.3, "host_mb": 0.5, "disk": str(folder / "spill"), "disk_mb": capacity / MIB}}}  # noqa: E731
    options = dict(device="sim:link=16GB/s,latency=0s,threads=1", seal=folder / "run.seal")
    trainer, _ = trainer_of(**options, config=tiers(16 * MIB))
    tier = trainer.memory().plan.tiers["disk"]
    assert trainer.fit([batch] * 2) == losses[:2]
    figures = trainer.seal()
    trained = 3 * 4 * sum(p.numel() for p in trainer.modules["0"].parameters())
    assert 0 < figures["sealed_bytes"] == tier["seal_bytes"] < trained < figures["sealed_bytes"] + figures["file_bytes"]
    assert trainer.held()["host_pinned"] and trainer.seal()["written_bytes"] == 0
    assert trainer.fit([batch]) == losses[2:3]
    trainer.resume(folder / "run.seal")
    assert trainer.fit([batch]) == losses[2:3]
    trainer.seal()
    homes = sum(trainer.held()["disk"].values())
    del trainer
    gc.collect()
    for again, _ in (trainer_of(), trainer_of(**options, config=tiers(16 * MIB))):
        again.resume(folder / "run.seal")
        assert again.fit([batch] * 2) == losses[3:]
        del again
        gc.collect()
    # A trainer begins with what weights, states and seals take together, and not with a block less.
    trainer_of(**options, config=tiers(homes + tier["seal_bytes"]))
    gc.collect()
    with pytest.raises(segue.OutOfMemoryError, match="both of which segue-run fit --seal counts"):
        trainer_of(**options, config=tiers(homes + tier["seal_bytes"] - 4096))
    with pytest.raises(segue.InvalidArgumentError, match="give budget and spill_dir, too"):
        trainer_of(seal=folder / "run.seal", device="sim:dram=16MiB")


def test_what_is_trained_since_can_be_sealed(folder):
    """A trainer that trains more than it did when it took room for seals takes more, or refuses to."""
    options = dict(budget="3MiB", spill_dir=folder / "spill", seal=folder / "run.seal")
    seen = []
    for disk in ({}, options | {"spill_capacity": "16MiB"}):
        trainer, batch = trainer_of([2], **disk)
        losses = []
        for step in range(6):
            if step == 2:
                trainer.unfreeze("model.2.*")
            losses.append(trainer.step(**batch))
            if disk:
                trainer.seal()
        seen.append(losses)
    assert seen[0] == seen[1]
    del trainer
    gc.collect()
    tight, batch = trainer_of([2], **options, spill_capacity="1800KiB")
    tight.step(**batch)
    with pytest.raises(segue.OutOfMemoryError, match="checkpoints that seal what lies on the disk need"):
        tight.unfreeze("model.2.*")
    assert tight.step(**batch) == seen[0][1]


def test_a_run_needs_the_disk_that_the_forecast_says(folder):
    """With a block less there is neither a yes nor a step; with room for the largest tensor besides it trains, though what is free lies in pieces."""
    free, batch = trainer_of()
    losses = free.fit([batch] * 3)
    for budget, seal in (("1500KiB", None), ("1300KiB", folder / "run.seal")):
        options = dict(budget=budget, spill_dir=folder / "spill", seal=seal)
        large, _ = trainer_of(**options, spill_capacity="64MiB")
        tier = large.memory(budget).plan.tiers["disk"]
        need = tier["bytes"] + tier["planning_bytes"] + tier.get("seal_bytes", 0)
        del large
        gc.collect()
        trainer, _ = trainer_of(**options, spill_capacity=need + 4 * 256 * 256)
        assert trainer.memory(budget).fits
        for loss in losses:
            assert trainer.step(**batch) == loss
            if seal:
                trainer.seal()
        del trainer
        gc.collect()
        small, _ = trainer_of(**options, spill_capacity=(need - 1) // 4096 * 4096)
        assert not small.memory(budget).fits
        with pytest.raises(segue.OutOfMemoryError, match="do not fit in disk"):
            small.step(**batch)
        assert small.step_count == 0
        del small
        gc.collect()


def compiled(folder):
    subprocess.run([BUILD / "bin" / "segue-compile", INPUTS / "bigram-blocks.mlir", "--optimizer=adamw", "-o", folder / "g.segue"], check=True, timeout=60)
    (folder / "text.txt").write_bytes(bytes(range(97, 105)) * 500)


def command(folder, *more, capacity="16MiB"):
    return [str(word) for word in (BUILD / "bin" / "segue-run", "train", folder / "g.segue", "--data", folder / "text.txt", "--lr", "0.02", "--save",
                                   folder / "c.safetensors", "--budget", "2400KiB", "--spill-dir", folder / "spill", "--spill-capacity", capacity, *more)]


BEGIN = [f"--parameter={key}=256x256xf32={value}" for key, value in {"table": 0.01, "w0": 0.002, "w1": 0.001}.items()]


def test_the_last_checkpoint_is_whole_and_one_of_a_run_told_to_end_is_sealed(folder):
    compiled(folder)
    done = subprocess.run(command(folder, *BEGIN, "--steps", "7", "--save-every", "2"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    count, on_disk, written = re.search(r"sealed checkpoints: (\d+) of ([\d.]+) MiB on the disk, [\d.]+ ms and ([\d.]+) MiB", done.stderr).groups()
    assert int(count) == 3 and float(on_disk) > 1.4 and float(written) < 2.4
    fit = subprocess.run([BUILD / "bin" / "segue-run", "fit", folder / "g.segue", "--seal", "--budget", "2400KiB", "--json"], capture_output=True, text=True, timeout=60)
    tier = json.loads(fit.stdout)["plans"][1]["tiers"]["disk"]
    assert f"on the disk {tier['bytes'] / MIB:.1f} MiB and {tier['seal_bytes'] / MIB:.1f} for sealed checkpoints" in done.stderr
    assert b"segue.sealed" not in (folder / "c.safetensors").read_bytes()
    assert list((folder / "spill").iterdir()) == []

    child = subprocess.Popen(command(folder, *BEGIN, "--steps", "100000", "--save-every", "50000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [child.stdout.readline() for _ in range(3)]
    child.send_signal(signal.SIGTERM)
    lines += child.stdout.readlines()
    assert child.wait(timeout=60) == 143, child.stderr.read()
    assert b"segue.sealed.file" in (folder / "c.safetensors").read_bytes()
    file, = (folder / "spill").iterdir()
    assert file.stat().st_blocks * 512 < 3 * MIB, "what is not sealed keeps no room"
    exported = subprocess.run([BUILD / "bin" / "segue-run", "export", folder / "c.safetensors", folder / "whole.safetensors"], capture_output=True,
                              text=True, timeout=60)
    last = int(lines[-1].split()[1])
    assert exported.returncode == 0 and f": step {last}, 3 parameters, 6 optimizer states" in exported.stdout, exported
    weights = subprocess.run(command(folder, "--weights", folder / "c.safetensors", "--steps", "1"), capture_output=True, text=True, timeout=60)
    assert weights.returncode == 1 and "resume from it, or make a file of it that holds them (segue-run export)" in weights.stderr


def test_a_disk_without_room_for_seals_is_refused_before_the_first_step(folder):
    compiled(folder)
    # The first capacity has no room for weights and states, the second none for what the plan wants beside them.
    for capacity, message in ("2MiB", "give it a capacity of 3.0 MiB"), ("3MiB", "of the disk's 3.0 MiB, checkpoints that seal what lies there take 1.5"):
        done = subprocess.run(command(folder, *BEGIN, "--steps", "3", "--save-every", "1", capacity=capacity), capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and message in done.stderr and "step 1" not in done.stdout, done
    for capacity, more in ("6MiB", ["--save-every", "1"]), ("3MiB", []):
        assert subprocess.run(command(folder, *BEGIN, "--steps", "3", *more, capacity=capacity), capture_output=True, timeout=60).returncode == 0


def test_a_run_whose_spill_file_is_gone_saves_whole_checkpoints(folder):
    compiled(folder)
    child = subprocess.Popen(command(folder, *BEGIN, "--steps", "100000", "--save-every", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.readline(), child.stdout.readline()
    file, = (folder / "spill").iterdir()
    file.unlink()
    for _ in range(4):
        child.stdout.readline()
    child.kill()
    _, said = child.communicate(timeout=60)
    assert len(re.findall("warning: checkpoints are written whole: UNSUPPORTED: .*the spill file is not there any more", said)) == 1, said
    resumed = subprocess.run(command(folder, "--resume", folder / "c.safetensors", "--steps", "1"), capture_output=True, text=True, timeout=60)
    assert re.match(r"step \d+ loss", resumed.stdout), resumed.stderr


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(folder):
    compiled(folder)
    child = subprocess.Popen(command(folder, *BEGIN, "--steps", "100000", "--save-every", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.readline(), child.stdout.readline()
    in_the_way = folder / "c.safetensors.partial"
    while not in_the_way.is_dir():  # between two checkpoints
        try:
            in_the_way.mkdir()
        except FileExistsError:
            time.sleep(0.001)
    child.stdout.readline(), child.stdout.readline(), child.stdout.readline()
    child.kill()
    lines, said = child.communicate(timeout=60)
    in_the_way.rmdir()
    assert "training goes on, and the checkpoint before it, if there is one, stays" in said
    resumed = subprocess.run(command(folder, "--resume", folder / "c.safetensors", "--steps", "1"), capture_output=True, text=True, timeout=60)
    assert resumed.returncode == 0, resumed.stderr
