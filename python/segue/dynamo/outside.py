# ===- outside.py - a piece of a program that PyTorch runs -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A piece with what Segue lacks: PyTorch's own kernels and derivatives, counted and timed for the report."""

from __future__ import annotations

import time
from typing import Any, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition

from .again import differentiable_again
from .boxed import Boxed, Compiled, Flat, boxed
from .pieces import operators_in
from .report import COUNTERS, SegmentReport, enter
from .segment import next_number
from .views import make_strides_free


class Outside:

    def __init__(self, name: str, graph_module: torch.fx.GraphModule):
        self.number = next_number()
        self.name = f"{name}#{self.number}"
        self.reasons: tuple[str, ...] = ()
        self.operators = operators_in(graph_module)
        self.seconds, self.trains = 0.0, False
        self._graph_module = graph_module
        enter(self)

    def compile(self, example_inputs: Sequence[object]) -> Compiled:
        """A function of the inputs. AOTAutograd takes nothing apart here, and shows where backward runs."""
        compiler = aot_autograd(fw_compiler=self._forward, bw_compiler=self._timed, inference_compiler=self._timed,
                                partition_fn=default_partition, decompositions={})
        try:
            return differentiable_again(self.name, self._graph_module, compiler(self._graph_module, example_inputs))
        except Exception:  # what PyTorch cannot trace it runs as it is; backward is not in the time then
            return self._as_it_is

    def _as_it_is(self, *args: object) -> Any:
        began = time.perf_counter()
        results = self._graph_module.forward(*args)
        self.seconds += time.perf_counter() - began
        return results

    def _forward(self, graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Boxed:
        self.trains = True
        return self._timed(graph, inputs)

    def _timed(self, graph: torch.fx.GraphModule, _: Sequence[object]) -> Boxed:
        make_strides_free(graph)

        def run(args: Flat) -> Flat:
            began = time.perf_counter()
            results: Flat = graph.forward(*args)
            self.seconds += time.perf_counter() - began
            return results

        return boxed(run)

    def report(self) -> SegmentReport:
        return SegmentReport(self.name, False, self.trains, self.reasons, 0, 0, 0, 0, dict.fromkeys(COUNTERS, 0),
                             self.operators, self.seconds)
