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
from typing import Any

import numpy as np
import torch

from . import _runtime
from .errors import InvalidArgumentError
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
        return describe(torch.from_dlpack(x))
    raise InvalidArgumentError(f"a {type(x).__name__} was given where a tensor is wanted")


def wrap(x: Any, on: "_runtime.Device", writable: bool = False, there: bool = False) -> "_runtime.Tensor":
    """The runtime's view of a tensor; no copy, unless it has strides that memory cannot have. Tensors in the memory of a GPU are taken by
    callers that hand out their results there, too."""
    if isinstance(x, _runtime.Tensor):
        return x
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu" and not (x.is_cuda and there):
            raise InvalidArgumentError(f"a tensor on {x.device} was given; move it to the CPU first")
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
    elif isinstance(x, np.ndarray) and any(s < 0 for s in x.strides):
        x = np.ascontiguousarray(x)
    if not is_on_gpu(x):
        return _runtime.Tensor.wrap(on, x, writable)
    if on.has_unified_memory:
        raise InvalidArgumentError(f'a tensor in the memory of a GPU was given to device "{on.name}"; move it to the CPU first, or name the GPU, '
                                   'as in device="cuda:0"')
    if isinstance(x, torch.Tensor):
        return _runtime.Tensor.wrap(on, x, writable, torch.cuda.current_stream(x.device).cuda_stream)
    return _runtime.Tensor.wrap(on, x.__dlpack__(stream=_DEFAULT_STREAM), writable, _DEFAULT_STREAM)


def kind_of(x: Any) -> str:
    """The kind of tensors that the caller works with: ``torch``, ``numpy`` or ``dlpack``, with `` there`` behind it in the memory of a GPU."""
    if isinstance(x, torch.Tensor):
        return "torch there" if x.is_cuda else "torch"
    if isinstance(x, np.ndarray):
        return "numpy"
    return "dlpack there" if is_on_gpu(x) else "dlpack"


def give(tensor: "_runtime.Tensor", kind: str) -> Any:
    """A tensor of the runtime as the kind that the caller works with."""
    if kind == "dlpack":
        return tensor
    if kind.endswith("there"):
        return torch.from_dlpack(tensor.there()) if kind.startswith("torch") else tensor.there()
    result = torch.from_dlpack(tensor)
    return result.numpy() if kind == "numpy" else result
