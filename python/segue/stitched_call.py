# ===- stitched_call.py - a compiled module in a graph of autograd -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A call of a compiled module as one node of PyTorch's graph of autograd."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from . import _runtime
from .again import Again
from .batched_gradients import are_batched, one_by_one
from .budgets import loop_of
from .tensors import Order, give, kind_of, wrap


class StitchedCall:
    """The things that one call of `Stitched` needs besides its tensors."""

    def __init__(self, module: "_runtime.Module", on: "_runtime.Device", names: list[str], others: "dict[str, _runtime.Tensor]", frozen: list[torch.Tensor],
                 budget: Any, again: Again, kind: str, order: Order):
        self.module, self.device, self.names, self.others = module, on, names, others
        self.again = again  # for backwards that are to be differentiated
        self.frozen = frozen
        self.budget = budget  # in force until the last backward
        self.kind = kind  # of results
        self.order = order  # of forward


def _has_version(x: object) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_inference()


class Stitched(torch.autograd.Function):
    """A compiled module in PyTorch's graph: the saved values are one token of the runtime."""

    @staticmethod
    def forward(ctx: Any, call: StitchedCall, *tensors: Any) -> Any:
        values = dict(call.others)
        for name, tensor in zip(call.names, tensors):
            if name not in values:
                values[name] = wrap(tensor, call.device, call.order)
        outputs, token = call.module.forward(values, loop_of(call.device))
        results = tuple(give(t, call.kind) for t in outputs)
        ctx.call, ctx.token = call, token
        ctx.kinds = [kind_of(t) for t in tensors] if call.kind.endswith(" there") else [call.kind] * len(tensors)
        ctx.set_materialize_grads(False)
        # A result without elements is differentiable in PyTorch, and no program takes a gradient of it.
        ctx.mark_non_differentiable(*(r for v, r in zip(call.module.outputs, results) if r.numel() and not call.module.takes_gradient_of(v.name)))
        # Saved so that PyTorch notices if one is changed in place before backward, which may read them all again: frozen
        # weights and buffers too. (Tensors made in inference mode have no versions.)
        ctx.kept = [n for n, t in zip(call.names, tensors) if _has_version(t)]
        ctx.save_for_backward(*filter(_has_version, (*tensors, *call.frozen)), *results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if are_batched(gradients):
            return tuple(one_by_one(lambda each, is_needed_again: Stitched._gradients(ctx, each, is_needed_again), gradients))
        return Stitched._gradients(ctx, gradients)

    @staticmethod
    def _gradients(ctx: Any, gradients: Sequence[Any], is_needed_again: bool = False) -> Any:
        call = ctx.call
        saved = ctx.saved_tensors  # raises if one was changed, or the graph freed
        if torch.is_grad_enabled():  # create_graph=True
            return None, *call.again.gradients(dict(zip(ctx.kept, saved)), call.names, ctx.needs_input_grad[1:], gradients)
        with Order(call.device) as order:
            given = {
                value.name: wrap(gradient.contiguous(), call.device, order)
                for value, gradient in zip(call.module.outputs, gradients)
                if gradient is not None and call.module.takes_gradient_of(value.name)
            }
            keep = is_needed_again or torch._C._autograd._get_current_graph_task_keep_graph()
            found = call.module.backward(ctx.token, given, keep, budget=loop_of(call.device))
        wanted = ctx.needs_input_grad[1:]
        answer = [give(found[n], kind) if w and n in found else None for n, w, kind in zip(call.names, wanted, ctx.kinds)]
        return None, *answer
