# ===- torch_with_cuda.py - a PyTorch whose CUDA tensors lie on the fake driver ------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Gives a PyTorch without CUDA tensors of that device, in the memory of the fake driver's GPUs.

They are `torch.Tensor` objects of the device ``cuda:0`` with its dispatch keys: TorchDynamo, AOTAutograd, the engine of autograd, optimizers
and DLPack do with them what they do where there is a GPU, and so does Segue. What stands in here is what a PyTorch with CUDA has besides:

- an allocator: memory of a device of Segue's own on the same GPU, given and taken back in the order of PyTorch's stream;
- a current stream per GPU, a stream of the driver;
- kernels: an operator brings what it reads to the host by copies on that stream, runs as on the CPU, and writes its results by further
  copies that nobody waits for. So the fake driver sees each of them, and finds what should have waited for it or for what it waits (FakeCuda.h).

The script that imports this has loaded torch_with_cuda.cpp ahead of PyTorch.
"""

import ctypes
import os

import torch
from torch.utils import _pytree as pytree

from segue import _runtime

driver = ctypes.CDLL(os.environ["SEGUE_CUDA_LIBRARY"])


def call(name, *args):
    status = getattr(driver, name)(*args)
    assert status == 0, (name, status)


class Gpu:
    """A GPU as PyTorch has it."""

    STAGED = 1 << 20

    def __init__(self, number):
        self.context, stream, self.staging = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self.use()
        call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        call("cuMemHostAlloc", ctypes.byref(self.staging), ctypes.c_size_t(self.STAGED), 0)
        self.cuda_stream, self.staged = stream.value, 0
        self.memory = _runtime.Device.open(f"cuda:{number},dram=16MiB,pinned=4MiB")

    def use(self):
        call("cuCtxSetCurrent", self.context)

    def wait(self):
        self.use()
        call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))
        self.staged = 0

    def be_slow(self):
        """Has the stream do nothing for a while: by a function of C, as one of Python would want the GIL."""
        self.use()
        call("cuLaunchHostFunc", ctypes.c_void_p(self.cuda_stream), ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), ctypes.c_void_p(30000))

    def allocate(self, shape, dtype):
        zeros = torch.zeros(shape, dtype=dtype)
        if dtype.is_complex:  # which Segue has not, but memory for it
            zeros = torch.view_as_real(zeros)
        made = torch.from_dlpack(_runtime.Tensor.wrap(self.memory, zeros).copy().there())
        return torch.view_as_complex(made) if dtype.is_complex else made

    def read(self, address, count):
        """The bytes there, once the stream has done what it has been given."""
        found = torch.empty(count, dtype=torch.uint8)
        self.wait()
        if count:
            call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(found.data_ptr()), ctypes.c_uint64(address), ctypes.c_size_t(count),
                 ctypes.c_void_p(self.cuda_stream))
            self.wait()
        return found

    def write(self, address, data):
        """Has the stream write bytes there. Nobody waits for it."""
        if self.staged + data.numel() > self.STAGED:
            self.wait()
        self.use()
        place = self.staging.value + self.staged
        self.staged += data.numel()
        ctypes.memmove(place, data.data_ptr(), data.numel())
        call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(place), ctypes.c_size_t(data.numel()),
             ctypes.c_void_p(self.cuda_stream))


gpus = {}


def gpu_of(device):
    number = torch.device(device or "cuda:0").index or 0
    if number not in gpus:
        gpus[number] = Gpu(number)
    return gpus[number]


torch.cuda._lazy_init = lambda: None
torch.cuda.current_stream = lambda device=None: gpu_of(device)
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.cuda.is_bf16_supported = lambda *_: True
torch.cuda.get_rng_state = lambda device=None: torch.zeros(16, dtype=torch.uint8)  # nothing draws there
torch.cuda.set_rng_state = lambda state, device=None: None


class OnHost:
    """The operands of an operator in the host's memory, those that share memory too."""

    def __init__(self):
        self.storages, self.origins, self.copies = {}, {}, {}

    def bring(self, x):
        if not isinstance(x, torch.Tensor) or not x.is_cuda:
            return x
        storage = x.untyped_storage()
        if storage.data_ptr() not in self.storages:
            self.storages[storage.data_ptr()] = gpu_of(x.device).read(storage.data_ptr(), storage.nbytes())
        flat = self.storages[storage.data_ptr()]
        here = flat[: flat.numel() // x.element_size() * x.element_size()].view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())
        self.origins[id(here)], self.copies[id(x)] = x, here
        return here

    def write_back(self, x):
        here, address = self.copies[id(x)], x.untyped_storage().data_ptr()
        if here.shape != x.shape:  # one that the operator was to make as large as its result
            x.set_(on_gpu(here, x.device))
            return
        if self.storages[address].numel():
            gpu_of(x.device).write(address, self.storages[address])


def on_gpu(x, device):
    """A result of the host as a tensor of PyTorch on the GPU, laid out as it is there."""
    order = sorted(range(x.dim()), key=lambda dim: -x.stride(dim))
    if not x.permute(order).is_contiguous():
        order = list(range(x.dim()))
    dense = x.permute(order).contiguous()
    made = gpu_of(device).allocate(dense.shape, x.dtype)
    if x.numel():
        gpu_of(device).write(made.data_ptr(), dense.view(-1).view(torch.uint8))
    return made.permute(sorted(range(x.dim()), key=order.__getitem__))


def run_on_host(op, *args, **kwargs):
    operands = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_cuda]
    device = operands[0].device if operands else torch.device(kwargs["device"])
    host = OnHost()
    given, named = pytree.tree_map(host.bring, (args, kwargs))
    if named.get("device") is not None:
        named["device"] = torch.device("cpu")
    results = op(*given, **named)
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for x in pytree.tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name)):
                if isinstance(x, torch.Tensor) and x.is_cuda:
                    host.write_back(x)
    place = lambda x: x if not isinstance(x, torch.Tensor) else host.origins[id(x)] if id(x) in host.origins else on_gpu(x, device)  # noqa: E731
    return pytree.tree_map(place, results)


def copy_(self, source, non_blocking=False):
    host = OnHost()
    host.bring(self).copy_(host.bring(source))
    if self.is_cuda:
        host.write_back(self)
    return self


def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return gpu_of(device).allocate(tuple(size), dtype or torch.get_default_dtype())


def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    count = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride))
    return empty((count,), dtype=dtype, device=device).as_strided(size, stride)


_all = torch.library.Library("_", "IMPL")
_all.fallback(run_on_host, "CUDA")
_aten = torch.library.Library("aten", "IMPL")
for _name, _function in [("copy_", copy_), ("empty.memory_format", empty), ("empty_strided", empty_strided),
                         ("_local_scalar_dense", lambda x: OnHost().bring(x).item())]:
    _aten.impl(_name, _function, "CUDA")
for _name in ("as_strided", "view", "_reshape_alias", "view_as_real", "view_as_complex", "set_.source_Tensor",
              "set_.source_Storage_storage_offset"):  # which look at no memory
    _kernel = torch.library.get_kernel(f"aten::{_name}", "CPU")
    _aten.impl(_name, lambda keys, *args, _kernel=_kernel, **kwargs: _kernel.call_boxed(keys, *args, **kwargs), "CUDA", with_keyset=True)
