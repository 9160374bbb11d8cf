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

import warm
from interpreted import ROOT

BUILD = os.environ.get("SEGUE_BUILD", os.path.join(ROOT, "build"))

COMMON = """
import ctypes
import gc
import os
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

# From the third time on, what is given in a row again is one call of the driver.
driver = ctypes.CDLL(os.environ["SEGUE_CUDA_LIBRARY"])
driver.fakeCudaCallCount.restype = ctypes.c_uint64


def calls(trainer):
    names = [b"cuLaunchKernel", b"cuGraphLaunch", b"cuEventRecord", b"cublasLtMatmul"]
    before = [driver.fakeCudaCallCount(name) for name in names]
    trainer.step(tokens=tokens, targets=targets)
    return [driver.fakeCudaCallCount(name) - count for name, count in zip(names, before)]


calls(free)
launches, graphs, events, products = calls(free)
# One launch has nothing in a row with it.
assert launches <= 1 and products == 0 and 4 <= graphs <= 8 and events <= 25, (launches, graphs, events, products)

# Four fifths of its peak by a plan, on another GPU, whose memory nobody shares: the same bits.
cap = free.peak_bytes * 8 // 10 / 2**20
config = {"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned"},
                                   "conductor_config": {"enabled": True, "vram_hard_cap_mb": cap, "vram_soft_cap_mb": cap}}}}
within, capped = train(gpt(), GPU.replace("cuda:0", "cuda:2"), segue.AdamW(lr=1e-2), config=config)
calls(capped), calls(capped)
# Beside another load a plan may be made again with the times that were measured, and what is in a row is another then.
counts = [calls(capped) for _ in range(8)]
assert any(launches <= 10 and products <= 2 and graphs <= 16 and events <= 60 for launches, graphs, events, products in counts), counts
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

# Temporaries in the part of the memory that the L2 cache keeps.
kept_in_cache = segue.compile(gpt(), (tokens, targets), device="cuda:4,dram=64MiB,pinned=64MiB,l1=64KiB", l1_bytes=1 << 14)
torch.testing.assert_close(kept_in_cache(tokens, targets), wanted, rtol=1e-5, atol=1e-6)
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
import torch.nn.functional as F

for optimizer, options in [
    (segue.Muon(lr=2e-2, momentum=0.9, nesterov=False, groups=[segue.Group("*.bias", "*.ln*", optimizer=segue.Lion(lr=1e-3))]), {}),
    (segue.AdamW(lr=1e-2, state_bits=8, ema_decay=0.9, groups=[segue.Group("*.bias", lr=1e-3, weight_decay=0.0)]), {}),
    (segue.Adafactor(lr=1e-2), {}),
    (segue.NAdam(lr=1e-2, in_forward=True), {}),
    (segue.AdamW(lr=1e-2, in_backward=True, clip_grad_value=0.01), {"clip_grad_norm": None}),
]:
    on_cpu, on_gpu = (train(gpt(), device, optimizer, **options)[0] for device in ("cpu", GPU))
    torch.testing.assert_close(torch.tensor(on_gpu), torch.tensor(on_cpu), rtol=1e-4, atol=0, msg=lambda text: f"{optimizer}: {text}")

class Attends(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.head = torch.nn.Embedding(40, 48), torch.nn.Linear(48, 144), torch.nn.Linear(48, 40)

    def forward(self, tokens, targets):
        q, k, v = self.qkv(self.table(tokens)).unflatten(-1, (3, 3, 16)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.3)
        return F.cross_entropy(self.head(y.transpose(1, 2).flatten(2)).flatten(0, 1), targets.flatten())


def attends():
    torch.manual_seed(0)
    return Attends()


# Attention drops the weights that a processor drops, anew at each step.
on_cpu, on_gpu = (train(attends(), device, segue.SGD(lr=1e-2), seed=3)[0] for device in ("cpu", GPU))
torch.testing.assert_close(torch.tensor(on_gpu), torch.tensor(on_cpu), rtol=1e-5, atol=0)
assert on_cpu != train(attends(), "cpu", segue.SGD(lr=1e-2), seed=4)[0]
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
from nets import Adapters
from test_precision import batch

# Adapters over a slab, whose blocks change their form; beside states that leave, always or where they must.
folder = sys.argv[2]


def net():
    return Adapters()


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


TENSORS = """
from segue import _runtime

driver = ctypes.CDLL(os.environ["SEGUE_CUDA_LIBRARY"])


class Managed(ctypes.Structure):  # DLManagedTensor of dlpack.h
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def call(name, *args):
    status = getattr(driver, name)(*args)
    assert status == 0, (name, status)


context, stream = ctypes.c_void_p(), ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
slowly, for_30_ms = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), ctypes.c_void_p(30000)  # nothing of Python: it would want the GIL


