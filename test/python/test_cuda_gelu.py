# ===- test_cuda_gelu.py - products that take gelu, on a GPU, without one ----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A layer with gelu behind it is one call of the library where a GPU is among the targets: values and gradients are those of PyTorch, and a file has the same bits on a processor and on `sim`."""

import itertools
import json
import os
import subprocess

import warm
from interpreted import ROOT
from sample import drawn

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

#: Whether it is bf16, the columns of the first layer, whether it has a bias, and the form of gelu. Any third has some that the library takes.
LAYERS = list(itertools.product((False, True), (16, 13), (True, False), ("tanh", "none")))

SCRIPT = """
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import segue

folder, build = Path(sys.argv[1]), sys.argv[2]
GPU = "cuda:0,dram=64MiB,pinned=64MiB"


class Layers(nn.Module):
    '''Two layers; the first has `width` columns, which the library writes sums of where they are a multiple of 8.'''

    def __init__(self, width, bias, approximate):
        super().__init__()
        self.fc, self.out = nn.Linear(12, width, bias=bias), nn.Linear(width, 5)
        self.approximate = approximate

    def forward(self, x):
        return self.out(nn.functional.gelu(self.fc(x), approximate=self.approximate)).square().mean()


def made(*options, dtype=torch.float32):
    torch.manual_seed(3)
    return Layers(*options).to(dtype)


def program(graph, target):
    done = subprocess.run([f"{build}/bin/segue-compile", "-", "--emit=prog", f"--target={target}"], input=graph,
                          text=True, check=True, capture_output=True, timeout=120)
    return re.findall(r'prog.library_call "?@?(dot_gelu\\w*)', done.stdout)


torch.manual_seed(5)
x = torch.randn(2, 7, 12)
extremes = torch.tensor([0.0, -0.0, 30.0, -30.0, 1e-30, -1e4, 1e4]).repeat(24)[:168].reshape(2, 7, 12)

for half, width, bias, approximate in json.loads(sys.argv[3]):
    dtype, near = (torch.bfloat16, 3e-2) if half else (torch.float32, 1e-5)
    given = x.to(dtype)
    there = made(width, bias, approximate, dtype=dtype)
    module = segue.compile(there, (given,), device=GPU)
    calls = program(module.mlir, "x86-64-v3,sm_90")
    taken = approximate == "tanh" and width % 8 == 0
    assert set(calls) == ({"dot_gelu"} if taken else set()), (dtype, width, bias, approximate, calls)
    assert program(module.mlir, "x86-64-v3") == []
    for inputs in (given, extremes.to(dtype)):
        there.zero_grad()
        here, wanted_input = made(width, bias, approximate, dtype=dtype), inputs.clone().requires_grad_()
        loss = here(wanted_input)
        loss.backward()
        input = inputs.clone().requires_grad_()
        found = module(input)
        found.backward()
        assert found.item() == pytest.approx(loss.item(), rel=near), (dtype, width, bias, approximate)
        for (name, one), two in zip([*here.named_parameters(), ("x", wanted_input)], [*there.parameters(), input]):
            scale = one.grad.abs().max().item()
            torch.testing.assert_close(two.grad.cpu().float(), one.grad.float(), rtol=near, atol=near * scale, msg=lambda m: f"{name} {dtype} {width}: {m}")

# One file for all: the bits of a processor are those of `sim`, whose library is the processor's.
model = made(16, True, "tanh")
save_file(model.state_dict(), folder / "model.safetensors")
numpy.save(folder / "x.npy", x.numpy())
subprocess.run([f"{build}/bin/segue-compile", "-", "-o", folder / "model.segue", "--optimizer=adamw", "--target=x86-64-v3,sm_90",
                f"--gpu-twins={folder}", "--verify-values"], input=segue.compile(model, (x,)).mlir, text=True, check=True, timeout=120)
losses = {}
for device in ("cpu", "sim:dram=16MiB", "cuda:0,dram=16MiB"):
    done = subprocess.run([f"{build}/bin/segue-run", "train", folder / "model.segue", "--weights", folder / "model.safetensors", "--input", f"x=@{folder / 'x.npy'}",
                           "--steps", "3", "--lr", "0.01", "--device", device], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    losses[device.split(":")[0]] = [line.split("loss ")[1].split()[0] for line in done.stdout.splitlines() if "loss " in line]
assert len(losses["cpu"]) == 3 and losses["cpu"] == losses["sim"], losses
assert [float(loss) for loss in losses["cuda"]] == pytest.approx([float(loss) for loss in losses["cpu"]], rel=1e-5), losses
print("all of it")
"""


def test_products_take_gelu(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": ""}
    done = subprocess.run([warm.python(), "-c", SCRIPT, str(tmp_path), BUILD, json.dumps(drawn(LAYERS, 3, "gelu"))], capture_output=True, text=True, timeout=400, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]
