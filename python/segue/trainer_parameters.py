# ===- trainer_parameters.py - where a trainer's parameters live, and who sees them -------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A trainer's parameters and the tensors of the PyTorch modules: memory that both share, copies, homes on a disk, and what other ranks have."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from . import _runtime
from .bound_parameters import BoundParameter
from .errors import InvalidArgumentError
from .tensors import Order, give, kind_of, wrap
from .turns import in_turn

log = logging.getLogger("segue")

if TYPE_CHECKING:
    from .distributed import Ranks
    from .module import Module
    from .optimizers import Optimizer


class Parameters:
    """The part of `segue.Trainer` that binds parameters to tensors of PyTorch and shows their values. It has no state of its own."""

    if TYPE_CHECKING:
        _session: "_runtime.Session"
        _device: "_runtime.Device"
        _bound: list[BoundParameter]
        _sources: dict[str, int]
        _has_told: bool
        _ranks: Ranks
        modules: dict[str, Module]
        optimizer: Optimizer

        @property
        def step_count(self) -> int: ...

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers by session key: themselves, or copies where the device has its own memory. With ``zero3`` every rank calls
        this, and what others have are copies."""
        found: dict[str, "_runtime.Tensor"] = {}
        self._session.gather_parameters(found.__setitem__)
        return {key: give(tensor, "torch") for key, tensor in found.items()}

    @in_turn
    def averages(self) -> dict[str, torch.Tensor]:
        """Copies of the moving averages of the trained parameters by session key, which an optimizer with `ema_decay` keeps.

        A twin of the model takes them by ``load_state_dict(trainer.averages(), strict=False)``. They are in checkpoints, as all
        states are.

        Raises
        ------
        InvalidArgumentError
            The optimizer has no `ema_decay`, or has made no step.
        """
        if self.optimizer.ema_decay is None or not self.step_count:
            raise InvalidArgumentError("averages are kept from the first step on, by an optimizer with ema_decay: "
                                       f"segue.{type(self.optimizer).__name__}(ema_decay=0.999)")
        return {name.removeprefix("ema."): give(tensor, "torch").clone()
                for name, tensor in self._session.state().items() if name.startswith("ema.")}

    @in_turn
    def sync(self) -> None:
        """Brings trained values to those PyTorch parameters that do not share memory with the runtime, in place, on the CPU or a GPU.

        Nothing to do in most cases on the CPU: parameters that are dense share their memory. With a disk, values that are in
        memory alone are written there, where the PyTorch modules have theirs. Updates that wait for the next forward
        (``in_forward``) are made. With ``zero3`` every rank calls this, and is sent what others have, one after the other.
        Parameters on PyTorch's meta device stay there: `parameters` has the values.
        """
        self._session.finish_updates()
        apart = {bound.key: bound for bound in self._bound if not bound.is_shared and not bound.tensor.is_meta}
        if not apart:
            return

        def bring(key: str, value: "_runtime.Tensor") -> None:
            bound = apart.get(key)
            if bound is not None:
                if not bound.is_home:
                    bound.tensor.copy_(give(value, kind_of(bound.tensor)))
                bound.note()

        with torch.no_grad():
            if self._ranks.gather_parameters:
                self._session.gather_parameters(bring)
            else:
                for key in apart:
                    bring(key, self._session.parameter(key))

    # --- tensors of the PyTorch modules -----------------------------------------------

    def _bind(self, spills: bool) -> None:
        in_slab = set(self._session.slab_parameters)
        if self._ranks.gather_parameters:  # nobody has values of all from here on
            tensors = {info.key: self.modules[info.members[0][0]]._weights.tensor(info.members[0][1])
                       for info in self._session.parameters if info.key not in in_slab}
            self._ranks.take_values_of_first({key: tensor for key, tensor in tensors.items() if not tensor.is_meta})
        for info in self._session.parameters:
            if info.key in in_slab:
                continue
            module, name = info.members[0]
            tensor = self.modules[module]._weights.tensor(name)
            # Memory of PyTorch's is what a disk is there to spare.
            is_shared = not spills and not tensor.is_meta and self._share(info.key, tensor)
            if spills and not tensor.is_meta:
                self._session.set_parameter(info.key, wrap(tensor, self._device, writable=True))
            self._bound.append(BoundParameter(info.key, self.modules[module]._weights, name, is_shared))

    def _share(self, key: str, tensor: torch.Tensor) -> bool:
        """Lets the session train in the tensor's memory, and returns True, or gives it a copy. On a GPU it has copies, in memory that the
        budget knows and that may be moved."""
        if not tensor.is_cuda:
            return self._session.bind_parameter(key, wrap(tensor, self._device, writable=True))
        with Order(self._device) as order:
            self._session.set_parameter(key, wrap(tensor, self._device, order))
        return False

    def _move_to_disk(self) -> None:
        """Gives the tensors of the PyTorch modules memory on the disk in the place of their own.

        Most get the memory in which the session keeps the parameter when it is away: nothing is copied, then or by `sync`.
        """
        members = {info.key: info.members for info in self._session.parameters}
        elsewhere = set(self._session.parameters_elsewhere)
        with torch.no_grad():
            for bound in (bound for bound in self._bound if bound.key not in elsewhere and not bound.tensor.is_meta):
                view, bound.is_home = self._session.parameter(bound.key).on_disk()
                value = torch.from_dlpack(view)  # type: ignore[attr-defined]  # public, and left out of __all__
                for module, name in members[bound.key]:
                    weights = self.modules[module]._weights
                    weights.tensor(name).data = value
                    weights.forget(name)
                bound.note()
        _runtime.return_free_memory()

    def _check_bound(self) -> None:
        """Nobody trains what has been taken away: parameters must be the tensors that the trainer was made with."""
        for bound in self._bound:
            bound.check()
        changed = [] if self._has_told else [name for name, number in self._sources.items() if self.modules[name]._state.number() != number]
        if changed:
            self._has_told = True
            log.warning("the PyTorch module of %r has other submodules, hooks or attributes than when the trainer was made, which goes on with what it was: "
                        "give what changes as an input, or make a new Trainer", changed[0])
