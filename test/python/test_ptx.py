# ===- test_ptx.py - kernels for GPUs, without one ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""PTX of whole models: `ptxas` assembles it and says what it takes, and twins of its kernels compute what the interpreter does."""

import functools
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch
from interpreted import ROOT

from segue.frontend import capture

sys.path.insert(0, str(Path(ROOT) / "examples"))
from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora  # noqa: E402

SEGUE_COMPILE = os.path.join(os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build")), "bin", "segue-compile")
PTXAS = resources.files("nvidia") / "cu13" / "bin" / "ptxas"
CAPABILITIES = [80, 90, 100]
#: The most registers of a thread: with 256 threads to a block, two blocks fit a multiprocessor.
MOST_REGISTERS = 128


def graph(module, batch, seq, vocab):
    tokens = torch.randint(vocab, (batch, seq))
    return capture(module, (), {"tokens": tokens, "targets": tokens}).text


@functools.cache
def gpt_s():
    """The kernels of config S of the benchmarks: equal layers share theirs."""
    return graph(GPT(GPTConfig(layers=2, dim=384, heads=6, seq=256, vocab=256)), 8, 256, 256)


@functools.cache
def llama():
    return graph(Llama(LlamaConfig(layers=2, dim=512, heads=8, kv_heads=4, hidden=1408, seq=128, vocab=512)), 4, 128, 512)


def compiled(text, *options, timeout=120):
    done = subprocess.run([SEGUE_COMPILE, "-", "-o", "-", *options], input=text.encode(), capture_output=True, timeout=timeout)
    assert done.returncode == 0, done.stderr.decode()[:4000]
    return done


def require_lean(ptx, capability, folder):
    """`ptxas` assembles `ptx` for a capability, and no kernel of it spills or has a stack. Returns how many there are."""
    done = subprocess.run([str(PTXAS), f"-arch=sm_{capability}", "-v", str(ptx), "-o", str(folder / "kernels.cubin")],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:4000]
    rows = re.findall(r"entry function '(\w+)'.*\n.*\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
                      r".*Used (\d+) registers(?:.*?(\d+) bytes smem)?", done.stderr)
    assert len(rows) == len(re.findall(r"\.visible \.entry", ptx.read_text()))
    print(f"\n{'kernel':40s} registers shared stack spilled")
    for name, stack, stores, loads, registers, shared in rows:
        print(f"{name:40s} {registers:>9s} {shared or 0:>6} {stack:>5s} {int(stores) + int(loads):7d}")
    for name, stack, stores, loads, registers, _ in rows:
        assert int(stack) == int(stores) == int(loads) == 0, f"{name} keeps values in memory of its own"
        assert int(registers) <= MOST_REGISTERS, f"{name} takes {registers} registers"
    return len(rows)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("model", [gpt_s, llama], ids=["gpt-s", "llama"])
def test_ptxas_assembles_every_kernel(model, capability, tmp_path):
    torch.manual_seed(0)
    ptx = tmp_path / "kernels.ptx"
    ptx.write_bytes(compiled(model(), f"--target=sm_{capability}", "--emit=ptx").stdout)
    assert require_lean(ptx, capability, tmp_path) > 10


@pytest.mark.parametrize("ptx", sorted(Path(ROOT, "runtime", "lib", "Cuda", "Builtin").glob("*.ptx")), ids=lambda path: path.stem)
def test_ptxas_assembles_the_kernels_of_the_runtime(ptx, tmp_path):
    for capability in CAPABILITIES:
        assert require_lean(ptx, capability, tmp_path) > 0


def test_the_kernels_of_the_runtime_are_what_their_sources_give():
    done = subprocess.run([str(Path(ROOT) / "tools" / "gpu-kernels"), "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def small_gpt():
    return graph(GPT(GPTConfig(layers=1, dim=48, heads=3, seq=16, vocab=40)), 2, 16, 40)


def small_llama():
    return graph(Llama(LlamaConfig(layers=1, dim=64, heads=4, kv_heads=2, hidden=72, seq=12, vocab=33)), 2, 12, 33)


def small_lora():
    return graph(add_lora(GPT(GPTConfig(layers=1, dim=32, heads=2, seq=8, vocab=24)), 4, ("qkv", "proj")), 2, 8, 24)


@pytest.mark.parametrize("model, optimizer", [(small_gpt, "adamw"), (small_llama, "lion"), (small_lora, "sgd:momentum=0.9"),
                                              (small_lora, "adafactor")])
def test_twins_agree_with_the_interpreter(model, optimizer):
    torch.manual_seed(0)
    said = compiled(model(), "--target=sm_90", "--verify-values", f"--optimizer={optimizer}").stderr.decode()
    kernels, launches, calls = map(int, re.search(r"(\d+) kernels agree with the reference interpreter in (\d+) launches, (\d+) calls", said).groups())
    # Three orders each, and in place besides.
    assert kernels > 10 and calls >= 3 * launches
