# ===- signature.py - what goes into and comes out of a captured module -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What goes into and comes out of a captured module: names, roles, structure.

A call of a PyTorch module has nested arguments and results; a program has flat,
named ones. The classes here hold the way between the two, so that a call can
be checked, flattened and put together again without PyTorch's exporter.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Sequence, cast

import torch
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError
from .writer import float_literal, port_attributes, quoted

if TYPE_CHECKING:
    from ..optimizers import Settings


@dataclass(frozen=True)
class Argument:
    """An argument of the program.

    `names` holds every name that the tensor has in the module: tied parameters
    have several and are one argument, called by the first.
    """

    name: str
    role: str  # input, parameter, frozen, hyper
    shape: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """A result of the program."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Captured:
    """A module as a graph of the `segue` dialect.

    Attributes
    ----------
    text : str
        The MLIR module.
    arguments, results : list
        In the order of `@forward`.
    structure : Structure
        The way from calls to flat tensors and back.
    differentiable : bool
        False if no result depends on a parameter or float input through float values.
    """

    text: str
    arguments: list[Argument]
    results: list[Result]
    structure: "Structure"
    differentiable: bool

    def __deepcopy__(self, memo: dict[int, object]) -> "Captured":
        return self  # nothing of it ever changes

    def named(self, role: str) -> list[Argument]:
        return [a for a in self.arguments if a.role == role]

    def text_with(self, settings: "Mapping[str, Settings]", roles: Mapping[str, str] = {}, without: Iterable[str] = ()) -> str:
        """The text with learning rates, weight decays and optimizers of their own on some parameters, by name.

        `roles` are those, ``parameter`` or ``frozen``, that some have in the place of the one that they were captured with. The inputs
        `without` get no gradients.
        """
        text = self.text
        for name in without:
            attributes = port_attributes(name, "input")
            text = text.replace(attributes, f"{attributes}, segue.requires_grad = false", 1)
        for name, role in roles.items():
            old = next(a.role for a in self.arguments if a.name == name)
            text = text.replace(port_attributes(name, old), port_attributes(name, role), 1)
        for name, (rate_group, decay, optimizer) in settings.items():
            attributes = port_attributes(name, "parameter")
            own = f", segue.rate_group = {rate_group} : i64" if rate_group else ""
            own += "" if decay is None else f", segue.weight_decay = {float_literal(float(decay))} : f64"
            own += f", segue.optimizer = {quoted(optimizer)}" if optimizer else ""
            text = text.replace(attributes, attributes + own, 1)
        return text


@dataclass
class Structure:
    """The map from nested arguments and results to flat, named tensors.

    `leaves` has one entry per leaf of the call's arguments: the name of an input,
    or `Constant` for a leaf that is not a tensor and was built into the graph.
    `result_leaves` likewise: an index into the results of the program, or a `Constant`.
    """

    in_spec: pytree.TreeSpec
    leaves: list["str | Constant"]
    out_spec: pytree.TreeSpec
    result_leaves: list["int | Constant"]
    signature: inspect.Signature | None = field(default=None, compare=False)

    def flatten(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The input tensors of a call by name; raises where the call has another structure."""
        args, kwargs = positional(self.signature, args, kwargs)
        flat, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        if spec != self.in_spec:
            raise InvalidArgumentError(
                f"the call has another structure than the example: inputs are {self.input_names()}")
        tensors = {}
        for leaf, given in zip(self.leaves, flat):
            if not isinstance(leaf, Constant):
                tensors[leaf] = given
            elif leaf.value is not given and leaf.value != given:
                raise InvalidArgumentError(
                    f"argument {leaf.name!r} is {given!r}, but the module was compiled for {leaf.value!r}")
        return tensors

    def unflatten(self, results: Sequence[object]) -> Any:
        leaves = [leaf.value if isinstance(leaf, Constant) else results[leaf] for leaf in self.result_leaves]
        if self._is_leaf:
            return leaves[0]
        return pytree.tree_unflatten(leaves, self.out_spec)

    @functools.cached_property
    def _is_leaf(self) -> bool:
        return bool(self.out_spec.is_leaf())

    def input_names(self) -> list[str]:
        return self._input_names

    @functools.cached_property
    def _input_names(self) -> list[str]:
        return [leaf for leaf in self.leaves if not isinstance(leaf, Constant)]


@dataclass(frozen=True)
class Constant:
    """A leaf that is not a tensor."""

    name: str
    value: object


def positional(signature: inspect.Signature | None, args: Sequence[object],
               kwargs: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The call with as many arguments as possible given by position."""
    if signature is None:
        return tuple(args), dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(f"{error}; the module takes {signature}") from None
    return bound.args, bound.kwargs


class FlatCall(NamedTuple):
    """A call with its arguments as a flat list.

    leaves, names : what was given, and what it is called: "x", "batch.tokens", "xs.0"
    spec, signature : the structure of the arguments, and what the function takes
    args, kwargs : the call with as many arguments as possible given by position
    """

    leaves: list[object]
    names: list[str]
    spec: pytree.TreeSpec
    signature: inspect.Signature
    args: tuple[object, ...]
    kwargs: dict[str, object]


def flatten_call(forward: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> FlatCall:
    """Names every leaf of a call of `forward`."""
    signature = inspect.signature(forward)
    args, kwargs = positional(signature, args, kwargs)
    kwargs = dict(sorted(kwargs.items()))
    by_position: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_position += [f"{parameter.name}.{i}" for i in range(len(args) - len(by_position))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            by_position.append(parameter.name)
    pairs, spec = pytree.tree_flatten_with_path((tuple(args), kwargs))
    names, leaves = [], []
    for path, leaf in pairs:
        where, rest = cast(pytree.SequenceKey[Any], path[0]).idx, [_key_text(k) for k in path[1:]]
        if where == 0:
            rest[0] = by_position[int(rest[0])]
        names.append(".".join(rest))
        leaves.append(leaf)
    return FlatCall(leaves, names, spec, signature, args, kwargs)


def _key_text(key: pytree.KeyEntry) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
