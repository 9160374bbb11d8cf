# ===- test_cuda_library.py - convolutions and groups on a GPU, without one --------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A convolutional network and a mixture of experts train on the fake GPU as on a processor."""

import os
import subprocess

import warm
from interpreted import ROOT

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

SCRIPT = """
import sys

import pytest
import torch
from torch import nn

import segue

sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/test/python", f"{sys.argv[1]}/examples"]
from test_convolutions import Features, Head
from test_grouped_products import Mixture

GPU = "cuda:1,dram=64MiB,pinned=64MiB"


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.up, self.head = Features(), nn.ConvTranspose2d(16, 16, 3, stride=2, groups=4), Head()

    def forward(self, x, y):
        return self.head(self.up(self.features(x)), y)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixture = Mixture()

    def forward(self, x, y):
        return (self.mixture(x) - y).square().mean()


def train(make, batch, device):
    torch.manual_seed(0)
    trainer = segue.Trainer(segue.compile(make(), batch, device=device), optimizer=segue.AdamW(lr=1e-2), device=device)
    names = ("x", "y")
    return [trainer.step(**dict(zip(names, batch))) for _ in range(4)]


torch.manual_seed(1)
for make, batch in ((Network, (torch.randn(3, 3, 9, 8), torch.tensor([0, 4, 2]))), (Experts, (torch.randn(40, 16), torch.randn(40, 16)))):
    losses = train(make, batch, "cpu")
    on_gpu = train(make, batch, GPU)
    assert losses[3] < losses[0] and on_gpu == pytest.approx(losses, rel=1e-5), (make, losses, on_gpu)
    assert train(make, batch, GPU.replace("cuda:1", "cuda:3")) == on_gpu, "an order of blocks and threads of its own gives other bits"
print("all of it")
"""


def test_a_network_and_a_mixture_train_on_a_gpu(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": ""}
    done = subprocess.run([warm.python(), "-c", SCRIPT, ROOT], capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]
