# ===- test_cubins.py - machine code of GPUs beside PTX ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`cubin="auto"`, `"on"` and `"off"`: what is made, what a GPU of the fake driver is given, and what the cache keeps apart."""

import json
import os
import re
import stat
import subprocess
from importlib import resources

import pytest
import torch
import warm
from interpreted import ROOT
from torch import nn

import segue
from segue import compile_cache, cubins

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))
PTXAS = str(resources.files("nvidia") / "cu13" / "bin" / "ptxas")


@pytest.fixture(autouse=True)
def toolkit(monkeypatch):
    monkeypatch.setenv("SEGUE_PTXAS", PTXAS)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 40), nn.Softmax(-1))


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


ON_FAKE = """
import ctypes, os, sys, torch
from torch import nn
import segue

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(40, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 40), nn.Softmax(-1))
x = torch.randn(6, 40)
driver = ctypes.CDLL(os.environ["SEGUE_CUDA_LIBRARY"])
driver.fakeCudaCallCount.restype = ctypes.c_uint64
loads = lambda: driver.fakeCudaCallCount(b"cuModuleLoadData of a cubin")
GPU = "cuda:0,dram=64MiB,pinned=16MiB"


def values(**choice):
    before = loads()
    compiled = segue.compile(net, (x,), device=GPU, **choice)
    y = compiled(x)
    y.square().sum().backward()
    found = [y.detach().clone(), *(p.grad.clone() for p in net.parameters())]
    net.zero_grad()
    return found, loads() - before, compiled


cubins, count, compiled = values()
assert count == 1, count  # of one object, whatever the number of kernels
compiled.save(sys.argv[1] + "/net.segue", weights=True)
asked, count, _ = values(cubin="on")
assert count == 1, count
ptx, count, _ = values(cubin="off")
assert count == 0, count
assert all(torch.equal(a, b) for a, b in zip(cubins, ptx)) and all(torch.equal(a, b) for a, b in zip(cubins, asked))

for cubin, wanted in (("auto", 1), ("off", 0)):
    before = loads()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="segue", options={"device": GPU, "cubin": cubin})
    compiled(x).square().sum().backward()
    assert loads() - before == wanted, (cubin, loads() - before)
    torch.testing.assert_close(list(net.parameters())[0].grad, cubins[1])
    net.zero_grad()

print("all of it")
"""


def test_a_gpu_is_given_the_cubin(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so", "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": ""}
    done = subprocess.run([warm.python(), "-c", ON_FAKE, str(tmp_path)], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]

    # What was saved is the PTX, and what ptxas makes of that: all kernels, without spills or a stack.
    def inspect(*flags):
        return subprocess.run([f"{BUILD}/bin/segue-run", "inspect", str(tmp_path / "net.segue"), *flags], capture_output=True, text=True,
                              check=True, timeout=60).stdout

    segments = {each["kind"]: each for each in json.loads(inspect("--json"))[0]["segments"]}
    assert segments["cubin"]["capability"] == 90 and "cubin sm_90, ptx, x86-64-v3, x86-64-v4" in inspect()
    data = (tmp_path / "net.segue").read_bytes()
    part = lambda kind: data[segments[kind]["offset"]:][:segments[kind]["bytes"]]  # noqa: E731
    (tmp_path / "kernels.ptx").write_bytes(part("ptx"))
    assemble = lambda *flags: subprocess.run([PTXAS, "-arch=sm_90", *flags, "kernels.ptx", "-o", "kernels.cubin"], cwd=tmp_path,  # noqa: E731
                                             capture_output=True, text=True, check=True, timeout=120).stderr
    said = assemble("-v")
    assemble()
    assert part("cubin") == (tmp_path / "kernels.cubin").read_bytes()
    entries = re.findall(rb"\.visible \.entry (\w+)", part("ptx"))
    assert len(entries) == said.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") > 3
    assert all(b".text." + entry in part("cubin") for entry in entries)
    assert "cubin sm_90" in segue.load(tmp_path / "net.segue", allow_native_kernels=True).inspect()


def test_what_is_chosen_is_checked(monkeypatch, tmp_path):
    x = torch.ones(2, 40)
    with pytest.raises(segue.InvalidArgumentError, match="cubin is 'maybe'; it takes 'auto', 'on' or 'off'"):
        segue.compile(net(), (x,), cubin="maybe")
    with pytest.raises(Exception, match="cubin is 'maybe'; it takes"):
        torch.compile(net(), backend="segue", options={"cubin": "maybe"})(x)
    assert cubins.ptxas_for("auto", "sm_90") == cubins.ptxas_for("on", "x86-64-v4,sm_90") == PTXAS
    assert cubins.ptxas_for("auto", "x86-64-v4") == cubins.ptxas_for("off", "sm_90") == ""
    monkeypatch.setenv("SEGUE_PTXAS", str(tmp_path / "none"))
    with pytest.raises(segue.InvalidArgumentError, match="cubin is 'on': cubins need ptxas, and there is none; install it"):
        segue.compile(net(), (x,), cubin="on")
    assert cubins.ptxas_for("auto", "sm_90") == ""


TEXT = """func.func @forward(%x: tensor<8x300xf32> {{segue.name = "x", segue.role = #segue.role<input>}})
    -> (tensor<8x300xf32> {{segue.name = "y", segue.role = #segue.role<output>}}) {{
  %0 = segue.{op} %x : tensor<8x300xf32>
  return %0 : tensor<8x300xf32>
}}"""


def made(target, ptxas, op="exp"):
    file = segue.compile_process.compile_text(TEXT.format(op=op), "m", training=False, target=target, ptxas=ptxas)
    return [kind for kind, _ in segue._runtime.Binary.from_bytes(file, "m").segments]


def test_the_compiler_is_told_which_ptxas(tmp_path):
    assert made("sm_80", "") == ["ptx"]
    assert made("sm_100,sm_80", PTXAS) == ["ptx", "cubin sm_80", "cubin sm_100"]
    assert made("x86-64-v3", PTXAS) == ["elf"]
    with pytest.raises(segue.CompileError, match=r"refusing -arch=sm_80 has failed: ptxas fatal : no;.*cubin=\"off\" in Python"):
        made("sm_80", script(tmp_path / "refusing", "echo ptxas fatal : no; exit 1\n"), "sin")
    with pytest.raises(segue.CompileError, match="gone -arch=sm_80|gone does not start"):
        made("sm_80", str(tmp_path / "gone"), "cos")
    with pytest.raises(segue.CompileError, match='unknown target "sm_75"; known are x86-64-v3, x86-64-v4, sm_80, sm_90, sm_100'):
        made("sm_75", "")


def test_the_cache_keeps_versions_of_ptxas_apart(monkeypatch, tmp_path):
    monkeypatch.setenv(compile_cache.FOLDER, str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    source = f'if [ "$1" = --version ]; then echo release VERSION; else echo run >> {runs}; exec {PTXAS} "$@"; fi\n'
    ptxas = script(tmp_path / "ptxas", source.replace("VERSION", "1"))
    count = lambda: len(runs.read_text().split())  # noqa: E731
    for _ in range(2):
        assert made("sm_80", ptxas) == ["ptx", "cubin sm_80"] and count() == 1
    assert made("sm_80", "") == ["ptx"] and count() == 1
    script(tmp_path / "ptxas", source.replace("VERSION", "2.0"))
    assert made("sm_80", ptxas) == ["ptx", "cubin sm_80"] and count() == 2
    assert len(list((tmp_path / "cache").iterdir())) == 3
