# ===- sources.py - values from nothing, random values ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators that make values from nothing: fills, ranges, random numbers."""

from __future__ import annotations

from typing import Sequence

import torch
from torch.types import Number

from ..writer import Value
from .table import NodeBuilder, lowers


@lowers("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.empty.memory_format",
        "aten.empty_like.default", "aten.new_empty.default", "aten._efficientzerotensor.default")
def zeros(b: NodeBuilder, *_: object, **__: object) -> Value:
    return b.constant(0, b.shape, b.dtype)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(b: NodeBuilder, *_: object, **__: object) -> Value:
    return b.constant(1, b.shape, b.dtype)


@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(b: NodeBuilder, _: object, fill: Number | Sequence[int], *rest: Number, **__: object) -> Value:
    # full(size, value), full_like(x, value), new_full(x, size, value)
    return b.constant(fill if isinstance(fill, (int, float)) else rest[0], b.shape, b.dtype)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(b: NodeBuilder, value: Number, **__: object) -> Value:
    return b.constant(value, (), b.dtype)


@lowers("aten.arange.default")
def arange_end(b: NodeBuilder, end: Number, **_: object) -> Value:
    return _range(b, 0, 1)


@lowers("aten.arange.start")
def arange_start(b: NodeBuilder, start: Number, end: Number, **_: object) -> Value:
    return _range(b, start, 1)


@lowers("aten.arange.start_step")
def arange_step(b: NodeBuilder, start: Number, end: Number, step: Number = 1, **_: object) -> Value:
    return _range(b, start, step)


def _range(b: NodeBuilder, start: Number, step: Number) -> Value:
    values = b.iota(0, b.shape, b.dtype)
    if step != 1:
        values = b.binary("mul", values, b.constant(step, (), b.dtype))
    return b.binary("add", values, b.constant(start, (), b.dtype)) if start != 0 else values


@lowers("aten.eye.default", "aten.eye.m")
def eye(b: NodeBuilder, *_: object, **__: object) -> Value:
    diagonal = b.compare("eq", b.iota(0, b.shape), b.iota(1, b.shape))
    return b.cast(diagonal, b.dtype)


@lowers("aten.one_hot.default")
def one_hot(b: NodeBuilder, x: Value, num_classes: int = -1) -> Value:
    shape = x.shape + (b.shape[-1],)
    classes = b.iota(len(shape) - 1, shape, x.dtype)
    return b.cast(b.compare("eq", b.broadcast(x, range(x.rank), shape), classes), b.dtype)


# --- random: counter-based, so that recomputation never changes a mask -----------------------


#: Operators whose result is another one at each call.
RANDOM = {"aten.rand.default", "aten.rand_like.default", "aten.bernoulli.default", "aten.bernoulli.p"}


@lowers("aten.rand.default", "aten.rand_like.default")
def rand(b: NodeBuilder, *_: object, **__: object) -> Value:
    return b.cast(b.random(b.shape), b.dtype)


@lowers("aten.bernoulli.default")
def bernoulli(b: NodeBuilder, probability: Value, **_: object) -> Value:
    drawn = b.compare("lt", b.random(b.shape), b.cast(probability, torch.float32))
    return b.cast(drawn, b.dtype)


@lowers("aten.bernoulli.p")
def bernoulli_p(b: NodeBuilder, _: object, p: float = 0.5, **__: object) -> Value:
    return b.cast(b.compare("lt", b.random(b.shape), b.constant(p)), b.dtype)


def dropped(b: NodeBuilder, x: Value, p: float) -> Value:
    """`x` with elements zeroed with probability `p`, the others scaled to keep the mean."""
    if p >= 1.0:
        return b.binary("mul", x, b.constant(0, (), x.dtype))
    keep = b.compare("ge", b.random(x.shape), b.constant(p))
    return b.select(keep, b.binary("mul", x, b.constant(1 / (1 - p), (), x.dtype)), b.constant(0, (), x.dtype))


@lowers("aten.dropout.default")
def dropout(b: NodeBuilder, x: Value, p: float, train: bool) -> Value:
    return dropped(b, x, p) if train and p > 0 else x


@lowers("aten.native_dropout.default")
def native_dropout(b: NodeBuilder, x: Value, p: float, train: bool | None) -> list[Value | None]:
    """What dropout becomes in a graph that wrote to a tensor. The mask is not given: a graph that reads it is refused."""
    return [dropout(b, x, p, train is None or train), None]
