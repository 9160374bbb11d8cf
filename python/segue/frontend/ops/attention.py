# ===- attention.py - attention, whole or in products ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Attention and its gradient: `segue.attention`, which the library computes, or products where that has no such type.

Queries, keys and values are [batch, heads, rows, dim]; the logarithms of sums of exponentials are [batch, heads, rows].
"""

from __future__ import annotations

import math

import torch

from ..writer import Dropout, Value
from .. import dropped_attention as _operator  # noqa: F401, registers it
from .table import NodeBuilder, Unsupported, lowers

_HEADS = ([0, 1], [0, 1])


def scores_of(b: NodeBuilder, q: Value, k: Value, mask: Value | None, causal: bool, scale: float) -> Value:
    """What goes into the softmax, [batch, heads, rows, keys]."""
    scores = b.dot_general(q, k, _HEADS, ([3], [3]))
    scores = b.binary("mul", scores, b.constant(scale, (), q.dtype))
    hidden = b.constant(-math.inf, (), q.dtype)
    if causal:
        rows, keys = b.iota(0, scores.shape[2:]), b.iota(1, scores.shape[2:])
        scores = b.select(b.compare("le", keys, rows), scores, hidden)
    if mask is not None:
        scores = b.binary("add", scores, mask) if mask.is_float else b.select(mask, scores, hidden)
    return scores


def is_written_out(q: Value) -> bool:
    """Whether attention over such queries is products: the library has none of that type. They drop no weights."""
    return q.dtype == torch.float64


def attention(b: NodeBuilder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float,
              dropout: Dropout | None = None) -> list[Value]:
    """The result, zeros in a row that sees no key, and the logarithm of the sum of exponentials per row."""
    if not is_written_out(q):
        return b.attention(q, k, v, mask, causal, scale, dropout)
    scores = scores_of(b, q, k, mask, causal, scale)
    peak = _finite(b, b.reduce("max", scores, [3], keepdim=True))
    total = b.reduce("sum", b.writer.unary("exp", b.binary("sub", scores, peak)), [3], keepdim=True)
    lse = b.reshape(b.binary("add", b.writer.unary("log", total), peak), scores.shape[:3])
    return [b.dot_general(_weights(b, scores, lse), v, _HEADS, ([3], [2])), lse]


def attention_grad(b: NodeBuilder, q: Value, k: Value, v: Value, mask: Value | None, out: Value, lse: Value,
                   grad: Value, causal: bool, scale: float, dropout: Dropout | None = None) -> list[Value]:
    """Gradients for q, k and v."""
    if not is_written_out(q):
        return b.attention_grad(q, k, v, mask, out, lse, grad, causal, scale, dropout)
    weights = _weights(b, scores_of(b, q, k, mask, causal, scale), lse)
    slope = b.binary("sub", b.dot_general(grad, v, _HEADS, ([3], [3])),
                     b.reduce("sum", b.binary("mul", grad, out), [3], keepdim=True))
    scores = b.binary("mul", b.binary("mul", weights, slope), b.constant(scale, (), q.dtype))
    return [b.dot_general(scores, k, _HEADS, ([3], [2])), b.dot_general(scores, q, _HEADS, ([2], [2])),
            b.dot_general(weights, grad, _HEADS, ([2], [2]))]


def _dropout_of(b: NodeBuilder, noise: Value, p: float) -> Dropout:
    number = b.random_id_of(noise)
    if number is None:
        raise Unsupported("attention that drops weights by numbers which are not drawn in the graph")
    return Dropout(p, number)


@lowers("segue.dropped_attention.default")
def dropped_attention(b: NodeBuilder, query: Value, key: Value, value: Value, mask: Value | None, noise: Value, p: float,
                      causal: bool, scale: float) -> list[Value]:
    return attention(b, query, key, value, mask, causal, scale, _dropout_of(b, noise, p))


@lowers("segue.dropped_attention_backward.default")
def dropped_attention_backward(b: NodeBuilder, grad: Value, query: Value, key: Value, value: Value, mask: Value | None, noise: Value,
                               out: Value, lse: Value, p: float, causal: bool, scale: float) -> list[Value]:
    return attention_grad(b, query, key, value, mask, out, lse, grad, causal, scale, _dropout_of(b, noise, p))


def _weights(b: NodeBuilder, scores: Value, lse: Value) -> Value:
    return b.writer.unary("exp", b.binary("sub", scores, _finite(b, b.reshape(lse, lse.shape + (1,)))))


def _finite(b: NodeBuilder, x: Value) -> Value:
    """0 where a row sees no key, so that minus infinity less that stays minus infinity."""
    return b.select(b.compare("eq", x, b.constant(-math.inf, (), x.dtype)), b.constant(0.0, (), x.dtype), x)
