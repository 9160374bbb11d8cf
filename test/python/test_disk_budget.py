# ===- test_disk_budget.py - training in a fraction of the memory it takes -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue-run train --budget --spill-dir`: what the process holds keeps to the budget, under a limit of the system, too; no bit of the
losses or of the trained weights differs from a run in memory; a killed run leaves nothing on the disk."""

import gc
import os
import re
import resource
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sample import drawn
from torch import nn

import segue

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
SHAPE = ["--layers", "4", "--width", "256", "--heads", "4", "--vocabulary", "256", "--batch", "4", "--rows", "256"]
MIB = 1 << 20
# Of the process beside its budget: code, libraries, threads, buffers, the file of weights while it is read.
BESIDE = 48 * MIB


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A GPT of 3.2 M parameters, compiled, with weights and bytes to learn."""
    # On the disk of the build: a temporary folder may lie in memory.
    folder = BUILD / "check" / "disk-budget"
    (folder / "spill").mkdir(parents=True, exist_ok=True)
    compiled(folder, SHAPE)
    return folder


def compiled(folder, shape):
    """Puts g.segue and w.safetensors of a GPT of that shape into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = subprocess.run([sys.executable, ROOT / "test" / "tools" / "gpt_mlir.py", *shape], capture_output=True, text=True, check=True,
                          timeout=60).stdout
    (folder / "g.mlir").write_text(text)
    subprocess.run([BUILD / "bin" / "segue-compile", folder / "g.mlir", "-o", folder / "g.segue"], check=True, timeout=120)
    random, weights = np.random.default_rng(0), {}
    for shape, name in re.findall(r'tensor<([0-9x]+)xf32> \{segue.name = "([^"]+)", segue.role = #segue.role<parameter>', text):
        extents = [int(each) for each in shape.split("x")]
        weights[name] = (0.02 * random.standard_normal(extents)).astype(np.float32)
    assert weights
    save_file(weights, folder / "w.safetensors")


def command(folder, save, *more):
    return [str(word) for word in (BUILD / "bin" / "segue-run", "train", folder / "g.segue", "--weights", folder / "w.safetensors", "--data",
                                   ROOT / "README.md", "--tokens", "ids", "--targets", "targets", "--steps", "4", "--clip", "0.5", "--save", save, *more)]


def train(folder, save, *more, limit=None):
    """Losses, trained weights, the process's peak in bytes, and what it said."""
    # Few threads and arenas: their addresses count to the system's limit, too, on a machine with many processors.
    few = {**os.environ, "SEGUE_ALLOW_NATIVE": "1", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "2"}
    child = subprocess.Popen(command(folder, save, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=few,
                             preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))) if limit else None)
    said, warned = child.communicate(timeout=200)
    assert child.returncode == 0, warned
    found = re.search(r"the process ([0-9.]+) MiB, ([0-9.]+) of them before", warned)
    peak = float(found[1]) * MIB if found else None
    return re.findall(r"loss (\S+)", said), load_file(save), peak, warned


def test_what_the_process_holds_keeps_to_the_budget(model):
    losses, weights, _, _ = train(model, model / "free.safetensors")
    assert len(losses) == 4
    for budget in (32, 48, 96):
        # All that it may write to: the budget, buffers, stacks of threads (8 MiB of addresses each).
        found, trained, peak, said = train(model, model / "spilled.safetensors", "--budget", f"{budget}MiB", "--spill-dir", model / "spill",
                                           limit=(budget + 224) * MIB)
        assert found == losses
        assert all(np.array_equal(trained[name], weights[name]) for name in weights)
        assert peak <= budget * MIB + BESIDE, said
        on_disk = re.search(r"on the disk ([0-9.]+) MiB", said)
        assert float(on_disk[1]) > 0, said
    # Nor does going on from a checkpoint, which holds all of it, take more.
    train(model, model / "half.safetensors", "--budget", "32MiB", "--spill-dir", model / "spill", "--until", "2")
    found, trained, peak, said = train(model, model / "resumed.safetensors", "--budget", "32MiB", "--spill-dir", model / "spill", "--resume",
                                       model / "half.safetensors", "--until", "4", limit=(32 + 224) * MIB)
    assert found == losses[2:] and peak <= 32 * MIB + BESIDE, said
    assert all(np.array_equal(trained[name], weights[name]) for name in weights)


