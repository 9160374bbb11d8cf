# ===- tensors.py - torch, numpy and DLPack at the border -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Tensors of torch, numpy and anything that speaks DLPack, at the border to the runtime.

Nothing is copied: what is given is wrapped where it lies, and results are
handed out over the memory of the runtime. What lies in the memory of a GPU is
used in the order of its owner's stream there, and so are results that stay there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterable

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # public, and declared elsewhere

from . import _runtime
from .arguments import what_is
from .errors import Error, InvalidArgumentError
from .frontend.writer import ELEMENT_TYPES

_TORCH_OF_NUMPY = {
    np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32, np.dtype(np.float16): torch.float16, np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32, np.dtype(np.int8): torch.int8, np.dtype(np.bool_): torch.bool,
}
TORCH_OF_ELEMENT = {name: dtype for dtype, name in ELEMENT_TYPES.items()}


@lru_cache(maxsize=None)
def device(spec: str = "cpu") -> "_runtime.Device":
    """The device of this process for a spec such as ``cpu`` or ``cpu:threads=2``."""
    return _runtime.Device.open(spec)


_GPU = 2  # DLPack's number for the memory of GPUs of NVIDIA
_DEFAULT_STREAM = 1


class Order:
    """The order of one call among what the owners of its tensors do in the memory of a GPU: behind what their streams have been given by
    now, and what these are given later behind the call.

    ``with Order(device) as order: module.infer({"x": wrap(x, device, order)})``
    """

    def __init__(self, on: "_runtime.Device"):
        self._on = on
        self._entries: dict[int, int] = {}  # by stream, what waits for it

    def behind(self, stream: int) -> int:
        """The entry of the device's queue that waits for the stream; one for all tensors of the call."""
        if stream not in self._entries:
            self._entries[stream] = self._on.wait_for_stream(stream)
        return self._entries[stream]

    def __enter__(self) -> "Order":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        for stream in self._entries:
            try:
                self._on.let_stream_wait(stream)
            except Error:
                if kind is None:  # else the first error counts, as that of a device that is lost
                    raise


def is_on_gpu(x: Any) -> bool:
    """Whether the tensor lies in the memory of a GPU of NVIDIA."""
    if isinstance(x, torch.Tensor):
        return x.is_cuda
    return not isinstance(x, (np.ndarray, _runtime.Tensor)) and hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] == _GPU


def is_tensor(x: Any) -> bool:
    return isinstance(x, (torch.Tensor, np.ndarray)) or hasattr(x, "__dlpack__")


