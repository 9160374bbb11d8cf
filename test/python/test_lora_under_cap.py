# ===- test_lora_under_cap.py - adapters on a base that does not fit --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""examples/lora_under_cap.py: the same losses on a device that is smaller than the weights, and the cap is kept; the config of
the guide is one that the runtime takes."""

import json
import os
import re
import subprocess
from pathlib import Path

import torch
import warm

import segue

ROOT = Path(__file__).resolve().parents[2]


def test_losses_are_those_of_the_run_without_a_cap(tmp_path):
    env = {"PYTHONPATH": str(ROOT / "build" / "python"), **os.environ}
    env.setdefault("SEGUE_RUN", str(ROOT / "build" / "bin" / "segue-run"))
    run = subprocess.run([warm.python(), ROOT / "examples" / "lora_under_cap.py", "--out", tmp_path, "--steps", "4"],
                         capture_output=True, text=True, env=env, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    weights, cap, peak = map(float, re.search(r"bf16 ([\d.]+) MiB, device ([\d.]+) MiB, peak ([\d.]+) MiB", run.stdout).groups())
    assert peak <= cap < weights
    loads, spilled, h2d, d2h = map(int, re.search(
        r"last step: (\d+) blocks loaded, (\d+) activations spilled, at most (\d+) copies in and (\d+) out", run.stdout).groups())
    assert loads >= 8 and spilled > 0 and h2d > 0 and d2h > 0, run.stdout
    assert run.stdout.count(": loss ") == 4 and "DIFFERENT" not in run.stdout
    assert run.stdout.rstrip().endswith("equal to the run without a cap, to the bit")


def test_the_config_of_the_guide_streams(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / "guides" / "streaming-weights.md").read_text()
    config = json.loads(re.search(r"```json\n(.*?)```", guide, re.S).group(1))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).square().mean()

    adamw = segue.AdamW(lr=1e-2)
    trainer = segue.Trainer([segue.compile(Loss(), (torch.ones(2, 4),), optimizer=adamw)], optimizer=adamw,
                            device="sim:dram=1GiB,pinned=512MiB", config=config)
    assert trainer.step(x=torch.ones(2, 4)) > trainer.step(x=torch.ones(2, 4))
    assert (tmp_path / "stagehand_telemetry.jsonl").exists()
