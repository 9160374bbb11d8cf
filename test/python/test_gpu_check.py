# ===- test_gpu_check.py - what proves a GPU, without one ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`tools/gpu-check`: a pack is made here, and checked on the fake driver by a Python that has no packages, as another machine's."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
CHECK = str(ROOT / "tools" / "gpu-check")


@pytest.fixture(scope="module")
def packed():
    # The folder for temporary files may be memory, which is no disk.
    with tempfile.TemporaryDirectory(dir=BUILD) as made:
        folder = Path(made)
        (folder / "twins").mkdir()
        done = subprocess.run([sys.executable, CHECK, "--pack", str(folder), "--build", str(BUILD), "--quick"], capture_output=True, text=True, timeout=300,
                              env=os.environ | {"SEGUE_GPU_TWINS": str(folder / "twins")})
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert (folder / "pack.tar.xz").stat().st_size < 60 << 20
        yield folder


def check(folder, *more, **environment):
    done = subprocess.run([sys.executable, "-I", "-S", CHECK, "--binaries", str(folder), "--out", str(folder / "out.json"), "--quick", *more],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
                               "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
                               "SEGUE_NCCL_LIBRARY": f"{BUILD}/lib/libSegueFakeNccl.so",
                               "FAKE_CUDA_TWINS": str(folder / "twins"), **environment})
    return done, json.loads((folder / "out.json").read_text())


def test_a_packed_check_runs_every_part_on_the_fake_driver(packed):
    done, found = check(packed)
    assert done.returncode == 0 and not found["failed"], done.stdout[-4000:] + done.stderr[-4000:]
    assert found["passed"] > 30 and found["conformance"]["passed"] >= 8
    assert found["nccl"]["passed"] >= 7
    assert found["sanitizer"] == "not installed" or found["sanitizer"]["memcheck"].endswith("0 errors")
    assert all(found["profile"][key] for key in ("h2d", "d2h", "latency", "flops", "membw", "launch", "diskread", "diskwrite", "measured"))
    assert [row["name"] for row in found["models"]] == ["gpt", "llama", "lora"]
    for row in found["models"]:
        assert row["loss_from_torch"] <= 1e-4 and row["weights_from_cpu"] <= 1e-4 and row["same_again"] and row["learned"]
    assert [row["runs"] for row in found["services"]] == [7, 7] and not any(row["differ"] for row in found["services"])
    assert found["stitchings"]["stitchings"] == 4 and found["stitchings"]["shards_passed"] == 8
    assert [row["percent"] for row in found["forecast"]] == [110, 80]
    for row in found["forecast"]:
        assert row["time_ratio"] > 0 and 0 < row["measured_mib"] <= row["budget_mib"] + 0.1
    assert found["driver"] and found["probe"] == "left out (--quick)"


@pytest.mark.parametrize("part, environment, said", [
    ("models", {"SEGUE_CUBLASLT_LIBRARY": "/nowhere/libcublasLt.so"}, "gpt, sm_90, on gpu ended with 1"),
    ("stitchings", {"FAKE_CUDA_TWINS": "/nowhere"}, "stitchings ended with 1"),
    ("conformance", {"SEGUE_CUDA_LIBRARY": "/nowhere/libcuda.so"}, "conformance ended with 1")])
def test_a_part_that_fails_fails_the_check(packed, part, environment, said):
    done, found = check(packed, "--parts", part, **environment)
    assert done.returncode == 1 and said in found["failed"], done.stdout[-3000:]


def test_without_a_pack_nothing_is_said_to_have_passed(packed, tmp_path):
    (tmp_path / "bin").mkdir()
    done, found = check(tmp_path, "--parts", "models,services,stitchings,forecast")
    assert done.returncode == 1 and found["passed"] == 0 and not found["failed"]
    assert "take a pack" in found["models"] == found["services"] and "take a pack" in found["stitchings"]
