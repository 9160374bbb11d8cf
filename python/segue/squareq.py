# ===- squareq.py - frozen weights from a SquareQ slab ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Frozen weights from a SquareQ slab, as `segue-run quantize` makes it.

>>> model = GPT(config)
>>> report = segue.squareq.load(model, "base.safetensors", checkpoint="model.safetensors")
>>> add_lora(model, rank=8, names=("qkv", "proj"))
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import torch

from . import _runtime
from .errors import MissingWeightError
from .tensors import device as open_device
from .tensors import wrap

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LoadReport:
    """The report of what `load` did.

    Attributes
    ----------
    from_slab, from_checkpoint, unchanged : tuple of str
        Parameters and buffers by where their values come from now; biases of slab layers are of the slab.
    unused : tuple of str
        Layers of the slab that the model has not.
    notes : tuple of str
        What a user should know of the slab.
    telemetry : dict
        ``crc_failures`` and the other ``squareq_*`` counts.
    """

    from_slab: tuple[str, ...]
    from_checkpoint: tuple[str, ...]
    unchanged: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    telemetry: dict[str, Any]


def load(model: torch.nn.Module, slab: str | os.PathLike[str], *, checkpoint: str | os.PathLike[str] | None = None,
         verify: str = "open", aliases: Sequence[tuple[str, str]] = ()) -> LoadReport:
    """Puts the values of a slab, dequantised, into the parameters of a model, in place.

    Every linear layer of the model must be in the slab, with its shape, or be listed in its manifest as kept in bf16;
    otherwise nothing changes. The checkpoint that the slab was made of gives all other values, and weights whose bytes
    in the slab are damaged.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU, its parameters dense, before adapters are put on.
    slab : path
        ``base.safetensors``, beside which lies ``base.manifest.json``.
    checkpoint : path, optional
        Without it, what the slab does not hold keeps the value it has.
    verify : str
        ``none``, ``open`` or ``full``: see the guide.
    aliases : sequence of pairs
        Runs of names that mean the same: ``("attn.to_q", "self_attn.q_proj")``.

    Raises
    ------
    Error
        With code ``SLAB_INVALID``, listing all mismatches of the first check that fails; ``CHECKSUM_MISMATCH`` for a
        damaged weight without a checkpoint; ``SOURCE_CHANGED``.
    MissingWeightError
        The checkpoint lacks a parameter, or has it in another shape.
    """
    path = path_of(slab)
    state = {name: tensor for name, tensor in model.state_dict().items() if tensor.dtype in _FLOATS}
    shapes = [(name, list(tensor.shape)) for name, tensor in state.items()]
    kept = _kept(path.with_name(path.name.removesuffix(".safetensors") + ".manifest.json"))
    linears = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    wants = [(name, shape) for name, shape in shapes if name in linears and name.removesuffix(".weight") not in kept]

    opened = _runtime.Slab.open(path, _runtime.model_signature(shapes), wants, list(aliases), verify)
    cpu = open_device()
    server = _runtime.SlabServer(cpu, opened, None if checkpoint is None else Path(checkpoint), list(aliases))
    served = [name for name, _ in shapes if name.endswith(".weight") and server.holds(name)]
    biases = [name.removesuffix("weight") + "bias" for name in served if opened.has_bias(name)]
    given = _read_checkpoint(checkpoint, {n: t for n, t in state.items() if n not in {*served, *biases}})

    server.read_ahead(served)
    with torch.no_grad():
        for name in served:
            server.serve_into(name, wrap(state[name], cpu, writable=True))
        for name in biases:
            values = torch.empty(state[name].shape, dtype=torch.float32)
            opened.copy_bias(name, wrap(values, cpu, writable=True))
            state[name].copy_(values)
        for name, values in given.items():
            state[name].copy_(values)
    return LoadReport(from_slab=(*served, *biases), from_checkpoint=tuple(given),
                      unchanged=tuple(n for n in state if n not in {*served, *biases, *given}), unused=tuple(opened.unused),
                      notes=tuple(opened.notes), telemetry=json.loads(server.telemetry()))


def path_of(slab: str | os.PathLike[str]) -> Path:
    """``base`` and ``base.safetensors`` name the same slab."""
    path = Path(slab)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def _kept(manifest: Path) -> set[str]:
    """Layers that the builder left out. A manifest that cannot be read is for `Slab.open` to complain of."""
    try:
        kept = json.loads(manifest.read_text()).get("kept_bf16")
    except (OSError, ValueError, AttributeError, RecursionError):
        return set()
    return set(kept) if isinstance(kept, dict) else set()


def _read_checkpoint(path: str | os.PathLike[str] | None, wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if path is None:
        return {}
    from safetensors import safe_open

    with safe_open(os.fspath(path), framework="pt") as file:
        names = set(file.keys())
        found = {name: file.get_tensor(name) for name in wanted if name in names}
    wrong = [f"{name}: not there" for name in wanted if name not in found]
    wrong += [f"{name}: {list(found[name].shape)} there, {list(wanted[name].shape)} in the model"
              for name in found if found[name].shape != wanted[name].shape]
    if wrong:
        raise MissingWeightError(f"MISSING_WEIGHT: {os.fspath(path)} lacks what the slab does not hold; " + "; ".join(wrong),
                                 report={"names": [line.split(":")[0] for line in wrong]})
    return found
