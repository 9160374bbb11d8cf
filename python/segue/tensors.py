# ===- tensors.py - torch, numpy and DLPack at the border -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Tensors of torch, numpy and anything that speaks DLPack, at the border to the runtime.

Nothing is copied: what is given is wrapped where it lies, and results are
handed out over the memory of the runtime.
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
    if hasattr(x, "__dlpack__"):
        return describe(torch.from_dlpack(x))
    raise InvalidArgumentError(f"a {type(x).__name__} was given where a tensor is wanted")


def wrap(x: Any, on: "_runtime.Device", writable: bool = False) -> "_runtime.Tensor":
    """The runtime's view of a tensor; no copy, unless it has strides that memory cannot have."""
    if isinstance(x, _runtime.Tensor):
        return x
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise InvalidArgumentError(f"a tensor on {x.device} was given; move it to the CPU first")
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
    elif isinstance(x, np.ndarray) and any(s < 0 for s in x.strides):
        x = np.ascontiguousarray(x)
    return _runtime.Tensor.wrap(on, x, writable)


def kind_of(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return "torch"
    return "numpy" if isinstance(x, np.ndarray) else "dlpack"


def give(tensor: "_runtime.Tensor", kind: str) -> Any:
    """A tensor of the runtime as the kind that the caller works with."""
    if kind == "dlpack":
        return tensor
    result = torch.from_dlpack(tensor)
    return result.numpy() if kind == "numpy" else result
