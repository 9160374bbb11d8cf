# ===- backend.py - the function that torch.compile calls ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The entry point of the backend: one call per piece of a program, with the graph that TorchDynamo captured."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
from dataclasses import replace
from typing import Any, Iterator, Mapping, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node, map_arg

from .. import compile_process
from ..budgets import device_and_budget
from ..errors import Error, FallbackWarning, UnsupportedOpError
from ..frontend.fx import placeholders
from ..frontend.nodes import unsupported
from ..tensors import require_on, spec_for
from .again import differentiable_again
from .boxed import Compiled
from .decompositions import decompositions
from .options import Options, checked
from .outside import Outside
from .pieces import CannotCut, Piece, cut, mark_origins, operators_in, origin_of
from .report import forget, leave
from .rewrites import rewritten
from .segment import Argument, Segment, as_error, say

log = logging.getLogger("segue")

#: A piece for Segue may meet what it lacks once more, since nobody looked behind the first refusal.
_MOST_CUTS = 3

_WHOLE = "The whole segment runs in PyTorch"
_BESIDE = "It runs in PyTorch, what surrounds it in Segue"

_STEP = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
_RESERVED = re.compile(r"(out\d+|seed|grad\..*|saved\..*)$")


def backend(graph_module: GraphModule, example_inputs: Sequence[object], *, options: Mapping[str, Any] | None = None,
            mode: str | None = None) -> Compiled:
    """What ``torch.compile(model, backend="segue", options=...)`` calls; see `segue.dynamo.options.Options`."""
    chosen = _placed(checked(options, mode), graph_module, example_inputs)
    # A fault of the caller is told, before a lack of Segue is worked around. The budget lives until a segment keeps it.
    kept = device_and_budget(chosen.spec, chosen.wanted_budget)  # noqa: F841
    compile_process.start()
    with _nothing_collected():
        try:
            return _compiled(graph_module, list(example_inputs), chosen, _MOST_CUTS)
        except (RestartAnalysis, SkipFrame, FallbackWarning):
            raise  # how TorchDynamo itself goes on; a warning that the caller has made an error
        except Exception as error:
            if chosen.fallback == "error":
                raise
            outside = Outside(_name(graph_module), graph_module)
            outside.reasons = say(outside.name, [as_error(error, outside.name)], chosen, _WHOLE)
            return outside.compile(list(example_inputs))


def _placed(options: Options, graph_module: GraphModule, example_inputs: Sequence[object]) -> Options:
    """The options with the device where the arguments of the graph lie, unless it is said.

    Raises
    ------
    InvalidArgumentError
        An argument lies on a GPU that is not the device.
    """
    device = spec_for(example_inputs) if options.device is None else options.device
    named = [(argument.name, given) for argument, given in zip(_arguments(graph_module, example_inputs), example_inputs)]
    require_on(device, named, "torch.compile")
    return replace(options, device=device)


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's collector of cycles stands still: graphs are many objects that live on, and it would look at all of them
    again and again, for a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


setattr(backend, "reset", forget)  # `torch.compiler.reset` calls it


def _compiled(graph_module: GraphModule, example_inputs: Sequence[object], options: Options, cuts: int) -> Compiled:
    """The graph in Segue; in pieces of which Segue runs some; or in PyTorch."""
    arguments, operators = _arguments(graph_module, example_inputs), operators_in(graph_module)
    segment = Segment(_name(graph_module), arguments, options, operators)
    compiler = aot_autograd(
        fw_compiler=segment.compile_forward, bw_compiler=segment.compile_backward,
        inference_compiler=segment.compile_inference, partition_fn=segment.partition, decompositions=decompositions())
    mark_origins(graph_module)
    try:
        with rewritten(graph_module):
            compiled = compiler(graph_module, example_inputs)
        if not segment.refusals:
            return differentiable_again(segment.name, graph_module, compiled)
    except (RestartAnalysis, SkipFrame):
        raise  # how TorchDynamo itself goes on
    except Exception as error:  # a run never ends because a piece of it cannot be compiled
        segment.refusals = [_as_error(graph_module, segment.name, error)]
    leave(segment)
    if options.fallback == "error":
        say(segment.name, segment.refusals, options, "")
    pieces = _cut(graph_module, segment.origins_of_refusals()) if cuts else []
    if not pieces:
        return _outside(graph_module, example_inputs, segment, _WHOLE)
    examples = dict(zip(placeholders(graph_module.graph), example_inputs))
    functions = []
    for piece in pieces:
        inputs = [examples[n] if n in examples else _example(n, piece.mode.grad) for n in piece.inputs]
        with piece.mode.entered():
            if piece.in_segue:
                functions.append(_compiled(piece.module, inputs, options, cuts - 1))
            else:
                functions.append(_outside(piece.module, inputs, segment, _BESIDE))
    return _joined(graph_module, pieces, functions)


