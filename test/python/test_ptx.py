# ===- test_ptx.py - kernels for GPUs, without one ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""PTX of whole models: `ptxas` assembles it and says what it takes, and twins of its kernels compute what the interpreter does. With the
runtime's own kernels and a fake cuBLASLt they train the models on a fake GPU."""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from interpreted import ROOT
from sample import drawn

from segue.frontend import capture

sys.path.insert(0, str(Path(ROOT) / "examples"))
from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora  # noqa: E402

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))
SEGUE_COMPILE = os.path.join(BUILD, "bin", "segue-compile")
PTXAS = resources.files("nvidia") / "cu13" / "bin" / "ptxas"
BUILTIN = Path(ROOT, "runtime", "lib", "Cuda", "Builtin")
CAPABILITIES = [80, 90, 100]
#: The most registers of a thread: with 256 threads to a block, two blocks fit a multiprocessor, or one.
MOST_REGISTERS, MOST_OF_ONE_BLOCK = 128, 255
#: What a kernel may declare of shared memory; the driver has to be asked for more.
MOST_SHARED = 48 << 10


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
    # Kernels that hold matrices in registers say so: one block of theirs to a multiprocessor.
    alone = set(re.findall(r"\.entry (\w+)\([^{]*\.minnctapersm 1\b", ptx.read_text()))
    assert all(re.fullmatch(r"attend\w+(F16|Bf16|Tf32)x\d+", name) for name in alone)
    for name, stack, stores, loads, registers, shared in rows:
        assert int(stack) == int(stores) == int(loads) == 0, f"{name} keeps values in memory of its own"
        assert int(registers) <= (MOST_OF_ONE_BLOCK if name in alone else MOST_REGISTERS), f"{name} takes {registers} registers"
        assert int(shared or 0) <= MOST_SHARED, f"{name} takes {shared} bytes of shared memory"
    return len(rows)


@pytest.mark.parametrize("model, capability", [(model, capability) for model in (gpt_s, llama) for capability in drawn(CAPABILITIES, 3, model.__name__)])
def test_ptxas_assembles_every_kernel(model, capability, tmp_path):
    torch.manual_seed(0)
    ptx = tmp_path / "kernels.ptx"
    ptx.write_bytes(compiled(model(), f"--target=sm_{capability}", "--emit=ptx").stdout)
    assert require_lean(ptx, capability, tmp_path) > 10


@pytest.mark.parametrize("ptx", sorted(BUILTIN.glob("*.ptx")), ids=lambda path: path.stem)
def test_ptxas_assembles_the_kernels_of_the_runtime(ptx, tmp_path):
    for capability in drawn(CAPABILITIES, 3, ptx.stem):
        assert require_lean(ptx, capability, tmp_path) > 0


def test_the_kernels_of_the_runtime_are_what_their_sources_give():
    """Of a sample, the hash of every file's sources, and the texts of a third."""
    texts = drawn(sorted(path.stem for path in BUILTIN.glob("*.cu")), 3, "texts")
    done = subprocess.run([str(Path(ROOT) / "tools" / "gpu-kernels"), "--check", "--texts", ",".join(texts)], capture_output=True, text=True, timeout=120)
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


def half_gpt():
    return graph(GPT(GPTConfig(layers=1, dim=48, heads=3, seq=16, vocab=40)).bfloat16(), 2, 16, 40)


def trains_on_a_fake_gpu(text, folder, *options):
    """Compiles a model with twins. Returns how to train it, a function of a device and of more arguments, whose result is the process;
    or how to ask another command of segue-run."""
    (folder / "twins").mkdir()
    (folder / "model.segue").write_bytes(compiled(text, "--target=x86-64-v3,sm_90", f"--gpu-twins={folder / 'twins'}", *options).stdout)
    weights, inputs = {}, []
    for shape, element, name, role in re.findall(r'tensor<([0-9x]*x)?(\w+)> \{segue.name = "([^"]+)"[^}]*?role<(input|parameter|frozen)>', text):
        shape = [int(extent) for extent in shape.split("x") if extent]
        if role == "input":
            np.save(folder / f"{name}.npy", np.random.default_rng(0).integers(0, 24, shape))
            inputs += ["--input", f"{name}=@{folder / name}.npy"]
        else:
            weights[name] = torch.randn(shape).mul(0.1).to(torch.bfloat16 if element == "bf16" else torch.float32)
    safetensors.torch.save_file(weights, folder / "weights.safetensors")
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so", "FAKE_CUDA_TWINS": str(folder / "twins")}

    def train(device, *more, command="train"):
        values = ("--weights", str(folder / "weights.safetensors"), *inputs, "--lr", "0.01") if command == "train" else ()
        done = subprocess.run([f"{BUILD}/bin/segue-run", command, str(folder / "model.segue"), *values, "--device", device, *more],
                              capture_output=True, text=True, timeout=240, env=env)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done

    return train


