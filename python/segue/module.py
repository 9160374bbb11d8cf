# ===- module.py - a compiled module that is called like a PyTorch one ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A compiled module: called like the PyTorch module it was made of, with its parameters.

A `Module` holds *variants*, one per set of input shapes and modes, each a
captured graph and, once it is needed, the binary made of it. Calls with torch
tensors take part in autograd: forward runs `@forward` and keeps the runtime's
opaque token, backward runs `@backward` with it.
"""

from __future__ import annotations

import contextlib
import inspect as _inspect
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import _runtime, verify
from .again import Again, transform_around, warn_of
from .arguments import what_is
from .buckets import Bucketing, Buckets
from .budgets import Wanted, device_and_budget, loop_of
from .compile_process import compile_text
from .cubins import checked_cubin, ptxas_for
from .errors import InvalidArgumentError, LayoutMismatchError, MissingWeightError
from .freezing import PART, Part
from .frontend import Captured, capture
from .frontend.autocast import Around
from .frontend.padding import Padding
from .frontend.signature import Constant, positional
from .frontend.writer import ELEMENT_TYPES
from .memory import Memory, forecast
from .notebooks import binary as show_binary, facts
from .optimizers import Optimizer
from .precision import checked_precision, entered_precision
from .source_state import SourceState
from .stitched_call import Stitched, StitchedCall
from .tensors import Order, describe, device as open_device, give, is_tensor, kind_of, require_on, wrap
from .weights import Values, Weights
from .without_bytes import to_capture

log = logging.getLogger("segue")


def _target_of(on: "_runtime.Device | None") -> str:
    """The target of the compiler for a device, or for the processors of this machine."""
    return _runtime.kernel_target() if on is None else on.kernel_target


class Program:
    """One variant: a graph for fixed shapes, and the binaries made of it, by optimizer."""

    def __init__(self, captured: Captured, name: str, stitch_hints: str = "", frozen_storage: str = "",
                 l1_bytes: int = 0, cubin: str = "auto", modes: tuple[bool, ...] = (), padding: Padding | None = None,
                 source: tuple[Any, ...] = ()):
        self.captured = captured
        self.name = name
        self.padding = padding  # of its inputs, where the module has buckets
        self.modes = modes  # `training` of the module and its submodules
        self.source = source  # what else of the module and of the autocasts around it decided the graph
        self.stitch_hints = stitch_hints
        self.frozen_storage = frozen_storage
        self.l1_bytes = l1_bytes
        self.cubin = cubin
        self._bytes: dict[tuple[str, str], bytes] = {}  # by target, and by optimizer and statistics
        self._forget()

    def __repr__(self) -> str:
        return f"<variant of {self.name} for {self.shapes()}>"

    def shapes(self) -> str:
        """The inputs that it is for: ``x: f32[8,4], y: f32[8,2]``."""
        return ", ".join(f"{a.name}: {ELEMENT_TYPES[a.dtype]}[{','.join(map(str, a.shape))}]" for a in self.captured.named("input")) or "no inputs"

    def _forget(self) -> None:
        """Forgets what is made from the rest, and no copy has."""
        self._binaries: dict[tuple[str, str], _runtime.Binary] = {}
        self._modules: dict[tuple[str, ...], _runtime.Module] = {}  # by the inputs that get no gradients
        self._weight_names: tuple[str, ...] | None = None
        self._making = threading.RLock()
        self.is_new = True  # until its first call

    def __getstate__(self) -> dict[str, Any]:
        made = ("_binaries", "_modules", "_weight_names", "_making", "is_new")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def verify(self, tensors: dict[str, Any], weights: "Weights") -> None:
        """Compares the kernels with the reference interpreter; see `segue.verify`."""
        names = (a.name for a in self.captured.arguments if a.role in ("parameter", "frozen"))
        verify.verify_values(self.captured.text, self.name, {**weights.named(names), **tensors},
                             training=self.captured.differentiable)

    def binary(self, optimizer: Optimizer | Part | None, statistics: str = "", on: "_runtime.Device | None" = None,
               without: tuple[str, ...] = ()) -> "_runtime.Binary":
        """The binary with this optimizer, with kernels for the device `on`, or for processors; made at the first call.

        `statistics` is "block" or "layer" where Selective Precision is to know these: backward then returns statistics of
        their gradients, and forward is there block by block, too. Backward computes no gradients of the inputs `without`.
        """
        target = _target_of(on)
        key = (target, _optimizer_key(optimizer) + statistics + _key_of_inputs(without))
        with self._making:
            if key not in self._binaries:
                if key not in self._bytes:
                    self._bytes[key] = self._make(optimizer, statistics, target, without)
                self._binaries[key] = _runtime.Binary.from_bytes(self._bytes[key], self.name)
            return self._binaries[key]

    def made(self) -> list["_runtime.Binary"]:
        """The binaries that are there already."""
        return list(self._binaries.values())

    def portable(self, optimizer: Optimizer | None, on: "_runtime.Device") -> bytes:
        """The bytes of a file for every machine: unlike `binary`, with kernels for each instruction set, and for `on` where that is a GPU."""
        target = _target_of(on)
        return self._make(optimizer, "", f"x86-64-v3,x86-64-v4,{target}" if target.startswith("sm_") else "")

    def module(self, on: "_runtime.Device", optimizer: Optimizer | None, without: tuple[str, ...] | None = ()) -> "_runtime.Module":
        """Forward, backward and inference; from a binary that is there already, if one is. Of the inputs `without` no gradients
        are wanted; None: of nothing, so that each module serves."""
        with self._making:
            known = self._modules.get(without) if without is not None else next(iter(self._modules.values()), None)
            return known if known is not None else self._make_module(on, optimizer, self.float_inputs() if without is None else without)

    def _make_module(self, on: "_runtime.Device", optimizer: Optimizer | None, without: tuple[str, ...]) -> "_runtime.Module":
        if optimizer is not None and optimizer.in_backward:  # PyTorch wants gradients
            optimizer = None
        # One that computes all gradients serves, too; a copy may come from elsewhere.
        made = [key for key in (*self._binaries, *self._bytes) if key[0] == _target_of(on) and _gives_gradients(key[1], without)]
        if made:
            key = max(made, key=lambda key: key[1].endswith(_key_of_inputs(without)))
            if key not in self._binaries:
                self._binaries[key] = _runtime.Binary.from_bytes(self._bytes[key], self.name)
            binary = self._binaries[key]
        else:
            binary = self.binary(optimizer, on=on, without=without)
        found = self._modules[without] = _runtime.Module(on, binary, self.name)
        return found

    def without_gradients(self, tensors: Mapping[str, Any]) -> tuple[str, ...]:
        """The inputs of a call that autograd wants no gradients of, though they are floats."""
        return tuple(name for name in self.float_inputs() if not getattr(tensors[name], "requires_grad", False))

    def float_inputs(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.captured.named("input") if a.dtype.is_floating_point)

    def weight_names(self, module: "_runtime.Module") -> tuple[str, ...]:
        """Parameters, then frozen values; kept, since every call asks."""
        if self._weight_names is None:
            self._weight_names = tuple(v.name for v in (*module.parameters, *module.frozen))
        return self._weight_names

    def _make(self, optimizer: Optimizer | Part | None, statistics: str, target: str, without: tuple[str, ...] = ()) -> bytes:
        roles = {} if optimizer is None else optimizer.roles
        parameters = [a.name for a in self.captured.arguments if roles.get(a.name, a.role) == "parameter"]
        settings = optimizer.settings(parameters) if optimizer is not None else {}
        if optimizer is not None and not parameters:
            without = ()  # a trainer of nothing, which says so itself
        has_gradients = self.captured.differentiable and bool(parameters or set(self.float_inputs()) - set(without))
        return compile_text(
            self.captured.text_with(settings, roles, without), self.name, training=has_gradients,
            optimizer=optimizer.spec() if optimizer is not None and parameters else "none",
            stitch_hints=self.stitch_hints, frozen_storage=self.frozen_storage,
            gradient_statistics=statistics if has_gradients else "", block_programs=bool(statistics),
            target=target, l1_bytes=self.l1_bytes, ptxas=ptxas_for(self.cubin, target))


class LoadedProgram(Program):
    """The variant of a module that came from a file."""

    def __init__(self, binary: "_runtime.Binary", name: str):
        self.captured = None  # type: ignore[assignment]  # a file has no graph
        self.name = name
        self.is_new = True
        self._loaded = binary
        self._module: _runtime.Module | None = None
        self._weight_names = None

    def shapes(self) -> str:
        forward = next(p for p in self._loaded.programs if p.name in ("forward", "inference"))
        return ", ".join(f"{v.name}: {v.element}[{','.join(map(str, v.shape))}]" for v in forward.inputs if v.role == "input") or "no inputs"

    def verify(self, tensors: dict[str, Any], weights: "Weights") -> None:
        raise InvalidArgumentError(f"{self.name} came from a file, which has no graph to interpret; "
                                   f"unset {verify.VARIABLE}, or compile the module again")

    def binary(self, optimizer: Optimizer | Part | None, statistics: str = "", on: "_runtime.Device | None" = None,
               without: tuple[str, ...] = ()) -> "_runtime.Binary":
        # The program that updates parameters: of its own, or backward.
        updating = next((p for p in self._loaded.programs if p.name in ("optimizer", "backward")
                         and any(v.role == "parameter" for v in p.outputs)), None)
        if optimizer is not None and updating is None:
            raise InvalidArgumentError(
                f"{self.name} was compiled without an optimizer; pass one to segue.compile before saving it")
        if isinstance(optimizer, Optimizer) and updating is not None:
            optimizer.check_built(dict(self._loaded.options), [v.name for v in updating.outputs if v.role == "parameter"], self.name)
        return self._loaded

    def float_inputs(self) -> tuple[str, ...]:
        return ()  # what it computes gradients of is settled

    def made(self) -> list["_runtime.Binary"]:
        return [self._loaded]

    def module(self, on: "_runtime.Device", optimizer: Optimizer | None, without: tuple[str, ...] | None = ()) -> "_runtime.Module":
        if self._module is None:
            self._module = _runtime.Module(on, self._loaded, self.name)
        return self._module


#: Attributes that a compiled module has in common with the one that it was made of.
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
#: Attributes that no copy takes over: they are shared with the source, or made by `Module._set_up`.
_MADE = (*_SHARED, "_device", "_budget", "_selecting", "_state", "_signature", "_plain", "_weights", "_variants", "_primary")


#: Marks in the key of a binary the inputs that get no gradients.
_WITHOUT = " without "


def _key_of_inputs(without: tuple[str, ...]) -> str:
    return _WITHOUT + repr(without) if without else ""


def _gives_gradients(key: str, without: tuple[str, ...]) -> bool:
    """Of a binary with this key, whether backward gives the gradients of each parameter, and of inputs other than `without`."""
    optimizer, mark, inputs = key.partition(_WITHOUT)
    return mark + inputs in ("", _key_of_inputs(without)) and not any(mark in optimizer for mark in ("in-backward", PART))


def _optimizer_key(optimizer: Optimizer | Part | None) -> str:
    return "" if optimizer is None else repr(optimizer.key())


class Module(nn.Module):
    """A compiled module.

    It shares parameters, buffers and submodules with the PyTorch module that it
    was made of: names, `state_dict`, `train` and `eval`, and any optimizer
    over its parameters work as before. Made by `segue.compile` and `segue.load`.

    It follows that module: where submodules or parameters were put in, replaced, tied, frozen or
    given hooks since, or attributes that are numbers, texts, functions, tensors, or containers of
    these, the next call compiles one more variant of it. What changes deeper within an attribute, as
    in an object of settings, is not seen.

    Attributes
    ----------
    name : str
        In messages, and as prefix of parameters.
    optimizer, max_variants, stitch_hints, frozen_storage, l1_bytes, cubin, precision
        As `segue.compile` was given them.
    bucketing
        What pads calls, where there are buckets.
    """

    _source: nn.Module  # which is no submodule, as its own are
    _primary: Program  # of the example

    def __init__(self, source: nn.Module, *, name: str, device: str, optimizer: Optimizer | None, max_variants: int,
                 stitch_hints: str = "", frozen_storage: str = "", l1_bytes: int = 0, cubin: str = "auto",
                 precision: str | None = None, budget: Wanted | None = None, buckets: Buckets | None = None):
        super().__init__()
        own = self.__dict__
        own["_source"] = source
        for shared in _SHARED:
            own[shared] = source.__dict__[shared]
        self.training = source.training
        self.name = name
        self.optimizer = optimizer
        self.max_variants = max_variants
        self.stitch_hints = stitch_hints
        self.frozen_storage = frozen_storage
        self.l1_bytes = l1_bytes
        self.cubin = checked_cubin(cubin)
        self.precision = checked_precision(precision)
        self._spec, self._wanted_budget = device, budget
        self.bucketing = None if buckets is None else Bucketing(buckets, source, name)
        self._primary = None  # type: ignore[assignment]  # until the example is captured
        self._set_up()

    def _set_up(self, number: int = 0, last: int = 0) -> None:
        """Sets up what hangs on the rest, and a copy gets anew."""
        self._device, self._budget = device_and_budget(self._spec, self._wanted_budget)
        self._selecting = threading.RLock()
        self._state = SourceState(self._source, number, last)
        self._signature = _inspect.signature(self._source.forward)
        self._plain: dict[int, str] = {}  # calls that were made with so many tensors and nothing else, and the structure of these
        self._weights = Weights(self._source, self._state, self._device)
        self._variants: OrderedDict[Any, Program] = OrderedDict()

    # --- calls ----------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if (transform := transform_around(args, kwargs)) is not None:
            warn_of(self.name, transform)
            with self._entered_precision():
                return self._source(*args, **kwargs)
        length = None
        if self.bucketing is not None:
            args, kwargs, length = self.bucketing.pad(*positional(self._signature, args, kwargs))
        program, tensors, kind = self._select(args, kwargs)
        if program.is_new:
            if verify.enabled():
                program.verify(tensors, self._weights)
            program.is_new = False
        takes_part = kind.startswith("torch") and torch.is_grad_enabled()
        module = program.module(self._device, self.optimizer, program.without_gradients(tensors) if takes_part else None)
        named = self._weights.named(program.weight_names(module))
        if any(isinstance(t, torch.Tensor) and t.is_cuda for t in (*named.values(), *tensors.values())):
            require_on(self._device.name, (*tensors.items(), *named.items()), self.name, together=True)
            kind = "torch there" if kind == "torch" else kind  # of a scalar, which may lie on the CPU
        with Order(self._device) as order:
            results = self._run(program, module, tensors, self._weights.values(named, order), kind, order)
        if length is not None and program.padding is not None:
            results = [program.padding.cut(i, r, length) for i, r in enumerate(results)]
        return self._assemble(program, results)

    def _entered_precision(self) -> contextlib.AbstractContextManager[Any]:
        return entered_precision(self.precision, "cpu" if self.precision is None else self._weights.place.type)

    def _select(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, dict[str, Any], str]:
        """The variant for a call, its input tensors by name, and the kind of the results."""
        if self.precision is None:
            return self._select_as_it_is(args, kwargs)
        with self._entered_precision():
            return self._select_as_it_is(args, kwargs)

    def _select_as_it_is(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, dict[str, Any], str]:
        is_plain = not kwargs and all([type(x) is torch.Tensor for x in args])
        structure = self._plain.get(len(args)) if is_plain else None
        tensors: Sequence[Any] = args
        if structure is not None:
            described: tuple[Any, ...] = tuple([(x.shape, x.dtype) for x in args])
        else:
            args, kwargs = positional(self._signature, args, kwargs)
            flat, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
            structure = str(spec)
            described = tuple(describe(x) if is_tensor(x) else _constant(x) for x in flat)
            tensors = [x for x in flat if is_tensor(x)]
            if is_plain:  # binding, flattening and writing it down take longer than a small program
                self._plain[len(args)] = structure
        with self._selecting:
            state = self._state.number()
            key = structure, described, tuple([m.training for m in self._state.members]), self._weights.state(), Around.now(), state
            program = self._variants.get(key)
            if program is None:
                program = self._new_variant(key, args, kwargs)
            else:
                self._variants.move_to_end(key)
        names = program.captured.structure.input_names()
        return program, dict(zip(names, tensors)), kind_of(tensors[0]) if tensors else "torch"

    def _new_variant(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        example = lambda x: _example(x, self._weights.place) if is_tensor(x) else x  # noqa: E731
        args, kwargs = pytree.tree_map(example, args), pytree.tree_map(example, kwargs)
        self._require_place(args, kwargs)
        if self._variants:
            shapes = ", ".join(d.text if isinstance(d, _Constant) else str(list(d[0])) for d in key[1])
            log.warning("%s: compiling one more variant, for inputs %s%s (%d of at most %d kept)", self.name, shapes,
                        " of the module as it is now" if all(known[-1] != key[-1] for known in self._variants) else "",
                        min(len(self._variants) + 1, self.max_variants), self.max_variants)
        padding = None

        def look(exported: Any) -> None:
            nonlocal padding
            assert self.bucketing is not None
            padding = self.bucketing.padding(args, kwargs, exported)

        bare, args, kwargs = to_capture(self._source, tuple(args), kwargs)
        captured = capture(bare, args, kwargs, look if self.bucketing is not None else None)
        self._state.settle()
        program = Program(captured, self.name, self.stitch_hints, self.frozen_storage, self.l1_bytes, self.cubin, key[2], padding, key[3:])
        self._variants[key] = program
        self._primary = self._primary or program
        while len(self._variants) > self.max_variants:
            self._variants.popitem(last=False)
        return program

    def _require_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks that an example lies where the weights and the device are. Raises InvalidArgumentError."""
        leaves, _ = pytree.tree_flatten_with_path(dict(self._signature.bind(*args, **kwargs).arguments))
        named = [(path[0].key + pytree.keystr(path[1:]), x) for path, x in leaves]  # type: ignore[attr-defined]  # of a dictionary
        require_on(self._device.name, (*self._weights.everything(), *named), self.name, together=True)

    def _run(self, program: Program, module: "_runtime.Module", tensors: dict[str, Any], weights: "Values", kind: str, order: Order) -> list[Any]:
        hypers = self._hypers(module)
        if kind.startswith("torch") and torch.is_grad_enabled() and module.has_backward:
            names = [*tensors, *weights.trained]
            given = [*tensors.values(), *weights.trained.values()]
            if any(isinstance(t, torch.Tensor) and t.requires_grad for t in given):
                again = Again(self._source, self.name, program, self.precision, bool(hypers))
                call = StitchedCall(module, self._device, names, {**weights.wrapped, **hypers}, weights.frozen, self._budget, again, kind, order)
                run: Callable[..., Iterable[Any]] = Stitched.apply
                return list(run(call, *given))
        values = {**weights.wrapped, **hypers, **{n: wrap(t, self._device, order) for n, t in tensors.items()}}
        return [give(t, kind) for t in module.infer(values, loop_of(self._device))]

    def _hypers(self, module: "_runtime.Module") -> dict[str, Any]:
        """Random state: a new seed per call from torch's generator, so that torch.manual_seed counts."""
        if not module.hypers:
            return {}
        seed = int(torch.randint(0, 2**62, ()).item())
        return {"seed": _runtime.Tensor.scalar_i64(self._device, seed), "step": _runtime.Tensor.scalar_i64(self._device, 0)}

    def _assemble(self, program: Program, results: list[Any]) -> Any:
        return program.captured.structure.unflatten(results)

    def to_precision(self, precision: str, types: Mapping[str, torch.dtype] = {}) -> "Module":
        """Captures the example's variant again in this precision, see `segue.compile`, and with inputs by name of other types; calls follow.
        Returns self."""
        if checked_precision(precision) == self.precision and not types:
            return self
        primary, self.precision = self._primary, precision
        self._variants.clear()
        self._primary = None  # type: ignore[assignment]  # for so long
        self._primary = self._captured_again(primary, {}, primary.modes, types)
        return self

    def program_for(self, shapes: dict[str, tuple[int, ...]], *, evaluates: bool = False) -> Program:
        """The variant of the example with inputs, by name, of other shapes; in the modes that the example had, or all of `eval`."""
        modes = (False,) * len(self._state.members) if evaluates else self._primary.modes
        return self._captured_again(self._primary, shapes, modes)

    def _captured_again(self, program: Program, shapes: dict[str, tuple[int, ...]], wanted: tuple[bool, ...],
                        types: Mapping[str, torch.dtype] = {}) -> Program:
        captured = program.captured
        tensors = {a.name: torch.zeros(shapes.get(a.name, a.shape), dtype=types.get(a.name, a.dtype), device=self._weights.place)
                   for a in captured.named("input")}
        leaves = [leaf.value if isinstance(leaf, Constant) else tensors[leaf] for leaf in captured.structure.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, captured.structure.in_spec)
        members = self._state.members
        modes = [m.training for m in members]
        try:
            for module, mode in zip(members, wanted):
                module.training = mode
            with program.source[1].entered():  # the autocasts around the call that it was captured for
                return self._select(args, kwargs)[0]
        finally:
            for module, mode in zip(members, modes):
                module.training = mode

    def follow_source(self) -> None:
        """Captures the example's variant again if the PyTorch module is another one since: parameters that were frozen, adapters that were put in."""
        number = self._state.number()
        weights, _, captured = self._primary.source
        if (weights, captured) == (self._weights.state(), number):
            return
        members = self._state.members
        modes = self._primary.modes if len(self._primary.modes) == len(members) else tuple(m.training for m in members)
        self._primary = self._captured_again(self._primary, {}, modes)

    # --- the compiled form ----------------------------------------------------------------

    def build(self) -> "Module":
        """Makes the code of the first variant now instead of at the first call. Returns self."""
        self._primary.binary(self.optimizer, on=self._device)
        return self

    @property
    def binary(self) -> "_runtime.Binary":
        """The binary of the variant for the example inputs."""
        return self._primary.binary(self.optimizer, on=self._device)

    @property
    def mlir(self) -> str:
        """The graph in the `segue` dialect, as the compiler gets it."""
        return self._primary.captured.text

    def save(self, path: str | os.PathLike[str], *, weights: bool = False) -> None:
        """Writes the binary of the example's variant; with `weights`, a safetensors file beside it.

        The file has kernels for every processor that Segue knows, and for GPUs of the compute capability of `device`, and later
        ones, if that is a GPU. So the module is compiled for it once more: what runs in this process is compiled for what is there alone.

        The file at `path` is replaced whole or not at all; a link stays a link. Weights go to `path` with the suffix
        ``.safetensors``. The file is signed with the key of this user, so that `load` runs it unasked; where that fails
        (a home folder that cannot be written), a warning is logged to ``segue``.

        Raises
        ------
        FileError
            A path is a directory or cannot be written; nothing was compiled then.
        """
        self.follow_source()
        beside = Path(path).with_suffix(".safetensors")
        for output in (path, beside) if weights else (path,):
            _runtime.check_output(os.fspath(output))  # before the code is made
        data = self._primary.portable(self.optimizer, self._device)
        if problem := _runtime.sign_file(data):
            log.warning("%s is not signed, and runs only where that is allowed (allow_native_kernels=True): %s", path, problem)
        _runtime.write_file(os.fspath(path), data)
        if weights:
            tensors = self._weights.named(a.name for a in self._primary.captured.arguments if a.role in ("parameter", "frozen"))
            save_tensors(beside, tensors)

    def inspect(self) -> str:
        """Returns what the binary contains, as text."""
        from .inspection import describe_binary

        return describe_binary(self.binary)

    def memory(self, budget: int | str | None = None, *inputs: Any, optimizer: Optimizer | None = None,
               micro_batches: int = 1, device: str | None = None, seal: bool = False) -> Memory:
        """Tells what a training step of this module alone will hold and take, before anything runs.

        That of the file that `save` writes, which gives gradients of float inputs, too; a trainer of this module alone asks for none,
        and may hold less.

        Parameters
        ----------
        budget : int or str, optional
            Bytes of device memory, or a text such as ``512MiB``.
        *inputs
            Inputs of other shapes than the example's, to plan for those.
        optimizer : Optimizer, optional
            Default: the one that the module was compiled with.
        micro_batches : int
            Batches per step.
        device : str, optional
            Where it would train; default: where the module lives. On ``cpu`` what leaves goes to a disk. Speeds stand in
            the spec, ``sim:virtual,dram=24GiB,link=16GB/s,flops=80TFLOP/s``, or in a profile, ``cpu:profile=laptop.json``.
        seal : bool
            Count what sealed checkpoints take of the disk, as of ``Trainer(seal=)``.

        Raises
        ------
        BudgetInfeasibleError
            No plan keeps to the budget; the report has the smallest one and who holds it.
        InvalidArgumentError
            There is no optimizer, or no output is a loss: plan such a module with its others by `Trainer.memory`.

        Examples
        --------
        >>> print(model.memory("512MiB", device="sim:dram=1GiB,link=16GB/s"))
        """
        self.follow_source()
        optimizer = self.optimizer if optimizer is None else optimizer
        program = self._select(inputs, {})[0] if inputs else self._primary
        if optimizer is None and not isinstance(program, LoadedProgram):
            raise InvalidArgumentError(f"{self.name} was compiled without an optimizer, whose states are part of a step; "
                                       "give memory(optimizer=...)")
        return forecast([(self.name, program.binary(optimizer))], budget=budget, device=device or self._device.name,
                        micro_batches=micro_batches, seal=seal)

    # --- copies -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy`, `pickle` and `torch.save`: the PyTorch module and the code that was made, which is not made again."""
        programs = list(dict.fromkeys((*self._variants.values(), self._primary)))
        state = {name: value for name, value in self.__dict__.items() if name not in _MADE}
        state["_programs"] = programs
        state["_keys"] = [(key, programs.index(program)) for key, program in self._variants.items()]
        state["_first"] = programs.index(self._primary)
        state["_numbers"] = self._state.number(), self._state.last
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        programs, keys, first = state.pop("_programs"), state.pop("_keys"), state.pop("_first")
        number, last = state.pop("_numbers")
        torch.nn.Module.__setstate__(self, state)
        own, source = self.__dict__, self._source
        for shared in _SHARED:
            own[shared] = source.__dict__[shared]
        self._set_up(number, last)
        self._variants.update((key, programs[index]) for key, index in keys)
        self._primary = programs[first]

    # --- as a PyTorch module --------------------------------------------------------------------

    def train(self, mode: bool = True) -> "Module":
        self._source.train(mode)
        self.training = mode
        return self

    def extra_repr(self) -> str:
        count = len(self._variants)
        return f"compiled for {self._device.name}, {self._primary.shapes()}" + (f" and {count - 1} more" if count > 1 else "")

    def _repr_html_(self) -> str:
        known = [self._primary, *(program for program in self._variants.values() if program is not self._primary)]
        made = next((binary for program in known for binary in program.made()), None)
        return facts(f"{self.name}, compiled", (
            ("device", self._device.name), ("precision", self.precision), ("for", "; ".join(program.shapes() for program in known)),
            ("parameters", f"{sum(p.numel() for p in self._source.parameters()):,}"),
        )) + ("" if made is None else show_binary(made))


