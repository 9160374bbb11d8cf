# ===- fitting.py - will it fit? ----------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Tells whether training a model fits into the memory of a device, before there are any weights.

>>> with torch.device("meta"):
...     model = Llama(layers=32, width=4096)
>>> print(segue.fit(model, (1, 2048), budget="24GiB", device="cpu"))

The model is compiled as it would be for training, and a step of it is played in virtual time by the code that would
train it (`segue-run fit`). Neither weights nor batches have bytes on the way: parameters stand for their shapes.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Callable, Iterable, Mapping, Sequence, Union

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .arguments import names_keywords, what_is
from .errors import InvalidArgumentError
from .frontend import capture
from .inspection import size_text
from .memory import Memory, forecast
from .module import Module, Program
from .notebooks import grid
from .optimizers import AdamW, Optimizer
from .precision import checked_precision, entered_precision
from .tensors import is_tensor
from .torch_optimizers import as_optimizer
from .without_bytes import without_bytes

#: A model, a Hugging Face config, or a function that makes a model; it is called on PyTorch's meta device.
Model = Union[nn.Module, Any, Callable[[], nn.Module]]


@names_keywords
def fit(model: Model, batch: Any, *, budget: int | str | None = None, device: str = "cpu", optimizer: Optimizer | None = None,
        lora_rank: int = 0, lora_targets: Sequence[str] = (), precision: str | None = None, micro_batches: int = 1,
        clip_grad_norm: float = 0.0, seal: bool = False) -> Memory:
    """Say whether training fits into memory, what a step holds and takes, and the smallest budget.

    Parameters
    ----------
    model : torch.nn.Module, config or function
        A module whose result is the loss, on any device, also on ``meta``: its weights are not read and not changed.
        Parameters that require a gradient are trained. Or the config of a causal language model of Hugging Face's
        transformers, or such a model, which is given tokens and labels. Or a function without arguments that makes one.
    batch : (int, int), tensor, sequence or mapping of them
        The arguments of a call, for their shapes and types; in the place of a tensor may stand ``(shape, dtype)``. Two
        numbers are a batch size and a sequence length: every argument that `forward` requires is that many tokens.
    budget : int or str, optional
        Bytes of device memory, or a text such as ``24GiB``; default: all that the device has.
    device : str
        A spec, which is not opened but for a GPU: ``cpu``, above a disk with room for everything; ``cpu:dram=16GiB,disk=/mnt/ssd``;
        ``cpu:profile=laptop.json`` (`segue-run profile-device`); ``sim:virtual,dram=24GiB,link=25GB/s,flops=80TFLOP/s``.
    optimizer : Optimizer, optional
        Default: `segue.AdamW`.
    lora_rank : int
        Above 0, adapters of this rank beside linear layers are all that is trained.
    lora_targets : sequence of str
        Names of those layers, or patterns: ``q_proj`` for all that end so, ``*.mlp.*``. Default: all linear layers but
        the last.
    precision : str, optional
        ``f32``, ``bf16-mixed`` or ``f16-mixed``, as in `segue.compile`.
    micro_batches : int
        Batches per step, for gradient accumulation.
    clip_grad_norm : float
        Above 0, gradients are clipped, which needs all of them at once.
    seal : bool
        Count what sealed checkpoints take of the disk, as of ``Trainer(seal=)``.

    Returns
    -------
    Memory
        ``fits`` and ``why``; the step by which it does, the unconstrained one and the smallest. Printing it gives a text.

    Raises
    ------
    InvalidArgumentError
        Nothing can be trained, no result is a loss, or an argument is not one of the above.
    UnsupportedError
        `seal` on a device without a disk below its memory.
    UnsupportedOpError, ExportError
        The model has an operator that Segue lacks; the message has the line.
    """
    case = _Case(model, _read_batch(batch), lora_rank, lora_targets, precision)
    return case.ask(optimizer or AdamW(), budget=budget, device=device, micro_batches=micro_batches, clip_grad_norm=clip_grad_norm, seal=seal)