def test_a_text_takes_no_memory(model, tmp_path):
    """However large it is, and within a limit of the system that it alone would pass."""
    text = tmp_path / "text"
    with open(text, "wb") as file:
        file.write(b"bytes to learn " * 100)
        file.truncate(1 << 30)  # a hole, which takes no room of the disk
    few = {**os.environ, "SEGUE_ALLOW_NATIVE": "1", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "2"}
    words = [str(text) if word == str(ROOT / "README.md") else word for word in command(model, tmp_path / "c", "--budget", "32MiB", "--spill-dir", model / "spill")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=few, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (256 * MIB, 256 * MIB)))
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"the process ([0-9.]+) MiB", done.stderr)[1]) * MIB <= 32 * MIB + BESIDE, done.stderr


def shape_of(random):
    """Words for a GPT of some layers, widths and batches."""
    heads = int(random.choice([1, 2, 4]))
    return ["--layers", random.integers(1, 7), "--width", 64 * heads, "--heads", heads, "--vocabulary", 256, "--batch", random.integers(1, 5),
            "--rows", 32 * random.integers(1, 9)]


@pytest.mark.parametrize("seed", drawn(range(int(os.environ.get("SEGUE_DISK_MODELS", "2"))), 2, "models"))
def test_every_budget_of_every_model_is_kept(model, seed):
    """From the smallest budget to the memory of a step, under a limit of the system: the bits of the run in memory; no budget takes
    more than it says beside what a run has anyway, and none more than a larger one."""
    folder = BUILD / "check" / f"disk-budget-{seed}"
    compiled(folder, [str(word) for word in shape_of(np.random.default_rng(seed))])
    losses, weights, _, _ = train(folder, folder / "free.safetensors")
    spill = ["--spill-dir", model / "spill", "--spill-capacity", "1GiB"]
    refused = subprocess.run(command(folder, folder / "never.safetensors", "--budget", "64KiB", *spill), capture_output=True, text=True,
                             timeout=100, env={**os.environ, "SEGUE_ALLOW_NATIVE": "1"})
    least = int(re.search(r"the smallest budget is (\d+) bytes", refused.stderr)[1])
    _, _, most, said = train(folder, folder / "roomy.safetensors", "--budget", "1GiB", *spill)
    free = int(float(re.search(r"memory: ([0-9.]+) of", said)[1]) * MIB) + MIB // 10
    assert least < free
    peaks = []
    for part in range(5):
        budget = least + (free - least) * part // 4
        found, trained, peak, said = train(folder, folder / "spilled.safetensors", "--budget", str(budget), *spill, limit=budget + 224 * MIB)
        assert found == losses, said
        assert all(np.array_equal(trained[name], weights[name]) for name in weights), said
        assert float(re.search(r"memory: ([0-9.]+) of", said)[1]) * MIB <= budget + MIB // 10
        assert peak <= budget + BESIDE, said
        peaks.append(peak)
    # A megabyte of what the allocators of threads keep comes and goes.
    assert all(peak <= larger + 3 * MIB for i, peak in enumerate(peaks) for larger in [*peaks[i + 1 :], most]), peaks


