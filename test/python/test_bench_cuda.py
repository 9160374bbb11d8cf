# ===- test_bench_cuda.py - Segue beside PyTorch on a GPU, without one ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""bench/cuda/peers/run.py on a tiny model: PyTorch on the processor, Segue on the fake driver, whose times mean nothing."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
SCRIPT = ROOT / "bench" / "cuda" / "peers" / "run.py"


def test_a_small_run(tmp_path):
    done = subprocess.run([warm.python(), SCRIPT, "--config", "tiny-gpt", "--modes", "eager,segue,segue:0.8,segue:0.05", "--device", "cpu",
                           "--steps", "2", "--json", tmp_path / "rows.json"], capture_output=True, text=True, timeout=280,
                          env=os.environ | {"SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so", "SEGUE_GPU_TWINS": str(tmp_path),
                                            "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so", "FAKE_CUDA_TWINS": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    torch, free, capped, refused, of_free, of_capped = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"] for row in (torch, free, capped, refused)] == ["eager", "segue", "segue:0.8", "segue:0.05"]
    assert abs(free["loss0"] - torch["loss0"]) < 3e-3 and all(abs(a - b) < 3e-3 for a, b in zip(free["losses"], torch["losses"]))
    assert free["losses"] == capped["losses"] and free["loss0"] == capped["loss0"]
    assert capped["peak_mib"] <= capped["budget_mib"] < free["peak_mib"]
    assert "the smallest budget is" in refused["refused"] and "step_ms" not in refused
    assert of_free["ratios_of"] == "segue" and of_free["predicted_of_measured_mib"] == 1
    assert of_capped["ratios_of"] == "segue:0.8" and 0.7 < of_capped["part_of_its_peak"] <= 0.8 and of_capped["of_segue_free"] > 0


def test_ratios_are_of_runs_that_are_alike():
    spec = importlib.util.spec_from_file_location("run_of_peers", SCRIPT)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)

    def row(name, peer, mode, ms, mib, weights="f32"):
        return {"config": "gpt2", "name": name, "peer": peer, "mode": mode, "step_ms": ms, "peak_mib": mib, "weights": weights,
                "predicted_ms": ms / 2, "predicted_mib": mib}

    rows = [row("compile", "torch 2", "compile", 20, 5000), row("bf16/compile", "torch 2", "compile", 10, 4000, "bf16"),
            row("budget:0.5", "torch 2", "budget", 30, 4000), row("checkpoint", "torch 2", "checkpoint", 40, 3000),
            row("segue", "segue 0", "free", 16, 4500), row("segue:0.8", "segue 0", "budget", 25, 3600),
            {"config": "gpt2", "name": "segue:0.4", "failed": "no time"}]
    free, capped = run.ratios(rows)
    assert free == {"config": "gpt2", "ratios_of": "segue", "predicted_of_measured_ms": 0.5, "predicted_of_measured_mib": 1, "of_torch_compile": 1.25,
                    "of_torch_within_its_peak": 1.875, "which_is": "budget:0.5"}
    assert capped == {"config": "gpt2", "ratios_of": "segue:0.8", "predicted_of_measured_ms": 0.5, "predicted_of_measured_mib": 1, "of_torch_compile": 0.8,
                      "of_segue_free": 0.64, "part_of_its_peak": 0.8, "of_torch_within_its_peak": 1.6, "which_is": "checkpoint"}
    assert run.group_of(["eager", "compile", "segue", "graphs"], 4) == ["eager", "compile"] and run.group_of(["bf16/segue", "eager"], 4) == ["bf16/segue"]