@dataclass(frozen=True)
class FitRow:
    """A row of a `FitTable`: a case, and what was found. Columns that were not varied have what `fit_table` was given."""

    batch_size: int | None
    sequence_length: int | None
    optimizer: Optimizer
    lora_rank: int
    memory: Memory


@dataclass(frozen=True, repr=False)
class FitTable:
    """The answer of `fit_table`, a row for each case. Printing it gives a table."""

    rows: list[FitRow]

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *lines = self._lines()
        return grid(f"{self.rows[0].memory.device}, within {size_text(self.rows[0].memory.budget_bytes)}", head, lines)

    def __str__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)
        return f"{self.rows[0].memory.device}\nwithin {size_text(self.rows[0].memory.budget_bytes)}:\n{table}"

    def _lines(self) -> list[tuple[str, ...]]:
        """The titles of the columns, then the rows."""
        kinds = [row.optimizer.kind for row in self.rows]
        specs = {row.optimizer.spec() for row in self.rows}
        name: Callable[[Optimizer], str] = lambda o: o.kind if len(specs) == len(set(kinds)) else o.spec()  # noqa: E731
        lines: list[tuple[str, ...]] = [("batch", "sequence", "optimizer", "lora", "in memory", "smallest", "fits", "peak", "step ms", "added", "out", "in")]
        for row in self.rows:
            memory, plan = row.memory, row.memory.plan
            lines.append((_or_dash(row.batch_size), _or_dash(row.sequence_length), name(row.optimizer), _or_dash(row.lora_rank or None),
                          size_text(memory.unconstrained.peak_bytes), size_text(memory.smallest_budget_bytes), "yes" if memory.fits else "no",
                          *(("-",) * 5 if plan is None else
                            (size_text(plan.peak_bytes), f"{plan.seconds * 1e3:.1f}", f"{round(plan.added, 3) + 0.0:+.1%}",
                             size_text(plan.link["out_bytes"]), size_text(plan.link["in_bytes"])))))
        return lines


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def fit_table(model: Model, batch: Any, *, batch_sizes: Iterable[int] = (), sequence_lengths: Iterable[int] = (),
              optimizers: Iterable[Optimizer] = (), lora_ranks: Iterable[int] = (), **options: Any) -> FitTable:
    """Ask `fit` for every combination of sizes, optimizers and ranks.

    Parameters
    ----------
    model, batch, **options
        As those of `fit`. What is not varied is as they say.
    batch_sizes : iterable of int
        In the place of dimension 0 of every tensor of the batch.
    sequence_lengths : iterable of int
        In the place of dimension 1 of every tensor of the batch that has one.
    optimizers : iterable of Optimizer
    lora_ranks : iterable of int
        0 trains what the model says.

    Examples
    --------
    >>> print(segue.fit_table(model, (1, 1024), batch_sizes=[1, 2, 4, 8], lora_ranks=[0, 16], budget="16GiB"))
    """
    inputs = _read_batch(batch)
    varied: dict[str, list[Any]] = dict(batch_sizes=list(batch_sizes), sequence_lengths=list(sequence_lengths), optimizers=list(optimizers),
                  lora_ranks=list(lora_ranks))
    rank, targets = options.pop("lora_rank", 0), options.pop("lora_targets", ())
    precision = options.pop("precision", None)
    optimizer = options.pop("optimizer", None) or AdamW()
    unknown = set(options) - {"budget", "device", "micro_batches", "clip_grad_norm", "seal"}
    if unknown:
        raise InvalidArgumentError(f"fit_table has no option {sorted(unknown)[0]!r}")
    if varied["sequence_lengths"] and not any(len(shape) > 1 for _, shape, _ in inputs):
        raise InvalidArgumentError("sequence_lengths are given, and no tensor of the batch has a dimension 1 for them")
    rows = []
    for batch_size, length, lora in product(varied["batch_sizes"] or [None], varied["sequence_lengths"] or [None],
                                            varied["lora_ranks"] or [rank]):
        sized = [(name, _resized(shape, batch_size, length), dtype) for name, shape, dtype in inputs]
        case = _Case(model, sized, lora, targets, precision)
        for each in varied["optimizers"] or [optimizer]:
            memory = case.ask(each, **{"budget": None, "device": "cpu", **options})
            size = next((shape[0] for _, shape, _ in sized if shape), None)
            rows.append(FitRow(size, next((shape[1] for _, shape, _ in sized if len(shape) > 1), None), each, lora, memory))
    return FitTable(rows)


