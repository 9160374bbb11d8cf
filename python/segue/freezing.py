# ===- freezing.py - parameters that a trainer trains now, and those that it leaves ----=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Which parameters are trained, and how many steps each of them has missed.

Programs are compiled for a set of trained parameters: the gradients of others are not computed, nor is saved what only they would
need. A parameter that is frozen for a while comes back with its states, and with a count of steps of its own, as in PyTorch,
whose optimizers count the steps of each parameter for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Iterable, Mapping

from .errors import InvalidArgumentError
from .optimizers import Optimizer, Settings


#: In the keys of programs that give no gradients of some parameters.
PART = "of a part of the parameters"


@dataclass(frozen=True)
class Part:
    """An optimizer over some of a module's parameters, as the compiler asks for it.

    Attributes
    ----------
    optimizer : Optimizer
        What the trainer was given.
    roles : dict
        By name ``parameter`` or ``frozen``, where a parameter is another one now than when its module was captured.
    counts : tuple of (int, int)
        By rate group of the program: the rate among those of `optimizer`, and the steps that its parameters have missed.
    missed : dict
        By name the steps that a parameter has missed, where there are any.
    """

    optimizer: Optimizer
    roles: Mapping[str, str]
    counts: tuple[tuple[int, int], ...]
    missed: Mapping[str, int]

    @property
    def in_backward(self) -> bool:
        return self.optimizer.in_backward

    def spec(self) -> str:
        return self.optimizer.spec(own_steps=True) if any(missed for _, missed in self.counts) else self.optimizer.spec()

    def settings(self, names: Iterable[str]) -> dict[str, Settings]:
        names = list(names)
        own, found = self.optimizer.settings(names), {}
        for name in names:
            plain = own.get(name, Settings(0, None))
            found[name] = plain._replace(rate_group=self.counts.index((plain.rate_group, self.missed.get(name, 0))))
        return found

    def key(self) -> tuple[Any, ...]:
        return PART, self.optimizer.key(), tuple(sorted(self.roles.items())), self.counts, tuple(sorted(self.missed.items()))


@dataclass
class Frozen:
    """What of the parameters of a session is frozen.

    Attributes
    ----------
    since : dict
        Frozen parameters by session key, with the steps that were done when they were frozen.
    missed : dict
        The steps that others had missed when they were unfrozen, where there are any.
    """

    since: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, infos: Iterable[Any]) -> "Frozen":
        """As the modules were captured."""
        return cls({info.key: 0 for info in infos if not info.trained})

    def freeze(self, keys: Iterable[str], step: int) -> "Frozen":
        """A copy in which these are frozen after `step` steps, too. What they had missed is counted on from there."""
        keys = [key for key in keys if key not in self.since]
        since = self.since | {key: step - self.missed.get(key, 0) for key in keys}
        return Frozen(since, {key: value for key, value in self.missed.items() if key not in since})

    def unfreeze(self, keys: Iterable[str], step: int) -> "Frozen":
        """A copy in which these are trained from step ``step + 1`` on."""
        back = {key: step - self.since[key] for key in keys if key in self.since}
        since = {key: value for key, value in self.since.items() if key not in back}
        return Frozen(since, self.missed | {key: value for key, value in back.items() if value})

    def counts(self, optimizer: Optimizer, infos: Iterable[Any]) -> tuple[tuple[int, int], ...]:
        """The rate groups of programs, see `Part`: those of the optimizer first, for parameters that have missed nothing."""
        plain = [(rate, 0) for rate in range(len(optimizer.rates(0)))]
        more = {(optimizer.settings([name]).get(name, Settings(0, None)).rate_group, self.missed[info.key])
                for info in infos if info.key in self.missed for _, name in info.members}
        return (*plain, *sorted(more))

    def as_notes(self) -> dict[str, Any]:
        """What JSON can say of it."""
        return {"frozen": self.since, "missed": self.missed}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> "Frozen":
        return cls(dict(notes["frozen"]), dict(notes["missed"]))


def matching(patterns: Iterable[str], infos: Iterable[Any]) -> list[str]:
    """The keys of the parameters that patterns are for, by key or by a name in a module.

    Raises
    ------
    InvalidArgumentError
        A pattern is for none; the message has the nearest names.
    """
    names = {info.key: [info.key, *(name for _, name in info.members)] for info in infos}
    found: dict[str, None] = {}
    for pattern in patterns:
        keys = [key for key, known in names.items() if any(fnmatchcase(name, pattern) for name in known)]
        if not keys:
            near = get_close_matches(pattern, names, 3, 0.5) or list(names)[:3]
            raise InvalidArgumentError(f"{pattern!r} is for no parameter of the trainer; near it are {', '.join(map(repr, near))}")
        found |= dict.fromkeys(keys)
    return list(found)
