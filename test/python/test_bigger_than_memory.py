# ===- test_bigger_than_memory.py - a model of four times the memory ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""examples/bigger_than_memory.py in small: a quarter of the memory, the bits of a run in memory, and a system's limit under which PyTorch
does not train."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))


COMMAND, = re.findall(r"^(PYTHONPATH=.*/bigger_than_memory\.py.*?) *(?:#.*)?$", (ROOT / "README.md").read_text(), re.M)


def run(folder, command, *words):
    """The last line that `command` says is its result. The spill file is on the disk of the build: a temporary folder may lie in memory."""
    spill = BUILD / "check" / "bigger-than-memory"
    done = subprocess.run([*command, "--spill-dir", spill, "--out", folder, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=280,
                          env={"PYTHONPATH": str(BUILD / "python"), **os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(spill.iterdir()) == []
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_a_quarter_of_the_memory_has_the_same_bits(tmp_path):
    said, result = run(tmp_path, [warm.python(), ROOT / "examples" / "bigger_than_memory.py"], "--layers", 12, "--dim", 128, "--seq", 64, "--batch", 2, "--steps", 3, "--compare")
    assert "equal those of a run in memory, to the bit" in said
    assert result["peak_bytes"] <= result["budget_bytes"] <= result["free_bytes"] / 4
    for step in re.findall(r"^step \d: .*", said, re.M):
        memory, disk = re.search(r"in memory ([\d.]+) MiB \(.*\); on the disk ([\d.]+) MiB \(.*\)", step).groups()
        assert float(memory) * 2**20 <= result["budget_bytes"] + 2**17 and "optimizer" in step.split("on the disk")[1]
        assert float(disk) > float(memory)
    # The page has what lies on the disk, by kind, for whoever draws it.
    page = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', (tmp_path / "report.html").read_text(), re.S)[1])
    disk = page["timelines"][1]["disk"]
    assert {"weights", "optimizer", "gradients"} <= set(disk["by"]) and max(disk["total"]) > result["budget_bytes"]
    assert "other" not in disk["by"], "everything on the disk is of a kind"
    drawn = subprocess.run([sys.executable, ROOT / "bench" / "memory" / "figure.py", tmp_path / "report.html", "--step", "2", "-o",
                            tmp_path / "memory.svg"], capture_output=True, text=True, timeout=60)
    assert drawn.returncode == 0, drawn.stderr
    assert "<svg" in (tmp_path / "memory.svg").read_text()


def test_under_a_limit_of_the_system_pytorch_does_not_train(tmp_path):
    """The command of the README, on a smaller model. The processes whose memory counts are none of warm.py: they set how malloc works."""
    command = ["bash", "-c", COMMAND.replace(".venv/bin/python", warm.python()) + ' "$@"', "bash"]
    said, result = run(tmp_path, command, "--layers", 10, "--dim", 512, "--seq", 64, "--batch", 2, "--steps", 2)
    assert result["trained"] == "segue" and len(result["losses"]) == 2
    assert result["pytorch_steps"] < 2 and re.search(r"can't allocate memory|MemoryError|killed", result["pytorch_ended"]), said
    # All that it may write to is what Python, PyTorch and the model had, the budget and what the example says: not the step's memory.
    assert result["peak_bytes"] <= result["budget_bytes"] <= result["free_bytes"] / 4 and result["process_bytes"] < result["limit_bytes"]
