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
import ctypes
import os
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
assert launches == products == 0 and 4 <= graphs <= 8 and events <= 25, (launches, graphs, events, products)

# Four fifths of its peak by a plan, on another GPU, whose memory nobody shares: the same bits.
cap = free.peak_bytes * 8 // 10 / 2**20
config = {"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned"},
                                   "conductor_config": {"enabled": True, "vram_hard_cap_mb": cap, "vram_soft_cap_mb": cap}}}}
within, capped = train(GPU.replace("cuda:0", "cuda:2"), config=config)
calls(capped), calls(capped)
launches, graphs, events, products = calls(capped)
assert launches <= 10 and products <= 2 and graphs <= 16 and events <= 60, (launches, graphs, events, products)
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
    done = subprocess.run([sys.executable, "-c", SCRIPT, os.path.join(ROOT, "examples")], capture_output=True, text=True, timeout=240, env=env,
                          cwd=tmp_path)  # a budget writes telemetry where it is
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]


TENSORS = """
import ctypes
import os

import torch

import segue
from segue import _runtime

GPU = "cuda:0,dram=64MiB,pinned=16MiB"
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
print("all of it")
"""


def test_tensors_of_others_are_used_where_they_lie_on_a_gpu(tmp_path):
    env = {**os.environ, "SEGUE_CUDA_LIBRARY": f"{BUILD}/lib/libSegueFakeCuda.so",
           "SEGUE_CUBLASLT_LIBRARY": f"{BUILD}/lib/libSegueFakeCublasLt.so",
           "SEGUE_GPU_TWINS": str(tmp_path), "FAKE_CUDA_TWINS": str(tmp_path), "SEGUE_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", TENSORS], capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "all of it" in done.stdout, (done.stdout + done.stderr)[-4000:]
