# ===- segment.py - a piece of a program between two graph breaks -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A segment: the forward and backward graph of a piece of a program, and what runs them.

AOTAutograd calls, in this order, `partition`, `compile_forward` and, when
backward runs first, `compile_backward`; or `compile_inference` alone. Both
graphs are known after the first of them and compiled together, so that the
compiler sees what forward saves. A segment with symbolic sizes is compiled for
the numbers of each call, and these *variants* are kept in a bounded cache.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
import warnings
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Hashable, NamedTuple, Sequence

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.types import Number

from .. import _runtime
from ..batched_gradients import are_batched, one_by_one
from ..budgets import device_and_budget, loop_of
from ..compile_process import compile_text
from ..cubins import ptxas_for
from ..errors import CompileError, Error, FallbackWarning, UnsupportedOpError
from ..frontend.fx import placeholders, results
from ..frontend.graphs import Primal, capture_graphs
from ..frontend.nodes import source_of, unsupported
from ..tensors import gpu_of_spec
from .boxed import Boxed, Flat, boxed
from .checkpoints import forget_regions, unwrap_random
from .equal_nodes import merge_equal
from .options import Options
from .pieces import origin_of
from .report import COUNTERS, SegmentReport, enter
from .scalars import Scalars, take_scalars
from .variant import InPyTorch, Variant, hooks_are_active, kept_behind
from .views import Views, make_strides_free, views_of

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

log = logging.getLogger("segue")

#: Calls with sizes beyond `max_variants` that PyTorch runs before a program is made for them; each such program made
#: asks for one more of the next, so that sizes which only grow are not compiled for ever.
_CALLS_IN_PYTORCH = 2
#: Sizes of which calls are counted.
_MOST_SIZES = 10_000

_numbers = itertools.count()


def next_number() -> int:
    """Pieces are numbered in the order in which they are made."""
    return next(_numbers)


#: The number of each symbol of symbolic shapes in a call; and the same as a key, by the names of the symbols.
Numbers = dict[object, Number]
Sizes = tuple[tuple[str, Number], ...]


class Argument(NamedTuple):
    """An argument of the graph that TorchDynamo captured: a name for people, and that of its node."""

    name: str
    trained: bool
    node: str


