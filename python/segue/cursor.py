# ===- cursor.py - where a run is in its data -----------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Draws the batches of epochs, and goes on in mid-epoch as if nothing had been.

A cursor goes on by beginning the epoch again: the random numbers of the process and of the loader's generators
become what they were at its beginning, batches that were trained are passed over, and the random numbers become what they were after
the last of them. A `DataLoader` of PyTorch's over a data set with indices, without workers, passes over the indices alone;
one with workers loads what it passes over, so that transforms in the workers draw the same numbers. A loader with `state_dict` and
`load_state_dict`, as torchdata's `StatefulDataLoader`, does all of that itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Iterable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from .arguments import what_is
from .errors import InvalidArgumentError
from .tensors import is_tensor


class Cursor:
    """Where a run is in `batches`: a `DataLoader`, a list, an iterator, whatever can be iterated.

    Attributes
    ----------
    epoch : int
        The number of the epoch under way, or of the next one between two; 0 is the first.
    trained : int
        The batches of it that `done` was told of.
    """

    def __init__(self, batches: Iterable[Any]):
        if not hasattr(batches, "__iter__"):
            raise InvalidArgumentError(f"batches are {what_is(batches)}, which cannot be iterated; give a DataLoader, a list or an iterator")
        if isinstance(batches, (Mapping, str, bytes)) or is_tensor(batches):
            raise InvalidArgumentError(f"batches are {what_is(batches)}, and fit takes several; give a loader or a list, as fit([batch])")
        self._batches: Any = batches  # a DataLoader has more to it than an Iterable
        self._saves_itself = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self.epoch = self.trained = 0
        self._begin: dict[str, Any] | None = None  # random states before the epoch
        self._resumed: dict[str, Any] | None = None
        self._ahead = 0  # drawn, and not trained yet
        self._before: dict[str, Any] | None = None  # the loader's own state before those

    @property
    def is_once(self) -> bool:
        """True for an iterator: what it has given is gone."""
        return isinstance(self._batches, Iterator)

    @property
    def batches_per_epoch(self) -> int | None:
        """None where the loader does not say."""
        try:
            return len(self._batches)
        except TypeError:
            return None

    def draw(self, ahead: int = 0) -> tuple[list[Any], Iterator[Any]]:
        """The epoch under way, or the next one: its first `ahead` batches, and then all of them, those included."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self.trained = 0
            _tell_epoch(self._batches, self.epoch)
            self._begin = _random_states(self._batches)
            if ahead and self._saves_itself:
                self._before = self._batches.state_dict()
            iterator = iter(self._batches)
        else:
            iterator = self._go_on(resumed)
        first: list[Any] = []
        while len(first) < ahead and (batch := next(iterator, _END)) is not _END:
            first.append(batch)
        self._ahead = len(first)
        return first, _chain(first, iterator)

    def done(self) -> None:
        """A batch was trained."""
        self.trained += 1
        self._ahead = max(0, self._ahead - 1)

    def next_epoch(self) -> None:
        """The epoch under way has no more batches."""
        self.epoch, self.trained = self.epoch + 1, 0
        self._begin = None

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here."""
        state = {"epoch": self.epoch, "trained": self.trained, "now": _random_states(self._batches)}
        if self.trained:
            state["begin"] = self._begin
        if self._saves_itself and self.trained:
            state["loader"], state["pass"] = (self._before, self.trained) if self._ahead else (self._batches.state_dict(), 0)
        elif self._saves_itself and self.epoch:  # between two epochs a loader may remember how many there were
            state["loader"] = self._batches.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there with the next `draw`."""
        self.epoch, self.trained = state["epoch"], state["trained"]
        if ("loader" in state) != self._saves_itself and self.trained:
            raise InvalidArgumentError("the checkpoint is of a run whose loader "
                                       + ("saved its own state" if "loader" in state else "did not save its own state")
                                       + f", in the midst of an epoch; this one, a {type(self._batches).__name__}, "
                                       + ("does" if self._saves_itself else "does not") + ". Go on with a loader of the same kind")
        if self.trained:
            self._resumed = state
        else:
            if self._saves_itself and "loader" in state:
                self._batches.load_state_dict(state["loader"])
            _set_random_states(self._batches, state["now"])

    def _go_on(self, state: dict[str, Any]) -> Iterator[Any]:
        """The rest of the epoch of `state`."""
        _tell_epoch(self._batches, self.epoch)
        self._begin = state["begin"]
        _set_random_states(self._batches, self._begin)
        count = self.trained
        if self._saves_itself:
            self._batches.load_state_dict(state["loader"])
            count = state["pass"]
        passed = None
        if _passes_by_index(self._batches) and not self._saves_itself:
            passed = _Rest(self._batches.sampler if self._batches.batch_sampler is None else self._batches.batch_sampler)
            iterator: Iterator[Any] = iter(_over(self._batches, passed))
            count -= passed.skip(count)
        else:
            iterator = iter(self._batches)
        for left in range(count, 0, -1):
            if passed is not None or next(iterator, _END) is _END:
                raise InvalidArgumentError(f"the checkpoint is of a run that had trained {self.trained} batches of epoch {self.epoch + 1}, and this "
                                           f"loader has {self.trained - left}; give it the same data")
        _set_random_states(self._batches, state["now"])
        return iterator


_END = object()


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    while first:
        yield first.pop(0)
    yield from rest


class _Rest:
    """The indices of a sampler from some place on."""

    def __init__(self, sampler: Iterable[Any]):
        self._sampler = sampler
        self._iterator: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def skip(self, count: int) -> int:
        """Passes over so many, and draws the random numbers for them now. Returns how many there were."""
        return sum(1 for _, _ in zip(range(count), self._iterator))


def _passes_by_index(batches: Any) -> bool:
    return type(batches) is DataLoader and not batches.num_workers and not isinstance(batches.dataset, IterableDataset)


def _over(loader: DataLoader[Any], indices: _Rest) -> DataLoader[Any]:
    """The loader over other indices."""
    how = {"sampler": indices, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": indices}
    return DataLoader(loader.dataset, collate_fn=loader.collate_fn, generator=loader.generator, pin_memory=loader.pin_memory, **how)


def _samplers(batches: Any) -> list[Any]:
    outer = getattr(batches, "batch_sampler", None)
    found = (getattr(batches, "sampler", None), outer, getattr(outer, "sampler", None))
    return list({id(each): each for each in found if each is not None}.values())


def _tell_epoch(batches: Any, epoch: int) -> None:
    """Says the number of the epoch to samplers that shuffle by it, as `DistributedSampler` does."""
    for each in (*_samplers(batches), getattr(batches, "dataset", None)):
        if callable(getattr(each, "set_epoch", None)):
            each.set_epoch(epoch)


def _generators(batches: Any) -> list[torch.Generator]:
    found = [getattr(each, "generator", None) for each in (batches, *_samplers(batches))]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _random_states(batches: Any) -> dict[str, Any]:
    """The states of PyTorch's, Python's and NumPy's numbers in this process, and of the generators of a loader."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
            "generators": [generator.get_state() for generator in _generators(batches)]}


def _set_random_states(batches: Any, states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    generators = _generators(batches)
    if len(generators) != len(states["generators"]):
        raise InvalidArgumentError(f"the checkpoint is of a run whose loader had {len(states['generators'])} random generators, and this one has "
                                   f"{len(generators)}; make it as it was made then")
    for generator, state in zip(generators, states["generators"]):
        generator.set_state(state)
