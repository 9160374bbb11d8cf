# ===- parts.py - operators without a lowering, in terms of others ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Traces what an operator without a lowering is in terms of others.

One call of one operator is traced at a time, and equal calls once per process: `torch.export` would trace the whole program anew, several
times over, to take a single operator of it apart.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.export.decomp_utils import CustomDecompTable
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from . import recurrent
from .autocast import Around
from .decompositions.slopes import differentiable
from .decompositions.table import Written
from .fx import Operator

#: Held by whoever traces or exports: PyTorch patches modules meanwhile and keeps its state per process, so that two threads break each other.
tracing = threading.RLock()


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Has PyTorch trace what it runs without cuDNN: operators on a GPU then go on to those that are there on the CPU, too."""
    was_enabled = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(was_enabled)


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator is called with."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class _Call(NamedTuple):
    """A call as a key: a number stands with its text, as 2, 2.0 and True are others, and so are 0.0 and -0.0."""

    target: Operator
    leaves: tuple[tuple[object, str], ...]
    spec: pytree.TreeSpec
    used: frozenset[int]
    autocast: Around
    place: str
    default: torch.dtype


def parts_of(target: object, args: Sequence[object], kwargs: Mapping[str, object], used: Iterable[int],
             autocast: Around, place: str) -> torch.fx.GraphModule | None:
    """The graph of what a call gives, its placeholders the operands in their order; None where nothing takes the operator apart.

    Its nodes know of their results what those of `torch.export` know. It belongs to all who call this: do not change it.

    Parameters
    ----------
    args, kwargs
        What the operator is called with; an `Operand` in the place of each tensor.
    used
        Which of several results are read. None stands for the others: what PyTorch gives there, parts may not.
    autocast, place
        The autocasts around the call, and where its tensors lie.
    """
    if not isinstance(target, torch._ops.OpOverload) or _function(target) is None:
        return None
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    numbered = tuple((x, repr(x) if isinstance(x, (int, float)) else "") for x in leaves)
    with tracing:
        return _traced(_Call(target, numbered, spec, frozenset(used), autocast, place, torch.get_default_dtype()))


@lru_cache(maxsize=None)
def _own() -> dict[Operator, Written]:
    return recurrent.DECOMPOSITIONS | differentiable()


@lru_cache(maxsize=None)
def _pytorchs() -> CustomDecompTable:
    return torch.export.default_decompositions()  # which finds what it is asked for, and the rest only when it is walked


def _function(target: Operator) -> Written | None:
    """What writes an operator in terms of others, if anything does."""
    if target in _own():
        return _own()[target]
    if target in _pytorchs():
        written: Written = _pytorchs()[target]
        return written
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return target.decompose if composite else None


@lru_cache(maxsize=256)
def _traced(call: _Call) -> torch.fx.GraphModule | None:
    function = _function(call.target)
    assert function is not None, f"nothing takes {call.target} apart"
    leaves = [x for x, _ in call.leaves]
    operands = {i: x for i, x in enumerate(leaves) if isinstance(x, Operand)}
    # On a GPU only for its autocast: some of PyTorch's functions would go on to operators of its own there.
    device = "cuda:0" if call.place == "cuda" and call.autocast.cuda is not None else "cpu"
    with FakeTensorMode():
        tensors = [torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device=device) for x in operands.values()]

    def of_tensors(*tensors: torch.Tensor) -> object:
        given = dict(zip(operands, tensors))
        args, kwargs = pytree.tree_unflatten([given.get(i, x) for i, x in enumerate(leaves)], call.spec)
        found = function(*args, **kwargs)
        if found is NotImplemented:
            raise _NotTakenApart
        return found

    # Autocast keeps what it casts a weight to, and these tensors have no values that could be kept.
    with call.autocast.entered(cache_enabled=False):
        try:
            # Before autograd, composite operators are whole, which may be all that there is.
            graph_module = make_fx(of_tensors, tracing_mode="fake", pre_dispatch=True)(*tensors)
            targets = {n.target for n in graph_module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
            if call.target in targets or any(target._schema.is_mutable for target in targets):
                graph_module = make_fx(dispatch_functionalize(of_tensors), tracing_mode="fake")(*tensors)
        except _NotTakenApart:
            return None
    output = graph_module.graph.output_node()
    if isinstance(results := output.args[0], (list, tuple)):
        output.args = (type(results)(x if i in call.used else None for i, x in enumerate(results)),)
    graph_module.graph.eliminate_dead_code()
    return graph_module


class _NotTakenApart(Exception):
    """A function has no parts for these arguments."""