def describe(x: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and element type of what the caller gave."""
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype
    if isinstance(x, np.ndarray):
        if x.dtype not in _TORCH_OF_NUMPY:
            raise InvalidArgumentError(
                f"a numpy array of {x.dtype} was given; convert it to one of {', '.join(map(str, _TORCH_OF_NUMPY))}")
        return x.shape, _TORCH_OF_NUMPY[x.dtype]
    if isinstance(x, _runtime.Tensor):
        return tuple(x.shape), TORCH_OF_ELEMENT[x.element]
    if is_on_gpu(x):
        shape, element = _runtime.describe_array(x.__dlpack__(stream=_DEFAULT_STREAM))
        return shape, TORCH_OF_ELEMENT[element]
    if hasattr(x, "__dlpack__"):
        return describe(torch.from_dlpack(x))  # type: ignore[attr-defined]  # public, and left out of __all__
    raise InvalidArgumentError(f"{what_is(x)} was given where a tensor is wanted")


def stream_of(x: Any) -> int:
    """The stream that the owner of a tensor in the memory of a GPU uses it on: PyTorch's current one, or the default one of others."""
    if isinstance(x, torch.Tensor):
        return torch.cuda.current_stream(x.device).cuda_stream or _DEFAULT_STREAM
    return _DEFAULT_STREAM


def wrap(x: Any, on: "_runtime.Device", order: Order | None = None, writable: bool = False) -> "_runtime.Tensor":
    """The runtime's view of a tensor; no copy, unless it has strides that memory cannot have. Callers that compute with tensors in the
    memory of a GPU give the order of their call."""
    if type(x) is torch.Tensor and x.is_cpu and x.layout is torch.strided and not (x.is_conj() or x.is_neg()):
        # The most frequent kind, and the capsule at once: `__dlpack__` takes ten times as long.
        return _runtime.Tensor.wrap(on, to_dlpack(x.detach()), writable)
    if isinstance(x, _runtime.Tensor):
        return x
    if isinstance(x, torch.Tensor):
        if x.is_meta:
            raise InvalidArgumentError("a tensor on PyTorch's meta device was given, which has no values; make it on the CPU")
        if x.layout is not torch.strided:
            raise InvalidArgumentError(f"a tensor of layout {x.layout} was given, and programs take dense ones; give x.to_dense()")
        if x.device.type != "cpu" and not (x.is_cuda and order is not None):
            raise InvalidArgumentError(f"a tensor on {x.device} was given; move it to the CPU first")
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
    elif isinstance(x, np.ndarray) and any(s < 0 for s in x.strides):
        x = np.ascontiguousarray(x)
    if not is_on_gpu(x):
        return _runtime.Tensor.wrap(on, x, writable)
    if on.has_unified_memory or order is None:
        raise InvalidArgumentError(f'a tensor in the memory of a GPU was given to device "{on.name}"; move it to the CPU first, or name the GPU, '
                                   'as in device="cuda:0"')
    stream = stream_of(x)
    if not isinstance(x, torch.Tensor):
        x = x.__dlpack__(stream=stream)
    return _runtime.Tensor.wrap(on, x, writable, stream, order.behind(stream))


def spec_of(given: Any) -> str:
    """The spec of a device that a caller names by it or by PyTorch's device.

    Raises
    ------
    InvalidArgumentError
        It is neither, or a device of PyTorch's that Segue has no driver for.
    """
    if isinstance(given, torch.device):
        if given.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(f"the device is {given}; PyTorch's devices that there are here are cpu and cuda")
        return "cpu" if given.type == "cpu" else f"cuda:{given.index or 0}"
    if not isinstance(given, str):
        raise InvalidArgumentError(f'the device is {what_is(given)}; give a spec such as "cpu", "cpu:threads=2" or "cuda:0"')
    return given


def gpu_of_spec(spec: str) -> int | None:
    """The number of the GPU that a spec names: 1 of ``cuda:1,dram=8GiB``; None for another device."""
    driver, _, rest = spec.partition(":")
    number = rest.partition(",")[0]
    return int(number) if driver == "cuda" and number.isdigit() else None


def spec_for(tensors: Iterable[Any]) -> str:
    """The device that computes where PyTorch's tensors lie: the GPU of the first of them that is on one, or the CPU."""
    there = next((x for x in tensors if isinstance(x, torch.Tensor) and x.is_cuda), None)
    return "cpu" if there is None else f"cuda:{there.device.index}"


def require_on(spec: str, named: Iterable[tuple[str, Any]], what: str, together: bool = False) -> None:
    """Checks that those of PyTorch's tensors that are on a GPU are on that of the device, and with `together` that the others are there,
    too: all but scalars, which PyTorch takes from the CPU.

    Raises
    ------
    InvalidArgumentError
        One lies elsewhere. The message names it and says what to do.
    """
    named = [(name, x) for name, x in named if isinstance(x, torch.Tensor)]
    there = next(((name, x) for name, x in named if x.is_cuda), None)
    if there is None:
        return
    gpu = gpu_of_spec(spec)
    spec = spec if gpu is None else f"cuda:{gpu}"
    for name, x in named:
        if x.is_cuda and x.device.index != gpu:
            raise InvalidArgumentError(f"{what}: {name!r} lies on {x.device}, and the device is {spec!r}; move it there, or name its GPU, "
                                       f'as in device="{x.device}"')
        if together and not x.is_cuda and x.dim():
            raise InvalidArgumentError(f"{what}: {name!r} lies on the CPU, and {there[0]!r} on {there[1].device}; move all to one device, as by "
                                       f'model.to("{there[1].device}") and x.to("{there[1].device}")')


def kind_of(x: Any) -> str:
    """The kind of tensors that the caller works with: ``torch``, ``numpy`` or ``dlpack``, with `` there`` behind it in the memory of a GPU."""
    if isinstance(x, torch.Tensor):
        return "torch there" if x.is_cuda else "torch"
    if isinstance(x, np.ndarray):
        return "numpy"
    return "dlpack there" if is_on_gpu(x) else "dlpack"


def give(tensor: "_runtime.Tensor", kind: str) -> Any:
    """A tensor of the runtime as the kind that the caller works with. Within a budget results have left the memory of the GPU, and come
    back to what is PyTorch's of it by a copy."""
    if kind == "torch":
        return torch._C._from_dlpack(tensor.capsule())  # `torch.from_dlpack` without its questions
    if kind == "dlpack":
        return tensor
    is_there = kind.endswith(" there")
    if is_there and tensor.is_there:
        return torch.from_dlpack(tensor.there()) if kind.startswith("torch") else tensor.there()  # type: ignore[attr-defined]  # public, and left out of __all__
    if kind == "dlpack there":
        return tensor
    result = torch.from_dlpack(tensor.capsule())  # type: ignore[attr-defined]  # public, and left out of __all__
    if is_there:
        return result.to(torch.device("cuda", tensor.device.number))
    return result.numpy() if kind == "numpy" else result
