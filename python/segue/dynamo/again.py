# ===- again.py - derivatives of derivatives -------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Backward that is to be differentiated once more (`create_graph=True`) is run by PyTorch, from the graph that TorchDynamo captured.

AOTAutograd compiles one backward, whose gradients cannot be differentiated: it
raises when somebody tries. Here a hook on the node of a call replaces these
gradients, where a graph of them is wanted, by those of PyTorch's own operators,
which run forward again. Who wants no such graph pays for a hook.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Sequence, cast

import torch
from torch.autograd.graph import Node

from ..errors import FallbackWarning, InvalidArgumentError
from ..frontend.autocast import Around
from .boxed import Compiled


def differentiable_again(name: str, graph_module: torch.fx.GraphModule, compiled: Compiled) -> Compiled:
    """The compiled function of the graph, with gradients that can be differentiated."""

    def run(*args: object) -> Any:
        versions = [_version(a) for a in args]
        results = compiled(*args)
        if (node := _node_of(results)) is not None:
            places = [_place(r, node) for r in results]
            node.register_hook(_Again(name, graph_module, args, versions, places, Around.now(), node.next_functions))
        return results

    return run


def _node_of(results: Sequence[object]) -> Node | None:
    """The node of the call in PyTorch's graph."""
    for result in results:
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and node.name() == "CompiledFunctionBackward":
            return node
    return None


def _place(result: object, node: Node) -> int | None:
    """Which result of the node this is; None for one that is another's view, or needs no gradient."""
    return result.output_nr if isinstance(result, torch.Tensor) and result.grad_fn is node else None


def _version(value: object) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def _random_states(gpus: list[int]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


@dataclass(frozen=True, eq=False)
class _Again:
    """A hook behind the node of one call: gives its gradients anew, where they are to be differentiated."""

    name: str
    graph_module: torch.fx.GraphModule
    args: tuple[object, ...]
    versions: list[int | None]
    places: list[int | None]
    autocast: Around
    edges: tuple[tuple[Node | None, int], ...]

    def __call__(self, found: Sequence[torch.Tensor | None],
                 given: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...] | None:
        if not torch.is_grad_enabled():
            return None
        changed = [i for i, (a, v) in enumerate(zip(self.args, self.versions)) if _version(a) != v]
        if changed:
            raise InvalidArgumentError(
                f"{self.name}: a backward with create_graph=True runs forward again in PyTorch, and argument {changed[0]}, of shape "
                f"{list(cast(torch.Tensor, self.args[changed[0]]).shape)}, was changed in place by the call or since (as the "
                "running statistics of batch_norm are)")
        warnings.warn(f"{self.name}: gradients that are to be differentiated (create_graph=True) are computed by PyTorch", FallbackWarning,
                      stacklevel=2)
        wanted: dict[tuple[Node | None, int], int] = {}
        for place, (node, number) in enumerate(self.edges):
            wanted.setdefault((node, number), place)
        inputs: list[torch.Tensor] = []
        places: list[int] = []
        for arg in self.args:
            if isinstance(arg, torch.Tensor) and arg.requires_grad:
                edge = torch.autograd.graph.get_gradient_edge(arg)
                if (edge.node, edge.output_nr) in wanted:
                    inputs.append(arg)
                    places.append(wanted[edge.node, edge.output_nr])
        gpus = sorted({a.device.index for a in self.args if isinstance(a, torch.Tensor) and a.is_cuda})
        with torch.random.fork_rng(gpus):
            before = _random_states(gpus)
            with self.autocast.entered():
                results = self.graph_module(*self.args)
            drew = any(not torch.equal(a, b) for a, b in zip(before, _random_states(gpus)))
        if drew:
            raise InvalidArgumentError(f"{self.name}: a backward with create_graph=True runs forward again in PyTorch, which would draw other random "
                                       "numbers (dropout) than the call did")
        pairs = [(r, given[p]) for r, p in zip(results, self.places) if p is not None and given[p] is not None]
        gradients = torch.autograd.grad([r for r, _ in pairs], inputs, [g for _, g in pairs], create_graph=True, allow_unused=True)
        answer = list(found)
        for place, gradient in zip(places, gradients):
            answer[place] = gradient
        return tuple(answer)