def test_the_guide_is_true(model):
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "guides" / "disk.md").read_text(), re.M | re.S)
    (model / "text.txt").write_bytes((ROOT / "README.md").read_bytes())
    losses = []
    for command_line, said in zip([block for block in blocks if block.startswith("segue-run train g.segue")],
                                  (r"of 48.0 MiB; on the disk [0-9.]+ MiB", r"of 48.0 MiB; of the host 1\d.\d of 16.0 MiB; on the disk [1-9][0-9.]+ MiB"), strict=True):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command_line], cwd=model, capture_output=True, text=True, timeout=200,
                              env={**os.environ, "SEGUE_ALLOW_NATIVE": "1", "PATH": f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}"})
        assert done.returncode == 0 and re.search(rf"^memory: [0-9.]+ {said}", done.stderr, re.M), done.stderr
        losses.append(re.findall(r"loss (\S+)", done.stdout))
    assert losses[0] == losses[1] and len(losses[0]) == 4


def trained(model, **options):
    """Losses of five steps of a small network, its weights after them, a checkpoint, the trainer, and its states before the checkpoint."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8))
    x, y = torch.randn(256, 64), torch.randn(256, 8)

    class Regression(nn.Module):

        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, y):
            return nn.functional.mse_loss(self.net(x), y)

    # A device of this test's own: others measure what theirs holds at most.
    module = segue.compile(Regression(), (x, y), device="cpu:threads=3")
    trainer = segue.Trainer([module], optimizer=segue.AdamW(lr=1e-2), clip_grad_norm=0.5, **options)
    losses = [trainer.step(x=x, y=y) for _ in range(5)]
    states = trainer.state_dict()["state"]  # before anything else asks for what the device has
    trainer.sync()
    trainer.save(model / "trainer.safetensors")
    return losses, [parameter.detach().clone() for parameter in net.parameters()], load_file(model / "trainer.safetensors"), trainer, states


def test_a_trainer_keeps_to_a_budget(model):
    losses, weights, checkpoint, trainer, expected = trained(model)
    with pytest.raises(segue.BudgetInfeasibleError, match="the smallest budget is") as refused:
        trained(model, budget="64KiB", spill_dir=model / "spill")
    least = int(re.search(r"the smallest budget is (\d+) bytes", str(refused.value))[1])
    for budget in (least, f"{least * 3 // 2 >> 10}KiB"):
        found, values, saved, _, states = trained(model, budget=budget, spill_dir=model / "spill")
        assert found == losses
        assert all(torch.equal(a, b) for a, b in zip(values, weights))
        assert saved.keys() == checkpoint.keys() and all(np.array_equal(saved[name], checkpoint[name]) for name in saved)
        assert states.keys() == expected.keys() and all(torch.equal(states[name], expected[name]) for name in states)
    free = trainer.memory(device="sim:dram=64MiB").unconstrained.peak_bytes
    assert least < 0.7 * free, "what does not fit into the budget has been away"
    with pytest.raises(segue.InvalidArgumentError, match="give the budget, too"):
        trained(model, spill_dir=model / "spill")
    with pytest.raises(segue.InvalidArgumentError, match="give the spill folder"):
        trained(model, budget="1GiB")


def test_tiers_of_a_config(model):
    """A device with a link, a megabyte of the host's memory and the disk below that, by the config of a run."""
    losses, weights, checkpoint, _, _ = trained(model)
    sim = "sim:threads=3,link=16GB/s,latency=0s"
    with pytest.raises(segue.BudgetInfeasibleError) as refused:
        trained(model, device=sim, budget="64KiB", spill_dir=model / "spill")
    least = int(re.search(r"the smallest budget is (\d+) bytes", str(refused.value))[1])
    tiers = {"device_dram_mb": 1.1 * least / MIB, "host_mb": 1, "disk": str(model / "spill"), "disk_mb": 64}
    config = {"memory": {"tiers": tiers}}
    found, values, saved, trainer, _ = trained(model, device=sim, config=config)
    assert found == losses
    assert all(torch.equal(a, b) for a, b in zip(values, weights))
    assert saved.keys() == checkpoint.keys() and all(np.array_equal(saved[name], checkpoint[name]) for name in saved)
    memory = trainer.memory()
    assert memory.fits, memory
    held = {name: tier["bytes"] for name, tier in memory.plan.tiers.items()}
    assert 0 < held["host_pinned"] <= MIB and held["disk"] > 0 and held["device_dram"] <= 1.1 * least
    assert memory.plan.link["in_bytes"] > memory.plan.disk["in_bytes"] > 0 and "go on to the disk" in str(memory)
    with pytest.raises(segue.ConfigError, match="device_dram_mb"):
        trained(model, device=sim, config={"memory": {"tiers": {"host_mb": 1}}})
    with pytest.raises(segue.InvalidArgumentError, match="leave one out"):
        trained(model, device=sim, config=config, budget="8MiB")


