# ===- optimizers.py - what an optimizer is to the compiler -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Optimizers that run inside of the compiled programs, and learning rate schedules.

An optimizer here is a description: its constants are compiled into the
`@optimizer` program; only the learning rate is given at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Callable, Union

from .errors import InvalidArgumentError

#: A learning rate: a number, or a function of the step, which is 0 at the first.
LearningRate = Union[float, Callable[[int], float]]


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizers.

    `no_decay` holds patterns of parameter names (``"*.bias"``) whose weights do not decay.
    """

    lr: LearningRate = 1e-3
    weight_decay: float = 0.0
    no_decay: tuple[str, ...] = ()

    kind = ""

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, 0 being the first."""
        return float(self.lr(step) if callable(self.lr) else self.lr)

    def constants(self) -> dict[str, float]:
        """What the compiler builds in."""
        raise NotImplementedError

    def spec(self) -> str:
        """As the compiler takes it, "adamw:beta1=0.9,..."; equal specs make equal programs."""
        text = lambda v: str(v).lower() if isinstance(v, bool) else repr(v)  # noqa: E731
        return f"{self.kind}:" + ",".join(f"{k}={text(v)}" for k, v in self.constants().items())

    def decay_of(self, names) -> dict[str, float]:
        """Decay of the parameters that have one of their own."""
        return {n: 0.0 for n in names if any(fnmatchcase(n, pattern) for pattern in self.no_decay)}


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as `torch.optim.AdamW` (Loshchilov and Hutter, arXiv:1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    kind = "adamw"

    def __post_init__(self):
        if not (0 <= self.betas[0] < 1 and 0 <= self.betas[1] < 1):
            raise InvalidArgumentError(f"betas are {self.betas}; each must be in [0, 1)")

    def constants(self):
        return {"beta1": float(self.betas[0]), "beta2": float(self.betas[1]), "eps": float(self.eps),
                "decay": float(self.weight_decay)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum, as `torch.optim.SGD`."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    kind = "sgd"

    def __post_init__(self):
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InvalidArgumentError("nesterov needs a momentum above 0 and no dampening")

    def constants(self):
        return {"momentum": float(self.momentum), "dampening": float(self.dampening),
                "decay": float(self.weight_decay), "nesterov": bool(self.nesterov)}


def warmup_cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Callable[[int], float]:
    """A linear rise over `warmup` steps, then a cosine down to `final` at step `steps`."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return final + (lr - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return rate