# --- batches: (name or None, shape, dtype) ----------------------------------------------------


def _read_batch(batch: Any) -> list[tuple[str | None, tuple[int, ...], torch.dtype]]:
    if isinstance(batch, Mapping):
        return [(str(name), *_shape_of(given, repr(name))) for name, given in batch.items()]
    if is_tensor(batch) or _is_shape_and_type(batch):
        return [(None, *_shape_of(batch, "the batch"))]
    if isinstance(batch, Sequence) and len(batch) == 2 and all(_is_size(n) for n in batch):
        return [(_TOKENS, tuple(batch), torch.int64)]
    if isinstance(batch, Sequence) and not isinstance(batch, str) and batch:
        return [(None, *_shape_of(given, f"argument {i}")) for i, given in enumerate(batch)]
    raise InvalidArgumentError(f"the batch is {batch!r}; give a batch size and a sequence length, tensors by position or by name, "
                               "or (shape, dtype) in their place")


#: Stands for every argument that forward requires.
_TOKENS = "*"


def _is_size(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_shape_and_type(given: Any) -> bool:
    return isinstance(given, Sequence) and len(given) == 2 and isinstance(given[1], torch.dtype)


def _shape_of(given: Any, what: str) -> tuple[tuple[int, ...], torch.dtype]:
    if isinstance(given, torch.Tensor):
        return tuple(given.shape), given.dtype
    if _is_shape_and_type(given) and isinstance(given[0], Sequence) and all(map(_is_size, given[0])):
        return tuple(given[0]), given[1]
    raise InvalidArgumentError(f"{what} of the batch is {given!r}; give a torch tensor or (shape, dtype), as ((8, 128), torch.int64)")


def _resized(shape: tuple[int, ...], batch_size: int | None, length: int | None) -> tuple[int, ...]:
    sizes = [s if wanted is None else wanted for s, wanted in zip(shape, (batch_size, length))]
    return (*sizes, *shape[2:])


# --- models without bytes ------------------------------------------------------------------------


class _Case:
    """A model for batches of one shape: captured once, compiled for each optimizer."""

    def __init__(self, model: Any, inputs: list[tuple[str | None, tuple[int, ...], torch.dtype]], lora_rank: int, lora_targets: Sequence[str], precision: str | None):
        checked_precision(precision)
        if not _is_size(lora_rank) or lora_rank < 0:
            raise InvalidArgumentError(f"lora_rank is {lora_rank!r}; give a whole number, 0 for no adapters")
        for name, shape, _ in inputs:
            if not all(_is_size(n) and n > 0 for n in shape):
                raise InvalidArgumentError(f"the batch has the shape {list(shape)}; every size must be a whole number above 0")
        module = _made(model)
        self.name = type(module).__name__
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        module = without_bytes(module, mode)
        if lora_rank:
            _add_adapters(module, lora_rank, lora_targets, mode)
        elif lora_targets:
            raise InvalidArgumentError("lora_targets are given without a lora_rank")
        if not any(p.requires_grad for p in module.parameters()):
            raise InvalidArgumentError(f"{self.name} has no parameter that requires a gradient: there is nothing to train")
        module = _with_loss(module)
        with mode:
            args, kwargs = _arguments(module, inputs)
        with entered_precision(precision):
            self.captured = capture(module, args, kwargs)
        self.program = Program(self.captured, self.name)

    def ask(self, optimizer: Any, **options: Any) -> Memory:
        optimizer = as_optimizer(optimizer)
        optimizer.check_patterns(a.name for a in self.captured.named("parameter"))
        return forecast([(self.name, self.program.binary(optimizer))], must_be_planned=False, **options)


def _made(model: Any) -> nn.Module:
    if isinstance(model, Module):
        raise InvalidArgumentError(f"{model.name} is compiled already; ask it by {model.name}.memory(budget)")
    if _is_config(model):
        try:
            from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]  # optional
        except ImportError as error:
            raise InvalidArgumentError(f"a config of transformers was given, and transformers cannot be imported: {error}") from error
        with torch.device("meta"):
            made: nn.Module = AutoModelForCausalLM.from_config(model).train()
            return made
    if callable(model) and not isinstance(model, nn.Module):
        try:
            with torch.device("meta"):
                model = model()
        except Exception as error:  # whatever the function does
            raise InvalidArgumentError(f"{getattr(model, '__name__', 'the function')}() made no model on PyTorch's meta device: "
                                       f"{type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"{what_is(model)} was given where a torch.nn.Module, a function that makes one, or a config "
                                   "of transformers is wanted")
    return model


