# ===- without_bytes.py - models that have shapes and no values -------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Captures models whose parameters are on PyTorch's meta device: what they hold is not made in memory to learn what they compute."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterable

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from .errors import InvalidArgumentError

#: Draws the parameters that a module itself has.
Init = Callable[[nn.Module], Any]


def names_without_bytes(module: nn.Module) -> list[str]:
    """The names of the parameters and buffers that are on PyTorch's meta device."""
    return [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]


def without_bytes(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy whose parameters and buffers are on the CPU, in shape and type; those of `module` are left alone."""
    copies = {}
    with mode:
        for tensor in (*module.parameters(), *module.buffers()):
            bare = _like(tensor)
            copies[id(tensor)] = nn.Parameter(bare, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare
    try:
        return copy.deepcopy(module, copies)
    except Exception as error:  # whatever a class makes of a copy
        raise InvalidArgumentError(f"{type(module).__name__} cannot be copied without its weights ({type(error).__name__}: {error}); "
                                   "give a function that makes it") from error


def to_capture(module: nn.Module, args: Any, kwargs: Any) -> tuple[nn.Module, Any, Any]:
    """A module and example arguments as they are captured: themselves, or without bytes where the module has none."""
    if not names_without_bytes(module):
        return module, args, kwargs
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    bare = without_bytes(module, mode)

    def described(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        with mode:
            return _like(x).requires_grad_(x.requires_grad)

    return bare, pytree.tree_map(described, args), pytree.tree_map(described, kwargs)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


# --- initial values ------------------------------------------------------------------------------


def parts_without_bytes(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The submodules, with their paths, that have parameters or buffers of their own on the meta device."""
    return [(path, part) for path, part in module.named_modules() if any(t.is_meta for t in _own(part).values())]


def check_drawn(parts: Iterable[tuple[str, str, nn.Module]], init: Init | None) -> None:
    """Checks that modules, by trainer's name and path, can draw all of their values. Raises InvalidArgumentError."""
    for name, path, part in parts:
        where = f"module {name!r}{f', {path!r}' if path else ''} ({type(part).__name__})"
        # PyTorch's own write their buffers; of others nobody knows.
        buffers = [local for local, tensor in part._buffers.items() if tensor is not None and tensor.is_meta]
        if buffers and not type(part).__module__.startswith("torch.nn."):
            raise InvalidArgumentError(f"{where} has the buffer {buffers[0]!r} on PyTorch's meta device, and what the module computed for it is lost; "
                                       'compute it with device="cpu", or give values by load_weights or resume')
        if init is None and not hasattr(part, "reset_parameters"):
            raise InvalidArgumentError(f"{where} has {next(iter(_own(part)))!r} on PyTorch's meta device and no reset_parameters() that draws it; "
                                       "give init_weights(init=...) a function that does, or values by load_weights or resume")


def drawn(part: nn.Module, init: Init | None) -> dict[str, torch.Tensor]:
    """New values of a module's own parameters and buffers that are on the meta device; the module is left alone."""
    wanted = [local for local, tensor in _own(part).items() if tensor.is_meta]
    bare = copy.copy(part)
    bare.__dict__["_parameters"], bare.__dict__["_buffers"] = dict(part._parameters), dict(part._buffers)
    bare.to_empty(device="cpu", recurse=False)
    with torch.no_grad():
        if callable(reset := getattr(bare, "reset_parameters", None)):
            reset()
        if init is not None:
            init(bare)
    found = _own(bare)
    return {local: found[local] for local in wanted}


def _own(part: nn.Module) -> dict[str, torch.Tensor]:
    return {local: tensor for local, tensor in (*part._parameters.items(), *part._buffers.items()) if tensor is not None}
