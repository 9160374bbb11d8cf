# ===- training_loop.py - steps over loaders, with all that goes around them -----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The loop of `Trainer.fit`: epochs, evaluation, callbacks, and checkpoints that it goes on from to the bit."""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from . import _runtime
from .batches import BatchNames
from .callbacks import Progress, check_callback
from .cursor import Cursor
from .errors import Error, FileError, InvalidArgumentError, OutOfMemoryError, RankFailedError, UnsupportedError
from .evaluation import Metric

if TYPE_CHECKING:
    from .trainer import Trainer

log = logging.getLogger("segue")


class Evaluation(NamedTuple):
    """Means over held-out data, after so many steps of the run and epochs that had ended."""

    step: int
    epoch: int
    metrics: dict[str, float]


class History(list[float]):
    """The losses of the steps that a call of `fit` has made, in their order.

    Attributes
    ----------
    evaluations : list of Evaluation
        All of the run, those before it was resumed too.
    stopped : str
        Why the run ended before its epochs and steps; empty: it did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evaluations: list[Evaluation] = []
        self.stopped = ""


class Run:
    """A call of `Trainer.fit` while it runs: what callbacks are given.

    Attributes
    ----------
    trainer : Trainer
        The trainer whose run this is.
    step : int
        Batches trained since the run began, also before it was resumed.
    epoch : int
        Epochs that have ended: the number of the one under way, from 0.
    batch : int
        Batches trained in this epoch.
    loss : float
        The loss of the last step; NaN before the first.
    metrics : dict
        The means of the last evaluation; empty before the first.
    history : History
        What `fit` will return.
    epochs, total_steps : int or None
        How long the run is, where that is known.
    checkpoint : str or None
        The path of its checkpoints, a file or a folder.
    resumed : bool
        It has gone on from one.
    evaluates : bool
        It has data to evaluate on.
    error : BaseException or None
        What ends it.
    """

    def __init__(self, trainer: "Trainer", batches: Iterable[Any], *, epochs: int | None, steps: int | None, evaluate_on: Iterable[Any] | None,
                 evaluate_every: int | None, metrics: Mapping[str, Metric] | None, callbacks: Sequence[Any], scheduler: Any, schedule_by: str,
                 to_batch: Callable[[Any], Any] | None, checkpoint: str | os.PathLike[str] | None, save_every: int | None, resume: bool, progress: bool):
        for name, value in (("epochs", epochs), ("steps", steps), ("evaluate_every", evaluate_every), ("save_every", save_every)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(f"{name} of fit is {value!r}; it takes a whole number from 1 on")
        if evaluate_on is None and (evaluate_every is not None or metrics):
            raise InvalidArgumentError("evaluate_every and metrics of fit are about evaluations; give it evaluate_on=, a loader of held-out data")
        if isinstance(evaluate_on, Iterator):
            raise InvalidArgumentError("evaluate_on of fit is an iterator, which gives its batches once; give a DataLoader or a list")
        if checkpoint is None and (save_every is not None or resume):
            raise InvalidArgumentError("save_every and resume of fit are about checkpoints; give it checkpoint=, a path for them")
        if schedule_by not in ("step", "epoch"):
            raise InvalidArgumentError(f"schedule_by of fit is {schedule_by!r}; it is 'step' or 'epoch'")
        if isinstance(scheduler, ReduceLROnPlateau) and evaluate_on is None:
            raise InvalidArgumentError("a ReduceLROnPlateau goes by evaluations, and fit has none; give it evaluate_on=, a loader of held-out data")
        self._cursor = Cursor(batches)
        if self._cursor.is_once and (epochs or 1) > 1:
            raise InvalidArgumentError(f"epochs of fit is {epochs}, and an iterator gives its batches once; give a DataLoader or a list")
        for callback in callbacks:
            check_callback(callback)
        if checkpoint is not None and trainer._ranks.writes:
            _runtime.check_checkpoint_path(os.fspath(checkpoint))  # not after the first epoch
        self.trainer, self.history = trainer, History()
        self._ranks = trainer._ranks
        self.step, self.loss = 0, float("nan")
        self.metrics: dict[str, float] = {}
        self.epochs = 1 if epochs is None and (steps is None or self._cursor.is_once) else epochs
        self.checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self.resumed, self.evaluates = False, evaluate_on is not None
        self.error: BaseException | None = None
        self._steps = steps
        self._evaluate_on, self._evaluate_every, self._metrics = evaluate_on, evaluate_every, metrics
        self._with_states = [each for each in callbacks if hasattr(each, "state_dict") and hasattr(each, "load_state_dict")]
        self._listeners = [*([Progress()] if progress and self._ranks.writes else []), *callbacks]
        self._scheduler, self._schedule_by = scheduler, schedule_by
        self._to_batch = to_batch
        self._save_every, self._resume = save_every, resume
        self._saved_at: int | None = None
        self._seals = True  # where the trainer does, until that cannot be
        self._names = BatchNames(trainer._binaries(), to_batch)

    @property
    def epoch(self) -> int:
        """Epochs that have ended."""
        return self._cursor.epoch

    @property
    def batch(self) -> int:
        """Batches trained in this epoch."""
        return self._cursor.trained

    @property
    def stopped(self) -> str:
        """Why somebody has asked for the end; empty: nobody has."""
        return self.history.stopped

    @property
    def total_steps(self) -> int | None:
        """How many steps the run has, where that is known."""
        each = self._cursor.batches_per_epoch
        of_epochs = None if each is None or self.epochs is None else each * self.epochs
        return min((n for n in (of_epochs, self._steps) if n is not None), default=None)

    def stop(self, why: str) -> None:
        """Ends the run after the step under way, its evaluation and its checkpoint."""
        self.history.stopped = self.history.stopped or why or "a callback asked for it"

    # --- the loop -------------------------------------------------------------------------

    def go(self) -> History:
        """Runs to the end. The PyTorch modules have the values of the last finished step then, whatever ends it."""
        try:
            if self._is_to_resume():
                self._load()
            self._tell("on_begin")
            self._agree("the beginning of fit")
            while not self._is_over() and self._go_through_epoch():
                pass
            if self.evaluates and self.step and (not self.history.evaluations or self.history.evaluations[-1].step != self.step):
                self._evaluate()
            if self.checkpoint is not None and self._saved_at != self.step:
                self._save()
            self.trainer._tell_figures()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(Error):  # what went wrong first is what is told
                if not self.trainer._ranks.gather_parameters:  # others may be elsewhere, and hear of it when this has ended
                    self.trainer.sync()
            with contextlib.suppress(Exception):
                self._tell("on_end")
            raise
        self.trainer.sync()
        self._tell("on_end")
        return self.history

    def _is_to_resume(self) -> bool:
        """Whether there is a checkpoint to go on from. Refuses ranks whose runs are others."""
        resumes = self._resume and self.checkpoint is not None and os.path.exists(_runtime.checkpoint_file_of(self.checkpoint))
        own = {"checkpoint": resumes,
               "checkpoint in a folder": self.checkpoint is not None and _runtime.is_checkpoint_folder(self.checkpoint), "batches per epoch": self._cursor.batches_per_epoch, "epochs": self.epochs, "steps": self._steps,
               "save_every": self._save_every, "evaluate_every": self._evaluate_every, "evaluations": self.evaluates}
        first, *others = self._ranks.exchange("fit", own)
        for rank, of_rank in enumerate(others, 1):
            for what, value in of_rank.items():
                if value != first[what]:
                    raise RankFailedError(f"RANK_FAILED: {what} of fit: rank 0 has {first[what]}, and rank {rank} has {value}; every rank takes the same "
                                          "steps, a DistributedSampler gives each as many batches, and all read the checkpoint of rank 0")
        return resumes

    def _agree(self, when: str) -> None:
        """What one rank is asked to stop by, all stop by."""
        for rank, stopped in enumerate(self._ranks.exchange(when, self.stopped)):
            if stopped and not self.stopped:
                self.stop(f"rank {rank}: {stopped}")

    def _is_over(self) -> bool:
        return bool(self.stopped) or self.step == self._steps or self.epoch == self.epochs

    def _go_through_epoch(self) -> bool:
        """Trains what is left of the epoch. False: there are no more batches in all the run."""
        first, batches = self._cursor.draw(self.trainer.calibration_samples)
        if first:
            self.trainer.calibrate(map(self._names, first))
        for batch in batches:
            self._train(batch)
            if self._is_over() and self.batch != self._cursor.batches_per_epoch:
                return True
            if self._is_over():
                break
        if not self.batch:
            if self._cursor.is_once:
                return False
            raise InvalidArgumentError("an epoch has no batches: the loader gave none; a DataLoader with drop_last=True over fewer rows than a batch "
                                       "has none, and a generator has none a second time")
        self._end_epoch()
        return not self._cursor.is_once

    def _train(self, batch: Any) -> None:
        self.loss = self.trainer.step(**self._names(batch))
        self.history.append(self.loss)
        self.step += 1
        self._cursor.done()
        if self._schedule_by == "step":
            self._schedule()
        self._tell("on_step")
        if self._evaluate_every and self.step % self._evaluate_every == 0:
            self._evaluate()
        self._agree(f"fit after step {self.step}")
        if self._save_every and self.step % self._save_every == 0:
            self._save(is_midway=True)

    def _end_epoch(self) -> None:
        if self.evaluates and self._evaluate_every is None:
            self._evaluate()
        if self._schedule_by == "epoch":
            self._schedule()
        self._tell("on_epoch")
        self._agree(f"fit after epoch {self.epoch + 1}")
        self._cursor.next_epoch()
        if self.checkpoint is not None and self._save_every is None:
            self._save(is_midway=True)

    def _evaluate(self) -> None:
        assert self._evaluate_on is not None  # it evaluates
        self.metrics = self.trainer.evaluate_on(self._evaluate_on, metrics=self._metrics, to_batch=self._to_batch)
        self.history.evaluations.append(Evaluation(self.step, self.epoch, self.metrics))
        if isinstance(self._scheduler, ReduceLROnPlateau):
            if "loss" not in self.metrics:
                raise InvalidArgumentError("a ReduceLROnPlateau goes by the metric 'loss', and evaluations have "
                                           f"{', '.join(map(repr, self.metrics))}; give one of that name in metrics=")
            self._scheduler.step(self.metrics["loss"])
        self._tell("on_evaluate")

    def _schedule(self) -> None:
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()

    def _tell(self, what: str) -> None:
        for listener in self._listeners:
            if (hook := getattr(listener, what, None)) is not None:
                hook(self)

    # --- checkpoints ----------------------------------------------------------------------

    def _save(self, is_midway: bool = False) -> None:
        state = {
            "cursor": self._cursor.state_dict(), "evaluations": [tuple(each) for each in self.history.evaluations],
            "callbacks": [(type(each).__name__, each.state_dict()) for each in self._with_states],
        }
        if self._scheduler is not None:
            state["scheduler"] = self._scheduler.state_dict()
            state["rates"] = [group["lr"] for group in self._scheduler.optimizer.param_groups]
        own, *others = self._ranks.exchange(f"checkpoint at step {self.step}", _packed(state))
        notes = {"fit": {"step": self.step, "epoch": self.epoch, "batch": self.batch, "loss": self.loss, "state": own}}
        if others:
            notes["fit"]["others"] = others  # of the ranks behind the first one
        assert self.checkpoint is not None  # else nobody saves
        try:
            self._write(self.checkpoint, notes)
        except (FileError, OutOfMemoryError, RankFailedError) as error:
            if not is_midway:
                raise
            # A disk that is full may have room again. Where a rank is gone, the next meeting ends the run.
            log.warning("no checkpoint of step %d: %s; training goes on, and the checkpoint before it, if there is one, stays", self.step, error)
            return
        self._saved_at = self.step
        self._tell("on_save")

    def _write(self, checkpoint: str | os.PathLike[str], notes: dict[str, Any]) -> None:
        if self._seals and self.trainer.seals_at(checkpoint):
            try:
                self.trainer.seal(notes=notes)
                return
            except UnsupportedError as error:
                log.warning("checkpoints of this run are written whole from here on: %s", error)
                self._seals = False
        self.trainer.save(checkpoint, notes=notes)

    def _load(self) -> None:
        assert self.checkpoint is not None  # else there is nothing to go on from
        notes = self.trainer.resume(self.checkpoint).get("fit")
        if notes is None:
            raise InvalidArgumentError(f"{self.checkpoint} is a checkpoint that fit has not written, which does not say where in the data it was; load "
                                       "it by trainer.resume(...), and fit from the first batch without resume=True")
        states = [notes["state"], *notes.get("others", [])]
        if len(states) != self._ranks.count:
            raise InvalidArgumentError(f"{self.checkpoint} is of a run of {len(states)} rank{'s' * (len(states) > 1)}, and says where in its data each was; there "
                                       f"{'are' if self._ranks.count > 1 else 'is'} {self._ranks.count} now. Load it by trainer.resume(...), and fit from the first batch "
                                       "without resume=True")
        state = _unpacked(states[self._ranks.rank])
        had, has = [name for name, _ in state["callbacks"]], [type(each).__name__ for each in self._with_states]
        if had != has:
            raise InvalidArgumentError(f"{self.checkpoint} has the states of {', '.join(had) or 'no callbacks'}, and this run has {', '.join(has) or 'none with a state'}; "
                                       "give fit the same ones, in the same order")
        if ("scheduler" in state) != (self._scheduler is not None):
            raise InvalidArgumentError(f"{self.checkpoint} is of a run {'with' if 'scheduler' in state else 'without'} a scheduler; give fit what it "
                                       "was given then")
        self.step = self._saved_at = notes["step"]
        self.loss, self.resumed = notes["loss"], True
        self.history.evaluations = [Evaluation(*each) for each in state["evaluations"]]
        if self.history.evaluations:
            self.metrics = self.history.evaluations[-1].metrics
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
            for group, rate in zip(self._scheduler.optimizer.param_groups, state["rates"]):
                group["lr"] = rate
        for callback, (_, kept) in zip(self._with_states, state["callbacks"]):
            callback.load_state_dict(kept)
        self._cursor.load_state_dict(state["cursor"])  # last: from here on random numbers are those of the run


def _packed(state: dict[str, Any]) -> str:
    """Plain values and tensors as text."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        text = base64.b64encode(file.getvalue()).decode()
        _unpacked(text)
    except Exception as error:
        raise InvalidArgumentError("the state of a loader, scheduler or callback cannot be kept in a checkpoint, which takes numbers, texts, tensors, and "
                                   f"lists, tuples and dictionaries of them: {error}") from error
    return text


def _unpacked(text: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    return state
