# ===- table.py - how a lowering is entered ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How a lowering is entered in the table, and what it is given to work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence, TypeVar

import torch
from torch.types import Number

from ..writer import GraphWriter, Value, compute_type

#: What a lowering gives: the result of its operator, or a list where it has several, with None for one that is not read.
Lowered = Value | list[Value] | list[Value | None]

#: What an operator takes in the place of either: a tensor, or a number of Python's.
ValueOrNumber = Value | Number

#: Operator ("aten.add.Tensor") -> function(builder, *args, **kwargs).
OPS: dict[str, Callable[..., Lowered]] = {}

_Lowering = TypeVar("_Lowering", bound=Callable[..., Lowered])


def lowers(*names: str) -> Callable[[_Lowering], _Lowering]:
    """Enter a function in the table under the given operators."""

    def enter(function: _Lowering) -> _Lowering:
        for name in names:
            assert name not in OPS, f"{name} is entered twice"
            OPS[name] = function
        return function

    return enter


class Unsupported(Exception):
    """Raised by a lowering for an argument that it cannot express; the text says which."""


if TYPE_CHECKING:
    _Writer = GraphWriter
else:
    _Writer = object


class NodeBuilder(_Writer):
    """The writer, with what PyTorch knows of the results of the node at hand. All that the writer has the builder has, too.

    Attributes
    ----------
    writer : GraphWriter
    results : what PyTorch computed, without values: shapes and element types
    used : which of several results the graph reads
    shape, dtype : of the first result of the node
    layout : strides and offset of the first operand in PyTorch's memory, in elements; None if it is no tensor
    wide : the element type in which that is computed
    """

    def __init__(self, writer: GraphWriter, results: Sequence[torch.Tensor], used: set[int],
                 layout: tuple[list[int], int] | None = None) -> None:
        self.writer = writer
        self.results = results
        self.used = used
        self.layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.results[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.results[0].dtype

    @property
    def wide(self) -> torch.dtype:
        """In which sums of the first result are computed: f64 for f64, f32 for other floats."""
        return compute_type(self.dtype)

    if not TYPE_CHECKING:  # where the writer is the base, and what neither has is an error

        def __getattr__(self, name: str):
            return getattr(self.writer, name)

    def value(self, x: ValueOrNumber, dtype: torch.dtype) -> Value:
        """`x` as a value of `dtype`; a Python number becomes a scalar constant."""
        return self.writer.cast(x, dtype) if isinstance(x, Value) else self.writer.constant(x, (), dtype)

    def promoted(self, *xs: ValueOrNumber) -> list[Value]:
        """Values of one element type, by PyTorch's promotion of tensors, scalars and numbers."""
        dtype = promoted_type(*xs)
        return [self.value(x, dtype=dtype) for x in xs]

    def unary(self, name: str, x: Value, attributes: str = "") -> Value:
        """Operands are taken to the element type of the result: integers to a float, where PyTorch does that."""
        return self.writer.unary(name, self.writer.cast(x, self.dtype), attributes)


def promoted_type(*xs: ValueOrNumber) -> torch.dtype:
    """The element type in which PyTorch combines tensors and numbers."""
    stand_ins = [
        torch.empty((1,) if x.shape else (), dtype=x.dtype, device="meta") if isinstance(x, Value) else x for x in xs
    ]
    result = stand_ins[0]
    for other in stand_ins[1:]:
        dtype = torch.result_type(result, other)
        dims = max(getattr(result, "ndim", 0), getattr(other, "ndim", 0))
        result = torch.empty((1,) if dims else (), dtype=dtype, device="meta")
    return result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result)


def normalised(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


def all_dims(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Returns dimensions, of which None and the empty list mean all."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(normalised(d, rank) for d in dims) if rank else []
