# ===- test_equal_nodes.py - equal values of a graph are computed once ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What is merged in a joint graph before it is cut, what stays apart, and what the first step of `torch.compile` does without."""

import gc
import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from segue.dynamo.equal_nodes import merge_equal

aten = torch.ops.aten


def twice(first, second):
    return lambda x: first(x).sum() + second(x).sum()


def sines_of_a_changed(x):
    y = x.clone()
    a = y.sin()
    y.add_(1)
    return a.sum() + y.sin().sum()


@pytest.mark.parametrize("function, merged", [
    (twice(lambda x: x.exp() * 2, lambda x: x.exp() * 2), 3),  # and the sums
    (twice(lambda x: x * 2, lambda x: x * 2.0), 0),
    (twice(lambda x: x.clamp(min=0.0), lambda x: x.clamp(min=-0.0)), 0),
    (twice(lambda x: x.clamp(min=float("nan")), lambda x: x.clamp(min=float("nan"))), 2),
    (twice(lambda x: x[0:2], lambda x: x[0:3]), 0),
    (twice(lambda x: torch.rand_like(x), lambda x: torch.rand_like(x)), 0),
    (twice(lambda x: torch.cat([x, x]), lambda x: torch.cat([x, x], 0)), 2),
    (twice(lambda x: torch.cat([x, x], 1), lambda x: torch.cat([x, x], 0)), 0),
    (lambda x: x.max(1).values + x.max(1).indices, 3),  # and what is taken of both
    (sines_of_a_changed, 0),
    (lambda x: (x.exp(), x.exp()), 0),  # two tensors of the caller's
    (lambda x: (x.exp().t(), x.exp()), 0),
    (lambda x: (x.exp().sum(), x.exp().sum() + 1), 1),  # the sum that is a result stays apart, what it reads does not
])
def test_what_is_merged(function, merged):
    x = torch.rand(4, 4)
    with torch.random.fork_rng():
        graph = make_fx(function, tracing_mode="fake")(x)
        before, random = graph.graph, torch.get_rng_state()
        expected = graph(x.clone())
        assert merge_equal(before) == merged
        graph.recompile()
        graph.graph.lint()
        torch.set_rng_state(random)
        torch.testing.assert_close(graph(x.clone()), expected, rtol=0, atol=0, equal_nan=True)


def test_sizes_are_merged():
    graph = make_fx(lambda x: x.view(x.shape[0] * 2, -1).sum() + x.view(x.shape[0] * 2, -1).sum(), tracing_mode="symbolic")(torch.rand(4, 4))
    merge_equal(graph.graph)
    graph.graph.eliminate_dead_code()
    assert len(graph.graph.find_nodes(op="call_function", target=aten.view.default)) == 1


def test_the_first_step_imports_no_other_compiler():
    script = """
import gc, sys, torch, segue
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
torch.compile(model, backend="segue", options={"fallback": "error"})(torch.ones(2, 4)).sum().backward()
assert gc.isenabled()
print([name for name in sys.modules if name in ("torch._inductor.pattern_matcher", "torch._inductor.lowering")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("was_on", [False, True])
def test_the_collector_of_cycles_is_as_it_was(was_on):
    (gc.enable if was_on else gc.disable)()
    try:
        torch.compile(lambda x: x * 2, backend="segue")(torch.ones(2))
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
