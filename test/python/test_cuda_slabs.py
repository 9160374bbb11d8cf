# ===- test_cuda_slabs.py - frozen weights as codes on a GPU, without one ----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Adapters that train on slabs of every form on the fake GPU, as on a processor: codes that products read, weights that are made
of codes, resident, streamed by a config, and by `segue-run train`."""

import os
import subprocess

import warm
from interpreted import ROOT

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

SCRIPT = """
import subprocess
import sys
from pathlib import Path

sys.path[:0] = sys.argv[1:2] + sys.argv[4:5]
import numpy
import pytest
import torch
from safetensors.torch import save_file

import segue

from models import GPT, GPTConfig, add_lora
from sample import drawn

folder, build = Path(sys.argv[2]), sys.argv[3]
segue_run = f"{build}/bin/segue-run"
GPU = "cuda:0,dram=64MiB,pinned=64MiB,panels=256KiB"  # small ones, which the larger layers' products go by
CONFIG = GPTConfig(layers=2, dim=256, heads=4, seq=8, vocab=40)
ADAPTED = ("qkv", "proj", "fc", "out")
ALIASES = [(f"{name}.base", name) for name in ADAPTED]
tokens = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(1))
batch = {"tokens": tokens, "targets": torch.roll(tokens, -1, 1)}


def base():
    torch.manual_seed(0)
    return GPT(CONFIG)


def adapted():
    torch.manual_seed(1)
    model = add_lora(base(), rank=4, names=ADAPTED)
    for name, parameter in model.named_parameters():
        if name.endswith("b.weight"):
            torch.nn.init.normal_(parameter, std=0.02)  # or x has no derivative by way of an adapter
    return model


def quantised(name, *options):
    subprocess.run([segue_run, "quantize", folder / "model.safetensors", "-o", folder / name, *options], check=True, timeout=60,
                   stdout=subprocess.DEVNULL)
    return folder / name


def compiled(storage, device):
    return segue.compile(adapted(), tuple(batch.values()), optimizer=segue.AdamW(lr=1e-2), frozen_storage=storage, device=device, name="gpt")


def fit(trainer):
    before = trainer.fused_calls
    return [trainer.step(**batch) for _ in range(3)], trainer.fused_calls - before


def resident(slab, storage, device):
    trainer = segue.Trainer([compiled(storage, device)], optimizer=segue.AdamW(lr=1e-2), device=device)
    assert len(trainer.load_slab(slab, aliases=ALIASES)) == 9
    return fit(trainer)


def streamed(slab, storage, device, serve):
    stagehand = {"squareq_slab_path": f"{slab}.safetensors", "squareq_manifest_path": f"{slab}.manifest.json",
                 "prefetch_window_blocks": 1, "telemetry_file": str(folder / "weights.jsonl"), "squareq": {"serve": serve}}
    trainer = segue.Trainer([compiled(storage, device)], optimizer=segue.AdamW(lr=1e-2), device=device, aliases=ALIASES,
                            config={"memory": {"stagehand": stagehand}})
    return fit(trainer)


save_file(base().state_dict(), folder / "model.safetensors")

# A sample has every second form.
trained = drawn(["int8_row", "fp8_e4m3_row", "int4_group64", "int4_group32", "plain8", "rotated", "plain", "low-rank"], 2, "slabs")

# Products that read codes, forward and for the gradient of x: rows of INT8 and FP8, groups of 4 bits.
for scheme, storage, *more in (("per_row_symmetric", "int8_row"), ("fp8_e4m3_row", "fp8_e4m3_row"), ("int4_group", "int4_group64"),
                               ("int4_group", "int4_group32", "--group", "32")):
    slab = quantised(storage, "--scheme", scheme, *more)
    if storage not in trained:
        continue
    losses, calls = resident(slab, storage, "cpu")
    on_gpu = resident(slab, storage, GPU)
    assert on_gpu[0] == pytest.approx(losses, rel=1e-5) and on_gpu[1] == calls == 17 * 3, (storage, on_gpu, losses, calls)
    # Block by block from the slab, on another GPU of the fake: what arrives are the codes, so the bits are the same.
    assert streamed(slab, storage, GPU.replace("cuda:0", "cuda:2"), "fused") == on_gpu, storage

# x is rounded to codes of the weight's kind where that was asked for: other losses, near those of floats, and the same at each run.
for storage in ("int8_row", "fp8_e4m3_row"):
    slab = folder / storage
    floats, calls = resident(slab, storage, GPU)
    codes = resident(slab, storage, GPU + ",codes=on")
    assert codes[0] != floats and codes[0] == pytest.approx(floats, rel=2e-2) and codes[1] == calls, (storage, codes, floats)
    assert streamed(slab, storage, GPU.replace("cuda:0", "cuda:2") + ",codes=on", "fused") == codes, storage
    assert codes[0][-1] < codes[0][0], codes

# Weights that the device makes of codes, rotates and adds a low-rank product to.
for name, *more in (("plain8", "--scheme", "per_row_symmetric"), ("plain", "--scheme", "int4_group"),
                    ("rotated", "--scheme", "int4_group", "--rotation", "hadamard_256"),
                    ("low-rank", "--scheme", "int4_group", "--rank", "4"),
                    ("both", "--scheme", "int4_group", "--rotation", "hadamard_256", "--rank", "4")):
    slab = quantised(name, *more)
    if name not in (*trained, "both"):
        continue
    losses, _ = streamed(slab, None, "sim:dram=64MiB,pinned=64MiB", "dequant")
    on_gpu, calls = streamed(slab, None, GPU, "dequant")
    assert on_gpu == pytest.approx(losses, rel=1e-5) and calls == 0, (name, on_gpu, losses)

# From the command line, with what the slab does not hold from files.

save_file(adapted().state_dict(), folder / "all.safetensors")

for name, value in batch.items():
    numpy.save(folder / f"{name}.npy", value.numpy())
inputs = [word for name in batch for word in ("--input", f"{name}=@{folder / name}.npy")]
for storage, slab in (("int8_row", "int8_row"), (None, "both")):
    subprocess.run([f"{build}/bin/segue-compile", "-", "-o", folder / "model.segue", "--optimizer=adamw", "--target=x86-64-v3,sm_90",
                    f"--gpu-twins={folder}", *([f"--frozen-storage={storage}"] if storage else [])],
                   input=compiled(storage, GPU).mlir, text=True, check=True, timeout=120)
    losses = []
    for device in ("sim:dram=64MiB", GPU):
        done = subprocess.run([segue_run, "train", folder / "model.segue", "--slab", folder / f"{slab}.safetensors",
                               "--weights", folder / "all.safetensors", *[word for one, other in ALIASES for word in ("--alias", f"{one}={other}")],
                               *inputs, "--steps", "3", "--lr", "0.01", "--device", device], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        losses.append([float(line.split("loss ")[1].split()[0]) for line in done.stdout.splitlines() if "loss " in line])
    assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], rel=1e-5), losses
print("all of it")
"""


def test_adapters_train_on_slabs_of_every_form(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([warm.python(), "-c", SCRIPT, os.path.join(ROOT, "examples"), str(tmp_path), BUILD, os.path.dirname(__file__)],
                          capture_output=True, text=True, timeout=400, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]
