# ===- trainer_checkpoints.py - what a trainer writes and goes on from ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a trainer writes and goes on from: dictionaries of its state, checkpoints in files, seals on a disk, weights alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping

import torch
from safetensors import SafetensorError, safe_open

from . import _runtime
from .arguments import what_is
from .errors import FileError, InvalidArgumentError
from .freezing import Frozen
from .module import Module, save_tensors
from .tensors import Order, give, wrap
from .turns import in_turn
from .without_bytes import Init, check_drawn, drawn, parts_without_bytes

if TYPE_CHECKING:
    from .distributed import Ranks


class Checkpoints:
    """The part of `segue.Trainer` that keeps and restores its state. It has no state of its own."""

    if TYPE_CHECKING:
        _session: "_runtime.Session"
        _device: "_runtime.Device"
        _ranks: Ranks
        _frozen: Frozen
        _captured: Frozen
        _seal_path: str | None
        modules: dict[str, Module]

        def parameters(self) -> dict[str, torch.Tensor]: ...
        def sync(self) -> None: ...
        def _check_bound(self) -> None: ...
        def _retrain(self, frozen: Frozen) -> None: ...
        @property
        def step_count(self) -> int: ...

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that decides the next step: parameters, optimizer state, step, seed. With ``zero1`` and above, of the states that this rank
        has; with ``zero3`` every rank calls this, as `parameters` is."""
        state = {n: give(t, "torch") for n, t in self._session.state().items()}
        return {"parameters": _copied(self.parameters()), "state": _copied(state), "step": self.step_count,
                "seed": self._session.seed, "precision": self._session.precision_state(),
                "loss_scale": self._session.loss_scale_state, "trained": self._frozen.as_notes()}

    @in_turn
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; everything is checked before anything changes.

        Raises
        ------
        InvalidArgumentError
            It is no such state, as that of a PyTorch module, which `load_weights` takes.
        NameUnknownError, LayoutMismatchError
            It is of other modules.
        """
        lacking = [name for name in ("parameters", "state", "step", "seed") if not isinstance(state, Mapping) or name not in state]
        if lacking:
            raise InvalidArgumentError(f"{what_is(state)} is no state of a trainer, as state_dict() of one gives it: it has no {lacking[0]!r}; values of "
                                       "parameters alone go by load_weights")
        before = self._frozen
        self._retrain(Frozen.from_notes(state["trained"]) if "trained" in state else before)
        try:
            with Order(self._device) as order:
                parameters, states = ({n: wrap(t, self._device, order) for n, t in state[which].items()} for which in ("parameters", "state"))
                self._session.restore(parameters, states, int(state["step"]), int(state["seed"]),
                                      state.get("precision", ""), state.get("loss_scale", ""))
        except BaseException:
            self._retrain(before)
            raise
        self.sync()

    @in_turn
    def trained_weights(self) -> dict[str, torch.Tensor]:
        """The trained parameters by session key, as `parameters` has them."""
        trained = [p.key for p in self._session.parameters if p.trained]
        if self._ranks.gather_parameters:
            parameters = self.parameters()
            return {key: parameters[key] for key in trained}
        return {key: give(self._session.parameter(key), "torch") for key in trained}

    @in_turn
    def load_weights(self, weights: Mapping[str, torch.Tensor] | str | os.PathLike[str]) -> None:
        """Copies values into parameters and buffers by session key; states of the optimizer and the step stay.

        `weights` is a mapping, or the path of a safetensors file or of the index of several (``model.safetensors.index.json``), which is read
        tensor by tensor: of a model on PyTorch's meta device no more than one is in memory besides what this rank keeps.

        Raises
        ------
        NameUnknownError, LayoutMismatchError
            No parameter has such a name, or one has another shape or type; those before it have their new values then.
        FileError
            The file cannot be read.
        """
        self._give(weights.items() if isinstance(weights, Mapping) else tensors_in(weights))
        self.sync()

    @in_turn
    def init_weights(self, seed: int = 0, init: Init | None = None) -> None:
        """Gives parameters on PyTorch's meta device the values that ``reset_parameters`` of their PyTorch module draws after
        ``torch.manual_seed(seed)``, module by module: no more than one is in memory besides what this rank keeps. PyTorch's own random state
        stays. Every rank draws the same.

        `init` is called with each of these modules then, on the CPU, to draw what is to be drawn in another way: what a model's constructor
        drew on the meta device is lost.

        Raises
        ------
        InvalidArgumentError
            A module has such parameters and no ``reset_parameters``, and there is no `init`, or it has buffers of its own; nothing has changed.
        """
        keys = {member: info.key for info in self._session.parameters for member in info.members}
        parts = [(name, part) for name, module in self.modules.items() for part in parts_without_bytes(module._source)]
        check_drawn(((name, *part) for name, part in parts), init)
        given = set()  # a tied one has the values of the first of its modules

        def values() -> Iterator[tuple[str, torch.Tensor]]:
            for name, (path, part) in parts:
                for local, value in drawn(part, init).items():
                    key = keys.get((name, f"{path}.{local}" if path else local))
                    if key is not None and key not in given:
                        given.add(key)
                        yield key, value

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._give(values())

    def _give(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sets parameters one after the other. What their values took goes back to the system now and then: malloc would keep it."""
        taken = 0
        with Order(self._device) as order:
            for key, value in values:
                self._session.set_parameter(key, wrap(value, self._device, order))
                taken += value.nbytes
                if taken > 64 << 20:
                    del value
                    _runtime.return_free_memory()
                    taken = 0
        _runtime.return_free_memory()

    @in_turn
    def save(self, path: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint, a safetensors file, whole or not at all.

        `notes` is kept with it for `resume` to return: what JSON can say, as ``{"epoch": 3}``. Of several ranks, which have the same
        values, the first one writes, and the others do nothing. With ``zero1`` and above every rank calls it: the others send the first one what they alone have.

        A path that ends with ``/``, or is a folder already, is that of a folder with a file of each rank and the index that Hugging Face's tools
        have for weights in several files. Every rank calls it then, and all write at the same time, to a file system that all see. (A
        `pathlib.Path` knows no slash at its end: make its folder first.)

        Raises
        ------
        FileError
            The file cannot be written; the one before stays.
        RankFailedError
            Another rank cannot save, or does not, where every rank calls it; the checkpoint before stays.
        """
        text = self._notes_text(notes)
        if self._ranks.writes or self._ranks.shares_states or _runtime.is_checkpoint_folder(os.fspath(path)):
            self._session.save(os.fspath(path), text)

    def seals_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether the trainer was given this path as `seal`."""
        return self._seal_path is not None and os.path.abspath(self._seal_path) == os.path.abspath(path)

    @in_turn
    def seal(self, *, notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Makes the last finished step the checkpoint at the path that the trainer was given as `seal`, and writes only what is in memory alone.

        Tensors stay where they lie in the spill folder, and nobody writes there until the next seal. `resume` takes such a checkpoint as any
        other, with whatever budget and folder, in a process of its own once this one has ended; `segue.export_checkpoint` makes a file of it that
        holds everything. Until a seal is complete the one before is valid, however the process ends. Who writes to a parameter in PyTorch
        afterwards changes nothing of it. `notes` are as those of `save`.

        Returns
        -------
        dict
            ``sealed_bytes`` of tensors that stay on the disk, ``written_bytes`` that were written there for it, ``file_bytes`` of the file at
            the path, ``seconds``.

        Raises
        ------
        FileError
            The disk is full, or the file cannot be written; the seal before stays.
        InvalidArgumentError
            The trainer was made without `seal`.
        Error
            With code ``UNSUPPORTED``: the file system of the folder has no files without names (NFS), or somebody has removed or moved the
            spill file since the seal before, which is lost with it; `save` writes a whole one.
        """
        self._check_bound()
        return self._session.seal(self._notes_text(notes))

    @in_turn
    def resume(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Goes on from a checkpoint: the losses after it are equal to the bit. Returns the notes that were saved with it."""
        before = self._frozen
        self._retrain(_trained_in(path, self._captured))
        try:
            notes = self._session.load(os.fspath(path))
        except BaseException:
            self._retrain(before)
            raise
        self.sync()
        return json.loads(notes).get("notes", {}) if notes else {}

    def _notes_text(self, notes: Mapping[str, Any] | None) -> str:
        kept = {"notes": dict(notes)} if notes else {}
        if self._frozen != self._captured:
            kept["trained"] = self._frozen.as_notes()
        try:
            return json.dumps(kept) if kept else ""
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"notes of a checkpoint are written as JSON, which cannot say these: {error}") from error

    @in_turn
    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters and buffers alone, as safetensors. Of several ranks the first one does; with ``zero3`` every rank calls this."""
        if self._ranks.writes or self._ranks.gather_parameters:
            parameters = self.parameters()
            if self._ranks.writes:
                save_tensors(path, parameters)


def tensors_in(path: str | os.PathLike[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file, or of the files that an index names, one after the other. Raises FileError."""
    path = Path(path)
    try:
        files = [path]
        if path.suffix == ".json":
            names = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
            files = [path.parent / name for name in sorted(set(names))]
        for each in files:
            with safe_open(os.fspath(each), framework="pt") as file:
                for name in file.keys():
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"IO_FAILED: {path}: {type(error).__name__}: {error}") from error


def _trained_in(path: str | os.PathLike[str], otherwise: Frozen) -> Frozen:
    """What is frozen in a checkpoint; `otherwise` where it does not say, or is none, which its load tells better."""
    try:
        if _runtime.is_checkpoint_folder(os.fspath(path)):
            with open(_runtime.checkpoint_file_of(os.fspath(path)), encoding="utf-8") as file:
                metadata = json.load(file)["metadata"]
        else:
            with safe_open(os.fspath(path), framework="pt") as file:
                metadata = file.metadata() or {}
        notes = json.loads(metadata.get("segue.notes", "{}"))
        return Frozen.from_notes(notes["trained"]) if "trained" in notes else otherwise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return otherwise


def export_checkpoint(checkpoint: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Makes a checkpoint that holds everything of a sealed one (`Trainer.seal`), whose tensors lie on the disk of its run.

    It also makes one file of a checkpoint in a folder, or the other way round.

    Raises
    ------
    CorruptFileError
        Something of it is not as it was written.
    FileError
        Its spill file is gone or that of a run still at work, or the output cannot be written.
    InvalidArgumentError
        Both are one file.
    """
    if os.path.exists(output) and os.path.exists(checkpoint) and os.path.samefile(checkpoint, output):
        raise InvalidArgumentError(f"{os.fspath(output)} is the checkpoint itself; write another file")
    _runtime.export_checkpoint(os.fspath(checkpoint), os.fspath(output))


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