def page_locked(shape):
    data = ctypes.c_void_p()
    count = torch.Size(shape).numel()
    call("cuMemHostAlloc", ctypes.byref(data), ctypes.c_size_t(4 * count), 0)
    return torch.frombuffer((ctypes.c_float * count).from_address(data.value), dtype=torch.float32).view(shape), data


class Theirs:
    '''A tensor of another library, in memory that it took from the driver and writes on its stream.'''

    alive = 0

    def __init__(self, shape):
        self.shape = shape
        self.memory = _runtime.Tensor.wrap(others, torch.zeros(shape)).copy()
        torch.from_dlpack(self.memory)  # it is there

    def write(self, values):
        call("cuLaunchHostFunc", stream, slowly, for_30_ms)
        call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.memory.address), values, ctypes.c_size_t(4 * torch.Size(self.shape).numel()), stream)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None, **options):
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def delete(_):
            Theirs.alive -= 1

        Theirs.alive += 1
        managed = Managed(self.memory.address, 2, 0, len(self.shape), 2, 32, 1, shape, None, 0, None, delete)
        kept.append((managed, shape, delete))
        return new_capsule(ctypes.addressof(managed), b"dltensor", None)


kept = []
others = _runtime.Device.open("cuda:0,dram=16MiB,pinned=4MiB")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 24)).eval()
example = torch.randn(8, 24)
compiled = segue.compile(model, (example,), device=GPU)
mine = segue.tensors.device(GPU)

# What lies there is read there, behind what its stream has been given, and so is what comes of it.
source, pointer = page_locked((8, 24))
result, result_pointer = page_locked((8, 24))
theirs = Theirs((8, 24))
with torch.no_grad():
    for round in range(4):
        values = torch.randn(8, 24)
        source.copy_(values)
        theirs.write(pointer)
        given = _runtime.Tensor.wrap(mine, theirs.__dlpack__(), False, stream.value)
        assert given.address == theirs.memory.address, "no copy"
        there = compiled(given)
        there = there.there() if isinstance(there, _runtime.Tensor) else there
        assert there.__dlpack_device__() == (2, 0)
        capsule = there.__dlpack__(stream=stream.value)
        call("cuLaunchHostFunc", stream, slowly, for_30_ms)
        call("cuMemcpyDtoHAsync_v2", result_pointer, ctypes.c_uint64(there.tensor.address), ctypes.c_size_t(4 * 8 * 24), stream)
        # The other library lets go of it while its stream has yet to read it, and the next runs take memory.
        del capsule, there, given
        for _ in range(3):
            compiled(torch.zeros(8, 24))
        call("cuStreamSynchronize", stream)
        torch.testing.assert_close(result, model(values), rtol=1e-5, atol=1e-6)

# By DLPack alone, in the order of the default stream.
    shown = compiled(torch.from_numpy(values.numpy()))
    torch.testing.assert_close(shown, model(values), rtol=1e-5, atol=1e-6)
assert segue.tensors.describe(theirs) == ((8, 24), torch.float32) and segue.tensors.kind_of(theirs) == "dlpack there"

# Memory of another GPU, of the host, and a device without any: refused, and nothing is kept.
gc.collect()
alive = Theirs.alive
for spec, words in (("cuda:1,dram=16MiB,pinned=4MiB", "lies in the memory of cuda:0"), ("sim:dram=16MiB", "has no memory that another library"),
                    ("cpu", "has no memory that another library")):
    try:
        _runtime.Tensor.wrap(_runtime.Device.open(spec), theirs.__dlpack__(), False, stream.value)
        raise AssertionError(spec)
    except segue.InvalidArgumentError as error:
        assert words in str(error), error
try:
    segue.compile(model, (example,))(theirs)
    raise AssertionError("on a cpu")
except segue.InvalidArgumentError as error:
    assert "move it to the CPU first, or name the GPU" in str(error), error
gc.collect()
assert Theirs.alive == alive == 0, (Theirs.alive, alive)
print("all of it")
"""


def on_fake_gpus(script, folder, before="", given=(), cache=""):
    """Runs the script, with `before` ahead of what imports PyTorch; what it compiles twice is compiled once with a folder for it."""
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(folder), "FAKE_CUDA_TWINS": str(folder), "SEGUE_CACHE_DIR": cache}
    python = sys.executable if before else warm.python()  # which has PyTorch already
    # The folder for temporary files may be memory, which is no disk.
    with tempfile.TemporaryDirectory(dir=BUILD) as disk:
        done = subprocess.run([python, "-c", "import sys\n" + before + COMMON + script, os.path.join(ROOT, "examples"), disk,
                               f"{BUILD}/bin/segue-run", os.path.join(ROOT, "test", "python"), *given],
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


def test_tensors_of_others_are_used_where_they_lie_on_a_gpu(tmp_path):
    on_fake_gpus(TENSORS, tmp_path)
