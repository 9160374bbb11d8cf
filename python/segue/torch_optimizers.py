# ===- torch_optimizers.py - optimizers of torch.optim as ours ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""An optimizer of `torch.optim` over parameters of compiled modules becomes one of ours."""

from __future__ import annotations

from dataclasses import fields, replace
from glob import escape
from typing import Any, Callable, Iterable, Sequence

import torch

from .arguments import what_is
from .errors import InvalidArgumentError
from .optimizers import OPTIMIZERS, Adam, AdamW, Group, Optimizer

#: Ours have the names that `torch.optim` gives them, and the fields, which its parameter groups have as options.
_OURS: dict[type, type[Optimizer]] = {
    getattr(torch.optim, ours.__name__): ours for ours in OPTIMIZERS.values() if hasattr(torch.optim, ours.__name__)}

#: Fields of ours that are no option of PyTorch's, or that groups may differ in.
_NOT_OPTIONS = ("lr", "weight_decay", "groups", "clip_grad_value", "ema_decay", "in_backward", "in_forward", "state_bits")
#: Options of PyTorch's that say how a step is computed, not what, or that belong to schedulers.
_NO_MATTER = ("params", "param_names", "lr", "weight_decay", "foreach", "fused", "capturable", "differentiable", "initial_lr",
              "max_lr", "min_lr", "swa_lr")


class _RateOf:
    """The learning rate of a group of an optimizer of PyTorch's, as a scheduler has left it."""

    def __init__(self, optimizer: torch.optim.Optimizer, group: int, constants: dict[str, Any]):
        self._optimizer, self._group, self._constants = optimizer, group, constants

    def __call__(self, step: int) -> float:
        group = self._optimizer.param_groups[self._group]
        for name, value in self._constants.items():
            if group[name] != value:
                raise InvalidArgumentError(f"{name} of the optimizer is {group[name]!r} now; it was {value!r} when the trainer was made, "
                                           "which is compiled in (OneCycleLR takes cycle_momentum=False)")
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn where no step came before theirs
        return float(group["lr"])