class Segment:

    def __init__(self, name: str, arguments: list[Argument], options: Options, operators: int = 0):
        self.number = next_number()
        self.name = f"{name}#{self.number}"
        self.operators = operators
        self.seconds = 0.0
        self.arguments = arguments
        self.options = options
        self.device, self.budget = device_and_budget(options.spec, options.wanted_budget)
        self.reasons: tuple[str, ...] = ()
        self.refusals: list[Error] = []  # why it was not compiled when it was captured
        self.trains = False
        self.forward_calls = self.backward_calls = self.saved_bytes = 0
        self.regions_as_hints = 0
        self._static: set[int] = set()
        self._outputs = 0
        self._forward: GraphModule | None = None
        self._backward: GraphModule | None = None
        self._scalars: Scalars | None = None
        self._views: Views | None = None
        self._variants: OrderedDict[Sizes, Variant] = OrderedDict()
        self._retired = dict.fromkeys(COUNTERS, 0)
        self._compiled = 0  # variants, with those that went
        self._waiting: dict[Sizes, int] = {}  # calls that PyTorch ran, by sizes
        self.pytorch_calls, self.pytorch_seconds = 0, 0.0
        enter(self)

    # --- what AOTAutograd calls -------------------------------------------------------------

    def partition(self, joint: GraphModule, joint_inputs: Sequence[object], *, num_fwd_outputs: int,
                  static_lifetime_input_indices: list[int] | None = None,
                  **others: object) -> tuple[GraphModule, GraphModule]:
        """Cuts the joint graph in forward and backward."""
        cut: Callable[..., tuple[GraphModule, GraphModule]] = (
            min_cut_rematerialization_partition if self.options.partition == "min_cut" else default_partition)
        if static_lifetime_input_indices is not None:
            others["static_lifetime_input_indices"] = static_lifetime_input_indices
            self._static = set(static_lifetime_input_indices)
        self._scalars = take_scalars(joint)
        if loop_of(self.device) is not None:
            self.regions_as_hints = forget_regions(joint)
        merge_equal(joint.graph)
        with torch._functorch.config.patch(cse=False):
            forward, backward = cut(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **others)
        unwrap_random(forward, backward)
        self._backward, self._outputs = backward, num_fwd_outputs
        return forward, backward

    def compile_forward(self, graph: GraphModule, example_inputs: Sequence[object]) -> Boxed:
        # The runtime frees saved values as backward passes them; torch tensors among them are never overwritten.
        _metadata().bw_donated_idxs = []
        self.trains = True
        return self._compile(graph, self._backward, self._outputs)

    def compile_inference(self, graph: GraphModule, example_inputs: Sequence[object]) -> Boxed:
        self._static = set(_metadata().static_input_indices)
        self._scalars = take_scalars(graph)
        return self._compile(graph, None, len(results(graph.graph)))

    def compile_backward(self, graph: GraphModule, example_inputs: Sequence[object]) -> Boxed:
        if self.refusals:
            return _of_graph(graph)  # never called: whoever sees the refusals compiles otherwise
        given = [node.name for node in placeholders(graph.graph)]
        if given != self._placeholders:
            raise AssertionError(f"{self.name}: the backward graph takes {given}; {self._placeholders} was compiled")
        return boxed(self._run_backward)

    # --- compiling ----------------------------------------------------------------------------

    def _compile(self, forward: GraphModule, backward: GraphModule | None, outputs: int) -> Boxed:
        self._forward, self._backward, self._outputs = forward, backward, outputs
        self._placeholders = [n.name for n in placeholders(backward.graph)] if backward is not None else []
        self._inputs = placeholders(forward.graph)
        self._primals = self._named_inputs()
        self._symbols = _symbols(self._inputs)
        self._views = views_of(forward, _metadata(), outputs)
        symbolic = self._symbols or any(isinstance(n.meta.get("val"), (torch.SymInt, torch.SymFloat)) for n in self._inputs)
        try:
            self._require_one_gpu()
            # Constants in the graph are real tensors; AOTAutograd calls with fake ones about.
            with torch._subclasses.fake_tensor.unset_fake_temporarily():
                self._variant(self._hints())
        except FallBack as refused:
            self.refusals = refused.errors
            return _of_graph(forward)
        if symbolic:
            make_strides_free(forward)
            make_strides_free(backward)
        else:  # need not be kept
            self._forward = self._backward = None
            if self._views is not None:
                self._views.with_bases = None
        return boxed(self._run_forward)

    def _require_one_gpu(self) -> None:
        """Raises FallBack where the graph brings tensors to a GPU that is not the device."""
        gpu = gpu_of_spec(self.options.spec)
        graphs = [g for g in (self._forward, self._backward) if g is not None]
        elsewhere = [n for g in graphs for n in g.graph.nodes
                     if isinstance(x := n.meta.get("val"), torch.Tensor) and x.device.type == "cuda" and x.device.index != gpu]
        if elsewhere:
            place = elsewhere[0].meta["val"].device
            raise FallBack([unsupported(elsewhere[0], f"it lies on {place}, and the device is {self.options.spec!r}; keep a model on one GPU")])

    def _named_inputs(self) -> list[Primal]:
        primals: list[Primal] = []
        changed = set(_metadata().mutated_inp_runtime_indices)
        for position, node in enumerate(self._inputs):
            index = getattr(node.meta.get("desc"), "idx", position)
            argument = self.arguments[index] if index < len(self.arguments) else Argument(node.name, False, node.name)
            role = "input" if position not in self._static else "parameter" if argument.trained else "frozen"
            primals.append(Primal(argument.name, role, index in changed))
        names = [p.name for p in primals]
        return [p if names.count(p.name) == 1 else replace(p, name=f"{p.name}#{node.name}")
                for p, node in zip(primals, self._inputs)]

    def _variant(self, numbers: Numbers) -> Variant | InPyTorch:
        """What runs these sizes; compiled now, if it is not there, unless others like it have come too often."""
        key = tuple(sorted((str(s), n) for s, n in numbers.items())) if numbers else ()
        if key in self._variants:
            self._variants.move_to_end(key)
            return self._variants[key]
        if self._waits(key):
            return InPyTorch(self._graph(), self._backward, self._outputs)
        if self._variants:
            sizes = ", ".join(f"{s}={n}" for s, n in key)
            log.warning("%s: compiling one more variant, for %s (%d of at most %d kept); mark sizes as static with "
                        "torch.compile(dynamic=False) to choose them once", self.name, sizes,
                        min(len(self._variants) + 1, self.options.max_variants), self.options.max_variants)
        try:
            graph = self._graph() if self._views is None else self._views.graph()
            outputs = self._outputs + (0 if self._views is None else self._views.added)
            captured = capture_graphs(graph, self._backward, self._primals, outputs, numbers)
            if isinstance(captured, list):
                raise FallBack(captured)
            module = self._module(captured.text)
        except FallBack:
            raise
        except UnsupportedOpError as error:
            raise FallBack([error]) from error
        except Exception as error:  # never the end of the run, whatever it is
            raise FallBack([as_error(error, self.name)]) from error
        variant = Variant(captured, module, self.name, self.device, self._static, self.budget)
        self._variants[key] = variant
        self._compiled += 1
        self._waiting.pop(key, None)
        while len(self._variants) > self.options.max_variants:
            _, old = self._variants.popitem(last=False)
            for name, count in old.counters().items():
                self._retired[name] += count
        return variant

    def _waits(self, key: Sizes) -> bool:
        """True for sizes that PyTorch should run this time."""
        beyond = self._compiled - self.options.max_variants
        # Hooks on saved tensors get those of programs.
        if beyond < 0 or self.options.fallback == "error" or hooks_are_active():
            return False
        if not self.pytorch_calls:
            log.warning("%s: %d variants are there (max_variants); other sizes run in PyTorch until they have come again and again",
                        self.name, self.options.max_variants)
        if len(self._waiting) > _MOST_SIZES:
            self._waiting.clear()
        self._waiting[key] = self._waiting.get(key, 0) + 1
        return self._waiting[key] <= _CALLS_IN_PYTORCH + beyond

    def _module(self, text: str) -> "_runtime.Module":
        target = self.device.kernel_target
        file = compile_text(text, self.name, training=False, target=target, ptxas=ptxas_for(self.options.cubin, target))
        binary = _runtime.Binary.from_bytes(file, self.name)
        return _runtime.Module(self.device, binary, self.name)

    def origins_of_refusals(self) -> set[str | None]:
        """The nodes of TorchDynamo's graph that cannot be compiled; None stands for one that is not known.

        For an argument whose element type Segue lacks these are "> name", where name is that of the argument.
        """
        found: set[str | None] = set()
        for error in self.refusals:
            node = error.node if isinstance(error, UnsupportedOpError) else None
            if node is None:
                found |= self._origins_at(error.report.get("line")) or {None}
            elif node.op == "placeholder":
                index = getattr(node.meta.get("desc"), "idx", None)
                found.add(None if index is None else f"> {self.arguments[index].node}")
            else:
                found.add(origin_of(node))
        return found

    def _origins_at(self, line: tuple[str, int] | None) -> set[str | None]:
        """The nodes of TorchDynamo's graph that a line of the model made."""
        return {origin_of(n) for n in self._graph().graph.nodes if source_of(n) == line} if line else set()

    def _graph(self) -> GraphModule:
        assert self._forward is not None, f"{self.name} has static sizes, and its graph is gone"
        return self._forward

    # --- sizes ----------------------------------------------------------------------------------

    def _hints(self) -> Numbers:
        """The sizes of the example."""
        hints = {symbol: _at(node.meta["val"], dim).node.hint for symbol, (_, dim, node) in self._symbols.items()}
        if None in hints.values():
            raise FallBack([UnsupportedOpError("a size that depends on values", report={"op": "size"})])
        return hints

    def _numbers_of(self, args: Flat) -> Numbers:
        return {symbol: _at(args[position], dim) for symbol, (position, dim, _) in self._symbols.items()}

    # --- running ----------------------------------------------------------------------------------

    def _run_forward(self, args: Flat) -> Flat:
        if self._scalars is not None:
            args[:] = self._scalars(args)
        try:
            variant = self._variant(self._numbers_of(args))
        except FallBack as refused:
            self.reasons = say(self.name, refused.errors, self.options, "The whole segment runs in PyTorch")
            return list(self._graph()(*args))
        began = time.perf_counter()
        if isinstance(variant, InPyTorch):
            results = variant.forward(args)
            self.pytorch_seconds += time.perf_counter() - began
            self.pytorch_calls += 1
            return results
        views = self._views
        viewed = [] if views is None else views.arguments(args)
        results, self.saved_bytes = variant.forward(args)
        if views is not None:
            views.place(viewed, results)
        self.seconds += time.perf_counter() - began
        self.forward_calls += 1
        return results

    def _run_backward(self, args: Flat, is_needed_again: bool = False) -> Flat:
        if are_batched(args):
            return one_by_one(self._run_backward, args)
        kept = kept_behind(args)
        # The arguments hold all that backward reads where nothing of forward stayed in the runtime.
        variant = next((v for v in self._variants.values() if v.fits(args)), None) if kept is None else kept.variant
        if variant is None:
            assert self._backward is not None, f"{self.name} has static sizes, and one variant"
            return list(self._backward(*args))
        began = time.perf_counter()
        if isinstance(variant, InPyTorch):
            assert kept is not None, "PyTorch's own graph is found by what it kept"
            gradients = variant.backward(args, kept)
            self.pytorch_seconds += time.perf_counter() - began
            return gradients
        self.backward_calls += 1
        gradients = variant.backward(args, kept, is_needed_again)
        self.seconds += time.perf_counter() - began
        return gradients

    def report(self) -> SegmentReport:
        counters = dict(self._retired)
        for variant in self._variants.values():
            for name, count in variant.counters().items():
                counters[name] += count
        return SegmentReport(self.name, not self.reasons, self.trains, self.reasons, len(self._variants), self.forward_calls,
                             self.backward_calls, self.saved_bytes, counters, self.operators, self.seconds,
                             self.pytorch_calls, self.pytorch_seconds, self.regions_as_hints)


