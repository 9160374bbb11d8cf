# ===- variant.py - the programs of a segment for one set of sizes -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The programs of a segment for one set of sizes, called as AOTAutograd calls graphs.

What forward saves for backward is one opaque token of the runtime. AOTAutograd
wants tensors, so each saved tensor is a *placeholder*: one byte of memory that
keeps the token alive, known by its address. When PyTorch drops its graph, the
placeholder goes, and with it the saved values.
"""

from __future__ import annotations

import math
import weakref
from typing import Sequence

import torch

from .. import _runtime, verify
from ..budgets import DeviceBudget, loop_of
from ..errors import InvalidArgumentError
from ..frontend.fx import placeholders, results
from ..frontend.graphs import SEED, BackwardPlan, CapturedGraphs, Empty, ForwardResult, Given, Gradient, Output, Saved
from ..tensors import Order, give, stream_of, wrap
from .boxed import Flat
from .report import COUNTERS

#: By the address of the placeholder.
_alive: "weakref.WeakValueDictionary[int, Kept]" = weakref.WeakValueDictionary()


class Kept:
    """A token, or a tensor that PyTorch saved, and the variant that it belongs to."""

    __slots__ = ("token", "variant", "__weakref__")

    def __init__(self, token: _runtime.Token | torch.Tensor, variant: Variant | InPyTorch):
        self.token, self.variant = token, variant


class Variant:

    def __init__(self, captured: CapturedGraphs, module: "_runtime.Module", name: str, device: "_runtime.Device",
                 static: set[int], budget: DeviceBudget | None = None):
        self.module, self.name, self.device = module, name, device
        self._budget = budget  # in force until the last backward
        self._plan: BackwardPlan | None = captured.backward
        self._inputs, self._results, self._random = captured.inputs, captured.results, captured.random
        self._static = static
        self._unverified: str | None = captured.text
        self._wrapped: dict[int, tuple[int, tuple[int, ...], _runtime.Tensor]] = {}

    # --- forward --------------------------------------------------------------------------

    def forward(self, args: Flat) -> tuple[Flat, int]:
        """Results of the graph, and the bytes that the runtime keeps for backward."""
        if self._unverified is not None:  # at the first call
            if verify.enabled():
                verify.verify_values(self._unverified, self.name, {name: args[position] for position, name in self._inputs},
                                     training=False)
            self._unverified = None
        with Order(self.device) as order:
            return self._forward(args, {name: self._wrap(position, args[position], order) for position, name in self._inputs})

    def _forward(self, args: Flat, values: dict[str, _runtime.Tensor]) -> tuple[Flat, int]:
        if self._random:
            # A new seed per call from torch's generator, so that torch.manual_seed counts.
            values[SEED] = _runtime.Tensor.scalar_i64(self.device, int(torch.randint(0, 2**62, ()).item()))
        given = [args[r.position] if isinstance(r, Given) else None for r in self._results]
        args.clear()
        if self._plan is None:
            outputs = self.module.infer(values, loop_of(self.device))
            return [self._result(r, g, outputs, None) for r, g in zip(self._results, given)], 0
        if hooks_are_active():
            return self._forward_in_the_open(values, given), 0
        outputs, token = self.module.forward(values, loop_of(self.device))
        placeholder = None
        if any(isinstance(r, Saved) for r in self._results):
            placeholder = _placeholder(token, self)
        memo: dict[int, torch.Tensor] = {}
        return [self._result(r, g, outputs, placeholder, memo) for r, g in zip(self._results, given)], token.saved_bytes

    def _result(self, result: ForwardResult, given: object, outputs: Sequence[_runtime.Tensor],
                placeholder: torch.Tensor | None, memo: dict[int, torch.Tensor] | None = None) -> object:
        if isinstance(result, Output):
            if memo is None:
                return _torch(outputs[result.place], result)
            if result.place not in memo:
                memo[result.place] = _torch(outputs[result.place], result)
            return memo[result.place]
        if isinstance(result, Given):
            return given
        if isinstance(result, Empty):
            return torch.empty(result.shape, dtype=result.dtype, device=result.device)
        return placeholder if isinstance(result, Saved) else result.value

    def _forward_in_the_open(self, values: dict[str, _runtime.Tensor], given: Flat) -> Flat:
        """With hooks on saved tensors (`torch.autograd.graph.saved_tensors_hooks`) they are what they seem."""
        program = self._program("forward")
        outputs = _runtime.submit(self.device, program, [values[v.name] for v in program.inputs], loop_of(self.device))
        named = dict(zip((v.name for v in program.outputs), outputs))
        memo: dict[int, torch.Tensor] = {}
        found: Flat = []
        for result, tensor in zip(self._results, given):
            if isinstance(result, Saved):
                source = values[SEED] if result.name == SEED else None if result.name is None else named.get(result.name)
                found.append(torch.empty(0, device=result.device) if source is None else give(source, _kind_on(result.device)))
            else:
                found.append(self._result(result, tensor, outputs, None, memo))
        return found

    # --- backward -------------------------------------------------------------------------

    def backward(self, args: Flat, kept: Kept | None, is_needed_again: bool = False) -> Flat:
        """Gradients of the arguments of forward. `kept` is what forward kept in the runtime, if it did; it stays there if it is needed again."""
        with Order(self.device) as order:
            return self._backward(args, kept, order, is_needed_again)

    def _backward(self, args: Flat, kept: Kept | None, order: Order, is_needed_again: bool) -> Flat:
        plan = self._backward_plan()
        gradients = {name: wrap(args[position] if dims is None else args[position].permute(dims), self.device, order)
                     for position, name, dims in plan.gradients}
        passed = [args[r.position] if isinstance(r, Given) else None for r in plan.results]
        if kept is not None:
            assert isinstance(kept.token, _runtime.Token), "what a program keeps is a token"
            token, values = kept.token, None
        else:
            token = _runtime.Token()
            values = {name: wrap(args[position], self.device, order) for position, name in plan.values}
            values |= {name: self._unhidden(name, args[position], order) for position, name in plan.saved if name is not None}
        args.clear()
        keep = is_needed_again or torch._C._autograd._get_current_graph_task_keep_graph()
        found = self.module.backward(token, gradients, keep, values, loop_of(self.device))
        return [give(found[r.name], _kind_on(r.device)) if isinstance(r, Gradient) else p if isinstance(r, Given) else
                torch.empty(r.shape, dtype=r.dtype, device=r.device) if isinstance(r, Empty) else r.value
                for r, p in zip(plan.results, passed)]

    def _unhidden(self, name: str, tensor: torch.Tensor, order: Order) -> "_runtime.Tensor":
        """A saved tensor that hooks gave back."""
        wanted = next(v for v in self._program("backward").inputs if v.name == name)
        if tuple(tensor.shape) != tuple(wanted.shape):
            raise InvalidArgumentError(
                f"{self.name}: a saved tensor is a {tensor.dtype} of shape {list(tensor.shape)} where backward wants "
                f"{wanted!r}: its placeholder was copied and dropped. Saved values stay in the runtime; enter saved-tensor "
                "hooks before forward, so that it gives them out")
        return wrap(tensor, self.device, order)

    def fits(self, args: Flat) -> bool:
        """True if the arguments of a backward have the sizes of this variant."""
        plan = self._backward_plan()
        shapes = {v.name: tuple(v.shape) for v in self._program("backward").inputs}
        return all(shapes[name] == tuple(args[position].shape) for position, name in plan.values) and all(
            math.prod(shapes[f"grad.{name}"]) == args[position].numel() for position, name, _ in plan.gradients)

    def _backward_plan(self) -> BackwardPlan:
        assert self._plan is not None, f"{self.name} has no backward"
        return self._plan

    def _program(self, name: str) -> _runtime.Program:
        program = self.module.program(name)
        assert program is not None, f"{self.name} has no program {name}"
        return program

    # --- tensors --------------------------------------------------------------------------

    def _wrap(self, position: int, tensor: torch.Tensor, order: Order) -> "_runtime.Tensor":
        """Parameters and buffers are wrapped again only where their memory is another one."""
        if position not in self._static:
            return wrap(tensor, self.device, order)
        known = self._wrapped.get(position)
        if known is None or known[0] != tensor.data_ptr() or known[1] != tensor.stride():
            known = (tensor.data_ptr(), tensor.stride(), wrap(tensor, self.device, order))
            self._wrapped[position] = known
        elif tensor.is_cuda:
            known[2].go_behind(order.behind(stream_of(tensor)))
        return known[2]

    def counters(self) -> dict[str, int]:
        """Returns what aligning the inputs of its programs has cost."""
        total = dict.fromkeys(COUNTERS, 0)
        for name in ("forward", "backward"):
            program = self.module.program(name)
            if program is not None:
                found = _runtime.counters(self.device, program)
                for counter in COUNTERS:
                    total[counter] += found[counter]
        return total


class InPyTorch:
    """The graphs of a segment as PyTorch runs them, for sizes that no program is compiled for."""

    def __init__(self, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule | None, outputs: int):
        self._forward, self._backward = forward, backward
        nodes = results(forward.graph)
        known = {*(n for n in nodes[:outputs] if isinstance(n, torch.fx.Node)), *placeholders(forward.graph)}
        # If a tensor is saved that is neither an input nor an output, backward must know that it was not a program's.
        self._marked = next((i for i, n in enumerate(nodes[outputs:], outputs) if isinstance(n, torch.fx.Node)
                             and n not in known and isinstance(n.meta.get("val"), torch.Tensor)), None)

    def forward(self, args: Flat) -> Flat:
        found = list(self._forward.forward(*args))
        args.clear()
        if self._marked is not None:
            found[self._marked] = _placeholder(found[self._marked], self)
        return found

    def backward(self, args: Flat, kept: Kept) -> Flat:
        """`kept` has the saved tensor that its placeholder stands for."""
        given = [kept.token if isinstance(a, torch.Tensor) and _alive.get(a.data_ptr()) is kept else a for a in args]
        args.clear()
        assert self._backward is not None, "a segment without backward keeps nothing"
        return list(self._backward.forward(*given))


def _placeholder(token: _runtime.Token | torch.Tensor, variant: Variant | InPyTorch) -> torch.Tensor:
    kept = Kept(token, variant)
    placeholder: torch.Tensor = torch.from_dlpack(_runtime.placeholder(kept))  # type: ignore[attr-defined]  # public, and left out of __all__
    _alive[placeholder.data_ptr()] = kept
    return placeholder


def kept_behind(args: Flat) -> Kept | None:
    """Returns what the placeholders among these tensors stand for."""
    for tensor in args:
        if isinstance(tensor, torch.Tensor) and (kept := _alive.get(tensor.data_ptr())) is not None:
            return kept
    return None


def hooks_are_active() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _kind_on(device: torch.device) -> str:
    return "torch there" if device.type == "cuda" else "torch"


def _torch(tensor: "_runtime.Tensor", wanted: Output) -> torch.Tensor:
    result: torch.Tensor = give(tensor, _kind_on(wanted.device))
    order = wanted.order
    if order is None:
        return result
    back = sorted(range(len(order)), key=order.__getitem__)
    return result.permute(back).detach()  # not a view, to autograd
