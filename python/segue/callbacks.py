# ===- callbacks.py - who is told what happens in a training loop --------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Callbacks of `Trainer.fit`: the protocol, stopping early, and the bar of progress."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping

from safetensors.torch import load_file

from .arguments import what_is
from .errors import FileError, InvalidArgumentError
from .module import save_tensors

if TYPE_CHECKING:
    from .training_loop import Run


class Callback:
    """What `Trainer.fit` calls while it runs. Each method does nothing; an object with any of them will do, of whatever class.

    Each gets the `Run`: ``run.step``, ``run.epoch``, ``run.loss``, ``run.metrics``, ``run.trainer``; ``run.stop("why")`` ends the
    run after this step. An exception ends it, too, as one of the trainer's own would. One with `state_dict` and
    `load_state_dict` is kept in checkpoints, under its place among the callbacks and the name of its class.
    """

    def on_begin(self, run: "Run") -> None:
        """Before the first step, once a checkpoint has been loaded."""

    def on_step(self, run: "Run") -> None:
        """After a step: ``run.loss`` is its loss, ``run.trainer.last`` has the norm of its gradients."""

    def on_evaluate(self, run: "Run") -> None:
        """After an evaluation, whose means are ``run.metrics``."""

    def on_epoch(self, run: "Run") -> None:
        """After the last batch of an epoch, and the evaluation there."""

    def on_save(self, run: "Run") -> None:
        """After a checkpoint was written."""

    def on_end(self, run: "Run") -> None:
        """At the end, whatever the reason: ``run.stopped`` says who asked for it, ``run.error`` is the exception that ends the run."""


#: What a callback may have.
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callback(callback: Any) -> None:
    """Raises InvalidArgumentError for what would never be called."""
    if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in HOOKS):
        raise InvalidArgumentError(f"a callback is {what_is(callback)}, which is never called; give an object with {', '.join(HOOKS[:-1])} or {HOOKS[-1]}")


@dataclass
class EarlyStop(Callback):
    """Ends a run once evaluations have not become better for a while.

    Parameters
    ----------
    patience : int
        Evaluations in a row that may be no better than the best.
    monitor : str
        The name among the metrics of an evaluation.
    mode : str
        ``min`` or ``max``: what is better.
    min_delta : float
        By how much a better one has to be better.
    restore_best : bool
        At the end, however it comes but by an error, the trained parameters become those of the best evaluation. They are
        kept in memory, as many bytes again, or, where `fit` writes checkpoints, in a file beside them: ``<checkpoint>.best-<step>``.
        States of the optimizer stay those of the last step, and so do checkpoints, from which the run can go on.

    Attributes
    ----------
    best : float
        The best value so far; NaN before the first.
    best_step : int
        The step of the run that it was found after.

    Examples
    --------
    >>> trainer.fit(loader, epochs=50, evaluate_on=held_out, callbacks=[segue.EarlyStop(patience=3)])
    """

    patience: int = 3
    monitor: str = "loss"
    mode: str = "min"
    min_delta: float = 0.0
    restore_best: bool = True

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise InvalidArgumentError(f"mode of EarlyStop is {self.mode!r}; it is 'min' or 'max'")
        if self.patience < 1 or not 0 <= self.min_delta < math.inf:
            raise InvalidArgumentError(f"EarlyStop has patience={self.patience!r} and min_delta={self.min_delta!r}; they must be at least 1, and 0 or more")
        self._forget()

    def _forget(self) -> None:
        self.best, self.best_step = math.nan, 0
        self._waited = 0
        self._kept: dict[str, Any] | None = None  # the best weights, where no file has them
        self._files: list[str] = []  # names of those that have best weights, the newest last

    def on_begin(self, run: "Run") -> None:
        if not run.evaluates:
            raise InvalidArgumentError("EarlyStop goes by evaluations, and fit has none; give it evaluate_on=, a loader of held-out data")
        if not run.resumed:
            self._forget()
        for file in self._files:
            if self.restore_best and not os.path.exists(_beside(run, file)):
                raise FileError(f"{_beside(run, file)} is gone, where EarlyStop keeps the weights that were best; bring it back, or begin anew")
        self._stop_if_due(run)

    def on_evaluate(self, run: "Run") -> None:
        if self.monitor not in run.metrics:
            raise InvalidArgumentError(f"EarlyStop monitors {self.monitor!r}, and an evaluation has {', '.join(map(repr, run.metrics))}")
        value = run.metrics[self.monitor]
        gain = self.best - value if self.mode == "min" else value - self.best
        if math.isnan(value) or gain <= self.min_delta and not math.isnan(self.best):
            self._waited += 1
            return self._stop_if_due(run)
        self.best, self.best_step, self._waited = value, run.step, 0
        if self.restore_best:
            self._keep(run)

    def on_save(self, run: "Run") -> None:
        while len(self._files) > 1:  # no checkpoint names them any more
            file = self._files.pop(0)
            with contextlib.suppress(FileNotFoundError):
                if run.trainer.rank == 0:
                    os.remove(_beside(run, file))

    def on_end(self, run: "Run") -> None:
        if run.error is None and self.restore_best and self.best_step and self.best_step != run.step:
            run.trainer.load_weights(self._kept if self._kept is not None else load_file(_beside(run, self._files[-1])))

    def _stop_if_due(self, run: "Run") -> None:
        if self._waited >= self.patience:
            run.stop(f"{self.monitor} was {self.best:.6g} after step {self.best_step}, and no better in {self._waited} evaluations since")

    def _keep(self, run: "Run") -> None:
        weights = run.trainer.trained_weights()
        if run.checkpoint is None:
            self._kept = {name: tensor.clone() for name, tensor in weights.items()}
            return
        file = f"{os.path.basename(_file_or_folder(run))}.best-{run.step}"
        if run.trainer.rank == 0:
            save_tensors(_beside(run, file), weights)
        self._files = [*(other for other in self._files if other != file), file]

    def state_dict(self) -> dict[str, Any]:
        """What decides of the rest of the run; the best weights are in the file that it names."""
        return {"best": self.best, "best_step": self.best_step, "waited": self._waited, "files": self._files[-1:]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._forget()
        self.best, self.best_step, self._waited = state["best"], state["best_step"], state["waited"]
        self._files = list(state["files"])


def _beside(run: "Run", name: str) -> str:
    """The path of a file beside the run's checkpoint."""
    return os.path.join(os.path.dirname(_file_or_folder(run)), name)


def _file_or_folder(run: "Run") -> str:
    """The path of the run's checkpoint without the slash that says that it is a folder."""
    assert run.checkpoint is not None
    return run.checkpoint.rstrip(os.sep)


class Progress(Callback):
    """A bar on stderr with steps, epoch, loss and metrics; draws nothing where stderr is no terminal, but a log or a pipe."""

    def on_begin(self, run: "Run") -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]  # optional; its types are a package of their own

        self._bar = tqdm(total=run.total_steps, initial=run.step, unit="step", disable=None)

    def on_step(self, run: "Run") -> None:
        self._show(run)
        self._bar.update()

    def on_evaluate(self, run: "Run") -> None:
        self._show(run)

    def _show(self, run: "Run") -> None:
        if not self._bar.disable:
            held_out = {f"held-out {name}": f"{value:.4f}" for name, value in run.metrics.items()}
            epoch = {} if run.epochs == 1 else {"epoch": run.epoch + 1}
            self._bar.set_postfix({**epoch, "loss": f"{run.loss:.4f}", **held_out}, refresh=False)

    def on_end(self, run: "Run") -> None:
        if hasattr(self, "_bar"):
            self._bar.close()