class FallBack(Exception):
    """The error that says what stands in the way of running a segment in Segue."""

    def __init__(self, errors: Sequence[Error]):
        self.errors = list(errors)


def say(name: str, errors: Sequence[Error], options: Options, consequence: str) -> tuple[str, ...]:
    """Warns why a piece runs in PyTorch, once per operator, or raises where the options want that. Returns the reasons."""
    first: dict[str, Error] = {}
    for error in errors:
        first.setdefault(error.report.get("op", type(error).__name__), error)
    if options.fallback == "error":
        raise first[next(iter(first))]
    for error in first.values():
        warnings.warn(f"{name}: {error}. {consequence}; options={{'fallback': 'error'}} makes this an error", FallbackWarning,
                      stacklevel=2)
    return tuple(str(error) for error in first.values())


def as_error(error: Exception, where: str) -> Error:
    """The error as one of Segue's, which says where it happened."""
    if isinstance(error, CompileError):
        found = _DIAGNOSTIC.search(error.report.get("diagnostics", ""))
        if found is None:
            return error
        return CompileError(f"the compiler refused {where} at {found['file']}:{found['line']}: {found['text']}",
                            report={**error.report, "line": (found["file"], int(found["line"]))})
    if isinstance(error, Error):
        return error
    text = " ".join(str(error).split())[:300]
    return CompileError(f"{where}: {type(error).__name__}: {text}", report={"diagnostics": str(error)})


