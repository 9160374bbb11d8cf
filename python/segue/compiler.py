# ===- compiler.py - segue.compile and segue.load ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The two ways to a compiled module: from a PyTorch module, and from a file."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import _runtime
from .arguments import names_keywords, what_is, whole
from .buckets import Buckets, as_buckets
from .budgets import wanted
from .errors import FileError, InvalidArgumentError, MissingWeightError
from .frontend.signature import positional
from .module import LoadedModule, Module
from .optimizers import Optimizer
from .tensors import is_tensor, spec_for, spec_of
from .torch_optimizers import as_optimizer


@names_keywords
def compile(module: nn.Module | "torch.export.ExportedProgram", example_inputs: Any = None, *, example_kwargs: Mapping[str, Any] | None = None,
            optimizer: Optimizer | None = None, name: str | None = None, device: str | torch.device | None = None,
            max_variants: int = 8, stitch_hints: str | os.PathLike[str] | None = None,
            frozen_storage: str | None = None, l1_bytes: int = 0, cubin: str = "auto", precision: str | None = None,
            budget: int | str | None = None, spill_dir: str | os.PathLike[str] | None = None,
            spill_capacity: int | str | None = None, buckets: Buckets | Sequence[int] | None = None) -> Module:
    """Compile a PyTorch module.

    The graph is captured and checked now; code is made when it is first needed
    (a call, `save`, a `Trainer`), or by `Module.build`.

    Parameters
    ----------
    module : torch.nn.Module
        On the CPU, a GPU, or PyTorch's meta device: then no values are made, and a `Trainer` is given them (`Trainer.load_weights`,
        `Trainer.init_weights`). Parameters that require a gradient are trained, others and buffers are frozen. A program of
        `torch.export`, as `torch.export.load` gives it, is taken for the module that it was made of, in the mode in which that was.
    example_inputs : tensor, or sequence or mapping of them
        Arguments of one call: by position, or by name if a mapping. Their shapes and types are those of the first variant.
        Default: those that an exported program has.
    example_kwargs : mapping, optional
        Arguments by name, besides.
    optimizer : Optimizer, optional
        Built into the binary, for files that are trained elsewhere; a `Trainer` brings its own.
    name : str, optional
        In messages and as prefix of parameters; default: the class of the module.
    device : str or torch.device, optional
        ``cpu``, ``cpu:threads=2``, a GPU: ``cuda:0,dram=8GiB``, or a simulated accelerator: ``sim:dram=512MiB,link=16GB/s``. Default: the GPU
        that the module or the example lies on, or the CPU. Tensors of PyTorch on that GPU are used where they lie, and results are there, too;
        those of the CPU are brought to a device with memory of its own by each call, parameters too, as PyTorch may have changed them, and
        results back. A `Trainer` keeps its parameters on the device.
    max_variants : int
        Variants for other input shapes that are kept, least recently used ones go first.
    stitch_hints : path, optional
        Copies between programs that a run was left with (``stitch_hints.json``). Layouts of inputs and outputs
        change so that these vanish; hints for other modules are left alone, and what is not followed is logged
        to ``segue`` at level INFO. Values do not change.
    frozen_storage : str, optional
        How frozen matrices that only products read are stored: ``int8_row``, ``fp8_e4m3_row``, ``fp8_e5m2_row``,
        ``int4_group32`` or ``int4_group64``. The products multiply with the codes, and no copy of such a matrix in
        floats exists. For a `Trainer`, which quantises the values when it takes them, or is given those of a slab
        (`Trainer.load_slab`); calls of the module, which bring float parameters, are refused.
    l1_bytes : int
        Bytes of the device's fast memory (``device_l1``) that each program may take for temporaries: those whose bytes
        are read and written most, for the room and time that they take. On a device without it, or with less, they
        lie in ``device_dram``. Values do not change.
    cubin : str
        Whether kernels for a GPU have machine code of that GPU beside their PTX, which its driver loads in no time where it would have to
        compile the PTX: ``auto``, where there is a ``ptxas`` to make it (``SEGUE_PTXAS``, ``PATH``, ``CUDA_HOME``, the wheel
        nvidia-cuda-nvcc), ``on``, or ``off``. Values are the same. For processors it means nothing.
    precision : str, optional
        ``bf16-mixed`` captures the module as under ``torch.autocast("cpu", dtype=torch.bfloat16)``, or ``"cuda"`` where it lies on a GPU: products and
        convolutions in bf16, what is saved between them too, losses and normalisations as PyTorch has them; parameters,
        gradients and states of the optimizer stay f32. ``f16-mixed`` does so with ``torch.float16``, whose gradients want a scaled loss, as
        a `Trainer` gives. ``f32`` captures it without autocast. Default: as a call of the
        module would run, by the autocast around it.
    budget : int or str, optional
        Bytes of the device's memory, or a text such as ``6GiB``, that calls of all modules and segments of this device may
        take together: saved values leave and come back for their backward, parameters come by block. The host's memory or the
        disk has what leaves. Results are the same, to the bit. A `Trainer` has a budget of its own.
    spill_dir : path, optional
        A folder on a disk for what has no room in the budget, where the device is ``cpu``.
    spill_capacity : int or str, optional
        The most that may lie there; default: half of what is free.
    buckets : sequence of int or Buckets, optional
        Lengths, as ``[128, 256, 512]``: inputs of a length between are padded to the next and results cut to theirs. Capturing
        shows that values and gradients are those without padding, and refuses a module for which they are not. A
        `Trainer` pads its batches likewise. See the guide "lengths".

    Raises
    ------
    UnsupportedOpError, InvalidArgumentError, ExportError
        See `segue.frontend.capture`.
    """
    exported = sys.modules.get("torch.export")  # whoever has such a program has imported it
    if exported is not None and isinstance(module, exported.ExportedProgram):
        if example_inputs is None and module.example_inputs is not None:
            example_inputs, kwargs = module.example_inputs
            example_kwargs = {**kwargs, **(example_kwargs or {})}
        module = _module_of(module)
    if not isinstance(module, nn.Module):
        way_out = f"; give it an instance, {module.__name__}(...)" if isinstance(module, type) and issubclass(module, nn.Module) else ""
        raise InvalidArgumentError(f"{what_is(module)} was given where a torch.nn.Module is wanted{way_out}")
    if isinstance(module, Module):
        raise InvalidArgumentError(f"{module.name} is compiled already; call it, give it to a Trainer, or compile the torch.nn.Module that it was made of")
    for path, part in module.named_modules():
        if isinstance(part, Module):
            raise InvalidArgumentError(f"{path!r} of the {type(module).__name__} is compiled already, and a program has no place for another; compile the whole "
                                       "of uncompiled modules, or give compiled ones to a Trainer one behind the other")
    max_variants = whole("max_variants", max_variants, 1)
    if isinstance(l1_bytes, bool) or not isinstance(l1_bytes, int) or not 0 <= l1_bytes < 1 << 63:
        raise InvalidArgumentError(f"l1_bytes is {l1_bytes!r}; give a number of bytes, or 0 for no temporaries in L1")
    args: tuple[Any, ...] = ()
    kwargs = dict(example_kwargs or {})
    if isinstance(example_inputs, Mapping):
        kwargs = {**example_inputs, **kwargs}
    elif is_tensor(example_inputs):
        args = (example_inputs,)
    elif isinstance(example_inputs, Sequence):
        args = tuple(example_inputs)
    else:
        raise InvalidArgumentError(
            f"example_inputs is {'missing' if example_inputs is None else what_is(example_inputs)}; give a tensor, a tuple, or a dictionary by argument name")
    if optimizer is not None:
        optimizer = as_optimizer(optimizer)
    buckets = as_buckets(buckets)
    if buckets is not None:
        max_variants = max(max_variants, len(buckets.lengths))
    if device is None:
        device = spec_for((*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))))
    compiled = Module(module, name=name or type(module).__name__, device=spec_of(device), optimizer=optimizer,
                      max_variants=max_variants, stitch_hints=os.fspath(stitch_hints or ""),
                      frozen_storage=frozen_storage or "", l1_bytes=l1_bytes, cubin=cubin, precision=precision,
                      budget=wanted(budget, spill_dir, spill_capacity), buckets=buckets)
    if compiled.bucketing is not None:
        args, kwargs, _ = compiled.bucketing.pad(*positional(compiled._signature, args, kwargs))
    program = compiled._select(args, kwargs)[0]
    if optimizer is not None:
        optimizer.check_patterns(a.name for a in program.captured.named("parameter"))
    return compiled


