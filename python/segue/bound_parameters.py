# ===- bound_parameters.py - tensors of PyTorch that a session trains ----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The tensors of PyTorch modules that the parameters of a session were given."""

from __future__ import annotations

from typing import Any

import torch

from .errors import InvalidArgumentError


class BoundParameter:
    """A parameter of the session, and the tensor of a PyTorch module that it was given."""

    def __init__(self, key: str, weights: Any, name: str, is_shared: bool):
        self.key, self.is_shared = key, is_shared  # shared: the runtime works in the tensor's memory
        self.is_home = False  # or keeps the value there while it is away
        self._weights, self._name = weights, name
        self.note()

    def note(self) -> None:
        self.tensor = self._weights.tensor(self._name)
        self._memory, self._version = _memory_of(self.tensor), _version_of(self.tensor)
        self._is_trained = self.tensor.requires_grad

    def check(self) -> None:
        now = self._weights.tensor(self._name)
        if _memory_of(now) != self._memory:
            raise InvalidArgumentError(
                f"parameter {self.key!r} has another memory than when the trainer was made (param.data = ..., .to(), or "
                "load_state_dict(assign=True)), and what is there would not be trained. Write values into the parameter "
                "(param.data.copy_(...)), or make a new Trainer")
        if now.requires_grad != self._is_trained:
            raise InvalidArgumentError(
                f"requires_grad of parameter {self.key!r} is {now.requires_grad} now and was {self._is_trained} when the trainer was made, which does not "
                f"go by it; call trainer.{'unfreeze' if now.requires_grad else 'freeze'}({self.key!r}), and leave requires_grad as it was")
        if not self.is_shared and _version_of(now) != self._version:
            raise InvalidArgumentError(
                f"parameter {self.key!r} was changed in PyTorch, but the trainer has its own copy of it on a device, which would "
                "overwrite that. Give it the values by load_state_dict (state_dict() shows the form), or make a new Trainer")


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference mode counts none


def _memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
