# ===- optimizers.py - what an optimizer is to the compiler -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Optimizers that run inside of the compiled programs.

An optimizer here is a description: its constants are compiled into the
`@optimizer` program; only learning rates are given at every step.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Callable, ClassVar, Iterable, Mapping, NamedTuple, Sequence, Union

from .arguments import at_least_0, names_keywords, what_is
from .errors import InvalidArgumentError

#: A learning rate: a number, or a function of the step, which is 0 at the first.
LearningRate = Union[float, Callable[[int], float]]


def _check_rate(name: str, rate: Any) -> None:
    """Raises InvalidArgumentError for what is neither a rate nor a function of the step."""
    if not callable(rate):
        at_least_0(name, rate)


@dataclass(frozen=True, init=False)
class Group:
    """Parameters that have a learning rate, a weight decay or an optimizer of their own.

    >>> segue.AdamW(lr=3e-4, groups=[segue.Group("*.bias", "*norm*.weight", weight_decay=0.0), segue.Group("wte.*", lr=1e-4)])

    Parameters
    ----------
    patterns : str
        Names of parameters, or patterns of them (``"*.bias"``). A parameter belongs to the first group that has a pattern for it.
    lr : float or function of the step, optional
        A rate, not a factor; default: that of the optimizer.
    weight_decay : float, optional
        Default: that of the optimizer.
    optimizer : Optimizer, optional
        For these parameters, with its rate and decay, as ``AdamW`` beside a `Muon`. Bounds of gradients, averages and updates
        in backward are said by that of all others.
    """

    patterns: tuple[str, ...]
    lr: LearningRate | None
    weight_decay: float | None
    optimizer: "Optimizer | None"

    def __init__(self, *patterns: str, lr: LearningRate | None = None, weight_decay: float | None = None, optimizer: "Optimizer | None" = None):
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise InvalidArgumentError(f"a group has the patterns {patterns!r}; give names of parameters, or patterns such as '*.bias'")
        if weight_decay is not None and not 0 <= weight_decay < math.inf:
            raise InvalidArgumentError(f"weight_decay of a group is {weight_decay!r}; it must be 0 or more, and finite")
        if lr is not None:
            _check_rate("lr of a group", lr)
        if optimizer is not None:
            if not isinstance(optimizer, Optimizer):
                raise InvalidArgumentError(f"the optimizer of a group is {what_is(optimizer)}; give segue.AdamW(...) or another of its kind")
            if optimizer.groups or optimizer.in_backward or optimizer.in_forward or optimizer.clip_grad_value is not None or optimizer.ema_decay is not None:
                raise InvalidArgumentError("the optimizer of a group has groups, clip_grad_value, ema_decay, in_backward or in_forward, which are said by the "
                                           "optimizer that the group belongs to")
        for name, value in (("patterns", patterns), ("lr", lr), ("weight_decay", weight_decay), ("optimizer", optimizer)):
            object.__setattr__(self, name, value)

    @property
    def rate(self) -> LearningRate | None:
        """Its learning rate, if it has one."""
        return self.optimizer.lr if self.lr is None and self.optimizer is not None else self.lr

    def has(self, name: str) -> bool:
        """Returns whether a pattern is for this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimizers.

    `groups` are parameters with a learning rate or weight decay of their own. With `clip_grad_value`, each element of a
    gradient is brought into [-clip_grad_value, clip_grad_value], after what `clip_grad_norm` of a trainer makes of it.

    With `ema_decay`, a moving average of each trained parameter is a state, in f32: `Trainer.averages` has them. The average is the
    parameter after the first step, and ``ema_decay * average + (1 - ema_decay) * parameter`` after each later one.

    With `in_backward`, a parameter is updated as soon as its gradient is known, in the midst of backward, to the same bits.
    A step never holds all gradients then, and what a budget moves to and from a disk or host it moves beside backward's
    products. It cannot be had together with clipping by norm or with gradients of several batches, and a gradient that is not
    finite is found after some parameters were updated: the run goes on from its last checkpoint then.

    With `in_forward`, a parameter is updated by the next step, right before its forward reads it, to the same bits: what a budget
    moves for that travels beside the products of the blocks before, and gradients are clipped by norm all the same. The gradients
    wait for it, on the disk or host. `sync`, and whatever else reads parameters or states, has the updates made first.

    With ``state_bits=8``, moments take a byte per element, and an f32 for every 256 of them, in place of four bytes: in memory, and
    in checkpoints, where `m.weight` has the codes and `m_scale.weight` the scales. Steps are computed in f32, and what is kept is
    rounded (`docs/guides/optimizers.md`). States of parameters with less than 4,096 elements, or with a number of them that 64
    does not divide, stay in f32, as do averages. An optimizer of a group says its own.
    """

    lr: LearningRate = 1e-3
    weight_decay: float = 0.0
    groups: Sequence[Group] = ()
    clip_grad_value: float | None = field(default=None, kw_only=True)
    ema_decay: float | None = field(default=None, kw_only=True)
    in_backward: bool = field(default=False, kw_only=True)
    in_forward: bool = field(default=False, kw_only=True)
    state_bits: int = field(default=32, kw_only=True)

    kind = ""
    roles: ClassVar[Mapping[str, str]] = {}  # of parameters, other than they were captured with

    def __post_init__(self) -> None:
        _check_rate(f"lr of {type(self).__name__}", self.lr)
        for group in self.groups:
            if not isinstance(group, Group):
                raise InvalidArgumentError(f"a group is {what_is(group)}; give segue.Group('*.bias', weight_decay=0.0)")
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.clip_grad_value is not None and not 0 < self.clip_grad_value < math.inf:
            raise InvalidArgumentError(f"clip_grad_value is {self.clip_grad_value!r}; it must be above 0, and finite")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InvalidArgumentError(f"ema_decay is {self.ema_decay!r}; it must be between 0 and 1")
        if self.state_bits not in (32, 8):
            raise InvalidArgumentError(f"state_bits is {self.state_bits!r}; it must be 32 or 8")
        if self.state_bits == 8 and not self._has_codes():
            raise InvalidArgumentError(f"state_bits is 8, but {type(self).__name__}, as it is set, keeps no state that has a code of 8 bits")
        for name, value in self.constants().items():
            if name in ("beta1", "beta2", "alpha", "rho") and not 0 <= value < 1:
                raise InvalidArgumentError(f"{name} of {type(self).__name__} is {value!r}; it must be in [0, 1)")
            if name not in ("dampening", "beta2-decay", "ns-a", "ns-b", "ns-c") and not 0 <= value < math.inf:
                raise InvalidArgumentError(f"{name} of {type(self).__name__} is {value!r}; it must be 0 or more, and finite")

    def _has_codes(self) -> bool:
        """Returns whether there is a state that has a code of 8 bits, as the rule of this kind says."""
        return True

    def with_state_bits(self, bits: int) -> "Optimizer":
        """The same with states of so many bits, those of groups with an optimizer of their own, too.

        Raises
        ------
        InvalidArgumentError
            `bits` is neither 32 nor 8, or 8 and this optimizer or that of a group keeps no state that has a code of 8 bits.
        """
        groups = tuple(group if group.optimizer is None else
                       Group(*group.patterns, lr=group.lr, weight_decay=group.weight_decay, optimizer=group.optimizer.with_state_bits(bits))
                       for group in self.groups)
        return replace(self, state_bits=bits, groups=groups)

    def rates(self, step: int) -> list[float]:
        """The learning rates of step `step`, 0 being the first: of the optimizer, then of each group that has one."""
        own = (group.rate for group in self.groups if group.rate is not None)
        return [at_least_0(f"the learning rate of step {step}", lr(step)) if callable(lr) else float(lr) for lr in (self.lr, *own)]

    def constants(self) -> dict[str, float | bool]:
        """The constants that the compiler builds in, by the names of the rule of this kind (`OptimizerRules.cpp`)."""
        found: dict[str, float | bool] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "betas":
                found["beta1"], found["beta2"] = map(float, value)
            elif isinstance(value, tuple) and each.name == "eps":
                found["eps1"], found["eps2"] = (float(number or 0.0) for number in value)
            elif each.name not in _NOT_CONSTANTS:
                found[each.name.replace("_", "-")] = value if isinstance(value, bool) else float(value)
        found["decay"] = float(self.weight_decay)
        for name, value, default in (("clip-value", self.clip_grad_value, None), ("ema", self.ema_decay, None),
                                     ("state-bits", self.state_bits, 32)):
            if value is not None and value != default:
                found[name] = float(value)
        return found

    def spec(self, **more: float | bool) -> str:
        """As the compiler takes it, "adamw:beta1=0.9,..."; equal specs make equal programs."""
        text: Callable[[object], str] = lambda v: str(v).lower() if isinstance(v, bool) else repr(v)  # noqa: E731
        constants = self.constants() | {name.replace("_", "-"): value for name, value in more.items()}
        constants |= {"in-backward": True} if self.in_backward else {"in-forward": True} if self.in_forward else {}
        return f"{self.kind}:" + ",".join(f"{k}={text(v)}" for k, v in constants.items())

    def settings(self, names: Iterable[str]) -> dict[str, Settings]:
        """The options for the compiler of each parameter that has a rate or decay of its own."""
        rated = [group for group in self.groups if group.rate is not None]
        common = {name: value for name, value in (("clip_value", self.clip_grad_value), ("ema", self.ema_decay)) if value is not None}
        found = {}
        for name in names:
            if (group := next((group for group in self.groups if group.has(name)), None)) is not None:
                found[name] = Settings(0 if group.rate is None else rated.index(group) + 1, group.weight_decay,
                                       "" if group.optimizer is None else group.optimizer.spec(**common))
        return found

    def key(self) -> tuple[Any, ...]:
        """Equal keys make equal programs of a module."""
        return self.spec(), tuple((group.patterns, group.rate is not None, group.weight_decay,
                                   "" if group.optimizer is None else group.optimizer.spec()) for group in self.groups)

    def check_patterns(self, names: Iterable[str]) -> None:
        """Refuses patterns of groups that match none of the names of all parameters that this optimizer trains.

        Raises
        ------
        InvalidArgumentError
            A pattern matches nothing, so that what it was meant for would be trained as all others; the message has the nearest names.
        """
        names = list(names)
        for pattern in (pattern for group in self.groups for pattern in group.patterns):
            if any(fnmatchcase(name, pattern) for name in names):
                continue
            tails = {name.rpartition(".")[2]: name for name in names}
            near = get_close_matches(pattern, names, 3, 0.5)
            near += [tails[t] for t in get_close_matches(pattern.rpartition(".")[2].strip("*"), tails, 3, 0.5) if tails[t] not in near]
            known = f"the nearest are {', '.join(map(repr, near[:3]))}" if near else f"they are called {', '.join(map(repr, names[:3]))}"
            raise InvalidArgumentError(f"a group has {pattern!r}, which matches no parameter{'; ' + known if names else ''}")

    def check_built(self, options: Mapping[str, str], names: Iterable[str], where: str) -> None:
        """Refuses a file whose optimizer program does other things than this optimizer.

        Parameters
        ----------
        options : mapping
            What the file was compiled with: ``optimizer`` and, where parameters have one of their own, ``weight_decay`` and ``rate_group``.
        names : iterable of str
            Its trained parameters.
        where : str
            What to call the file.

        Raises
        ------
        InvalidArgumentError
            Kind, constants, or the decay or rate of a parameter differ; the message has both.
        """
        built, given = options.get("optimizer", "none"), self.spec()
        if _parsed(built) != _parsed(given):
            raise InvalidArgumentError(f"{where} was compiled with the optimizer {built!r} in it; {given!r} was given, which it would "
                                       "not follow. Give the trainer that optimizer, or compile the module again with this one")
        decays = {name: float(value) for name, value in _entries(options.get("weight_decay", "")).items()}
        rates = {name: int(value) for name, value in _entries(options.get("rate_group", "")).items()}
        own = {name: spec for name, _, spec in (entry.partition("=") for entry in options.get("optimizers", "").split(";") if entry)}
        wanted = self.settings(names)
        for what, of_file, of_this in (
                ("a weight decay of", lambda n: decays.get(n, self.weight_decay),
                 lambda n: self.weight_decay if n not in wanted or wanted[n].weight_decay is None else wanted[n].weight_decay),
                ("the optimizer", lambda n: own.get(n, ""), lambda n: wanted[n].optimizer if n in wanted else ""),
                ("the learning rate of group", lambda n: rates.get(n, 0), lambda n: wanted[n].rate_group if n in wanted else 0)):
            differing = sorted(n for n in names if of_file(n) != of_this(n))
            if differing:
                name = differing[0]
                more = f" (and of {len(differing) - 1} others)" if len(differing) > 1 else ""
                raise InvalidArgumentError(f"{where} was compiled with {what} {of_file(name)!r} for {name!r}; the optimizer given has "
                                           f"{of_this(name)!r}{more}. Give the trainer the groups that the file was compiled with, or "
                                           "compile the module again")