def _module_of(program: "torch.export.ExportedProgram") -> nn.Module:
    """The module of an exported program, whose signature says which arguments it takes by name alone."""
    module, spec = program.module(), program.call_spec.in_spec
    _, by_name = pytree.tree_unflatten([None] * spec.num_leaves, spec)
    forward = type(module).forward  # of a class of its own
    parameters = inspect.signature(forward).parameters.values()
    forward.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) if p.name in by_name else p for p in parameters])  # type: ignore[attr-defined]
    return module


@names_keywords
def load(path: str | os.PathLike[str], weights: str | os.PathLike[str] | Mapping[str, torch.Tensor] | None = None, *,
         name: str | None = None, device: str | torch.device = "cpu", allow_native_kernels: bool | None = None) -> LoadedModule:
    """Load a module that `Module.save` or `segue-compile` wrote.

    Parameters
    ----------
    path
        A ``.segue`` file. It holds one variant: inputs have the shapes that it was compiled for.
    weights : path of a safetensors file, or dictionary, optional
        By parameter name; may be given later by `load_state_dict`.
    allow_native_kernels : bool, optional
        Kernels are machine code that runs with the rights of this process. Default: they run if this user compiled the
        file on this machine or has trusted it (``segue-run trust``), or if ``SEGUE_ALLOW_NATIVE=1`` is set. True: you
        trust the file. False: they never run. A file whose kernels may not run can be inspected, and `memory` plans it.

    Raises
    ------
    FileError, CorruptFileError, VersionError
        The file cannot be read, is damaged, or is of a later version.
    MissingWeightError
        `weights` lacks some; the report has their ``names``.
    NativeCodeRefusedError
        At the first call: kernels may not run.
    """
    binary = _runtime.Binary.load(Path(path), allow_native_kernels)
    module = LoadedModule(binary, name=name or Path(path).stem, device=spec_of(device))
    if weights is not None:
        state = _read_weights(weights)
        wanted = set(module._missing)
        missing = sorted(wanted - set(state))
        if missing:
            source = weights if not isinstance(weights, Mapping) else "the dictionary"
            raise MissingWeightError(f"MISSING_WEIGHT: {source} has no {', '.join(map(repr, missing[:5]))} for {module.name}",
                                     report={"names": missing})
        module.load_state_dict({n: state[n] for n in wanted})
    return module


def _read_weights(weights: Any) -> Mapping[str, torch.Tensor]:
    if isinstance(weights, Mapping):
        return weights
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(weights)
    except (OSError, SafetensorError) as error:
        raise FileError(f"IO_FAILED: {weights}: {error}") from error
