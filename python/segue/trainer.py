# ===- trainer.py - the whole training step in the runtime --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The whole training step inside the runtime, over modules that were compiled apart."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

import torch

from . import _runtime
from .arguments import at_least_0, names_keywords, what_is, whole
from .batches import BatchNames, split
from .bound_parameters import BoundParameter
from .budgets import loop_of
from .distributed import ranks_for
from .errors import InvalidArgumentError, MissingWeightError, RankFailedError, UnsupportedError
from .evaluation import Metric, means_over
from .freezing import Frozen, Part, matching
from .gradient_hooks import GradientFunction, GradientHook
from .memory import budget_bytes, parse_bytes
from .module import LoadedModule, Module, Program
from .optimizers import Optimizer
from .precision import LossScale, bring_to
from .run_config import statistics_of, text_of
from .sizes import Sizes
from .squareq import path_of
from .tensors import Order, device as open_device, give, is_on_gpu, is_tensor, kind_of, require_on, spec_of, wrap
from .torch_optimizers import as_optimizer
from .trainer_checkpoints import Checkpoints
from .trainer_figures import Figures
from .trainer_parameters import Parameters
from .training_loop import History, Run
from .turns import Turns, computes_in_turn, in_turn
from .whole_step import WholeStep

log = logging.getLogger("segue")


#: What loops of PyTorch call, and what does its work here.
_HABITS = {
    "backward": "step does forward, backward and the update", "cuda": "a trainer is given its device, as Trainer(..., device=\"cuda:0\")",
    "eval": "evaluate(...) runs modules with dropout off, and step with dropout on", "forward": "evaluate(...) gives the outputs of a batch",
    "last": "no step has been made yet", "model": "the compiled modules are in `modules`, by name", "named_parameters": "parameters() has them by name",
    "to": "a trainer is given its device, as Trainer(..., device=\"cuda:0\")", "train": "evaluate(...) runs modules with dropout off, and step with dropout on",
    "zero_grad": "each step begins with gradients of its own",
}


