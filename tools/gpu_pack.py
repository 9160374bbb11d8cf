# ===- gpu_pack.py - what a check of a GPU takes along ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What tools/gpu-check takes to a machine with a GPU and without LLVM, PyTorch or our compiler, in one file.

`pack` compiles small models for GPUs and for a processor, which is the reference there, notes the losses that PyTorch has of them,
lets SegueGpuStitchTests store pieces of random stitchings, and puts these, the programs and their libraries into pack.tar.xz.
It needs the environment of the tests (PYTHONPATH of a build)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What a machine is given is limited, and the repository travels beside it.
MOST_BYTES = 60 << 20
#: Stitchings, and the bound that all of it has to be proven in.
STITCHINGS, QUICK_STITCHINGS = 40, 4
STEPS = 4
OPTIMIZER, EPS, DECAY = "adamw:eps=1e-4,decay=0.01", 1e-4, 0.01  # by eps a gradient of nothing but rounding moves nothing


def models(quick: bool) -> dict:
    """By name: a model, its tokens, the learning rate, how far losses may be from PyTorch's, and weights from a processor's."""
    import torch

    sys.path.insert(0, str(ROOT / "examples"))
    from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora

    def tokens(batch, seq, vocab):
        return torch.randint(vocab, (batch, seq), generator=torch.Generator().manual_seed(1))

    torch.manual_seed(0)
    found = {
        "gpt": (GPT(GPTConfig(layers=2, dim=48, heads=3, seq=16, vocab=40)), tokens(4, 16, 40), 1e-4, 1e-4),
        "llama": (Llama(LlamaConfig(layers=2, dim=64, heads=4, kv_heads=2, hidden=72, seq=12, vocab=33)), tokens(2, 12, 33), 1e-4, 1e-4),
        "lora": (add_lora(GPT(GPTConfig(layers=2, dim=32, heads=2, seq=8, vocab=24)), 4, ("qkv", "proj")), tokens(2, 8, 24), 1e-4, 1e-4),
    }
    if not quick:
        found |= {
            # In bf16 a sum of another order may round another way.
            "gpt-bf16": (GPT(GPTConfig(layers=1, dim=48, heads=3, seq=16, vocab=40)).bfloat16(), tokens(2, 16, 40), None, 3e-2),
            "gpt-s": (GPT(GPTConfig(layers=2, dim=384, heads=6, seq=256, vocab=256)), tokens(8, 256, 256), 1e-4, 1e-4),
            "llama-s": (Llama(LlamaConfig(layers=2, dim=256, heads=8, kv_heads=4, hidden=704, seq=128, vocab=256)), tokens(4, 128, 256), 1e-4, 1e-4),
        }
    return found


def losses_of(model, tokens, targets, lr: float) -> list:
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, eps=EPS, weight_decay=DECAY)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def pack_models(build: Path, to: Path, quick: bool) -> None:
    import numpy as np
    import safetensors.torch
    import torch

    from segue.frontend import capture

    twins = os.environ.get("SEGUE_GPU_TWINS")  # for the fake driver, which is not taken along
    capabilities = [90] if quick else [80, 90, 100]  # a file has code for one, which later ones run too
    rows = []
    for name, (model, tokens, far, far_weights) in models(quick).items():
        folder, lr = to / name, 1e-2
        folder.mkdir(parents=True)
        targets = torch.roll(tokens, -1, 1)
        text = capture(model, (), {"tokens": tokens, "targets": targets}).text
        for capability in capabilities:
            subprocess.run([build / "bin" / "segue-compile", "-", "-o", folder / f"sm_{capability}.segue", f"--target=x86-64-v3,sm_{capability}",
                            f"--optimizer={OPTIMIZER}", *([f"--gpu-twins={twins}"] if twins else [])], input=text.encode(), check=True, timeout=300)
        safetensors.torch.save_file({key: value.detach().clone() for key, value in model.state_dict().items()
                                     if f'segue.name = "{key}"' in text}, folder / "weights.safetensors")
        np.save(folder / "tokens.npy", tokens.numpy())
        np.save(folder / "targets.npy", targets.numpy())
        rows.append({"name": name, "capabilities": capabilities, "lr": lr, "steps": STEPS, "far": far, "far_weights": far_weights,
                     "losses": losses_of(model, tokens, targets, lr) if far else None})
    (to / "models.json").write_text(json.dumps(rows, indent=1))


def pack_stitchings(build: Path, to: Path, count: int) -> None:
    to.mkdir()
    environment = os.environ | {"SEGUE_PIECES": str(to), "SEGUE_STITCHINGS": str(count), "SEGUE_STITCH_ORDERS": "1"}
    if twins := os.environ.get("SEGUE_GPU_TWINS"):
        environment["FAKE_CUDA_TWINS"] = twins
    else:
        environment.pop("FAKE_CUDA_TWINS", None)
    subprocess.run([build / "bin" / "SegueGpuStitchTests", "--gtest_brief=1", "--gtest_filter=*RandomStitchTest*"], check=True, timeout=500, env=environment)
    (to / "count").write_text(str(count))


def pack_programs(build: Path, to: Path, programs) -> None:
    """Programs of a build, stripped, with the libraries that another machine may lack."""
    to.mkdir()
    for program in programs:
        shutil.copy(build / "bin" / program, to / program)
        subprocess.run(["strip", to / program], check=True)
        for path in re.findall(r"=> (/\S+)", subprocess.run(["ldd", to / program], capture_output=True, text=True, check=True).stdout):
            if not re.search(r"/lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so", path):
                shutil.copy(path, to / Path(path).name)


def pack(build: Path, to: Path, programs, quick: bool) -> Path:
    """Returns the file. Without `quick` it has larger models, more stitchings and code for every capability."""
    to.mkdir(parents=True, exist_ok=True)
    file = to / "pack.tar.xz"
    with tempfile.TemporaryDirectory(dir=to) as made:
        folder = Path(made)
        pack_programs(build, folder / "bin", programs)
        pack_models(build, folder / "models", quick)
        pack_stitchings(build, folder / "stitchings", QUICK_STITCHINGS if quick else STITCHINGS)
        with tarfile.open(file, "w:xz", preset=0 if quick else 3) as tar:
            for part in sorted(folder.iterdir()):
                tar.add(part, part.name)
    if file.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{file} has {file.stat().st_size >> 20} MiB, and {MOST_BYTES >> 20} may be carried")
    return file
