# ===- sizes.py - batches of other extents in a trainer ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Programs for batches that have other extents than those which the modules of a trainer were compiled for, and for evaluations
of modules that draw random numbers when they train."""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping

from . import _runtime
from .buckets import Bucketing
from .errors import ExportError, InvalidArgumentError, LayoutMismatchError, UnsupportedError
from .module import LoadedModule, Module, Program
from .tensors import describe, is_tensor

log = logging.getLogger("segue")


class Sizes:
    """Gives a session the modules for the extents of a batch, compiled when such a batch comes first."""

    def __init__(self, modules: Mapping[str, Module], session: "_runtime.Session", device: "_runtime.Device"):
        self._modules, self._session, self._device = modules, session, device
        self._most = min(m.max_variants for m in modules.values())
        self._known: dict[tuple[Any, ...], Program] = {}  # the last module's, by the shapes of a batch and whether it is of evaluations
        self._first: dict[str, Any] | None = None
        self._has_dropout = False
        if not any(isinstance(m, LoadedModule) for m in modules.values()):  # a file holds one variant
            captured = [m._primary.captured for m in modules.values()]
            self._first = {a.name: a for each in captured for a in each.named("input")}
            self._has_dropout = any(a.name == "seed" for each in captured for a in each.named("hyper"))
        self._padder, self._fills = _padder_of(modules)

    @property
    def rows(self) -> int | None:
        """The rows of the batches that the modules were compiled for; None for modules of files, which have programs for no others."""
        first = next(iter((self._first or {}).values()), None)
        return first.shape[0] if first is not None and first.shape else None

    def padded(self, batch: Mapping[str, Any]) -> tuple[Mapping[str, Any], int | None]:
        """The batch with inputs padded to their bucket, where modules have buckets, and the length that it had.

        Raises
        ------
        InvalidArgumentError
            The batch is longer than the longest bucket.
        LayoutMismatchError
            Its inputs are of different lengths.
        """
        return (batch, None) if self._padder is None else self._padder.pad_named(batch, self._fills)

    def cut(self, outputs: Mapping[str, Any], batch: Mapping[str, Any], length: int | None) -> dict[str, Any]:
        """The outputs of the last module for this padded batch, as long as the batch was."""
        if length is None:
            return dict(outputs)
        key = self._key(batch)
        program = self._known.get((self._has_dropout, key)) or self._known.get((False, key)) or list(self._modules.values())[-1]._primary
        names = [r.name for r in program.captured.results]
        assert program.padding is not None  # the batch was padded for it
        return {name: program.padding.cut(names.index(name), tensor, length) for name, tensor in outputs.items()}

    def _key(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shapes of what the batch has of the modules' inputs."""
        return tuple(sorted((name, describe(tensor)[0]) for name, tensor in batch.items() if is_tensor(tensor) and name in (self._first or {})))

    def forget(self) -> None:
        """The session has dropped them."""
        self._known.clear()

    def ensure(self, batch: Mapping[str, Any], binary_of: Callable[[str, Program], "_runtime.Binary"], *, evaluates: bool = False) -> None:
        """Has programs for this batch, if its extents are what stands in the way; what else is wrong the session says.

        `binary_of` makes the binary of a program of the module of a name, as the session's first ones were made. (It is a trainer's, which
        goes as soon as nobody has it any more, with its memory: it is not kept.) `evaluates`: dropout is off in them. With Selective Precision it stays on where it was, which a warning says once.

        Raises
        ------
        InvalidArgumentError
            There are as many sets of extents as a module keeps variants (`max_variants`).
        Error
            With code ``UNSUPPORTED``: the session has Selective Precision, which has measured the programs of one set of extents.
        """
        if self._first is None:
            return
        given = {name: describe(tensor) for name, tensor in batch.items() if is_tensor(tensor)}
        shapes = {name: shape for name, (shape, _) in given.items() if name in self._first}
        is_first = all(tuple(shape) == tuple(self._first[name].shape) for name, shape in shapes.items())
        is_apart = evaluates and self._has_dropout
        if is_first and not is_apart:
            return
        key = (is_apart, self._key(batch))
        if key in self._known:
            return
        for name, shape in shapes.items():
            wanted = self._first[name]
            if len(shape) != len(wanted.shape) or 0 in shape or given[name][1] != wanted.dtype:
                return
        if sum(apart == is_apart for apart, _ in self._known) + (not is_apart) >= self._most:
            raise InvalidArgumentError(
                f"a batch of shapes {', '.join(f'{n}: {list(s)}' for n, s in key[1])}: the modules are there for {self._most} sets of extents "
                "already (max_variants of segue.compile); pad batches to fewer lengths")
        try:
            programs = self._programs(shapes, is_apart)
        except ExportError as error:
            given_ones = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
            first_ones = ", ".join(f"{name}: {list(self._first[name].shape)}" for name in shapes)
            raise LayoutMismatchError(f"LAYOUT_MISMATCH: the batch has {given_ones}; the modules were compiled for {first_ones}, and cannot be compiled for the "
                                      f"batch: {error}") from error
        try:
            binaries = [(name, program.binary(None, on=self._device) if is_apart else binary_of(name, program)) for name, program in programs.items()]
            self._session.add_sizes(binaries, is_apart)
        except UnsupportedError:
            if not is_first:
                raise
            log.warning("evaluating with dropout as in training: Selective Precision has measured the programs of one set, which has it")
        self._known[key] = list(programs.values())[-1]

    def _programs(self, shapes: dict[str, tuple[Any, ...]], evaluates: bool) -> dict[str, Program]:
        """Of each module; an input that another one gives has the shape that this has now."""
        programs: dict[str, Program] = {}
        made: dict[tuple[Any, ...], Any] = {}  # shapes that results have, by those that they had
        for name, module in self._modules.items():
            inputs = {a.name: shapes.get(a.name) or made.get((tuple(a.shape), a.dtype), a.shape)
                      for a in module._primary.captured.named("input")}
            programs[name] = module.program_for(inputs, evaluates=evaluates)
            for old, new in zip(module._primary.captured.results, programs[name].captured.results, strict=True):
                made[tuple(old.shape), old.dtype] = new.shape
        return programs


def _padder_of(modules: Mapping[str, Module]) -> tuple[Bucketing | None, dict[str, Any]]:
    """What pads batches, and with what, by input. Raises InvalidArgumentError where modules have other buckets than the first."""
    all_of_them = [m.bucketing for m in modules.values()]
    first = all_of_them[0]
    for name, one in zip(modules, all_of_them):
        if (one and (one.buckets.lengths, one.buckets.dim)) != (first and (first.buckets.lengths, first.buckets.dim)):
            raise InvalidArgumentError(f"module {name!r} has {one.buckets if one else 'no buckets'}, and the first has {first.buckets if first else 'none'}; "
                                       "modules of a trainer see one length, compile all with the same buckets")
    return first, {name: fill for one in all_of_them if one for name, fill in one.fills.items()}