def _cut(graph_module: GraphModule, refused: set[str | None]) -> list[Piece]:
    """Pieces of which Segue runs at least one, or none."""
    if None in refused:
        return []
    known = {name for name in refused if name is not None}
    by_name = {f"> {n.name}": n for n in placeholders(graph_module.graph)}
    readers = {user.name for name in known & by_name.keys() for user in by_name[name].users}
    try:
        pieces = cut(graph_module, known - by_name.keys() | readers)
    except CannotCut as why:
        log.info("%s is not cut: %s", _name(graph_module), why)
        return []
    return pieces if any(p.in_segue for p in pieces) else []


def _outside(graph_module: GraphModule, example_inputs: Sequence[object], segment: Segment,
             consequence: str) -> Compiled:
    """The graph in PyTorch. What Segue refused in it is said."""
    outside = Outside(_name(graph_module), graph_module)
    own = {n.name for n in graph_module.graph.nodes}
    named = [e for e in segment.refusals if not isinstance(e, UnsupportedOpError) or (node := e.node) is None
             or node.op == "placeholder" or origin_of(node) in own or origin_of(node) is None]
    if named:
        outside.reasons = say(outside.name, named, segment.options, consequence)
    else:
        outside.reasons = ("too little between operators that Segue lacks",)
    return outside.compile(example_inputs)


def _example(node: Node, grad: bool) -> object:
    """Returns an example of a value between pieces."""
    value: object = node.meta["example_value"]
    if not isinstance(value, FakeTensor):
        return value
    with value.fake_mode:
        return value.detach().requires_grad_(value.requires_grad and grad)


def _joined(graph_module: GraphModule, pieces: list[Piece], functions: list[Compiled]) -> Compiled:
    """A function that runs the pieces one after another."""
    inputs = placeholders(graph_module.graph)
    returned = graph_module.graph.output_node().args[0]
    wanted = set(graph_module.graph.output_node().all_input_nodes)
    last: list[list[Node]] = []  # for each piece what nobody reads behind it
    for piece in reversed(pieces):
        last.append([n for n in dict.fromkeys(piece.inputs + piece.outputs) if n not in wanted])
        wanted.update(piece.inputs)
    steps = list(zip(pieces, functions, reversed(last)))

    def run(*args: object) -> Any:
        values: dict[Node, Any] = dict(zip(inputs, args))
        del args
        for piece, function, gone in steps:
            with piece.mode.entered():
                values.update(zip(piece.outputs, function(*(values[n] for n in piece.inputs))))
            for node in gone:
                del values[node]
        return map_arg(returned, values.__getitem__)

    return run


def _as_error(graph_module: GraphModule, name: str, error: Exception) -> Error:
    """The error as one of Segue's; PyTorch's own say in their text at which node they were raised."""
    executing = re.search(r"While executing %(\w+)", str(error))
    named = [n for n in graph_module.graph.nodes if executing and n.name == executing[1]]
    if isinstance(error, Error) or not named:
        return as_error(error, name)
    text = " ".join(str(error).partition("While executing")[0].split())[:300]
    return unsupported(named[0], f"PyTorch cannot trace it: {type(error).__name__}: {text}")


def _arguments(graph_module: GraphModule, example_inputs: Sequence[object]) -> list[Argument]:
    """A name for each argument: paths of parameters as in `named_parameters`, names of the function's own arguments."""
    arguments: list[Argument] = []
    taken: set[str] = set()
    for node, given in zip(placeholders(graph_module.graph), example_inputs):
        source = getattr(node.meta.get("grapharg"), "source", None)
        name = _argument_name(source.name if source is not None else node.name)
        if _RESERVED.match(name):
            name = f"arg.{name}"
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}#{count}"
        taken.add(unique)
        arguments.append(Argument(unique, isinstance(given, torch.Tensor) and given.requires_grad, node.name))
    return arguments


def _argument_name(source: str) -> str:
    """"h.0.weight" of "L['self']._modules['h']._modules['0']._parameters['weight']", "x" of "L['x']"."""
    steps = ["".join(found) for found in _STEP.findall(source)]
    own = [s for s in steps if s not in ("_modules", "_parameters", "_buffers")]
    if len(own) > 1 and own != steps:
        own = own[1:]  # the module itself
    return ".".join(own) or source


def _name(graph_module: GraphModule) -> str:
    """Returns where the piece begins: function, file and line in the code that was given to torch.compile."""
    for node in graph_module.graph.nodes:
        frame = re.search(r'File "([^"]*)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
        if frame:
            return f"{frame[3]} ({os.path.basename(frame[1])}:{frame[2]})"
    return "graph"
