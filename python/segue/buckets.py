# ===- buckets.py - a few lengths that all others are padded to ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Buckets: programs for a few lengths, to which calls of other lengths are padded.

Which inputs are padded, and with what, is found when the module is captured;
that results are those without padding is shown then (`frontend.padding`), and
a module for which it is not so is refused. Results are cut to the length of
the call.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .errors import InvalidArgumentError, LayoutMismatchError
from .frontend.importer import exported
from .frontend.padding import Padding, draw_inputs, fills_of, show_exact
from .frontend.signature import flatten_call
from .tensors import describe, is_tensor


@dataclass(frozen=True)
class Buckets:
    """Lengths that a module is compiled for, ``segue.compile(..., buckets=segue.Buckets([128, 256, 512]))``.

    The length of a call is the extent in dimension `dim` of its first tensor that has more dimensions than that. Every tensor
    with this extent there is padded at its end, to the least bucket that is not shorter.

    Parameters
    ----------
    lengths : sequence of int
    dim : int
        The dimension that has the length, in every input; 0 is the first.
    fill : mapping
        What inputs are padded with, by name. Default: a target with the index that its loss ignores, all others with zero,
        which hides in a mask and is a token of any table.
    """

    lengths: Sequence[int]
    dim: int = 1
    fill: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = list(self.lengths)
        if not given or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in given):
            raise InvalidArgumentError(f"buckets are {given}; give lengths of at least 1, such as [128, 256, 512]")
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or self.dim < 0:
            raise InvalidArgumentError(f"dim of the buckets is {self.dim!r}; give the number of a dimension, 0 is the first")
        object.__setattr__(self, "lengths", tuple(sorted(set(given))))

    def of(self, length: int) -> int:
        """The bucket for this length. Raises InvalidArgumentError beyond the last."""
        place = bisect.bisect_left(self.lengths, length)
        if place == len(self.lengths):
            raise InvalidArgumentError(f"an input has length {length}, and the longest bucket is {self.lengths[-1]}; give one more, or cut the input")
        return self.lengths[place]

    def least_of(self, bucket: int) -> int:
        """A length that goes into this bucket, as much shorter as there is: padding is tried with it."""
        place = self.lengths.index(bucket)
        return self.lengths[place - 1] + 1 if place else max(1, bucket // 2 + (bucket > 2))


def as_buckets(given: Buckets | Sequence[int] | None) -> Buckets | None:
    """Lengths alone stand for `Buckets` of them."""
    return given if given is None or isinstance(given, Buckets) else Buckets(given)


@dataclass(frozen=True)
class _Places:
    """The inputs of a structure of calls that have the length, by their places among its leaves."""

    names: list[str]
    fills: dict[int, Any]


class Bucketing:
    """Pads calls of one module."""

    def __init__(self, buckets: Buckets, source: nn.Module, name: str):
        self.buckets, self._source, self._name = buckets, source, name
        self._places: dict[str, _Places] = {}
        self.fills: dict[str, Any] = {}  # what inputs of the example are padded with, by name

    def pad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], int]:
        """The arguments, padded to their bucket, and the length that they had."""
        flat, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        length = self._length(flat)
        bucket = self.buckets.of(length)
        places = self._places.get(str(spec))
        if places is None:
            places = self._places[str(spec)] = self._find(flat, spec, length, bucket)
            self.fills = self.fills or {places.names[i]: fill for i, fill in places.fills.items()}
        for i, fill in places.fills.items():
            flat[i] = self._padded(places.names[i], flat[i], fill, length, bucket)
        args, kwargs = pytree.tree_unflatten(flat, spec)
        return args, kwargs, length

    def pad_named(self, batch: Mapping[str, Any], fills: Mapping[str, Any]) -> tuple[Mapping[str, Any], int | None]:
        """Those inputs of a batch that `fills` has, padded; and the length that they had, or None where there are none."""
        present = {name: batch[name] for name in fills if name in batch}
        if not present:
            return batch, None
        shape = describe(next(iter(present.values())))[0]
        length = shape[self.buckets.dim] if len(shape) > self.buckets.dim else 0
        bucket = self.buckets.of(length)
        return {**batch, **{name: self._padded(name, tensor, fills[name], length, bucket) for name, tensor in present.items()}}, length

    def padding(self, args: tuple[Any, ...], kwargs: dict[str, Any], program: Any) -> Padding:
        """How calls of the program of these padded arguments are cut, once it is shown that padding changes nothing.

        Raises
        ------
        UnsupportedOpError
            Names the operator by which results depend on the padding.
        InvalidArgumentError
            What inputs are padded with is no index of a table.
        """
        flat, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        places, bucket = self._places[str(spec)], self._length(flat)
        least = self.buckets.least_of(bucket)
        fills = {places.names[i]: fill for i, fill in places.fills.items()}
        if least == bucket:
            return Padding(bucket, fills)
        short, leaves = self._shorter(flat, spec, places.fills, least)
        drawn = draw_inputs(short, leaves)
        longer = [self._padded(places.names[i], leaf, places.fills[i], least, bucket) if i in places.fills else leaf
                  for i, leaf in enumerate(drawn)]
        cuts = show_exact(self._source, short, program, places.names, drawn, longer, bucket - least,
                          f"{self._name}, bucket {bucket} of {list(self.buckets.lengths)}")
        return Padding(bucket, fills, cuts)

    def _length(self, flat: list[Any]) -> int:
        dim = self.buckets.dim
        for leaf in flat:
            if is_tensor(leaf) and len(shape := describe(leaf)[0]) > dim:
                return shape[dim]
        raise InvalidArgumentError(f"{self._name} has buckets, and no input has a dimension {dim}")

    def _find(self, flat: list[Any], spec: Any, length: int, bucket: int) -> _Places:
        dim = self.buckets.dim
        args, kwargs = pytree.tree_unflatten(flat, spec)
        names = flatten_call(self._source.forward, args, kwargs)[1]
        chosen = {i: leaf for i, leaf in enumerate(flat) if is_tensor(leaf) and describe(leaf)[0][dim : dim + 1] == (length,)}
        if unknown := [n for n in self.buckets.fill if n not in names]:
            raise InvalidArgumentError(f"the buckets say what {unknown[0]!r} is padded with; {self._name} takes {', '.join(map(repr, names))}")
        short, _ = self._shorter(flat, spec, dict.fromkeys(chosen), self.buckets.least_of(bucket))
        fills = fills_of(short, names, {names[i]: describe(leaf)[1] for i, leaf in chosen.items()}, self.buckets.fill)
        return _Places(names, {i: fills[names[i]] for i in chosen})

    def _shorter(self, flat: list[Any], spec: Any, chosen: Mapping[int, Any], length: int) -> tuple[Any, list[Any]]:
        """The module captured at another length, and inputs for that: those that are there, repeated or cut."""
        leaves = []
        for i, leaf in enumerate(flat):
            if is_tensor(leaf):
                leaf = leaf if isinstance(leaf, torch.Tensor) else torch.zeros(describe(leaf)[0], dtype=describe(leaf)[1])
                if i in chosen:
                    leaf = leaf.index_select(self.buckets.dim, torch.arange(length) % leaf.shape[self.buckets.dim])
            leaves.append(leaf)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return exported(self._source, args, kwargs), leaves

    def _padded(self, name: str, tensor: Any, fill: Any, length: int, bucket: int) -> Any:
        dim, shape = self.buckets.dim, describe(tensor)[0]
        if len(shape) <= dim or shape[dim] != length:
            raise LayoutMismatchError(f"LAYOUT_MISMATCH: {self._name}, input {name!r}: shape {list(shape)} given, where dimension {dim} has the length, "
                                      f"{length} in another input")
        if length == bucket:
            return tensor
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(f"input {name!r} is a {type(tensor).__name__}, and is to be padded; give a torch tensor")
        widths = [0, 0] * (len(shape) - dim - 1) + [0, bucket - length]
        return nn.functional.pad(tensor, widths, value=fill)
