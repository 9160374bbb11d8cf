# ===- trainer_figures.py - what a trainer takes of memory and links ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a trainer takes: foreseen, certified, held now, and moved so far; and what prompts, notebooks and the page of a run say of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Iterable

from .batches import BatchNames
from .inspection import size_text
from .memory import Memory, forecast
from .notebooks import facts, step_result
from .profiling import Profile, profile_steps
from .stitch_report import StitchReport

if TYPE_CHECKING:
    from . import _runtime
    from .module import Module
    from .optimizers import Optimizer


class Figures:
    """The part of `segue.Trainer` that tells what steps take. It has no state of its own."""

    if TYPE_CHECKING:
        _session: "_runtime.Session"
        _device: "_runtime.Device"
        _binaries: Any
        _ties: Any
        _clip_grad_norm: float
        _seal_path: "str | None"
        grad_accumulation: int
        step: Callable[..., float]
        _ranks: Any
        _times: Any
        modules: "dict[str, Module]"
        optimizer: "Optimizer"

        @property
        def step_count(self) -> int: ...
        @property
        def rank(self) -> int: ...
        @property
        def ranks(self) -> int: ...

    def certify(self, microbatches: int = 1) -> int:
        """The bytes of the device's memory that steps of so many batches will do with, found out before they run.

        With a plan, its addresses take that many. By watermarks and with streamed blocks, steps were played on a
        virtual twin, and once more with that many bytes and no more. From here on such steps keep to it, and a device
        of that size trains to the same bits. `BudgetInfeasibleError` if the cap is too small for any step.
        """
        return self._session.certify(microbatches)

    def profile(self, batches: Iterable[Any], *, steps: int = 3, to_batch: Callable[[Any], Any] | None = None) -> Profile:
        """Trains on the next batches, and tells where these steps go: each command beside its own limit, and what lies between commands.

        The steps are steps as any others: they train, count in `step_count` and are in traces and reports, and weights and losses are to the
        bit those of as many calls of `step`. So no batch is lost on a profile, and it works in every mode. The first step of a new trainer, which
        compiles, plans and warms up, is taken but not counted, unless it is the only one. The speeds that limits are made of are those of the profile that the
        spec of the device names (``cpu:profile=laptop.json``, by `segue-run profile-device`), or are measured behind the steps, for a second.

        Parameters
        ----------
        batches : iterable
            As `fit` takes them: a DataLoader, a list, an iterator. No more than `steps` are taken from it.
        steps : int
            How many steps; fewer where batches end.
        to_batch : callable, optional
            As of `fit`.

        Raises
        ------
        InvalidArgumentError
            No batch, a number of steps that is none, a batch that is given as if it were several; a profile file without speeds; commands of the device
            that are being profiled already. What `step` raises ends the profile, too, after the steps before.

        Examples
        --------
        >>> found = trainer.profile(loader, steps=3)
        >>> print(found)
        """
        with self._ranks.telling("profile"):
            return profile_steps(self._device, self.step, BatchNames(self._binaries(), to_batch), batches, steps, is_warm=bool(self._times))

    def held(self) -> dict[str, dict[str, int]]:
        """Bytes that are held now, by memory and kind: ``held()["device_dram"]["weights"]``, ``held()["disk"]["optimizer"]``.

        Kinds are ``weights``, ``optimizer``, ``gradients``, ``activations``, ``inputs and outputs``, ``temporaries`` and ``other``.
        With `budget` and `spill_dir`, ``device_dram`` is the budget's memory. What can leave has room on the disk all the time.
        """
        return self._device.held()

    def traffic(self) -> dict[str, dict[str, float]]:
        """What came into the device's memory and left it so far: ``traffic()["in"]["bytes"]`` and ``["seconds"]``, and ``"out"``.

        The seconds are those of the copies, which run beside compute. With `spill_dir`, the other side is the disk.
        """
        return self._device.traffic()

    @property
    def peak_bytes(self) -> int:
        """The most of the device's own memory that was in use at once since it was opened, in bytes."""
        return self._device.peak_bytes

    @property
    def fused_calls(self) -> int:
        """Products so far that multiplied with codes of a frozen weight (``frozen_storage``)."""
        return self._device.fused_calls

    def stitch_report(self) -> "StitchReport":
        """Returns what the seams between programs have cost on this device so far."""
        return StitchReport(self._device.stitch_report)

    def memory(self, budget: int | str | None = None, *, device: str | None = None, seal: bool | None = None) -> Memory:
        """Tells what a step of this trainer will hold, do and take under a budget, before anything runs.

        Parameters
        ----------
        budget : int or str, optional
            Bytes of device memory, or a text such as ``512MiB``.
        device : str, optional
            Where it would train; default: where the trainer does. On ``cpu`` what leaves goes to a disk.
        seal : bool, optional
            Count what sealed checkpoints take of the disk; default: if the trainer was made with `seal`.

        Raises
        ------
        BudgetInfeasibleError
            No plan keeps to the budget; the report has the smallest one and who holds it.
        UnsupportedError
            Seals on a device without a disk below its memory.

        Examples
        --------
        >>> print(trainer.memory("512MiB"))
        """
        return forecast(self._binaries(), budget=budget, device=device or self._device.name,
                        clip_grad_norm=self._clip_grad_norm, tied=self._ties(), micro_batches=self.grad_accumulation,
                        seal=self._seal_path is not None if seal is None else seal)

    def _model_name(self) -> str:
        return ", ".join(module.name if name == module.name or name.isdigit() else f"{name}: {module.name}" for name, module in self.modules.items())

    def _settings(self, budget: int | str | None, seed: int) -> dict[str, Any]:
        """What the page of a run says of this one, by the names that the user knows."""
        settings = {"optimizer": type(self.optimizer).__name__, "learning rate": self.optimizer.rates(0)[0], "clip_grad_norm": self._clip_grad_norm or None,
                    "grad_accumulation": self.grad_accumulation if self.grad_accumulation > 1 else None, "budget": budget,
                    "precision": ", ".join(dict.fromkeys(module.precision or "f32" for module in self.modules.values())), "seed": seed or None,
                    "distributed": f"{self._ranks.strategy}, {self._ranks.count} ranks" if self._ranks.are_several else None}
        return {name: value for name, value in settings.items() if value is not None}

    def __repr__(self) -> str:
        count = sum(math.prod(p.shape) for p in self._session.parameters if p.trained)
        return f"Trainer({self._model_name()}; {type(self.optimizer).__name__}, {count:,} trained parameters, step {self.step_count}, on {self._device.name!r}" + (
            f", rank {self.rank} of {self.ranks})" if self._ranks.are_several else ")")

    def _repr_html_(self) -> str:
        trained = [p for p in self._session.parameters if p.trained]
        last = self.__dict__.get("last")
        return facts("Trainer", (
            ("modules", ", ".join(f"{name}: {module.name}" for name, module in self.modules.items())),
            ("optimizer", f"{type(self.optimizer).__name__}, lr {self.optimizer.rates(self.step_count)[0]:g}"),
            ("trained", f"{sum(math.prod(p.shape) for p in trained):,} elements of {len(trained)} parameters"),
            ("device", self._device.name), ("peak of its memory", size_text(self.peak_bytes) if last else None),
            ("rank", f"{self.rank} of {self.ranks}" if self._ranks.are_several else None), ("step", self.step_count),
        )) + ("" if last is None else step_result(last))
