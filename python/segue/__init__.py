# ===- segue - train PyTorch modules as stitched programs ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Segue compiles PyTorch modules to small programs and trains them, stitched, in a runtime of its own.

>>> import segue, torch
>>> first = segue.compile(first_half, (tokens,))
>>> last = segue.compile(last_half, (hidden, targets))
>>> loss = last(first(tokens), targets); loss.backward()              # in PyTorch's graph
>>> trainer = segue.Trainer([first, last], optimizer=segue.AdamW(lr=3e-4))
>>> trainer.step(tokens=tokens, targets=targets)                       # all in the runtime
>>> print(segue.fit(model, (4, 1024), budget="8GiB"))                   # before there are weights: will it fit?
>>> fast = torch.compile(model, backend="segue")                       # whatever PyTorch runs; see segue.dynamo
"""

import torch as _torch  # noqa: F401 - loaded first: its OpenMP library is then the one of the whole process

from typing import TYPE_CHECKING

from . import squareq
from ._runtime import StepResult, Tensor
from ._runtime import __version__ as __version__
from .buckets import Buckets
from .callbacks import Callback, EarlyStop
from .compiler import compile, load
from .dynamo import BackendReport, backend_report
from .errors import (
    BudgetInfeasibleError, CompileError, ConfigError, CorruptFileError, Error, ExportError, FallbackWarning, FileError, IndexOutOfRangeError,
    InvalidArgumentError, LayoutMismatchError, MissingInputError, MissingWeightError, NameUnknownError, NanLossError, NativeCodeRefusedError,
    OutOfMemoryError, RankFailedError, StateTornError, UnsupportedError, UnsupportedOpError, ValuesDifferError, VersionError,
)
from .fitting import FitRow, FitTable, fit, fit_table
from .generation import Generator, write_rows
from .gradient_hooks import GradientHook
from .memory import Memory, Step
from .module import LoadedModule, Module
from .optimizers import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, Group, Lion, Muon, NAdam, Optimizer, RAdam, RMSprop
from .precision import LossScale
from .profiling import CommandRow, Profile
from .schedules import one_cycle, step_decay, warmup_cosine, warmup_linear
from .stitch_report import StitchReport
from .supported import Operator, Operators, supported_ops
from .trainer import Trainer
from .trainer_checkpoints import export_checkpoint
from .training_loop import Evaluation, History, Run

__all__ = [
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "BackendReport", "Buckets", "BudgetInfeasibleError", "Callback", "CommandRow",
    "CompileError", "ConfigError", "CorruptFileError", "EarlyStop", "Error", "Evaluation", "ExportError", "FallbackWarning", "FileError", "FitRow",
    "FitTable", "Generator", "GradientHook", "Group", "History", "IndexOutOfRangeError", "InvalidArgumentError", "LayoutMismatchError", "Lion", "LoadedModule",
    "LossScale", "Memory", "MissingInputError", "MissingWeightError", "Module", "Muon", "NAdam", "NameUnknownError",
    "NanLossError", "NativeCodeRefusedError", "Operator", "Operators", "Optimizer", "OutOfMemoryError", "Profile", "RAdam", "RMSprop",
    "RankFailedError", "Run", "SGD", "StateTornError", "Step", "StepResult", "StitchReport", "Tensor", "Trainer", "UnsupportedError", "UnsupportedOpError", "ValuesDifferError",
    "VersionError", "backend_report", "compile", "export_checkpoint", "fit", "fit_table", "load", "one_cycle", "squareq",
    "step_decay", "supported_ops", "warmup_cosine", "warmup_linear", "write_rows",
]


if not TYPE_CHECKING:  # which knows what is public by __all__

    def __dir__() -> list[str]:
        """Public names alone, for completions: the files of the package are its own."""
        return sorted({*__all__, "__version__", "__doc__", "__name__", "__path__", "__file__"})
