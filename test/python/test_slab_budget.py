# ===- test_slab_budget.py - adapters on a slab, within a budget, by segue-run alone --------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Adapters on a frozen base whose layers come from a SquareQ slab, with a disk below the budget: bench/tiers/lora.py in small."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import segue

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from models import Llama, LlamaConfig, add_lora  # noqa: E402

BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
RUN = BUILD / "bin" / "segue-run"
LAYERS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
#: MiB that a process takes beside its budget: 64 of buffers for copies, code and stacks. The files of weights are 40 MiB, which do not count.
BESIDE = 96


def call(*command, status=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A Llama with adapters that reads floats, one that reads codes, its base, its adapters, and the slab."""
    folder = tmp_path_factory.mktemp("slab-budget")
    config = LlamaConfig(layers=6, dim=256, heads=4, kv_heads=4, hidden=704, seq=32, vocab=16384)
    torch.manual_seed(0)
    model = Llama(config)
    save_file({**model.state_dict(), **dict(model.named_buffers())}, folder / "base.safetensors")
    add_lora(model, 4, LAYERS)
    adapters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    adapters |= {name: p + 0.01 for name, p in adapters.items() if ".b." in name}  # or the first step changes half of them alone
    save_file(adapters, folder / "adapters.safetensors")
    tokens = torch.zeros(1, config.seq, dtype=torch.int64)
    for storage in ("", "int8_row"):
        segue.compile(model, (tokens, tokens), optimizer=segue.AdamW(), name="llama",
                      **({"frozen_storage": storage} if storage else {})).save(folder / f"floats{storage}.segue")
    call(RUN, "quantize", folder / "base.safetensors", "-o", folder / "slab")
    return folder


def training(folder, model, *more, steps=3):
    aliases = [word for name in LAYERS for word in ("--alias", f"{name}.base={name}")]
    return [str(word) for word in (RUN, "train", folder / model, "--slab", folder / "slab.safetensors", "--weights", folder / "base.safetensors",
                                   "--weights", folder / "adapters.safetensors", *aliases, "--data", ROOT / "LICENSE", "--steps", steps, *more)]


def train(folder, model, *more, status=0, steps=3):
    return call(*training(folder, model, *more, steps=steps), status=status)


@pytest.fixture
def spill():
    """A folder on the disk of the build: a temporary one may lie in memory."""
    folder = BUILD / "check" / "slab-budget"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("model, budgets", [("floats.segue", (50, 58)), ("floatsint8_row.segue", (27, 30, 36))])
def test_a_budget_changes_no_bit_and_holds(case, spill, model, budgets):
    whole = train(case, model, "--device", "sim:dram=1GiB,threads=1", "--save", case / "whole.safetensors")
    for budget in budgets:
        run = train(case, model, "--device", "cpu:threads=1", "--budget", f"{budget}MiB", "--spill-dir", spill, "--save", case / "within.safetensors")
        assert run.stdout == whole.stdout
        assert (case / "within.safetensors").read_bytes() == (case / "whole.safetensors").read_bytes()
        assert "departed" not in run.stderr, "the plan knows what comes from the slab"
        held, process = (float(re.search(text, run.stderr)[1]) for text in (r"memory: ([\d.]+) of", r"the process ([\d.]+) MiB"))
        assert held <= budget and process <= budget + BESIDE, run.stderr


def test_a_sealed_run_writes_its_base_once_and_goes_on_without_it(case, spill, tmp_path):
    """The first seal copies what the slab and the files hold to the disk; after kill -9, that is all that a resumed run needs."""
    whole = train(case, "floats.segue", "--device", "sim:dram=1GiB,threads=1", steps=9).stdout.splitlines()
    seals = ("--device", "cpu:threads=1", "--budget", "58MiB", "--spill-dir", spill, "--save", tmp_path / "run.safetensors", "--save-every", "1")
    run = train(case, "floats.segue", *seals, steps=5)
    assert run.stdout.splitlines() == whole[:5]
    count, on_disk, written = map(float, re.search(r"sealed checkpoints: (\d+) of ([\d.]+) MiB on the disk, [\d.]+ ms and ([\d.]+) MiB", run.stderr).groups())
    base = sum(p.stat().st_size for p in (case / "base.safetensors", case / "adapters.safetensors")) / 2**20
    assert count == 4 and on_disk > base and count * written < 1.3 * on_disk, "each seal but the first writes what is trained"
    assert float(re.search(r" and ([\d.]+) for sealed checkpoints", run.stderr)[1]) >= base

    with subprocess.Popen(training(case, "floats.segue", *seals, steps=1000), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(4)]
        process.kill()
        lines += process.stdout.readlines()
    assert [line.rstrip() for line in lines[:4]] == whole[:4]
    resumed = call(RUN, "train", case / "floats.segue", "--resume", tmp_path / "run.safetensors", "--data", ROOT / "LICENSE", "--until", "9",
                   "--device", "sim:dram=1GiB,threads=1", "--save", tmp_path / "run.safetensors").stdout.splitlines()
    assert 3 < len(resumed) and resumed == whole[-len(resumed):]


def test_the_command_of_the_guide(case, spill):
    command = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "guides" / "disk.md").read_text(), re.M | re.S)[1].splitlines()[1]
    assert command.startswith("segue-run train ") and "--alias wq.base=wq --alias wv.base=wv" in command
    command = command.replace("--alias wq.base=wq --alias wv.base=wv", " ".join(f"--alias {name}.base={name}" for name in LAYERS))
    command = command.replace("adapted.segue", "floatsint8_row.segue").replace("text.txt", str(ROOT / "LICENSE")).replace("1GiB", "36MiB")
    done = subprocess.run([RUN, *command.replace("--spill-dir spill", f"--spill-dir {spill} --steps 1").split()[1:]], cwd=case,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "departed" not in done.stderr, done.stderr


def test_wrong_flags(case, tmp_path):
    slab = case / "slab.safetensors"
    keys = {"squareq_slab_path": str(slab), "squareq_manifest_path": str(slab.with_suffix(".manifest.json"))}
    (tmp_path / "slab.json").write_text(json.dumps({"memory": {"stagehand": keys}}))
    assert "the config names a slab, too" in train(case, "floats.segue", "--config", tmp_path / "slab.json", status=1).stderr
    assert "--alias =x: write name=name" in train(case, "floats.segue", "--alias", "=x", status=1).stderr
    missing = call(RUN, "train", case / "floats.segue", "--weights", case / "base.safetensors", "--weights", case / "adapters.safetensors", status=1)
    assert 'adapters.safetensors have no tensor "layers.0.wq.base.weight"' in missing.stderr
    assert 'the nearest is "layers.0.wq.a.weight"' in missing.stderr or 'the nearest is "layers.0.wq.weight"' in missing.stderr
