# ===- evaluation.py - means over held-out batches --------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `Trainer.evaluate_on` makes of the outputs of many batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

import torch

from .batches import BatchNames, rows_of
from .distributed import Ranks
from .errors import InvalidArgumentError, RankFailedError

if TYPE_CHECKING:
    from .trainer import Trainer

#: Makes a number, the mean over the rows of a batch, of the outputs and the batch by name.
Metric = Callable[[Mapping[str, torch.Tensor], Mapping[str, Any]], Any]


def means_over(trainer: "Trainer", batches: Iterable[Any], names: BatchNames, metrics: Mapping[str, Metric], ranks: Ranks) -> dict[str, float]:
    """The scalar outputs of the last module and the metrics, as means over all rows of the batches of all ranks.

    Raises
    ------
    InvalidArgumentError
        There is no batch, nothing to take a mean of, or a metric that is no number.
    RankFailedError
        Another rank cannot evaluate.
    """
    try:
        own: Any = _sums_over(trainer, batches, names, metrics)
    except Exception as error:
        ranks.told(error)
        ranks.exchange("an evaluation", f"{type(error).__name__}: {error}")
        raise
    sums: dict[str, float] = {}
    rows = 0
    for rank, found in enumerate(ranks.exchange("an evaluation", own)):
        if isinstance(found, str):
            raise RankFailedError(f"RANK_FAILED: rank {rank} cannot evaluate: {found}")
        rows += found[0]
        for name, value in found[1].items():
            sums[name] = sums.get(name, 0.0) + value
    if not rows:
        raise InvalidArgumentError("there was no batch to evaluate on; an iterator gives its batches once, a DataLoader or a list each time")
    return {name: value / rows for name, value in sums.items()}


def _sums_over(trainer: "Trainer", batches: Iterable[Any], names: BatchNames, metrics: Mapping[str, Metric]) -> tuple[int, dict[str, float]]:
    """The rows of all batches, and sums over them."""
    sums: dict[str, float] = {}
    rows = 0
    for batch in batches:
        given = names(batch)
        outputs = trainer.evaluate(**given)
        found = {name: value for name, value in outputs.items() if not value.shape and value.is_floating_point()}
        found |= {name: metric(outputs, given) for name, metric in metrics.items()}
        if not found:
            raise InvalidArgumentError(f"the last module has no scalar output to take the mean of, but {', '.join(map(repr, outputs))}; give "
                                       "metrics=, functions of outputs and batch by name")
        count = rows_of(given)
        rows += count
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + _number(name, value) * count
    return rows, sums


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"metric {name!r} gave {value!r:.80}, which is no number: it makes one number of a batch") from error