def as_optimizer(optimizer: Any, parameters: Iterable[tuple[str, torch.Tensor]] | None = None) -> Optimizer:
    """The optimizer itself, or what does the same as one of PyTorch's.

    Parameters
    ----------
    optimizer : Optimizer or torch.optim.Optimizer
        Of a class that both have. Its learning rates, which schedulers may change, are read at every step; groups of its
        parameters become groups. Of several of PyTorch's, as a Muon and an AdamW, those after the first become groups with an optimizer.
    parameters : pairs of name and tensor, optional
        All that are trained. Without them, an optimizer of PyTorch's is refused.

    Raises
    ------
    InvalidArgumentError
        It is none, or does something that ours do not; the message says what to write.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, (list, tuple)) and len(optimizer) > 1 and parameters is not None:
        return _together(optimizer, list(parameters))
    name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
    known = next((cls for cls in OPTIMIZERS.values() if cls.__name__ == name), AdamW)
    if not isinstance(optimizer, torch.optim.Optimizer) or parameters is None:
        theirs = f", torch.optim.{name}(model.parameters(), lr=...)" if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer) else ""
        raise InvalidArgumentError(f"the optimizer is {what_is(optimizer)}; give segue.{known.__name__}(lr=...){theirs} or another of its kind")
    if type(optimizer) not in _OURS:
        raise InvalidArgumentError(f"torch.optim.{name} has no counterpart in segue, which has "
                                   f"{', '.join(sorted(cls.__name__ for cls in OPTIMIZERS.values()))}")
    ours = _OURS[type(optimizer)]
    if ours is Adam and optimizer.param_groups[0].get("decoupled_weight_decay"):
        ours = AdamW
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values()):  # Adagrad has states before the first
        raise InvalidArgumentError(f"the torch.optim.{name} has made steps, whose states would be lost; give the trainer one that has made "
                                   "none, and train in it alone")
    groups = _Groups(optimizer, list(parameters))
    return ours(**groups.options(ours), **groups.settings())


def _together(optimizers: Sequence[Any], parameters: list[tuple[str, torch.Tensor]]) -> Optimizer:
    """Several optimizers over parameters of their own as one."""
    share_of = {id(tensor): at for at, each in enumerate(optimizers) if isinstance(each, torch.optim.Optimizer)
                for group in each.param_groups for tensor in group["params"]}
    shares: list[list[Any]] = [[] for _ in optimizers]
    for name, tensor in parameters:
        shares[share_of.get(id(tensor), 0)].append((name, tensor))  # the first says what is wrong with one that nobody has
    main, *others = [as_optimizer(each, share) for each, share in zip(optimizers, shares)]
    groups = list(main.groups)
    for other, share in zip(others, shares[1:]):
        plain = replace(other, groups=())
        groups += [Group(*group.patterns, lr=group.lr, weight_decay=group.weight_decay, optimizer=plain) for group in other.groups]
        if rest := [name for name, _ in share if not any(group.has(name) for group in other.groups)]:
            groups.append(Group(*map(escape, rest), optimizer=plain))
    return replace(main, groups=tuple(groups))


class _Groups:
    """The groups of an optimizer of PyTorch's over parameters with names."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[tuple[str, torch.Tensor]]):
        self._optimizer = optimizer
        self._constants: dict[str, Any] = {}
        self._names: list[list[str]] = [[] for _ in optimizer.param_groups]
        group_of = {id(tensor): at for at, group in enumerate(optimizer.param_groups) for tensor in group["params"]}
        seen: dict[str, int] = {}
        for name, tensor in parameters:
            if (at := group_of.get(id(tensor))) is None:
                raise InvalidArgumentError(f"parameter {name!r} is trained, but the optimizer does not have it; give it to the optimizer, or "
                                           "set requires_grad to False before the module is compiled")
            if seen.setdefault(name, at) != at:
                raise InvalidArgumentError(f"two modules have a parameter {name!r}, and the optimizer has them in groups {seen[name]} and "
                                           f"{at}; a group of segue goes by names, so give both the same group")
            self._names[at].append(name)
        trained = {id(tensor) for _, tensor in parameters}
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if tensor.requires_grad and id(tensor) not in trained:
                    raise InvalidArgumentError(f"the optimizer has a parameter of shape {list(tensor.shape)} that no module of the trainer "
                                               "trains; leave it out, or give the trainer its module")

    def options(self, ours: type[Optimizer]) -> dict[str, Any]:
        """The options that both have, which are one for all groups."""
        first, *others = self._optimizer.param_groups
        names = [each.name for each in fields(ours) if each.name not in _NOT_OPTIONS]
        self._constants = {name: first[name] for name in names}
        for group in others:
            for name in names:
                if group[name] != first[name]:
                    raise InvalidArgumentError(f"groups of the optimizer differ in {name}: {first[name]!r} and {group[name]!r}; those of a "
                                               f"segue.{ours.__name__} differ in lr and weight_decay alone")
        for group in self._optimizer.param_groups:
            for name, value in group.items():
                is_same = name in names or name in _NO_MATTER or (name == "decoupled_weight_decay" and ours is AdamW)
                if not is_same and value:
                    raise InvalidArgumentError(f"the optimizer has {name}={value!r}, which segue.{ours.__name__} does not have")
        return {name: self._plain(value) for name, value in self._constants.items()}

    @staticmethod
    def _plain(value: Any) -> Any:
        """Tensors as numbers."""
        if isinstance(value, tuple):
            return tuple(map(_Groups._plain, value))
        return value.item() if isinstance(value, torch.Tensor) else value

    def settings(self) -> dict[str, Any]:
        """Learning rates and weight decays, those of the first group for all others."""
        first, *others = self._optimizer.param_groups
        rate: Callable[[int], _RateOf] = lambda at: _RateOf(self._optimizer, at, self._constants)  # noqa: E731
        return {"lr": rate(0), "weight_decay": float(first["weight_decay"]), "groups": tuple(
            Group(*map(escape, names), lr=rate(at), weight_decay=float(group["weight_decay"]))
            for at, (group, names) in enumerate(zip(others, self._names[1:]), start=1) if names)}