class Trainer(Checkpoints, Figures, Parameters):
    """Trains stitched modules: forward, backward, clipping and optimizer in the runtime.

    The outputs of a module feed the inputs of the next one that the batch does
    not give. The scalar output called ``loss`` is what is trained. On the CPU, parameters stay
    in the memory of the PyTorch modules: what training changes is seen there at once. A device with
    memory of its own has copies: `sync` brings them to the PyTorch modules, as do `fit`, `resume` and `load_state_dict`.
    On a GPU these modules may lie on the CPU or on that GPU, and so may batches, which are used where they lie.

    Parameters
    ----------
    modules : sequence or mapping of Module
        In the order of the data. Names of the mapping go before parameters that two modules call the same.
    optimizer : Optimizer or torch.optim.Optimizer
        `segue.AdamW`, `segue.SGD` or another; its ``lr`` is a number or a function of the step. One of PyTorch's that has made no
        step is taken for ours of its name, with its groups: its learning rates are read at every step, so that a scheduler
        of PyTorch's works on. Its states are the trainer's, which it does not see.
    clip_grad_norm : float, optional
        Gradients are scaled so that their joint norm is at most this.
    clip_grad_value : float, optional
        Each element of a gradient is brought into [-clip_grad_value, clip_grad_value], after `clip_grad_norm`. Default: that of
        the optimizer.
    state_bits : int, optional
        With 8, moments take a byte per element in place of four, as with ``state_bits=8`` of an optimizer of ours; an optimizer of PyTorch's
        gets it here. It is for all parameters, those of groups with an optimizer of their own, too. Default: that of each optimizer.
    grad_accumulation : int
        Micro-batches per step: a batch has that many times the rows that the modules were compiled for. A last partial batch whose
        rows this does not divide goes into the fewest equal ones that have no more.
    seed : int
        Of the dropout masks.
    precision : str, optional
        ``bf16-mixed``, ``f16-mixed`` or ``f32``, as in `segue.compile`: modules of another one are captured again in this, and their calls
        follow. Default: that of each module.
    loss_scale : LossScale, optional
        How losses are scaled. Default: `segue.LossScale()` where a module is in ``f16-mixed``, and not at all elsewhere. A step that is skipped
        has ``trainer.last.is_skipped``; its loss may be infinite, and `step_count` stays.
    device : str or torch.device, optional
        Where to train, as in `segue.compile`; default: where the modules are, on the GPU whose memory they lie in.
    budget : int or str, optional
        Memory that the run may compute with, as ``"2GiB"``: parameters, gradients, states, saved tensors, inputs and
        workspace. A plan decides what leaves it, and when; no bit of a result depends on it. What PyTorch itself takes is besides.
    spill_dir : path, optional
        A folder on a disk for what has no room in the budget, where `device` is ``"cpu"``; see the guide "disk". The tensors of the
        PyTorch modules move there, too: they stay usable, and take no memory but for the pages that somebody looks at. Their
        values are those of the last `sync` or `fit` until the next step begins.
    spill_capacity : int or str, optional
        What the run may take in that folder, as ``"20GiB"``, reserved when the trainer is made; default: half of what is free.
    seal : path, optional
        With `spill_dir`: where `Trainer.seal` puts checkpoints whose tensors stay on the disk. They need room there, as much again as trained
        weights and states take, and as much as frozen weights take that do not lie there; it is taken now.
    config : path or mapping, optional
        The config of the run, a JSON file or what would stand in one: services of memory, budgets, telemetry. Frozen
        parameters that its ``squareq_slab_path`` holds come from there, whatever the modules have for them. Its section
        ``memory.stitch`` sets how inputs are aligned and writes a line of telemetry per step.
    record_events : path, optional
        An existing folder for logs of what the services decide, for ``segue-run replay``.
    trace : path, optional
        A file for a trace of the run, for ui.perfetto.dev; written by `close`, which leaving a ``with`` block or the end of
        the trainer's life calls. It is kept in memory until then, beside any budget, and has the first steps, up to 50 MiB.
    report : path, optional
        A file for a page of the run (HTML that needs no network): memory by phase and by service against the cap, transfers
        against the link's limit, who holds the most with lines of the source, precision per block, stalls, losses, copies elided.
        It is there from the first step on and written again every few seconds; a browser that shows it follows. The last time is when the trace is written.
    aliases : sequence of pairs
        What the slab of the config and files of weights may call parameters: runs of names that mean the same, as
        ``("fc.base", "fc")`` for an adapter around ``fc``. The component ``orig`` of an adapter may always be missing.
    distributed : str, optional
        ``ddp``: several processes that `torchrun` has started train together, each on batches of its own. Gradients are added up over gloo
        while backward goes on, parameters and seed are those of rank 0, and losses the mean over all ranks. Each rank makes the same trainers and calls of `step`, `fit`,
        `evaluate_on` and `gradients`, in one order. Rank 0 alone writes files and draws bars; see the guide "ranks".
        ``zero1``: the same, to the bit, but each rank has the optimizer states of some parameters alone and updates these for all; each calls `save`, too,
        and what is frozen stays so. ``zero2``: and it has the sums of their gradients alone, so that there is no `gradients`. ``zero3``: and these parameters,
        which the others are sent while blocks run; every rank calls `evaluate`, `sync`, `parameters`, `state_dict` and `save_weights`, too.
        ``pipeline``: each rank has some of the modules, and all are given the same batches, of which ``grad_accumulation`` parts go through the ranks one
        behind the other; the bits are those of one rank. Every rank calls these as with ``zero3``; `step` has outputs on the last rank alone.
    stages : sequence of int, optional
        With ``pipeline``: how many modules each rank has, in their order. Default: so that the costliest stage is as cheap as can be.
    process_group : ProcessGroup, optional
        Of `torch.distributed`: those who train together. Default: all ranks.
    bucket_mb : float, optional
        The MiB of gradients in a message, of which four may be under way at once in the memory of the host; default: 25.
    reduction : str, optional
        ``ordered`` adds gradients in the order of ranks, so that N ranks have the bits of one with ``grad_accumulation=N``; costs the memory and traffic of
        the gradients of all. Two ranks have these bits anyhow. Default: in the order that gloo or NCCL takes.
    messages : str, optional
        How ranks send each other tensors: ``nccl``, from GPU to GPU, where every rank has one of its own, and `libnccl.so.2` is there; ``auto``, which is
        ``nccl`` where that can be but for pipelines and ``reduction="ordered"``, and says in the log what it is. Default: ``host``, over gloo in the host's
        memory, as no GPU has run the others.

    Raises
    ------
    ConfigError
        The config has an unknown key or a value that is not allowed; ``serve: fused`` for modules that read floats.
    Error
        With code ``SLAB_INVALID``, listing what differs: the slab of the config is not one of these modules' weights.
    FileError
        The config cannot be read, or there is no such folder for the logs.
    InvalidArgumentError
        No such device, or options that it does not know; several ranks without a process group.
    RankFailedError
        Another rank trains in another way, or did not come.

    Attributes
    ----------
    modules : dict of str to Module
        The compiled modules, by name; those of a sequence are called "0", "1", and so on.
    optimizer : Optimizer
        Ours, also where one of PyTorch's was given.
    grad_accumulation : int
        Micro-batches per step.
    last : StepResult
        What the last step has found: ``loss``, ``grad_norm``, ``clip``, ``step``, ``loss_scale``, ``is_skipped``, ``outputs``. There from the first step on.

    Examples
    --------
    >>> trainer = segue.Trainer([first, last], optimizer=segue.AdamW(lr=3e-4), clip_grad_norm=1.0)
    >>> loss = trainer.step(tokens=tokens, targets=targets)
    """

    @names_keywords
    def __init__(self, modules: Sequence[Module] | Mapping[str, Module], *, optimizer: Optimizer | torch.optim.Optimizer,
                 clip_grad_norm: float | None = None, clip_grad_value: float | None = None, state_bits: int | None = None,
                 grad_accumulation: int = 1, seed: int = 0,
                 precision: str | None = None, loss_scale: LossScale | None = None, device: str | torch.device | None = None, budget: int | str | None = None,
                 spill_dir: str | os.PathLike[str] | None = None, spill_capacity: int | str | None = None, seal: str | os.PathLike[str] | None = None,
                 config: str | os.PathLike[str] | Mapping[str, Any] | None = None, record_events: str | os.PathLike[str] | None = None, trace: str | os.PathLike[str] | None = None,
                 report: str | os.PathLike[str] | None = None, aliases: Sequence[tuple[str, str]] = (),
                 distributed: str | None = None, process_group: Any = None, bucket_mb: float | None = None, reduction: str | None = None,
                 stages: Sequence[int] | None = None, messages: str | None = None):
        named = _by_name(modules)
        grad_accumulation, seed = whole("grad_accumulation", grad_accumulation, 1), whole("seed", seed, -(2**63))
        if clip_grad_norm is not None:
            clip_grad_norm = at_least_0("clip_grad_norm", clip_grad_norm)
        if device is not None:
            device = spec_of(device)
        for module in named.values():
            module.follow_source()
        optimizer = as_optimizer(optimizer, ((n, m._weights.tensor(n)) for m in named.values() for n in _trained_names(m)))
        if clip_grad_value is not None:
            optimizer = replace(optimizer, clip_grad_value=clip_grad_value)
        if state_bits is not None:
            optimizer = optimizer.with_state_bits(state_bits)
        if optimizer.in_backward and (clip_grad_norm or grad_accumulation > 1):
            what = "clip_grad_norm needs the norm of all gradients" if clip_grad_norm else "grad_accumulation adds up gradients of several batches"
            raise InvalidArgumentError(f"{what} before the first update, and the optimizer has in_backward=True, which updates a "
                                       "parameter as soon as its gradient is known; leave one of them away")
        if optimizer.in_backward and optimizer.in_forward:
            raise InvalidArgumentError("the optimizer has in_backward=True and in_forward=True, and a parameter is updated once; leave one away")
        for module in named.values():
            if isinstance(module, LoadedModule) and module._missing:
                names = sorted(module._missing)
                raise MissingWeightError(f"MISSING_WEIGHT: {module.name} has no value for {names[0]!r}"
                                         f"{f' and {len(names) - 1} others' if len(names) > 1 else ''}", report={"names": names})
        if precision is not None:
            bring_to(precision, list(named.values()))
        self._ranks = ranks_for(distributed, process_group, bucket_mb, reduction, stages, messages)
        # The transport is left once, when the trainer goes or when Python ends, as files are written then.
        self._leave = weakref.finalize(self, self._ranks.leave)
        if not self._ranks.writes:
            trace = report = None
        if seal is not None and self._ranks.are_several:
            raise UnsupportedError("a sealed checkpoint lies in the spill folder of one process, and several ranks have one each; leave seal away, and use save")
        self._turns = Turns()
        self.modules = named
        self.optimizer = optimizer
        self.grad_accumulation = grad_accumulation
        self._clip_grad_norm = float(clip_grad_norm or 0.0)
        if loss_scale is None and any(module.precision == "f16-mixed" for module in named.values()):
            loss_scale = LossScale()
        optimizer.check_patterns(dict.fromkeys(name for module in named.values() for name in _trained_names(module)))
        for output in (trace, report, seal):
            if output is not None:
                _runtime.check_output(os.fspath(output))  # not after the last step
        files: dict[str, Any] = {"config": None, "config_text": None}
        if isinstance(config, Mapping):
            files["config_text"] = text_of(config)
        elif config is not None:
            files["config"] = os.fspath(config)
        spec = next(iter(named.values()))._device.name if device is None else device
        tiers, has_disk = _runtime.within_tiers(spec, **files), spill_dir is not None
        if tiers is not None:
            if budget is not None:
                raise InvalidArgumentError("the config says in memory.tiers what budget= says; leave one out")
            device, text, has_disk = tiers
            files = {"config": None, "config_text": text}
        if budget is not None:
            capacity = 0 if spill_capacity is None else parse_bytes(spill_capacity)
            device, text = _runtime.within_budget(budget_bytes(budget), os.fspath(spill_dir or ""), capacity, spec, **files)
            files = {"config": None, "config_text": text}
        elif spill_dir is not None or spill_capacity is not None:
            raise InvalidArgumentError("spill_dir says where a budget's surplus goes, and spill_capacity how much may; give the budget, too")
        if has_disk:  # it goes with the trainer and the modules, and its memory and its file with it
            self._device = _runtime.Device.open(device or spec)
        else:
            self._device = next(iter(named.values()))._device if device is None else open_device(device)
        if loop_of(self._device) is not None:
            raise InvalidArgumentError(f"device {self._device.name!r} has a budget for calls of modules, which knows nothing of a trainer's steps; "
                                       "compile the modules without one, and give budget= to the trainer, or give it another device")
        for name, module in named.items():
            require_on(self._device.name, module._weights.everything(), f"module {name!r} of the trainer")
        self._ranks.join(self._device)
        self._statistics = statistics_of(config)
        self._frozen = None  # type: ignore[assignment]  # as the modules were captured, which the session tells
        tracer = _runtime.StepTrace(self._device, report is not None) if trace is not None else None
        self._times: deque[float] = deque(maxlen=1000)  # the seconds of the last steps
        self._report = _runtime.RunReport(self._device, **files, trace=tracer) if report is not None else None
        self._session = _runtime.Session(
            self._device, self._binaries(), self._clip_grad_norm, seed, self._ties(), **files,
            record_events=None if record_events is None else os.fspath(record_events), events=self._report or tracer,
            aliases=list(aliases), loss_scaling=None if loss_scale is None else loss_scale.given(), collectives=self._ranks.collectives,
            strategy=self._ranks.strategy, stages=self._ranks.stages)
        if seal is not None and not self._session.can_seal:
            raise InvalidArgumentError("seal says where checkpoints of what lies on the disk go; give budget and spill_dir, too, or use save")
        if self._report is not None and report is not None:
            self._report.keep_at(os.fspath(report))
            self._report.describe(self._model_name(), self._session, json.dumps(self._settings(budget, seed)))
        self._hooks: list[GradientHook] = []
        self._frozen = self._captured = Frozen.of(self._session.parameters)
        self._counts = self._frozen.counts(optimizer, [])
        self._sizes = Sizes(named, self._session, self._device)
        self._names: BatchNames | None = None  # made when a batch without names comes first
        # Runs once: by `close`, when the trainer goes, or when Python ends.
        self._finish = weakref.finalize(self, _write_files, self._session, [(tracer, trace), (self._report, report)])
        self._sources = {name: module._state.number() for name, module in named.items()}  # the states that the programs are of
        self._has_told = False
        self._bound: list[BoundParameter] = []
        self._has_disk = has_disk
        self._bind(spills=has_disk)
        if has_disk:
            self._move_to_disk()
        self._seal_path = None if seal is None else os.fspath(seal)
        if seal is not None:
            self._session.seal_at(os.fspath(seal))
        self._check_ranks()

    def _check_ranks(self) -> None:
        """Refuses ranks that would train in other ways. What the programs compute with, the runtime does not compare."""
        ways = self._ranks.exchange("trainers", {
            "the optimizer": repr(self.optimizer.key()), "the trained modules": list(self.modules),
            "their precision": [module.precision for module in self.modules.values()], "reduction": self._ranks.adds_in_order, "distributed": self._ranks.strategy})
        for rank, way in enumerate(ways):
            for what, value in way.items():
                if value != ways[0][what]:
                    raise RankFailedError(f"RANK_FAILED: {what} differs: rank 0 has {ways[0][what]}, and rank {rank} has {value}; every rank trains in the same way")

    def _binary(self, name: str, program: Program) -> "_runtime.Binary":
        """The binary of a program of the module `name`, as it trains now."""
        # Inputs of one module are those of the batch, of which nobody wants gradients.
        without = program.float_inputs() if len(self.modules) == 1 else ()
        if self._frozen is None or program.captured is None:
            return program.binary(self.optimizer, self._statistics, self._device, without)
        known = {a.name: a.role for a in program.captured.arguments if a.role in ("parameter", "frozen")}
        roles, missed = {}, {}
        for info in self._session.parameters:
            role = "frozen" if info.key in self._frozen.since else "parameter"
            for own in (n for m, n in info.members if m == name):
                if known[own] != role:
                    roles[own] = role
                if info.key in self._frozen.missed:
                    missed[own] = self._frozen.missed[info.key]
        part = Part(self.optimizer, roles, self._counts, missed) if roles or any(m for _, m in self._counts) else self.optimizer
        return program.binary(part, self._statistics, self._device, without)

    def _binaries(self) -> list[tuple[str, "_runtime.Binary"]]:
        return [(name, self._binary(name, module._primary)) for name, module in self.modules.items()]

    def _ties(self) -> list[list[tuple[str, str]]]:
        """Parameters of several modules that are one tensor."""
        groups: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for name, binary in self._binaries():
            module = self.modules[name]
            for value in next(p for p in binary.programs if p.name == "forward").inputs:
                if value.role in ("parameter", "frozen"):
                    tensor = module._weights.tensor(value.name)
                    which = id(tensor) if tensor.is_meta else tensor.data_ptr()
                    groups.setdefault((which, tuple(tensor.shape)), []).append((name, value.name))
        return [group for group in groups.values() if len(group) > 1]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Neither `copy` nor `pickle` has a place for the memory of a device."""
        raise InvalidArgumentError("a trainer cannot be copied or pickled, since its state lies on its device; write it by save(path), and make another Trainer "
                                   "that is given it by resume(path), or by load_state_dict(state_dict()) in this process")

    if not TYPE_CHECKING:  # a checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Says what does the work of what loops of PyTorch call."""
            way_out = _HABITS.get(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}" + (f": {way_out}" if way_out else ""), name=name, obj=self)

    # --- training ---------------------------------------------------------------------

    def _named(self, given: tuple[Any, ...], batch: dict[str, Any]) -> dict[str, Any]:
        """A batch by name of what a method was given without and with names."""
        for name, tensor in batch.items():
            if not is_tensor(tensor):
                raise InvalidArgumentError(f"{name!r} of the batch is {what_is(tensor)}, where a tensor is wanted; give torch.as_tensor(...), or a numpy array")
        if not given:
            return batch
        if self._names is None:
            self._names = BatchNames(self._binaries())
        return {**self._names(given[0] if len(given) == 1 else given), **batch}

    @computes_in_turn
    def step(self, *given: Any, lr: float | None = None, **batch: Any) -> float:
        """One training step on a batch of tensors by input name. Returns the loss.

        Tensors without names, ``trainer.step(x, y)``, are taken in the order of the modules and their inputs; a mapping,
        ``trainer.step(batch)``, by its names. `evaluate` and `gradients` take the same.

        A batch of other extents than the example's, the last one of an epoch or another length, trains, too: the modules are
        compiled for it when it comes first, and the log of ``segue`` says so.

        `lr` is the rate of this step; default: the optimizer's for the steps done so far. Groups with a rate keep it. Ctrl-C (on the main thread) ends the
        step first: KeyboardInterrupt comes when `last`, `step_count` and the report have it.

        Raises
        ------
        LayoutMismatchError, MissingInputError, NameUnknownError
            The batch does not fit the modules.
        BudgetInfeasibleError
            No step with batches of these extents keeps to the budget; nothing of the step has begun.
        Error
            With code ``UNSUPPORTED``: a batch of other extents, with Selective Precision.
        NanLossError
            The loss is not finite; parameters and state are those of the last finished step.
        StateTornError
            What failed did so after some parameters were updated: in the optimizer, or with ``in_backward`` in backward, where
            a gradient that is not finite does so, too. Resume from a checkpoint.
        InvalidArgumentError
            A parameter is no longer the tensor that the trainer was made with (``param.data = ...``), or its values were changed
            in PyTorch while the trainer has them on a device of its own; both would be lost silently.
        RankFailedError
            Another rank cannot take the step, and the message says which and why, or it has ended. Parameters are those of the step before
            where the message says so; otherwise resume from a checkpoint.
        """
        self._check_bound()
        rates = self.optimizer.rates(self.step_count)
        if lr is not None:
            rates[0] = at_least_0("lr of the step", lr)
        rates = [rates[rate] for rate, _ in self._counts]
        hooks = [(key, call) for hook in self._hooks for key, call in hook.calls() if key not in self._frozen.since]
        order = Order(self._device)
        batches = self._micro_batches(self._named(given, batch), order)
        begin = time.perf_counter()
        with WholeStep(), order:
            try:
                self.last = self._session.step(batches, rates, hooks)
            except Exception as error:
                self._ranks.told(error)
                if self._report is not None:
                    self._report.add_failure(str(error))
                raise
            seconds = time.perf_counter() - begin
            self._times.append(seconds)
            if self._report is not None:
                self._report.add_step(self.last, seconds)
        return self.last.loss

    def _micro_batches(self, batch: Mapping[str, Any], order: Order) -> list[dict[str, Any]]:
        batch, _ = self._sizes.padded(batch)
        parts = [batch] if self.grad_accumulation == 1 else split(batch, self.grad_accumulation, self._sizes.rows)
        self._sizes.ensure(parts[0], self._binary)
        return [self._wrapped(part, order) for part in parts]

    def _wrapped(self, batch: Mapping[str, Any], order: Order) -> dict[str, "_runtime.Tensor"]:
        require_on(self._device.name, batch.items(), "a batch")
        wrapped = {}
        for name, tensor in batch.items():
            try:
                wrapped[name] = wrap(tensor, self._device, order)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{name!r} of the batch: {error}") from error
        return wrapped

    @names_keywords
    def fit(self, batches: Iterable[Any], *, epochs: int | None = None, steps: int | None = None, evaluate_on: Iterable[Any] | None = None,
            evaluate_every: int | None = None, metrics: Mapping[str, Metric] | None = None, callbacks: Sequence[Any] = (), scheduler: Any = None,
            schedule_by: str = "step", to_batch: Callable[[Any], Any] | None = None, checkpoint: str | os.PathLike[str] | None = None,
            save_every: int | None = None, resume: bool = False, progress: bool = False) -> History:
        """Steps over batches, with evaluations, callbacks and checkpoints on the way.

        However it ends, by Ctrl-C or an error too, the PyTorch modules have the values of the last finished step. Several ranks call it alike, each with batches
        of its own, and end together: an error of one ends the others, and so does what one is asked to stop by. The checkpoint has where each rank
        is in its data; callbacks are called on every rank.

        Parameters
        ----------
        batches : iterable
            A DataLoader, a list, an iterator. A batch is a mapping of input names to tensors, or a tensor, tuple or list with
            one for each input that comes from outside, in the order of the modules and their inputs.
        epochs, steps : int, optional
            How long: so many times through the batches, or so many batches, whichever ends first. Default: once through them. With
            `steps` alone a loader begins again as often as it takes.
        evaluate_on : iterable, optional
            Held-out batches, a DataLoader or a list: the means of `Trainer.evaluate_on` are taken after each epoch, and at the end.
        evaluate_every : int, optional
            Instead of after each epoch, after so many steps.
        metrics : mapping of functions, optional
            As `Trainer.evaluate_on` takes them.
        callbacks : sequence
            Objects with `on_step` and others of `segue.Callback`; `segue.EarlyStop` is one.
        scheduler : torch.optim.lr_scheduler, optional
            Of the optimizer of PyTorch's that the trainer was given: its ``step`` is called after each step; that of a
            `ReduceLROnPlateau` after each evaluation, with its ``loss``.
        schedule_by : str
            ``epoch`` calls it after each epoch instead.
        to_batch : callable, optional
            Makes one of the above of what the loader gives.
        checkpoint : path, optional
            Where to write checkpoints, a safetensors file as that of `Trainer.save`, or, as there, a folder with a file of each rank. It also has where the run is in its data, the states
            of random numbers, of the scheduler and of callbacks.
        save_every : int, optional
            Writes it after so many steps; default: after each epoch. It is written at the end, too.
        resume : bool
            Goes on from the checkpoint if it is there, in mid-epoch too: the losses and weights after it are equal to the bit to those of a
            run that was never ended. `epochs` and `steps` count from the beginning of the run.
        progress : bool
            Shows a bar on stderr, if that is a terminal.

        Returns
        -------
        History
            A list of the losses, with ``evaluations`` and ``stopped``.

        Raises
        ------
        InvalidArgumentError
            Options that do not go together; a batch whose names cannot be told; a checkpoint of another kind of run.

        Examples
        --------
        >>> loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
        >>> trainer.fit(loader, epochs=10, evaluate_on=held_out, callbacks=[segue.EarlyStop(patience=2)],
        ...             checkpoint="run.safetensors", save_every=500, resume=True)
        """
        run = Run(self, batches, epochs=epochs, steps=steps, evaluate_on=evaluate_on, evaluate_every=evaluate_every, metrics=metrics,
                  callbacks=callbacks, scheduler=scheduler, schedule_by=schedule_by, to_batch=to_batch, checkpoint=checkpoint,
                  save_every=save_every, resume=resume, progress=progress)
        with self._ranks.telling("fit"):
            return run.go()

    def _tell_figures(self) -> None:
        """Brings what each rank has taken to the report of the first one. Every rank calls this."""
        if self._ranks.collectives is None:
            return
        seconds = sum(self._times) / max(len(self._times), 1)
        lines = self._ranks.exchange("figures of ranks", self._ranks.collectives.figures(self._device, seconds))
        if self._report is not None:
            self._report.set_ranks(lines)

    @property
    def calibration_samples(self) -> int:
        """Batches that `calibrate` is to have before training; 0: there is nothing to measure."""
        return self._session.calibration_samples

    def on_gradient(self, pattern: str, function: GradientFunction) -> GradientHook:
        """Calls `function` in each step with the gradient of each parameter that `pattern`, a name or pattern, is for.

        It gets the gradient before the norm is taken and before clipping: the mean over micro-batches, not scaled, in memory of its own on the CPU. It may
        write into it, or return another one; an exception ends the step with nothing updated. Functions are called in the order in
        which they came. Each costs a copy of the gradient and back, and on a device with queues the wait for all of backward. With a
        budget, a gradient that has left comes to the host's memory for it, and not to the device.

        Returns
        -------
        GradientHook
            ``remove()`` ends it, as does the end of a ``with`` block.

        Raises
        ------
        InvalidArgumentError
            The pattern is for no trained parameter, or parameters are updated in backward (``in_backward``).

        Examples
        --------
        >>> trainer.on_gradient("head.weight", lambda gradient: gradient * mask)
        """
        if self.optimizer.in_backward:
            raise InvalidArgumentError("the optimizer has in_backward=True, which uses gradients up as soon as they are known; leave it away to see them")
        return GradientHook(self._hooks, matching([pattern], (p for p in self._session.parameters if p.trained)), function)

    # --- what is trained ------------------------------------------------------------------

    def freeze(self, *patterns: str) -> None:
        """Trains the parameters that patterns are for no more, as ``trainer.freeze("h.0.*", "wte.weight")``, until `unfreeze`.

        Their gradients are not computed, nor is kept what only these need; modules are compiled once for each set. Values and states of the
        optimizer stay as they are, in memory and in checkpoints, and are counted by `held`. What follows is what PyTorch does with
        ``requires_grad_(False)`` and gradients of None.

        Raises
        ------
        InvalidArgumentError
            A pattern is for no parameter, nothing would be left to train, or a module came from a file.
        UnsupportedError
            With streamed blocks (Weight Stagehand) or Selective Precision, whose blocks have one set of trained parameters.
        """
        self._retrain(self._frozen.freeze(matching(patterns, self._parameters_proper()), self.step_count))

    def unfreeze(self, *patterns: str) -> None:
        """Trains parameters that are frozen again, or those that were captured with ``requires_grad=False`` for the first time.

        States go on from where they were, and the steps of a parameter are those that it took part in, as in PyTorch. Raises as `freeze`.
        """
        self._retrain(self._frozen.unfreeze(matching(patterns, self._parameters_proper()), self.step_count))

    def _parameters_proper(self) -> list[Any]:
        """The parameters of the session, without buffers and without what lies in a slab."""
        in_slab = set(self._session.slab_parameters)
        return [info for info in self._session.parameters if info.key not in in_slab and isinstance(
            self.modules[info.members[0][0]]._weights.tensor(info.members[0][1]), torch.nn.Parameter)]

    @in_turn
    def _retrain(self, frozen: Frozen) -> None:
        if frozen == self._frozen:
            return
        for module in self.modules.values():
            if isinstance(module, LoadedModule):
                raise InvalidArgumentError(f"{module.name} came from a file, which was compiled for the parameters that it trains")
        infos = self._session.parameters
        if all(info.key in frozen.since for info in infos):
            raise InvalidArgumentError("all parameters would be frozen, and nothing trained")
        self.sync()
        before = self._frozen, self._counts
        self._frozen, self._counts = frozen, frozen.counts(self.optimizer, infos)
        try:
            self._session.set_trained(self._binaries(), [missed for _, missed in self._counts])
        except BaseException:
            self._frozen, self._counts = before
            raise
        self._sizes.forget()
        for bound in self._bound:
            if bound.is_shared or bound.key in before[0].since and bound.key not in frozen.since:  # it is written from now on
                bound.is_shared = not self._has_disk and not bound.tensor.is_meta and self._share(bound.key, bound.tensor)
        if self._has_disk:
            self._move_to_disk()  # a home may be another now

    @computes_in_turn
    def calibrate(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Measures on some batches what quantising each unit of Selective Precision changes, before training.

        `fit` does it with its first batches, and a first step with its own. Nothing happens where nothing is to be measured, or
        an earlier run has left the errors beside the slab.
        """
        with Order(self._device) as order:
            parts = [part for batch in batches for part in self._micro_batches(batch, order)]
            if self._session.calibration_samples:
                self._session.calibrate(parts)

    def precision(self) -> dict[str, Any]:
        """The units of Selective Precision.

        ``units`` is a list with the ``name``, the ``precision`` now, whether it is ``eligible`` and if not ``why``, its low ``forms``,
        its ``weights`` and the bytes of each form; ``kept`` has the frozen parameters that stay as they are, with reasons. Empty where the
        config has no Selective Precision.
        """
        report: dict[str, Any] = json.loads(self._session.precision_report())
        return report

    def streamed_blocks(self) -> list[str]:
        """The blocks that come to the device when they run, as ``module/block`` in the order of forward.

        Raises
        ------
        ValueError
            The config has no Weight Stagehand. So do the next three.
        """
        return self._session.streamed_blocks()

    def keep_resident(self, *blocks: str) -> "_runtime.Claim":
        """Keeps blocks on the device once they are there: until the ``with`` ends, or ``release()``.

        ``with trainer.keep_resident("0/h.0"): ...``
        """
        return self._session.keep_resident(list(blocks))

    def reserve(self, module: str, bytes: int, *, primary: bool = True) -> "_runtime.Claim":
        """Puts `bytes` of the device out of reach of guests; what a primary module has there does not leave for them either."""
        return self._session.reserve(module, bytes, primary)

    def as_guest(self, module: str) -> "_runtime.Claim":
        """Runs blocks in the name of a module that is a guest: it may use what others have not reserved."""
        return self._session.as_guest(module)

    @computes_in_turn
    def evaluate(self, *given: Any, **batch: Any) -> dict[str, torch.Tensor]:
        """The outputs of the last module by name, with dropout off; nothing changes. They lie on the GPU where the batch does. With ``zero3`` every rank
        calls this, each with a batch.

        Modules with dropout are compiled once more for it when it comes first. With Selective Precision they are not, and drop as
        in training, which a warning says.
        """
        self._check_bound()
        padded, length = self._sizes.padded(self._named(given, batch))
        self._sizes.ensure(padded, self._binary, evaluates=True)
        with Order(self._device) as order:
            outputs = self._session.evaluate(self._wrapped(padded, order))
        kind = "torch there" if any(map(is_on_gpu, padded.values())) else "torch"
        return self._sizes.cut({name: give(tensor, kind) for name, tensor in outputs.items()}, padded, length)

    def evaluate_on(self, batches: Iterable[Any], *, metrics: Mapping[str, Metric] | None = None,
                    to_batch: Callable[[Any], Any] | None = None) -> dict[str, float]:
        """Means over all rows of held-out batches, by name: of the scalar outputs of the last module, and of metrics.

        Several ranks call it together, each with held-out batches of its own, and get the means over the rows of all. The
        page of the run (`report`) has them by the step, the last ones of each.

        Parameters
        ----------
        batches : iterable
            As `fit` takes them.
        metrics : mapping of functions, optional
            ``{"accuracy": lambda outputs, batch: (outputs["logits"].argmax(-1) == batch["y"]).float().mean()}``: each makes a
            number, the mean over the rows of a batch, of the outputs and the batch by name.

        Raises
        ------
        InvalidArgumentError
            There is no batch, or nothing to take a mean of.
        RankFailedError
            Another rank cannot evaluate.
        """
        means = means_over(self, batches, BatchNames(self._binaries(), to_batch), metrics or {}, self._ranks)
        if self._report is not None:
            with self._turns.lock:
                self._report.add_evaluation(self.step_count, means.get("loss"), {name: mean for name, mean in means.items() if name != "loss"})
        return means

    @computes_in_turn
    def gradients(self, *given: Any, **batch: Any) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradients of every trained parameter on one batch, without a step. Several ranks call it together, and get those of their own batches."""
        self._check_bound()
        padded, _ = self._sizes.padded(self._named(given, batch))
        self._sizes.ensure(padded, self._binary)
        with Order(self._device) as order:
            loss = self._session.forward_backward(self._wrapped(padded, order))
        scale = self.loss_scale or 1.0
        kind = {bound.key: kind_of(bound.tensor) for bound in self._bound}
        found = {p.key: give(self._session.gradient(p.key), kind[p.key]) / scale for p in self._session.parameters if p.trained}
        self._session.clear_gradients()
        return loss, found

    def load_slab(self, slab: str | os.PathLike[str], *, verify: str = "open",
                  aliases: Sequence[tuple[str, str]] = ()) -> list[str]:
        """Gives frozen weights what a SquareQ slab holds of them, and returns their keys.

        A weight that the modules were compiled to keep in the storage of the slab
        (``segue.compile(..., frozen_storage="int8_row")``) gets codes and scales as they are; another is dequantised.
        `aliases` are runs of names that mean the same, as ``("fc.base", "fc")`` for an adapter around ``fc``.
        A checkpoint holds frozen weights as floats: load the slab again after `resume`.

        Raises
        ------
        Error
            With code ``SLAB_INVALID``, listing what differs, where a frozen linear layer is neither in the slab nor was
            kept in bf16, the slab is of another model, or it holds what is trained; ``CHECKSUM_MISMATCH`` for damaged bytes, ``UNSUPPORTED`` for a weight that is
            rotated or has a low-rank product, whose codes alone are not the weight.
        LayoutMismatchError
            A weight has another shape in the slab.
        """
        opened = _runtime.Slab.open_for(self._session, path_of(slab), list(aliases), verify)
        taken = []
        for info in self._session.parameters:
            name = next((n for _, n in info.members if n.endswith("weight") and opened.holds(n)), None)
            if name is None or info.trained:
                continue
            self._session.set_parameter(info.key, opened.load_layer(self._device, name, info.element))
            taken.append(info.key)
        return taken

    def close(self) -> None:
        """Writes trace and report, if there are any; steps after it are not in them.

        Raises
        ------
        FileError
            The file cannot be written.
        """
        self._finish()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- state ----------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this rank among those that train together; 0 where there is one."""
        return self._ranks.rank

    @property
    def ranks(self) -> int:
        """How many ranks train together."""
        return self._ranks.count

    @property
    def step_count(self) -> int:
        """Steps finished since the beginning of training."""
        return self._session.step_count

    @property
    def loss_scale(self) -> float | None:
        """The factor that the loss of the next step is scaled by; None: it is not scaled."""
        return self._session.loss_scale


def _by_name(modules: Any) -> dict[str, Module]:
    """The modules that a trainer is given, by name. Raises InvalidArgumentError for what is none."""
    if isinstance(modules, torch.nn.Module):
        modules = [modules]
    if not isinstance(modules, (Mapping, Iterable)) or isinstance(modules, (str, type)):
        raise InvalidArgumentError(f"the modules of the trainer are {what_is(modules)}; give segue.compile(model, example), or several of these in a list")
    named = dict(modules) if isinstance(modules, Mapping) else {str(i): m for i, m in enumerate(modules)}
    if not named:
        raise InvalidArgumentError("a trainer needs at least one module")
    for name, module in named.items():
        if not isinstance(module, Module):
            whose = ", the module that torch.compile was given," if hasattr(module, "_orig_mod") else ""
            raise InvalidArgumentError(f"module {name!r} of the trainer is {what_is(module)}, which is not compiled by segue; give it "
                                       f"segue.compile(module, example){whose} with an example of its inputs")
    return named


def _write_files(session: "_runtime.Session", writers: Sequence[tuple[Any, Any]]) -> None:
    try:
        session.finish_records()  # the report is made of them, too
    finally:
        for writer, path in writers:
            if writer is not None:
                writer.write(os.fspath(path))
                if (steps := getattr(writer, "ended_after", None)) is not None:
                    log.warning("%s has the first %d steps; more would take more than the 50 MiB of memory of a trace", path, steps)


def _trained_names(module: Module) -> list[str]:
    program = module._primary
    if program.captured is not None:
        return [a.name for a in program.captured.named("parameter")]
    return [v.name for v in program.module(module._device, None).parameters]
