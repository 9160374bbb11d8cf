# ===- test_cuda.py - PyTorch models on a GPU, without one -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`device="cuda:0"` in Python, on the fake driver: what is compiled for it, trained and called there.

Scripts run in processes of their own, whose CUDA is the fake; one that misuses it ends with an error (FakeCuda.h)."""

import os
import subprocess
import sys
import tempfile

from interpreted import ROOT

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

COMMON = """
import gc
import sys

import torch

import segue

sys.path.insert(0, sys.argv[1])
from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora

GPU = "cuda:0,dram=64MiB,pinned=64MiB"
tokens = torch.randint(40, (4, 16), generator=torch.Generator().manual_seed(1))
targets = torch.roll(tokens, -1, 1)


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig(layers=2, dim=48, heads=3, seq=16, vocab=40))


def train(model, device, optimizer, steps=4, clip_grad_norm=1.0, **options):
    '''The losses, and the trainer; `model` has the trained values.'''
    trainer = segue.Trainer(segue.compile(model, (tokens, targets)), optimizer=optimizer, device=device, clip_grad_norm=clip_grad_norm, **options)
    losses = [trainer.step(tokens=tokens, targets=targets) for _ in range(steps)]
    trainer.sync()
    return losses, trainer
"""

SERVICES = """
on_cpu, _ = train(gpt(), "cpu", segue.AdamW(lr=1e-2))
on_gpu, free = train(gpt(), GPU, segue.AdamW(lr=1e-2))
torch.testing.assert_close(torch.tensor(on_gpu), torch.tensor(on_cpu), rtol=1e-5, atol=0)

# Four fifths of its peak by a plan, on another GPU, whose memory nobody shares: the same bits.
cap = free.peak_bytes * 8 // 10 / 2**20
config = {"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned"},
                                   "conductor_config": {"enabled": True, "vram_hard_cap_mb": cap, "vram_soft_cap_mb": cap}}}}
within, capped = train(gpt(), GPU.replace("cuda:0", "cuda:2"), segue.AdamW(lr=1e-2), config=config)
assert within == on_gpu and capped.peak_bytes <= cap * 2**20, (within, on_gpu, capped.peak_bytes, cap)

# The same with a quarter of a megabyte in the host's memory and the disk below that.
tiers = {"device_dram_mb": 0.6 * free.peak_bytes / 2**20, "host_mb": 0.25, "disk": sys.argv[2], "disk_mb": 16}
above, trainer = train(gpt(), "cuda:3", segue.AdamW(lr=1e-2), config={"memory": {"tiers": tiers}})
assert above == on_gpu, (above, on_gpu)
memory = trainer.memory()
held = {name: tier["bytes"] for name, tier in memory.plan.tiers.items()}
assert memory.fits and 0 < held["host_pinned"] <= 2**18 and held["disk"] > 0, memory
assert memory.plan.disk["in_bytes"] > 0 and "go on to the disk" in str(memory)
del trainer, capped, free

# Sealed there after two steps; another trainer goes on.
for resumes in (False, True):
    trainer = segue.Trainer(segue.compile(gpt(), (tokens, targets)), optimizer=segue.AdamW(lr=1e-2), device="cuda:3", clip_grad_norm=1.0,
                            config={"memory": {"tiers": tiers}}, seal=sys.argv[2] + "/run.seal")
    if resumes:
        trainer.resume(sys.argv[2] + "/run.seal")
    assert [trainer.step(tokens=tokens, targets=targets) for _ in range(2)] == on_gpu[2 * resumes:][:2]
    assert resumes or trainer.seal()["sealed_bytes"] > 0
    del trainer
    gc.collect()

# A module that is called there, and what autograd gets of it.
plain, compiled_from = gpt(), gpt()
loss = segue.compile(compiled_from, (tokens, targets), device=GPU)(tokens, targets)
loss.backward()
wanted = plain(tokens, targets)
wanted.backward()
torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
for (name, found), expected in zip(compiled_from.named_parameters(), plain.parameters()):
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=lambda text: f"{name}: {text}")

