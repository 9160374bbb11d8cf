# ===- batches.py - what a loader gives, by the names of the modules' inputs ---------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Batches as loaders make them (tensors, tuples, lists, mappings) become tensors by the names of the modules' inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Iterator, Sequence

from . import _runtime
from .arguments import what_is
from .errors import InvalidArgumentError
from .tensors import describe, is_tensor


class BatchNames:
    """Names the tensors of batches.

    A mapping has the names already; what in it is no tensor, as the texts that a batch was made of, is left out. A tuple or
    list, nested ones too, has a tensor for each input that comes from outside, in the order of the modules and of their
    inputs. A tuple with field names that are those of inputs is taken by them.

    Parameters
    ----------
    binaries : sequence of (name, Binary)
        The modules of a trainer, in their order.
    to_batch : callable, optional
        Makes one of the above of whatever the loader gives.
    """

    def __init__(self, binaries: Sequence[tuple[str, "_runtime.Binary"]], to_batch: Callable[[Any], Any] | None = None):
        self._modules = [(name, *_ports(binary)) for name, binary in binaries]
        self._to_batch = to_batch
        self._outside: list[str] | None = None

    def __call__(self, batch: Any) -> dict[str, Any]:
        """The tensors by name. Raises InvalidArgumentError where the names cannot be told."""
        if self._to_batch is not None:
            batch = self._to_batch(batch)
        if isinstance(batch, Mapping):
            return {name: value for name, value in batch.items() if is_tensor(value)}
        fields = getattr(batch, "_fields", ())
        if fields and set(fields) <= {value.name for _, inputs, _ in self._modules for value in inputs}:
            return dict(zip(fields, batch))
        if not is_tensor(batch) and not isinstance(batch, (tuple, list)):
            if hasattr(batch, "__iter__") and not isinstance(batch, (str, bytes)):
                raise InvalidArgumentError(f"a batch is {what_is(batch)}; if it has batches, give it to trainer.fit(...), or step with each of them. If it is "
                                           "one batch, give fit to_batch=, a function that makes a mapping of names to tensors of it")
            raise InvalidArgumentError(f"a batch is {what_is(batch)}, whose tensors have no names that could be told; give fit "
                                       "to_batch=, a function that makes a mapping of names to tensors of it")
        tensors = list(_leaves(batch))
        names = self._names_from_outside()
        if len(tensors) != len(names):
            raise InvalidArgumentError(f"a batch has {_count(len(tensors), 'tensor')}, and the modules take {_count(len(names), 'input')} from "
                                       f"outside: {', '.join(names)}. Let the loader give a mapping of names to tensors, or give fit to_batch=, "
                                       "a function that makes one of a batch")
        return dict(zip(names, tensors))

    def _names_from_outside(self) -> list[str]:
        """The inputs that no module before gives, each name once: what a batch without names has tensors for."""
        if self._outside is None:
            outside: dict[str, None] = {}
            left: list[tuple[Any, ...]] = []  # what the module before gives, and nobody has taken
            for module, inputs, outputs in self._modules:
                free = [value for value in inputs if value.name not in outside]
                for value in free:
                    rivals = [other for other in free if _type_of(other) == _type_of(value)]
                    given = left.count(_type_of(value))
                    if given and len(rivals) > given:
                        raise InvalidArgumentError(
                            f"a batch without names was given, and which of the inputs {', '.join(other.name for other in rivals)} of module "
                            f"{module!r} come from the module before it cannot be told: all are {value.element}{list(value.shape)}. Let the "
                            "loader give a mapping of names to tensors, or give fit to_batch=, a function that makes one of a batch")
                for value in free:
                    if _type_of(value) in left:
                        left.remove(_type_of(value))
                    else:
                        outside[value.name] = None
                left = [_type_of(value) for value in outputs if value.name != "loss"]
            self._outside = list(outside)
        return self._outside


def rows_of(batch: Mapping[str, Any]) -> int:
    """The rows of a batch by name: the first extent of its first tensor that has one."""
    return next((shape[0] for shape, _ in map(describe, batch.values()) if shape), 1)


def _ports(binary: "_runtime.Binary") -> tuple[list[Any], list[Any]]:
    """The inputs and outputs that a module shows to its neighbours."""
    forward = next(program for program in binary.programs if program.name == "forward")
    return [v for v in forward.inputs if v.role == "input"], [v for v in forward.outputs if v.role == "output"]


def split(batch: Mapping[str, Any], count: int, most_rows: int | None) -> list[dict[str, Any]]:
    """The rows of a batch in `count` micro-batches of as many rows each.

    Rows that `count` does not divide, as those of a last partial batch, go into the fewest equal micro-batches of at most `most_rows`,
    so that the mean over micro-batches is the mean over rows. Without `most_rows` they are refused.

    Raises
    ------
    InvalidArgumentError
        A tensor's rows cannot be split so.
    """
    shapes = {name: describe(tensor)[0] for name, tensor in batch.items()}
    if most_rows and shapes and all(shapes.values()):
        rows = next(iter(shapes.values()))[0]
        if rows and rows % count:
            count = next(k for k in range(1, rows + 1) if rows % k == 0 and rows // k <= most_rows)
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, tensor in batch.items():
        shape = shapes[name]
        if not shape or shape[0] % count:
            raise InvalidArgumentError(f"batch tensor {name!r} has shape {list(shape)}; its rows are split in {count} micro-batches")
        size = shape[0] // count
        for i, part in enumerate(parts):
            part[name] = tensor[i * size : (i + 1) * size]
    return parts


def _type_of(value: "_runtime.Value") -> tuple[Any, ...]:
    return tuple(value.shape), value.element


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (tuple, list)):
        for each in batch:
            yield from _leaves(each)
    else:
        yield batch


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