# In bf16 a sum of another order may round another way.
@pytest.mark.parametrize("model, far", [(small_llama, 1e-5), (half_gpt, 2e-3), (small_lora, 1e-5)])
def test_models_train_on_a_fake_gpu(model, far, tmp_path):
    torch.manual_seed(0)
    run = trains_on_a_fake_gpu(model(), tmp_path)

    def train(device):
        done = run(device, "--steps", "4", "--clip", "1", "--accumulate", "2", "--save", str(tmp_path / "out.safetensors"))
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout + done.stderr)]
        assert len(losses) == 4 and losses[3] < losses[0]
        return losses, (tmp_path / "out.safetensors").read_bytes()

    losses, _ = train("cpu")
    on_first, first = train("cuda:0")
    np.testing.assert_allclose(on_first, losses, rtol=far)
    assert train("cuda:2") == (on_first, first), "an order of streams, blocks and threads of its own gives other bits"


def four_layers():
    return graph(GPT(GPTConfig(layers=4, dim=96, heads=3, seq=32, vocab=64)), 4, 32, 64)


# On a GPU of just the cap: eviction, recomputing, streamed weights, plans, and what is refused at the budget that is named.
# The same where the host has little memory, and a disk below that.
@pytest.mark.parametrize("host", drawn(["pinned", "disk"], 2, "hosts"))
def test_no_service_and_no_cap_changes_a_bit_on_a_fake_gpu(host, tmp_path):
    torch.manual_seed(0)
    run = trains_on_a_fake_gpu(four_layers(), tmp_path)

    def verify(memory):
        done = run(f"cuda:3,dram=64MiB,{memory}", "--steps", "2", "--verify-invariance", "--caps", "60")
        assert done.stdout.count("equal to the bit") == 7 and "no run differs" in done.stdout
        assert re.search(r"planned, cap 60 .*: equal to the bit", done.stdout), done.stdout
        return done.stdout

    if host == "pinned":
        assert re.search(r"spill, cap 60 .*: equal to the bit; [1-9]\d* spilled", verify("pinned=64MiB"))
        return
    with tempfile.TemporaryDirectory(dir=BUILD) as disk:  # the folder for temporary files may be memory, which is no disk
        said = verify(f"host=256KiB,disk={disk}?capacity=64MiB")
    held = re.findall(r"^([\w, ]+), cap 60 % .*; the host ([\d.]+) MiB, the disk ([\d.]+) MiB$", said, re.M)
    assert len(held) == 7 and all(float(host) <= 0.25 for _, host, _ in held), said
    assert all(float(disk) > 0 for name, _, disk in held if name != "none"), said


def coded_lora():
    return graph(add_lora(GPT(GPTConfig(layers=2, dim=256, heads=4, seq=32, vocab=64)), 4, ("qkv", "proj", "fc", "out")), 2, 32, 64)


# What a device takes for programs is taken before all else and counts: a budget that is named is enough, and what is under way
# finds its workspace, where everything else would have taken the room.
@pytest.mark.parametrize("model, storage, memory", drawn([
    (four_layers, (), "workspace=4MiB"), (coded_lora, ("--frozen-storage=int8_row",), "panels=1MiB")], 2, "workspaces"))
def test_workspaces_are_foreseen_in_every_mode(model, storage, memory, tmp_path):
    torch.manual_seed(0)
    run = trains_on_a_fake_gpu(model(), tmp_path, *storage)
    said = run(f"cuda:5,dram=64MiB,pinned=64MiB,{memory}", "--steps", "2", "--verify-invariance", "--caps", "60,45").stdout
    assert "no run differs" in said and said.count("equal to the bit") == 14, said
    assert said.count("refused; within the") >= 7, said


# `fit` counts what the device will take, though a twin plays the step: the budget that it names trains by a plan.
def test_a_forecast_counts_workspaces(tmp_path):
    torch.manual_seed(0)
    run = trains_on_a_fake_gpu(four_layers(), tmp_path)
    config = tmp_path / "planned.json"
    config.write_text(json.dumps({"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_enabled": False}}}}))

    def smallest(*memory):
        found = json.loads(run(",".join(("cuda:5,dram=64MiB,pinned=64MiB", *memory)), "--json", "--config", str(config), command="fit").stdout)
        return found["smallest_budget_bytes"], found["plans"][0]["peak_bytes"], found["config"]["certified_bytes"]

    without, taken = smallest(), smallest("workspace=4MiB")
    assert taken[0] - without[0] == taken[1] - without[1] == 4 << 20 and taken[2] >= taken[0], (without, taken)
    said = run(f"cuda:5,dram={taken[0]},pinned=64MiB,workspace=4MiB", "--steps", "2", "--config", str(config)).stdout
    assert said.count("loss ") == 2, said