#: A message of the compiler about an op, whose place is that of the line in the model that made it.
_DIAGNOSTIC = re.compile(r"^(?P<file>.*?):(?P<line>\d+):\d+: error: (?P<text>.*)$", re.MULTILINE)


def _metadata() -> ViewAndMutationMeta:
    """What AOTAutograd knows of the graph that it has compiled now."""
    metadata = torch._guards.TracingContext.get().fw_metadata
    assert metadata is not None, "AOTAutograd calls compilers when it knows what it traced"
    return metadata


def _of_graph(graph: GraphModule) -> Boxed:
    """The graph in PyTorch."""
    function: Boxed = make_boxed_func(graph.forward)
    return function


def _symbols(inputs: Sequence[Node]) -> dict[Hashable, tuple[int, int | None, Node]]:
    """For each symbol of the sizes where its number is found: position, dimension (None: the argument itself), node."""
    found: dict[Hashable, tuple[int, int | None, Node]] = {}
    for position, node in enumerate(inputs):
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            places: list[tuple[int | None, Any]] = [(None, value)]
        elif isinstance(value, torch.Tensor):
            places = list(enumerate(value.shape))
        else:
            places = []
        for dim, size in places:
            if isinstance(size, (torch.SymInt, torch.SymFloat)) and size.node.expr.is_symbol:
                found.setdefault(size.node.expr, (position, dim, node))
    return found


def _at(value: Any, dim: int | None) -> Any:
    """A size of an argument; with None the argument itself, which is a number."""
    return value if dim is None else value.shape[dim]
