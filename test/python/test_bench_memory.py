# ===- test_bench_memory.py - the benchmark of a cap, small ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""bench/memory/run.py on a tiny model: every peer runs, losses agree, memory is what was asked for."""

import json
import subprocess
import sys
from pathlib import Path

import warm

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "memory" / "run.py"
PEERS = "segue,torch,segue-planned-85,segue-planned-20,segue-watermark-85,torch-save_on_cpu,torch-checkpoint"


def test_a_small_run(tmp_path):
    done = subprocess.run([warm.python(), SCRIPT, "--config", "T", "--caps", "85,20", "--rounds", "1", "--steps", "21", "--peers", PEERS,
                           "--work", tmp_path, "--json", tmp_path / "all.json", "--table", tmp_path / "table.md"],
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {name: runs[0] for name, runs in json.loads((tmp_path / "all.json").read_text()).items()}
    assert set(results) == set(PEERS.split(","))
    free = results["segue"]
    for name in ("segue-planned-85", "segue-watermark-85"):
        row = results[name]
        assert row["late_loss"] == free["late_loss"] and row["loss0"] == free["loss0"]
        assert row["peak_device_mb"] <= row["cap_mb"] < free["peak_device_mb"]
    # Tensors that cannot stay leave or are computed again, whichever is faster on this machine.
    row = results["segue-watermark-85"]
    assert row["left"] + row["recomputed"] > 0 and (row["out_mb"] > 0) == (row["left"] > 0)
    # What cannot be is said, not tried.
    refused = results["segue-planned-20"]
    assert "the smallest budget is" in refused["refused"] and "step_ms_median" not in refused
    torch, offload, checkpoint = (results[name] for name in ("torch", "torch-save_on_cpu", "torch-checkpoint"))
    assert torch["saved_host_mb"] == 0 and offload["saved_device_mb"] == 0
    assert offload["saved_host_mb"] >= torch["saved_device_mb"] > checkpoint["saved_device_mb"] > 0
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout and table.count("\n| ") == 2 + len(results)
    assert "| segue sim planned 20 % | " in table and "refused: no plan keeps to" in table


def test_wrong_peers(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--peers", "jax", "--work", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'jax' is none of segue, torch, segue-planned-80" in done.stderr


def test_a_small_loop():
    """bench/memory/loops.py, which ends with an error where a bit differs or the budget is passed."""
    done = subprocess.run([warm.python(), SCRIPT.with_name("loops.py"), "--models", "gpt", "--layers", "2", "--dim", "64", "--vocab", "64", "--seq", "32",
                           "--batch", "2", "--steps", "5", "--rounds", "1"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["plans"]["peak_bytes"] <= result["budget_bytes"] < result["free_peak_bytes"]
    assert all(result["milliseconds"][kind] > 0 for kind in ("free", "watermarks", "plans"))