def _is_config(model: Any) -> bool:
    return not isinstance(model, (nn.Module, type)) and hasattr(model, "model_type") and hasattr(model, "to_dict")


class _Loss(nn.Module):
    """The loss of a causal language model of transformers, which otherwise gives logits and a cache besides."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


def _with_loss(module: nn.Module) -> nn.Module:
    transformers = sys.modules.get("transformers")
    return _Loss(module) if transformers and isinstance(module, transformers.PreTrainedModel) else module


def _arguments(module: nn.Module, inputs: list[tuple[str | None, tuple[int, ...], torch.dtype]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs[0][0] == _TOKENS:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds and p.default is p.empty]
        return tuple(torch.empty(inputs[0][1], dtype=inputs[0][2]) for _ in required), {}
    tensors = [(name, torch.empty(shape, dtype=dtype)) for name, shape, dtype in inputs]
    return tuple(t for name, t in tensors if name is None), {name: t for name, t in tensors if name is not None}


class _Adapter(nn.Module):
    """A layer, frozen, and a product of low rank beside it."""

    def __init__(self, base: nn.Module, rank: int, columns: int, rows: int):
        super().__init__()
        self.base = base
        self.down = nn.Linear(columns, rank, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(rank, rows, bias=False, dtype=base.weight.dtype)

    def forward(self, x: torch.Tensor) -> Any:
        return self.base(x) + self.up(self.down(x)) * 2.0


def _add_adapters(module: nn.Module, rank: int, targets: Sequence[str], mode: FakeTensorMode) -> None:
    module.requires_grad_(False)
    # A Conv1D of transformers is a linear layer that keeps its weight the other way round.
    layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"}
    if isinstance(targets, str):
        targets = [targets]
    for target in targets:
        if not any(_matches(name, target) for name in layers):
            some = ", ".join(map(repr, list(layers)[:3])) or "none"
            raise InvalidArgumentError(f"lora_targets has {target!r}, which no linear layer is called; there are {some}")
    chosen = [name for name in layers if any(_matches(name, target) for target in targets)] if targets else list(layers)[:-1]
    if not chosen:
        raise InvalidArgumentError("no linear layer is there that an adapter could be beside; name it in lora_targets")
    for name in chosen:
        layer = layers[name]
        rows, columns = layer.weight.shape if isinstance(layer, nn.Linear) else reversed(layer.weight.shape)
        parent, _, last = name.rpartition(".")
        with mode:
            setattr(module.get_submodule(parent), last, _Adapter(layer, rank, columns, rows))


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name == pattern or name.endswith("." + pattern)
