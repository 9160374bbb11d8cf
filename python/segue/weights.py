# ===- weights.py - parameters and buffers as the runtime sees them -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Parameters and buffers of a PyTorch module as the runtime sees them: their own memory, wrapped."""

from __future__ import annotations

from typing import Any, Iterable, Iterator

import torch
from torch import nn

from . import _runtime
from .errors import InvalidArgumentError
from .source_state import SourceState
from .tensors import Order, spec_for, stream_of, wrap


class Weights:
    """Parameters and buffers of a module as the runtime sees them."""

    def __init__(self, source: nn.Module, state: SourceState, on: "_runtime.Device"):
        self._source, self._state, self._device = source, state, on
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self._owners_of = state.current
        self._wrapped: dict[str, tuple[Any, Any, Any, "_runtime.Tensor"]] = {}

    def tensor(self, name: str) -> torch.Tensor:
        if self._owners_of != self._state.current:  # submodules may have been replaced
            self._owners.clear()
            self._owners_of = self._state.current
        if name not in self._owners:
            path, _, local = name.rpartition(".")
            self._owners[name] = (self._source.get_submodule(path), local)
        owner, local = self._owners[name]
        found = owner._parameters.get(local)
        return found if found is not None else owner.get_buffer(local)

    @property
    def place(self) -> torch.device:
        """Where PyTorch has them."""
        return torch.device(spec_for(self._tensors()))

    def everything(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters and buffers with their names."""
        return [*self._source.named_parameters(), *self._source.named_buffers()]

    def _tensors(self) -> Iterator[torch.Tensor]:
        return (t for m in self._state.members for own in (m._parameters, m._buffers) for t in own.values() if t is not None)

    def named(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        return {n: self.tensor(n) for n in names}

    def state(self) -> tuple[Any, ...]:
        """Returns what of the weights decides the variant: which are trained, their types, and which are one tensor under several names."""
        first: dict[int, int] = {}
        return tuple([(t.requires_grad, t.dtype, first.setdefault(id(t), place)) for place, t in enumerate(self._tensors())])

    def values(self, tensors: dict[str, torch.Tensor], order: Order) -> "Values":
        wrapped = {name: self.wrapped(name, tensor, order) for name, tensor in tensors.items()}
        trained = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
        return Values(wrapped, trained, [t for name, t in tensors.items() if name not in trained])

    def forget(self, name: str) -> None:
        """Keeps no memory that the tensor had."""
        self._wrapped.pop(name, None)

    def wrapped(self, name: str, tensor: torch.Tensor, order: Order) -> "_runtime.Tensor":
        """Wrapped again only where the memory is another one."""
        known = self._wrapped.get(name)
        if tensor.is_meta:
            raise InvalidArgumentError(f"{name!r} is on PyTorch's meta device and has no values; train the module by a segue.Trainer, which is given "
                                       "them by load_weights, resume or init_weights, or make the module on another device")
        if known is None or known[0] != tensor.data_ptr() or known[1] != tensor.stride() or known[2] != tensor.shape:
            known = (tensor.data_ptr(), tensor.stride(), tensor.shape, wrap(tensor, self._device, order, writable=True))
            self._wrapped[name] = known
        elif tensor.is_cuda:
            known[3].go_behind(order.behind(stream_of(tensor)))
        return known[3]


class Values:
    """What one call reads of them: as the runtime has them, those that are trained by name, and the others."""

    def __init__(self, wrapped: "dict[str, _runtime.Tensor]", trained: dict[str, torch.Tensor], frozen: list[torch.Tensor]):
        self.wrapped, self.trained, self.frozen = wrapped, trained, frozen