def mapping_of(tensor):
    """The line of /proc/self/maps that has the tensor's memory."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if begin <= address < end:
            return line
    raise AssertionError(f"{address:#x} is mapped nowhere")


class Tied(nn.Module):
    """Reads a weight that another module has, too; the scale and the bias stay as they are."""

    def __init__(self, shared):
        super().__init__()
        self.shared, self.bias = shared, nn.Parameter(torch.randn(64), requires_grad=False)
        self.register_buffer("scale", torch.full((64,), 2.0))

    def forward(self, x):
        return self.shared(x) * self.scale + self.bias


class TiedLoss(Tied):

    def forward(self, x, y):
        return nn.functional.mse_loss(self.shared(x) * self.scale + self.bias, y)


def test_pytorch_keeps_no_copy_of_the_weights(model):
    """Its tensors lie in the file on the disk and are whole when they are asked for; what they had is freed."""
    def run(**options):
        torch.manual_seed(0)
        layer, sources = nn.Linear(64, 64), []
        parts = [Tied(layer), TiedLoss(layer)]
        for tensor in {*parts[0].parameters(), *parts[0].buffers(), *parts[1].parameters(), *parts[1].buffers()}:
            array = tensor.detach().numpy().copy()
            tensor.data = torch.from_numpy(array)
            sources.append(weakref.ref(array))
            del array
        x, y = torch.randn(8, 64), torch.randn(8, 64)
        modules = {"first": segue.compile(parts[0], (x,)), "last": segue.compile(parts[1], (x, y))}
        before = {name: value.clone() for name, value in parts[1].state_dict().items()}
        trainer = segue.Trainer(modules, optimizer=segue.AdamW(lr=1e-2), **options)
        at_once = {name: value.clone() for name, value in parts[1].state_dict().items()}
        assert all(torch.equal(at_once[name], value) for name, value in before.items())
        losses = trainer.fit([{"x": x, "y": y}] * 3)
        trainer.step(x=x, y=y)
        trainer.sync()
        return losses, parts, sources, trainer, (x, modules)

    losses, parts, _, _, _ = run()
    found, moved, sources, trainer, (x, modules) = run(budget="1MiB", spill_dir=model / "spill", spill_capacity="8MiB")
    assert found == losses
    gc.collect()
    assert [source() for source in sources] == [None] * len(sources)
    for a, b in zip(parts, moved):
        values = b.state_dict()
        assert all(torch.equal(value, values[name]) for name, value in a.state_dict().items())
        assert all(str(model / "spill") in mapping_of(value) and "(deleted)" in mapping_of(value) for value in values.values())
    assert moved[0].shared.weight is moved[1].shared.weight and moved[0].shared.weight.data_ptr() == moved[1].shared.weight.data_ptr()
    held = trainer.held()
    assert set(held["disk"]) == {"weights"} and sum(held["device_dram"].values()) <= 1 << 20
    # They are PyTorch's to use, also when the trainer has gone.
    with torch.no_grad():
        assert torch.allclose(modules["first"](x), parts[0](x), atol=1e-5) and torch.equal(moved[0](x), parts[0](x))
    with pytest.raises(segue.InvalidArgumentError, match="was changed in PyTorch"), torch.no_grad():
        moved[0].shared.weight.mul_(2)
        trainer.step(x=x, y=torch.zeros(8, 64))
    kept = parts[0].shared.weight.detach().clone()
    del trainer, modules
    gc.collect()
    assert torch.equal(moved[1].shared.weight / 2, kept)


def test_a_trainer_gives_memory_and_disk_back(model):
    *_, trainer, _ = trained(model, budget="6MiB", spill_dir=model / "spill", spill_capacity="64MiB")
    of_spill = lambda: [line for line in Path("/proc/self/maps").read_text().splitlines() if str(model / "spill") in line]  # noqa: E731
    gc.collect()
    assert len(of_spill()) == 1  # that of this trainer, and of none before
    del trainer
    gc.collect()
    assert of_spill() == []


def test_a_capacity_is_the_most_on_the_disk(model):
    *_, trainer, _ = trained(model, budget="6MiB", spill_dir=model / "spill", spill_capacity="64MiB")
    assert 0 < sum(trainer.held()["disk"].values()) <= 64 * MIB
    with pytest.raises(segue.Error, match="(?i)disk"):
        trained(model, budget="6MiB", spill_dir=model / "spill", spill_capacity="64KiB")
    with pytest.raises(segue.FileError, match="no room for a spill file"):
        trained(model, budget="6MiB", spill_dir=model / "spill", spill_capacity="1000TB")
    with pytest.raises(segue.InvalidArgumentError, match="give the budget, too"):
        trained(model, spill_capacity="1GiB")
    with pytest.raises(segue.InvalidArgumentError, match="goes with such a folder"):
        trained(model, budget="1GiB", spill_capacity="1GiB", device="sim:pinned=64MiB")


def test_a_budget_that_is_too_small_is_named(model):
    done = subprocess.run(command(model, model / "never.safetensors", "--budget", "4MiB", "--spill-dir", model / "spill"), capture_output=True,
                          text=True, timeout=100, env={**os.environ, "SEGUE_ALLOW_NATIVE": "1"})
    assert done.returncode == 1 and "BUDGET_INFEASIBLE: no plan keeps to 4194304 bytes" in done.stderr, done.stderr
    least = int(re.search(r"the smallest budget is (\d+) bytes", done.stderr)[1])
    train(model, model / "least.safetensors", "--budget", str(least), "--spill-dir", model / "spill")


@pytest.mark.parametrize("words, message", [
    (["--budget", "1GiB"], "give the spill folder"),
    (["--budget", "1GiB", "--spill-dir", "/dev/shm"], "lies in memory"),
    (["--budget", "1GiB", "--spill-dir", "SPILL", "--device", "sim:host=64KiB"], "host=65536 is too little memory of the host above a disk"),
    (["--budget", "1GiB", "--spill-dir", "SPILL", "--device", "cpu:dram=1GiB"], "its spec says dram= itself"),
    (["--spill-dir", "SPILL"], "--spill-dir requires --budget"),
    (["--budget", "1GiB", "--spill-capacity", "1GiB"], "--spill-capacity requires --spill-dir"),
    (["--budget", "1GiB", "--spill-dir", "SPILL", "--spill-capacity", "1000TiB"], "no room for a spill file of"),
    (["--budget", "48MiB", "--spill-dir", "SPILL", "--spill-capacity", "64KiB"], "disk"),
])
def test_what_cannot_be_is_said(model, words, message):
    words = [str(model / "spill") if word == "SPILL" else word for word in words]
    done = subprocess.run(command(model, model / "never.safetensors", *words), capture_output=True, text=True, timeout=60)
    assert done.returncode and message in done.stderr, done.stderr


def test_a_killed_run_leaves_nothing_on_the_disk(model):
    child = subprocess.Popen([*command(model, model / "killed.safetensors", "--budget", "48MiB", "--spill-dir", model / "spill"), "--until", "1000"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "SEGUE_ALLOW_NATIVE": "1"})
    child.stdout.readline()  # within the second step
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    assert list((model / "spill").iterdir()) == []
