# ===- test_recompute.py - what is computed again is what was saved -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every saved value of whole models, computed again by the programs of the file: equal in all bits, on each ISA."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from test_models import MODELS
from torch import nn

from segue.frontend import capture

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SEGUE_BIN") or ROOT / "build/bin")


class Dropped(nn.Module):
    """Dropout between products: its mask follows from the seed."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 8)

    def forward(self, x):
        x = nn.functional.dropout(torch.relu(self.a(x)), 0.3, self.training)
        x = nn.functional.dropout(torch.tanh(self.b(x)), 0.2, self.training)
        return self.c(x).sum()


class Mixed(nn.Module):
    """Products of bf16 with norms and biases: what is added after a rounding is added after it again."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64).bfloat16(), nn.Linear(64, 32).bfloat16()
        self.norm = nn.LayerNorm(32).bfloat16()

    def forward(self, x):
        h = x + self.b(torch.nn.functional.gelu(self.a(self.norm(x))))
        return (h + self.b(torch.nn.functional.silu(self.a(self.norm(h))))).float().sum()


def of_models(name):
    make, batch, seq = MODELS[name]
    tokens = torch.zeros(min(batch, 2), seq, dtype=torch.int64)
    return make(), (tokens, tokens)


ZOO = {name: (lambda name=name: of_models(name)) for name in MODELS} | {
    "dropout": lambda: (Dropped().train(), (torch.randn(6, 24),)),
    "bf16": lambda: (Mixed(), (torch.randn(10, 32).bfloat16(),)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recompute")
    made = {}

    def file(name):
        if name not in made:
            module, inputs = ZOO[name]()
            source = folder / f"{name}.mlir"
            source.write_text(capture(module, inputs).text)
            made[name] = folder / f"{name}.segue"
            subprocess.run([BIN / "segue-compile", source, "--optimizer=none", "-o", made[name]], check=True, timeout=120)
        return made[name]

    return file


def recompute(file, isa, device="cpu:threads=2"):
    done = subprocess.run([BIN / "segue-run", "recompute", "--json", "--repeat=1", f"--device={device}", file],
                          env=dict(os.environ, SEGUE_ISA=isa), capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)[0], done.returncode


@pytest.mark.parametrize("isa", ["v3", "v4"])
@pytest.mark.parametrize("name", ZOO)
def test_all_bits_are_equal(files, name, isa):
    told, status = recompute(files(name), isa)
    differ = [value["value"] for value in told["values"] if not value["equal"]]
    assert not differ and status == 0, differ
    assert told["values"], "nothing can be computed again"
    assert told["recomputable_bytes"] >= 0.4 * told["saved_bytes"], told


def test_on_a_device_with_queues(files):
    told, status = recompute(files("gpt"), "v4", "sim:dram=64MiB,threads=1,adversarial=5")
    assert status == 0 and all(value["equal"] for value in told["values"])


def test_a_wrong_program_is_found(files, tmp_path):
    """The tool says so where the bits differ: a program that takes another scale."""
    prog = subprocess.run([BIN / "segue-translate", "--flatbuffer-to-prog", files("gpt")], check=True,
                          capture_output=True, text=True, timeout=60).stdout
    head, tail = prog.split("prog.program @recompute.0", 1)
    before, scale = tail.split(" scale ", 1)
    number = scale.split(" ", 1)[0]
    changed = tmp_path / "changed.mlir"
    changed.write_text(head + "prog.program @recompute.0" + before + " scale 3.0" + scale[len(number):])
    subprocess.run([BIN / "segue-translate", "--prog-to-flatbuffer", changed, "-o", tmp_path / "changed.segue"], check=True,
                   timeout=60)
    subprocess.run([BIN / "segue-run", "trust", tmp_path / "changed.segue"], check=True, timeout=60)  # the compiler did not sign it
    told, status = recompute(tmp_path / "changed.segue", "v4")
    assert status == 4
    assert any(not value["equal"] for value in told["values"])
