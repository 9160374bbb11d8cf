# ===- test_bench_tiers.py - the benchmark of a disk below the memory, small -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""bench/tiers on a tiny model: every peer runs, bits are equal, and the tables say what moved and what was sealed."""

import json
import os
import re
import subprocess
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))


#: What gpt_deepspeed.py calls of DeepSpeed, with PyTorch's optimizer in the place of the operators that DeepSpeed compiles.
DEEPSPEED = """
import sys, types, torch

__version__ = "0"


class Builder:
    def is_compatible(self):
        return True

    def load(self):
        print("DeepSpeed prints to stdout")


cpu = types.ModuleType("deepspeed.ops.op_builder.cpu")
cpu.AsyncIOBuilder = cpu.CPUAdamBuilder = cpu.ShareMemCommBuilder = Builder
sys.modules |= {"deepspeed.ops": cpu, "deepspeed.ops.op_builder": cpu, cpu.__name__: cpu}


def init_distributed(backend, init_method, rank, world_size, auto_mpi_discovery):
    assert (backend, rank, world_size) == ("gloo", 0, 1) and init_method.startswith("file:///")


class zero:
    def Init(module, config_dict_or_path):
        zero.converted = module


class Engine:
    def __init__(self, model, parameters, config):
        settings, largest = config["optimizer"]["params"], max(p.numel() for p in model.parameters())
        assert config["gradient_clipping"] == 0 and config["optimizer"]["type"] == "AdamW"
        stage = config["zero_optimization"]
        assert all(stage[kind]["device"] == "nvme" for kind in ("offload_param", "offload_optimizer"))
        assert stage["offload_param"]["buffer_size"] >= largest and stage["sub_group_size"] >= largest
        self.model, self.optimizer = model, torch.optim.AdamW(parameters, **settings)
        self.file = open(stage["offload_param"]["nvme_path"] + "/weights", "wb")

    def __call__(self, *batch):
        return self.model(*batch)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.file.write(bytes(1 << 16))


def initialize(model, model_parameters, config):
    assert zero.converted is model
    return (Engine(model, model_parameters, config), None, None, None)
"""


def peer(script, weights, *options, modules=None):
    """The result line of a script of bench/peers on config T."""
    environment = dict(os.environ)
    if modules:
        environment["PYTHONPATH"] = f"{modules}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    done = subprocess.run([warm.python(), ROOT / "bench" / "peers" / script, weights, "--config", "T", "--steps", "21", "--threads", "1", *options],
                          capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_deepspeed(tmp_path):
    weights, package = tmp_path / "gpt_t.npz", tmp_path / "deepspeed.py"
    subprocess.run([warm.python(), ROOT / "bench" / "peers" / "gpt_gen.py", "T", weights], check=True, capture_output=True, timeout=60)
    spill = BUILD / "check" / "bench-deepspeed"
    spill.mkdir(parents=True, exist_ok=True)
    deepspeed = ["gpt_deepspeed.py", weights, "--spill-dir", spill]

    package.write_text(DEEPSPEED)
    row, want = peer(*deepspeed, modules=tmp_path), peer("gpt_torch.py", weights)
    assert row.keys() >= want.keys() | {"in_mb", "out_mb", "disk_mb"} and row["peer"] == "deepspeed nvme"
    assert abs(row["late_loss"] - want["late_loss"]) < 1e-5 and row["late_loss"] < row["loss0"] - 0.1
    assert row["disk_mb"] > 1
    row = peer(*deepspeed, "--limit-mib", "64", modules=tmp_path)
    assert row["ended"] == "trained" and row["steps"] == 21 and row["cap_mb"] == 64 and "deepspeed nvme, limit" in row["peer"]

    package.write_text("raise ImportError('no such package in this test')")
    assert peer(*deepspeed, modules=tmp_path) == {"peer": "deepspeed nvme", "skipped": "no such package in this test"}
    assert list(spill.iterdir()) == []


def test_a_small_run(tmp_path):
    (tmp_path / "deepspeed.py").write_text("raise ImportError('no such package in this test')")  # the real one compiles for minutes
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    spill = BUILD / "check" / "bench-tiers"  # on the disk of the build: a temporary folder may lie in memory
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "run.py", "--config", "T", "--budgets", "80,1", "--rounds", "1",
                           "--steps", "21", "--threads", "1", "--disk-mib", "2", "--spill-dir", spill, "--work", tmp_path, "--table",
                           tmp_path / "table.md"], capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in re.findall(r"^\| (?:segue|torch|deepspeed).*", table, re.M)}
    assert re.match(r"^refused: no (plan|step) keeps to ", rows["segue disk 1 %"][1])
    assert re.match(r"^\d+ \+ \d+$", rows["segue disk 80 %"][2]) and rows["segue disk 80 %"][2] != "0 + 0", table
    assert rows["segue"][4] == "1.000"
    assert any(name.startswith("torch eager, limit") for name in rows) and "torch eager" in rows
    assert rows["deepspeed nvme"][1] == "skipped: no such package in this test"
    assert not any(name.startswith("deepspeed") and "limit" in name for name in rows)
    assert list(spill.iterdir()) == []


def test_seals_of_a_small_run():
    spill = BUILD / "check" / "bench-seal"
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "seal.py", "--config", "T", "--budget", "80", "--every", "2", "--cycles", "2",
                           "--threads", "1", "--spill-dir", spill], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert len(row) == 10 and float(row[2]) > 1 and float(row[3]) < float(row[0]), done.stdout
    assert list(spill.iterdir()) == []


def test_adapters_on_a_small_slab():
    spill = BUILD / "check" / "bench-lora"
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "lora.py", "--config", "T", "--budgets", "3,2", "--steps", "2", "--threads", "1",
                           "--spill-dir", spill], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row.strip("| ").split(" | ") for row in done.stdout.splitlines()[-3:]]
    assert [row[1] for row in rows] == ["-", "3", "2"] and all(float(row[4]) <= float(row[1]) for row in rows[1:]), done.stdout
    assert list(spill.iterdir()) == []
