# ===- losses.py - losses -----------------------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Losses. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Sequence

from ..writer import Value
from .elementwise import log1p_exp_of_minus_abs
from .table import NodeBuilder, lowers

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(b: NodeBuilder, losses: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return losses
    return b.reduce("mean" if reduction == _MEAN else "sum", losses, range(losses.rank))


def _rows(b: NodeBuilder, x: Value) -> Value:
    """[N, C, d...] or [C] as [rows, C]."""
    if x.rank == 1:
        return b.reshape(x, (1,) + x.shape)
    moved = b.transpose(x, [0, *range(2, x.rank), 1])
    return b.reshape(moved, (_count(moved.shape) // x.shape[1], x.shape[1]))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _finished(b: NodeBuilder, losses: Value, targets: Value, weights: Value, reduction: int,
              ignore_index: int) -> Value:
    """Rows to the shape of the result; the mean is over the weights of rows that count."""
    if reduction == _NONE:
        return b.cast(b.reshape(losses, b.shape), b.dtype)
    total = b.reduce("sum", losses, [0])
    if reduction == _MEAN:
        total = b.binary("div", total, b.reduce("sum", weights, [0]))
    return b.cast(total, b.dtype)


def _row_weights(b: NodeBuilder, targets: Value, weight: Value | None, ignore_index: int) -> tuple[Value, Value]:
    counts = b.compare("ne", targets, b.constant(ignore_index, (), targets.dtype))
    if weight is None:
        return b.cast(counts, b.wide), counts
    classes = b.select(counts, targets, b.constant(0, (), targets.dtype))
    per_row = b.gather(b.cast(weight, b.wide), classes)
    return b.select(counts, per_row, b.constant(0.0, (), b.wide)), counts


@lowers("aten.cross_entropy_loss.default")
def cross_entropy(b: NodeBuilder, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN,
                  ignore_index: int = -100, label_smoothing: float = 0.0) -> Value:
    if target.is_float:
        return _soft_cross_entropy(b, x, target, weight, reduction, label_smoothing)
    logits, targets = _rows(b, x), b.reshape(target, (_count(target.shape),))
    weights, counts = _row_weights(b, targets, weight, ignore_index)
    losses = b.cross_entropy(logits, targets, ignore_index)
    if weight is not None:
        losses = b.binary("mul", losses, weights)
    if label_smoothing > 0.0:
        # (1 - e) times the loss of the target, e times the mean over the loss of every class.
        minus_log = b.writer.unary("neg", b.softmax(b.cast(logits, b.wide), 1, log=True))
        if weight is not None:
            minus_log = b.binary("mul", minus_log, b.cast(weight, b.wide))
        smooth = b.reduce("mean", minus_log, [1])
        smooth = b.select(counts, smooth, b.constant(0.0, (), b.wide))
        losses = b.binary("add", b.binary("mul", losses, b.constant(1 - label_smoothing, (), b.wide)),
                          b.binary("mul", smooth, b.constant(label_smoothing, (), b.wide)))
    return _finished(b, losses, targets, weights, reduction, ignore_index)


def _soft_cross_entropy(b: NodeBuilder, x: Value, target: Value, weight: Value | None, reduction: int,
                        label_smoothing: float) -> Value:
    """The target is a distribution over the classes."""
    dim = 0 if x.rank == 1 else 1
    if label_smoothing > 0.0:
        target = b.binary("add", b.binary("mul", target, b.constant(1 - label_smoothing, (), target.dtype)),
                          b.constant(label_smoothing / x.shape[dim], (), target.dtype))
    logs = b.softmax(x, dim, log=True)
    if weight is not None:
        logs = b.binary("mul", logs, b.reshape(weight, weight.shape + (1,) * (x.rank - dim - 1)))
    losses = b.writer.unary("neg", b.reduce("sum", b.binary("mul", target, logs), [dim]))
    if reduction == _MEAN:  # over the batch, not over the weights
        total = b.reduce("sum", losses, range(losses.rank))
        return b.binary("mul", total, b.constant(1 / max(_count(losses.shape), 1), (), losses.dtype))
    return _reduced(b, losses, reduction)


@lowers("aten.nll_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss2d.default")
def nll_loss(b: NodeBuilder, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN,
             ignore_index: int = -100) -> Value:
    logs, targets = _rows(b, x), b.reshape(target, (_count(target.shape),))
    weights, _ = _row_weights(b, targets, weight, ignore_index)
    classes = b.iota(1, logs.shape, targets.dtype)
    chosen = b.compare("eq", classes, b.broadcast(targets, [0], logs.shape))
    picked = b.reduce("sum", b.select(chosen, b.cast(logs, b.wide), b.constant(0.0, (), b.wide)), [1])
    losses = b.writer.unary("neg", b.binary("mul", picked, weights))
    return _finished(b, losses, targets, weights, reduction, ignore_index)


@lowers("aten.mse_loss.default")
def mse_loss(b: NodeBuilder, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    difference = b.binary("sub", *b.promoted(x, target))
    return _reduced(b, b.binary("mul", difference, difference), reduction)


@lowers("aten.l1_loss.default")
def l1_loss(b: NodeBuilder, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    return _reduced(b, b.writer.unary("abs", b.binary("sub", *b.promoted(x, target))), reduction)


def _squared_unless(b: NodeBuilder, outside: Value, distance: Value) -> Value:
    """Of an infinite distance, which is outside, the square would give a gradient of infinity times 0; NaN is not."""
    near = b.select(outside, b.constant(0.0, (), distance.dtype), distance)
    return b.binary("mul", near, near)


@lowers("aten.smooth_l1_loss.default")
def smooth_l1_loss(b: NodeBuilder, x: Value, target: Value, reduction: int = _MEAN, beta: float = 1.0) -> Value:
    if beta == 0:
        return l1_loss(b, x, target, reduction)
    distance = b.writer.unary("abs", b.binary("sub", *b.promoted(x, target)))
    outside = b.compare("ge", distance, b.constant(float(beta), (), distance.dtype))
    near = b.binary("mul", _squared_unless(b, outside, distance), b.constant(0.5 / beta, (), distance.dtype))
    far = b.binary("sub", distance, b.constant(0.5 * beta, (), distance.dtype))
    return _reduced(b, b.select(outside, far, near), reduction)


@lowers("aten.huber_loss.default")
def huber_loss(b: NodeBuilder, x: Value, target: Value, reduction: int = _MEAN, delta: float = 1.0) -> Value:
    distance = b.writer.unary("abs", b.binary("sub", *b.promoted(x, target)))
    outside = b.compare("gt", distance, b.constant(float(delta), (), distance.dtype))
    near = b.binary("mul", _squared_unless(b, outside, distance), b.constant(0.5, (), distance.dtype))
    far = b.binary("mul", b.binary("sub", distance, b.constant(0.5 * delta, (), distance.dtype)),
                   b.constant(float(delta), (), distance.dtype))
    return _reduced(b, b.select(outside, far, near), reduction)


@lowers("aten.binary_cross_entropy_with_logits.default")
def bce_with_logits(b: NodeBuilder, x: Value, target: Value, weight: Value | None = None,
                    pos_weight: Value | None = None, reduction: int = _MEAN) -> Value:
    # (1 - t) x + w log(1 + exp(-x)), where w weighs the positive answers, does not overflow so.
    zero, one = b.constant(0.0, (), x.dtype), b.constant(1.0, (), x.dtype)
    soft = b.binary("sub", log1p_exp_of_minus_abs(b, x), b.binary("min", x, zero))
    if pos_weight is not None:
        weighed = b.binary("add", b.binary("mul", b.binary("sub", pos_weight, one), target), one)
        soft = b.binary("mul", soft, weighed)
    losses = b.binary("add", b.binary("mul", b.binary("sub", one, target), x), soft)
    if weight is not None:
        losses = b.binary("mul", losses, weight)
    return _reduced(b, losses, reduction)


@lowers("aten.kl_div.default")
def kl_div(b: NodeBuilder, x: Value, target: Value, reduction: int = _MEAN, *, log_target: bool = False) -> Value:
    if log_target:
        losses = b.binary("mul", b.writer.unary("exp", target), b.binary("sub", target, x))
    else:
        # t log t is 0 for t = 0; the logarithm is of 1 there, whose gradient is finite.
        zero, one = b.constant(0.0, (), x.dtype), b.constant(1.0, (), x.dtype)
        nothing = b.compare("eq", target, zero)
        logs = b.writer.unary("log", b.select(nothing, one, target))
        losses = b.binary("mul", target, b.binary("sub", logs, x))
    return _reduced(b, losses, reduction)
