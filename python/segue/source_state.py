# ===- source_state.py - whether a module is still the one that was captured -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Notices that a PyTorch module has become another one since its graph was captured.

A captured graph holds what the module was: its submodules, their hooks, and attributes such as
the probability of a dropout. Each state of these has a number, which is a part of the key of a
variant, so that a call after a change runs a graph of the module as it is. Values of parameters
and buffers are no part of it: programs are given these.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

#: Attributes of these types are compared by value, and so are containers that hold nothing else.
_PLAIN = (bool, int, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)
#: Attributes of these types are compared by identity: an activation that was replaced by another one.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.Tensor)
_CONTAINERS = (list, dict, set)
#: What `nn.Module` itself keeps: modes, parameters and buffers are compared elsewhere, submodules and hooks apart.
_OWN = frozenset(nn.Module().__dict__) | {"_compiled_call_impl", "_is_torch_compile"}
_PARTS = ("_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: States that are known again when a module returns to them, as one whose attribute takes turns.
_MOST_STATES = 16


class _Same:
    """An object that equals itself alone, and lives no longer for that: a module that was replaced has weights."""

    def __init__(self, value: Any):
        self._get = weakref.ref(value) if type(value).__weakrefoffset__ else lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (value := self._get()) is not None and value is other._get()

    __hash__ = None  # type: ignore[assignment]


class _Look(NamedTuple):
    """What one module of the tree was when it was looked at."""

    own: dict[str, Any]  # its attributes, which live on
    size: int
    objects: list[tuple[str, Any]]  # attributes that change by being replaced
    containers: list[tuple[str, Any]]  # attributes that may change where they are
    empty: list[dict[Any, Any]]  # submodules, and hooks by their numbers, where there are none
    parts: list[tuple[dict[Any, Any], list[Any], list[int]]]  # and where there are some: names, and which objects
    kept: list[Any]  # all of that, as it is compared between states


class SourceState:
    """The state of a module, by a number that is its own.

    Attributes
    ----------
    members : list of Module
        The module and its submodules, as they were when `number` was last asked for.
    current : int
        The number that `number` gave last.
    last : int
        The greatest number that was given.
    """

    def __init__(self, source: nn.Module, number: int = 0, last: int = 0):
        self._source = source
        self.current, self.last = number, last
        self._known: dict[int, list[list[Any]]] = {}
        self.settle()

    def number(self) -> int:
        """The number of the state in which the module is now."""
        if any(map(_has_changed, self._looks)):
            self._look()
            now = [look.kept for look in self._looks]
            same = next((number for number, kept in self._known.items() if kept == now), None)
            if same is None:
                same = self.last = self.last + 1
                while len(self._known) >= _MOST_STATES:
                    del self._known[next(iter(self._known))]
            self.current = same
            self._known[same] = now
        return self.current

    def settle(self) -> None:
        """Takes the module as it is for the state of the last number: capturing runs it, which may have changed its attributes."""
        self._look()
        self._known[self.current] = [look.kept for look in self._looks]

    def _look(self) -> None:
        self.members = list(self._source.modules())
        self._looks = [_look_at(module) for module in self.members]


def _look_at(module: nn.Module) -> _Look:
    own = module.__dict__
    attributes = [(name, value, kept) for name, value in own.items() if name not in _OWN and (kept := _kept(value)) is not None]
    parts = [part for name in _PARTS if (part := own.get(name)) is not None]
    objects = [(name, value) for name, value, _ in attributes if not isinstance(value, _CONTAINERS)]
    containers = [(name, kept) for name, value, kept in attributes if isinstance(value, _CONTAINERS)]
    kept = [*([name, kept] for name, _, kept in attributes), *([(name, _Same(value)) for name, value in part.items()] for part in parts)]
    return _Look(own, len(own), objects, containers, [part for part in parts if not part],
                 [(part, list(part), list(map(id, part.values()))) for part in parts if part], kept)


def _has_changed(look: _Look) -> bool:
    """Whether the module may have changed; asked before every call, so that nothing is made for it where it has not."""
    own = look.own
    if len(own) != look.size:
        return True
    if any(look.empty):
        return True
    for part, names, objects in look.parts:
        if list(part) != names or list(map(id, part.values())) != objects:
            return True
    get = own.get
    for name, value in look.objects:
        if get(name, look) is not value:
            return True
    return bool(look.containers) and any(_kept(own.get(name)) != kept for name, kept in look.containers)


def _kept(value: Any) -> Any:
    """What of an attribute is compared; None where nothing is."""
    kind = type(value)
    if kind is float:
        return kind, repr(value)  # NaN equals itself, and 0.0 is not -0.0
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, _NAMED):
        return _Same(value)
    if kind in (list, tuple, set):
        kept = [_kept(each) for each in value]
    elif kind is dict:
        kept = [_kept(each) for each in (*value.keys(), *value.values())]
    else:
        return None
    return None if any(each is None for each in kept) else (kind, kept)
