# ===- backend.py - the function that torch.compile calls ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The entry point of the backend: one call per piece of a program, with the graph that TorchDynamo captured."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, SkipFrame

from ..errors import Error, FallbackWarning
from ..frontend.nodes import unsupported
from .decompositions import decompositions
from .options import checked
from .segment import Argument, Segment, as_error

_STEP = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
_RESERVED = re.compile(r"(out\d+|seed|grad\..*|saved\..*)$")


def backend(graph_module: torch.fx.GraphModule, example_inputs: list, *, options: Mapping[str, Any] | None = None,
            mode: str | None = None):
    """What ``torch.compile(model, backend="segue", options=...)`` calls; see `segue.dynamo.options.Options`."""
    segment = Segment(_name(graph_module), _arguments(graph_module, example_inputs), checked(options, mode))
    compiler = aot_autograd(
        fw_compiler=segment.compile_forward, bw_compiler=segment.compile_backward,
        inference_compiler=segment.compile_inference, partition_fn=segment.partition, decompositions=decompositions())
    try:
        return compiler(graph_module, example_inputs)
    except (RestartAnalysis, SkipFrame, FallbackWarning):
        raise  # how TorchDynamo itself goes on; a warning that the caller has made an error
    except Exception as error:  # a run never ends because a piece of it cannot be compiled
        segment.fall_back([_as_error(graph_module, segment.name, error)])
        return _as_it_is(graph_module, segment)


def _as_error(graph_module, name: str, error: Exception) -> Error:
    """The error as one of Segue's; PyTorch's own say in their text at which node they were raised."""
    executing = re.search(r"While executing %(\w+)", str(error))
    named = [n for n in graph_module.graph.nodes if executing and n.name == executing[1]]
    if isinstance(error, Error) or not named:
        return as_error(error, name)
    text = " ".join(str(error).partition("While executing")[0].split())[:300]
    return unsupported(named[0], f"PyTorch cannot trace it: {type(error).__name__}: {text}")


def _as_it_is(graph_module, segment):
    """The graph as TorchDynamo captured it; its segment stays in the report."""

    def run(*args):
        return graph_module.forward(*args)

    run.segment = segment
    return run


def _arguments(graph_module, example_inputs) -> list[Argument]:
    """A name for each argument: paths of parameters as in `named_parameters`, names of the function's own arguments."""
    arguments, taken = [], set()
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, given in zip(placeholders, example_inputs):
        source = getattr(node.meta.get("grapharg"), "source", None)
        name = _argument_name(source.name if source is not None else node.name)
        if _RESERVED.match(name):
            name = f"arg.{name}"
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}#{count}"
        taken.add(unique)
        arguments.append(Argument(unique, isinstance(given, torch.Tensor) and given.requires_grad))
    return arguments


def _argument_name(source: str) -> str:
    """"h.0.weight" of "L['self']._modules['h']._modules['0']._parameters['weight']", "x" of "L['x']"."""
    steps = ["".join(found) for found in _STEP.findall(source)]
    own = [s for s in steps if s not in ("_modules", "_parameters", "_buffers")]
    if len(own) > 1 and own != steps:
        own = own[1:]  # the module itself
    return ".".join(own) or source


def _name(graph_module) -> str:
    """Where the piece begins: function, file and line in the code that was given to torch.compile."""
    for node in graph_module.graph.nodes:
        frame = re.search(r'File "([^"]*)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
        if frame:
            return f"{frame[3]} ({os.path.basename(frame[1])}:{frame[2]})"
    return "graph"