class Settings(NamedTuple):
    """The values of one parameter: the number of its learning rate among `Optimizer.rates`; weight decay and the spec of an optimizer
    of its own, if it has these."""

    rate_group: int
    weight_decay: float | None
    optimizer: str = ""


def _entries(option: str) -> dict[str, str]:
    """The "name=value,..." of an option of a file."""
    return {name: value for name, _, value in (entry.rpartition("=") for entry in option.split(",") if entry)}


#: Fields that are no constants of programs, or go by another name there.
_NOT_CONSTANTS = ("lr", "weight_decay", "groups", "clip_grad_value", "ema_decay", "in_backward", "in_forward", "state_bits", "ns_coefficients", "adjust_lr_fn")


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as `torch.optim.AdamW` (Loshchilov and Hutter, arXiv:1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    amsgrad: bool = False

    kind = "adamw"


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam whose weight decay is a part of the gradient, as `torch.optim.Adam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    kind = "adam"


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adam that divides by the largest gradient of late, as `torch.optim.Adamax` (Kingma and Ba, arXiv:1412.6980)."""

    lr: LearningRate = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    kind = "adamax"


@dataclass(frozen=True)
class NAdam(Optimizer):
    """Adam with Nesterov's momentum, as `torch.optim.NAdam`."""

    lr: LearningRate = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False

    kind = "nadam"


@dataclass(frozen=True)
class RAdam(Optimizer):
    """Adam whose rate is rectified while the second moment is known from few steps, as `torch.optim.RAdam` (arXiv:1908.03265)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled_weight_decay: bool = False

    kind = "radam"


@dataclass(frozen=True)
class Lion(Optimizer):
    """The sign of a mean of gradients, with decoupled weight decay and one state (Chen et al., arXiv:2302.06675)."""

    lr: LearningRate = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)

    kind = "lion"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Gradients over the root of the sum of their squares, as `torch.optim.Adagrad`."""

    lr: LearningRate = 1e-2
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    kind = "adagrad"

    def _has_codes(self) -> bool:
        return False


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Gradients times the ratio of the roots of mean squares of steps and gradients, as `torch.optim.Adadelta` (Zeiler, arXiv:1212.5701)."""

    lr: LearningRate = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    kind = "adadelta"

    def _has_codes(self) -> bool:
        return False


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Gradients over the root of the mean of their squares, as `torch.optim.RMSprop`; `momentum` and `centered` keep a state each."""

    lr: LearningRate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    kind = "rmsprop"

    def _has_codes(self) -> bool:
        return not self.centered or self.momentum > 0


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Second moments of matrices from means of their rows and columns, as `torch.optim.Adafactor` (arXiv:1804.04235).

    The first of `eps` is, where it is None, that of the parameter's element type.
    """

    lr: LearningRate = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0

    kind = "adafactor"

    def _has_codes(self) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta2_decay > 0 or self.d < 1:
            raise InvalidArgumentError(f"Adafactor has beta2_decay={self.beta2_decay!r} and d={self.d!r}; they must be 0 or less, and 1 or more")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, as `torch.optim.SGD`; with a momentum of 0 no parameter has a state."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    kind = "sgd"

    def _has_codes(self) -> bool:
        return self.momentum > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InvalidArgumentError("nesterov needs a momentum above 0 and no dampening")


@dataclass(frozen=True)
class Muon(Optimizer):
    """Momentum whose singular values are brought near 1, of matrices, as `torch.optim.Muon`.

    Each step takes `ns_steps` times three products of matrices per parameter, in bf16. Everything else but matrices wants another optimizer,
    and so do embeddings, heads and norms, by what is known:

    >>> segue.Muon(lr=2e-2, groups=[segue.Group("*.bias", "*norm*", "wte.*", "head.*", optimizer=segue.AdamW(lr=3e-4))])

    `adjust_lr_fn` is ``"original"``, which None means too, or ``"match_rms_adamw"``.
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    kind = "muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.ns_coefficients) != 3 or not all(map(math.isfinite, self.ns_coefficients)):
            raise InvalidArgumentError(f"ns_coefficients of Muon are {self.ns_coefficients!r}; they are three finite numbers")
        if self.ns_steps != int(self.ns_steps) or self.ns_steps >= 100:
            raise InvalidArgumentError(f"ns_steps of Muon is {self.ns_steps!r}; it must be a whole number below 100")
        if self.adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise InvalidArgumentError(f"adjust_lr_fn of Muon is {self.adjust_lr_fn!r}; it is 'original' or 'match_rms_adamw'")

    def constants(self) -> dict[str, float | bool]:
        own = {f"ns-{letter}": float(value) for letter, value in zip("abc", self.ns_coefficients)}
        return super().constants() | own | {"match-rms-adamw": self.adjust_lr_fn == "match_rms_adamw"}


#: The optimizers by what the compiler calls them.
OPTIMIZERS: dict[str, type[Optimizer]] = {cls.kind: cls for cls in (
    AdamW, Adam, Adamax, NAdam, RAdam, Lion, Adagrad, Adadelta, RMSprop, Adafactor, SGD, Muon)}


def _takes_no_parameters(init: Callable[..., None]) -> Callable[..., None]:
    """Has an optimizer that is given parameters first, as those of PyTorch are, say that ours are given none."""

    @functools.wraps(init)
    def call(self: Optimizer, *args: Any, **given: Any) -> None:
        if args and isinstance(args[0], Iterable) and not isinstance(args[0], str):
            raise InvalidArgumentError(f"{type(self).__name__} was given {what_is(args[0])} first; optimizers of segue are given no parameters, which the trainer "
                                       f"knows: segue.{type(self).__name__}(lr=...)")
        init(self, *args, **given)

    return call


for _class in OPTIMIZERS.values():
    _class.__init__ = _takes_no_parameters(names_keywords(_class.__init__))  # type: ignore[method-assign]  # which dataclass has made


def _parsed(spec: str) -> tuple[str, dict[str, Any]]:
    """Kind and constants of a spec, with those that it leaves out."""
    kind, _, text = spec.partition(":")
    constants: dict[str, Any] = {}
    if kind in OPTIMIZERS:  # what is left out is the default of both, but for the decay, which is 0 to the compiler
        constants = OPTIMIZERS[kind]().constants() | {"decay": 0.0, "clip-value": 0.0, "ema": 0.0, "own-steps": False, "in-backward": False, "in-forward": False,
                                                    "state-bits": 32.0}
    for option in filter(None, text.split(",")):
        key, _, value = option.partition("=")
        if key in constants:  # an option of another kind, which older compilers took, says nothing
            constants[key] = value in ("true", "1", "") if isinstance(constants[key], bool) else float(value)
    return kind, constants