class LoadedModule(Module):
    """A module from a `.segue` file: fixed shapes, inputs by position or name."""

    def __init__(self, binary: "_runtime.Binary", *, name: str, device: str):
        on = open_device(device)
        module = _runtime.Module(on, binary, name)
        super().__init__(_holder(module), name=name, device=device, optimizer=None, max_variants=1)
        self._primary = LoadedProgram(binary, name)
        self._missing = {v.name for v in (*module.parameters, *module.frozen)}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._missing:
            names = sorted(self._missing)
            raise MissingWeightError(
                f"{self.name} has no value for {', '.join(map(repr, names[:5]))}{' and others' if len(names) > 5 else ''}: "
                "pass weights= to segue.load, or call load_state_dict", report={"names": names})
        return super().forward(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        self._missing -= set(state_dict)
        return result

    def save(self, path: str | os.PathLike[str], *, weights: bool = False) -> None:
        raise InvalidArgumentError(f"{self.name} came from a file already; copy that file")

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgumentError(f"{self.name} came from a .segue file, which a pickle or a copy does not carry: save its state_dict(), "
                                   "and segue.load the file again with it as weights")

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise InvalidArgumentError("a module of a .segue file is made by segue.load")

    @property
    def mlir(self) -> str:
        raise InvalidArgumentError(f"{self.name} came from a file; only the binary is there")

    def follow_source(self) -> None:
        """A file has what it has."""

    def to_precision(self, precision: str, types: Mapping[str, torch.dtype] = {}) -> "Module":
        raise InvalidArgumentError(f"{self.name} came from a file, which has the precision that it was compiled in; compile the module "
                                   f"with precision={precision!r}")

    def _select(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, dict[str, Any], str]:
        inputs = self._primary.module(self._device, None).inputs
        names = [v.name for v in inputs]
        tensors = dict(zip(names, args))
        doubled = set(tensors) & set(kwargs)
        tensors.update(kwargs)
        if len(args) > len(names) or doubled or set(tensors) != set(names):
            raise InvalidArgumentError(f"{self.name} takes {', '.join(map(repr, names))}; "
                                       f"{len(args)} positional arguments and {sorted(kwargs)} were given")
        for value in inputs:
            shape, dtype = describe(tensors[value.name])
            if shape != tuple(value.shape):
                raise LayoutMismatchError(f"LAYOUT_MISMATCH: {self.name}, input {value.name!r}: shape {list(shape)} given, "
                                          f"{list(value.shape)} declared; a file holds one variant")
        ordered = {n: tensors[n] for n in names}
        return self._primary, ordered, kind_of(next(iter(ordered.values()))) if ordered else "torch"

    def _assemble(self, program: Program, results: list[Any]) -> Any:
        names = [v.name for v in program.module(self._device, None).outputs]
        if len(results) == 1:
            return results[0]
        if all(n == "loss" or n.removeprefix("out").isdigit() for n in names):
            return tuple(results)
        return dict(zip(names, results))


class _Constant(NamedTuple):
    """An argument that is no tensor, as a part of a key: 1, 1.0 and True are three, and NaN is one."""

    kind: type
    text: str
    value: Any


def _constant(x: Any) -> _Constant:
    try:
        hash(x)
    except TypeError:
        raise InvalidArgumentError(f"{what_is(x)} is among the arguments, which no program can be compiled for; give numbers, texts, or tensors, in tuples, "
                                   "lists and dictionaries") from None
    return _Constant(type(x), repr(x), None if isinstance(x, (float, complex)) else x)


def _example(x: Any, place: torch.device) -> torch.Tensor:
    """A tensor of the shape and type of what was given; values do not matter to a graph of static shapes."""
    if isinstance(x, torch.Tensor):
        return x
    shape, dtype = describe(x)
    return torch.zeros(shape, dtype=dtype, device=place)


def _holder(module: "_runtime.Module") -> nn.Module:
    """Nested PyTorch modules with the parameters and buffers that a binary names."""
    from .tensors import TORCH_OF_ELEMENT

    root = nn.Module()
    for value in (*module.parameters, *module.frozen):
        *path, local = value.name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        tensor = torch.zeros(tuple(value.shape), dtype=TORCH_OF_ELEMENT[value.element])
        if value.role == "parameter":
            owner.register_parameter(local, nn.Parameter(tensor))
        else:
            owner.register_buffer(local, tensor)
    return root


def save_tensors(path: str | os.PathLike[str], tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file, whole or not at all; a link stays a link.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    host = open_device("cpu")
    _runtime.save_tensors(os.fspath(path), {name: wrap(tensor.detach().cpu(), host) for name, tensor in tensors.items()})
