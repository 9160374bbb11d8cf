# ===- test_cuda.py - PyTorch models on a GPU, without one -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`device="cuda:0"` in Python, on the fake driver: what is compiled for it, trained and called there."""

import os
import subprocess
import sys

from interpreted import ROOT

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

SCRIPT = """
import sys

import torch

import segue

sys.path.insert(0, sys.argv[1])
from models import GPT, GPTConfig

GPU = "cuda:0,dram=64MiB,pinned=64MiB"
tokens = torch.randint(40, (4, 16), generator=torch.Generator().manual_seed(1))
targets = torch.roll(tokens, -1, 1)


def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(layers=2, dim=48, heads=3, seq=16, vocab=40))


def train(device, **options):
    trainer = segue.Trainer(segue.compile(model(), (tokens, targets)), optimizer=segue.AdamW(lr=1e-2), device=device,
                            clip_grad_norm=1.0, **options)
    losses = [trainer.step(tokens=tokens, targets=targets) for _ in range(4)]
    return losses, trainer


on_cpu, _ = train("cpu")
on_gpu, free = train(GPU)
torch.testing.assert_close(torch.tensor(on_gpu), torch.tensor(on_cpu), rtol=1e-5, atol=0)

# Four fifths of its peak by a plan, on another GPU, whose memory nobody shares: the same bits.
cap = free.peak_bytes * 8 // 10 / 2**20
config = {"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned"},
                                   "conductor_config": {"enabled": True, "vram_hard_cap_mb": cap, "vram_soft_cap_mb": cap}}}}
within, capped = train(GPU.replace("cuda:0", "cuda:2"), config=config)
assert within == on_gpu and capped.peak_bytes <= cap * 2**20, (within, on_gpu, capped.peak_bytes, cap)

# A module that is called there, and what autograd gets of it.
plain, compiled_from = model(), model()
loss = segue.compile(compiled_from, (tokens, targets), device=GPU)(tokens, targets)
loss.backward()
wanted = plain(tokens, targets)
wanted.backward()
torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
for (name, found), expected in zip(compiled_from.named_parameters(), plain.parameters()):
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=lambda text: f"{name}: {text}")
print("all of it")
"""


def test_a_model_is_trained_and_called_on_a_gpu(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", SCRIPT, os.path.join(ROOT, "examples")], capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]