# Its file has kernels for such a GPU, and for processors.
segue.compile(gpt(), (tokens, targets), device=GPU).save(sys.argv[2] + "/gpt.segue", weights=True)
for device in (GPU, "cpu"):
    loaded = segue.load(sys.argv[2] + "/gpt.segue", weights=sys.argv[2] + "/gpt.safetensors", device=device, allow_native_kernels=True)
    torch.testing.assert_close(loaded(tokens, targets), wanted, rtol=1e-5, atol=1e-6)
print("all of it")
"""

PYTORCH = """
def llama():
    torch.manual_seed(0)
    return Llama(LlamaConfig(layers=2, dim=48, heads=4, kv_heads=2, hidden=72, seq=16, vocab=40))


def lora():
    return add_lora(gpt(), 4, ("qkv", "proj"))


# With epsilons that keep a gradient of rounding errors alone, as that of the keys' bias, from being a step.
CASES = [
    (gpt, segue.AdamW(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, amsgrad=True),
     lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, amsgrad=True)),
    (llama, segue.SGD(lr=5e-2, momentum=0.8, nesterov=True, weight_decay=0.02),
     lambda p: torch.optim.SGD(p, lr=5e-2, momentum=0.8, nesterov=True, weight_decay=0.02)),
    (lora, segue.RMSprop(lr=3e-3, alpha=0.9, eps=1e-4, momentum=0.5, centered=True),
     lambda p: torch.optim.RMSprop(p, lr=3e-3, alpha=0.9, eps=1e-4, momentum=0.5, centered=True)),
]
for make, optimizer, in_torch in CASES:
    reference, model = make(), make()
    trained = [p for p in reference.parameters() if p.requires_grad]
    stepper, wanted = in_torch(trained), []
    for _ in range(8):
        stepper.zero_grad()
        loss = reference(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        stepper.step()
        wanted.append(loss.item())
    losses, _ = train(model, GPU, optimizer, steps=8)
    assert wanted[-1] < 0.99 * wanted[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4, atol=0)
    for (name, found), (_, expected), start in zip(model.named_parameters(), reference.named_parameters(), make().parameters()):
        if not expected.requires_grad:
            assert torch.equal(found, start), f"{name} is frozen"
            continue
        far = (found - expected).abs().max() / expected.abs().max().clamp(min=1)
        assert far <= 1e-4, f"{make.__name__}: {name} is {far} from PyTorch's"
        assert not torch.equal(found, start)
print("all of it")
"""

OPTIMIZERS = """
for optimizer, options in [
    (segue.Muon(lr=2e-2, momentum=0.9, nesterov=False, groups=[segue.Group("*.bias", "*.ln*", optimizer=segue.Lion(lr=1e-3))]), {}),
    (segue.AdamW(lr=1e-2, state_bits=8, ema_decay=0.9, groups=[segue.Group("*.bias", lr=1e-3, weight_decay=0.0)]), {}),
    (segue.Adafactor(lr=1e-2), {}),
    (segue.NAdam(lr=1e-2, in_forward=True), {}),
    (segue.AdamW(lr=1e-2, in_backward=True, clip_grad_value=0.01), {"clip_grad_norm": None}),
]:
    on_cpu, on_gpu = (train(gpt(), device, optimizer, **options)[0] for device in ("cpu", GPU))
    torch.testing.assert_close(torch.tensor(on_gpu), torch.tensor(on_cpu), rtol=1e-4, atol=0, msg=lambda text: f"{optimizer}: {text}")
print("all of it")
"""

LOOPS = """
def loop(**options):
    model = gpt()
    compiled = torch.compile(model, backend="segue", options=options) if options else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report = segue.backend_report() if options else None
    torch.compiler.reset()
    gc.collect()
    return losses, report


wanted, _ = loop()
free, report = loop(device=GPU)
torch.testing.assert_close(torch.tensor(free), torch.tensor(wanted), rtol=1e-4, atol=0)
for options in ({"device": "cuda:1,pinned=64MiB"}, {"device": "cuda:2,host=256KiB", "spill_dir": sys.argv[2]}):
    losses, report = loop(budget="640KiB", **options)
    assert losses == free, (options, losses, free)
    assert report.budgets[0].peak_bytes <= 640 * 2**10 and report.budgets[0].spilled_bytes > 0, report
print("all of it")
"""

PRECISION = """
import subprocess

from safetensors.torch import save_file

sys.path.insert(0, sys.argv[4])
from test_precision import Net, batch

# Adapters over a slab, whose blocks change their form; beside states that leave, always or where they must.
folder = sys.argv[2]


def net():
    torch.manual_seed(1)
    return Net()


save_file({n: p.detach() for n, p in net().named_parameters() if ".base." in n}, f"{folder}/base.safetensors")
subprocess.run([sys.argv[3], "quantize", f"{folder}/base.safetensors", "-o", f"{folder}/slab"], check=True, timeout=60, capture_output=True)


def run(device, states=None):
    stagehand = {"telemetry_enabled": False, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.3,
                 "squareq_slab_path": f"{folder}/slab.safetensors", "squareq_manifest_path": f"{folder}/slab.manifest.json",
                 "selective_precision": {"enabled": True, "warmup_steps": 4, "update_interval_steps": 4, "min_steps_between_switches": 4,
                                         "calibration_samples": 2, "telemetry_file": f"{folder}/precision.jsonl"}}
    if states:
        stagehand["state_stagehand"] = {"mode": states, "telemetry_enabled": False}
    adamw = segue.AdamW(lr=1e-3)
    trainer = segue.Trainer([segue.compile(net(), tuple(batch(0).values()), optimizer=adamw)], optimizer=adamw, device=device,
                            config={"memory": {"stagehand": stagehand}})
    losses = trainer.fit(batch(step) for step in range(14))
    return losses, {unit["name"]: unit["precision"] for unit in trainer.precision()["units"]}


on_sim, forms = run("sim:dram=8MiB,pinned=8MiB,link=4GB/s,latency=2us")
assert forms["h.0"] == "int8" and forms["h.3"] == "bf16", forms
first = None
for device, states in [("cuda:0", None), ("cuda:1", "on"), ("cuda:2", "auto")]:
    losses, found = run(device + ",dram=8MiB,pinned=8MiB", states)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(on_sim), rtol=1e-5, atol=0)
    assert found == forms, (found, forms)
    first = first or losses
    assert losses == first, (device, states)
print("all of it")
"""


def on_fake_gpus(script, folder):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(folder), "FAKE_CUDA_TWINS": str(folder), "SEGUE_CACHE_DIR": ""}
    # The folder for temporary files may be memory, which is no disk.
    with tempfile.TemporaryDirectory(dir=BUILD) as disk:
        done = subprocess.run([sys.executable, "-c", COMMON + script, os.path.join(ROOT, "examples"), disk, f"{BUILD}/bin/segue-run",
                               os.path.join(ROOT, "test", "python")],
                              capture_output=True, text=True, timeout=240, env=env, cwd=folder)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]


def test_a_model_is_trained_and_called_on_a_gpu(tmp_path):
    on_fake_gpus(SERVICES, tmp_path)


def test_models_are_trained_as_pytorch_does(tmp_path):
    on_fake_gpus(PYTORCH, tmp_path)


def test_optimizers_are_those_of_the_cpu(tmp_path):
    on_fake_gpus(OPTIMIZERS, tmp_path)


def test_loops_of_pytorch(tmp_path):
    on_fake_gpus(LOOPS, tmp_path)


def test_selective_precision(tmp_path):
    on_fake_gpus(PRECISION, tmp_path)
