# ===- arguments.py - what callers give, and what they meant ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Checks of arguments that many calls share: names of what was given, keywords that are nearly right, numbers."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
from difflib import get_close_matches
from typing import Any, Callable, TypeVar, cast

from .errors import InvalidArgumentError

_F = TypeVar("_F", bound=Callable[..., Any])

#: Keywords of PyTorch, Lightning, Accelerate, Hugging Face and Keras, and those of ours that do the same.
_ELSEWHERE = {
    "accumulate_grad_batches": "grad_accumulation", "gradient_accumulation_steps": "grad_accumulation", "accumulation_steps": "grad_accumulation",
    "callback": "callbacks", "dtype": "precision", "eval_dataset": "evaluate_on", "gradient_clip_val": "clip_grad_norm", "learning_rate": "lr",
    "max_epochs": "epochs", "max_grad_norm": "clip_grad_norm", "max_memory": "budget", "max_steps": "steps", "memory_limit": "budget",
    "mixed_precision": "precision", "model": "modules", "num_epochs": "epochs", "num_train_epochs": "epochs", "offload_dir": "spill_dir",
    "offload_folder": "spill_dir", "optim": "optimizer", "val_dataloaders": "evaluate_on", "validation_data": "evaluate_on",
}


def what_is(x: Any) -> str:
    """What was given, for messages: "None", "the class Net", "a function", "an int"."""
    if x is None:
        return "None"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    name = "function" if inspect.isroutine(x) else type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def nearest_keyword(name: str, known: list[str]) -> str | None:
    """The keyword among `known` that was meant by `name`, if one is near or does what `name` does elsewhere."""
    if _ELSEWHERE.get(name) in known:
        return _ELSEWHERE[name]
    return next(iter(get_close_matches(name, known, 1, 0.6)), None)


def names_keywords(function: _F) -> _F:
    """Has calls with an unknown keyword say which one was meant, as Python does from 3.13 on. What is raised is a TypeError, as Python's."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for keyword in given:
            if keyword not in known:
                near = nearest_keyword(keyword, known)
                way_out = f"did you mean {near!r}?" if near else f"it takes {', '.join(known)}"
                raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {way_out}")
        return function(*args, **given)

    return cast(_F, call)


def whole(name: str, number: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """The number itself, of whatever type of whole numbers. Raises InvalidArgumentError for another one."""
    found = None if isinstance(number, bool) or not hasattr(number, "__index__") else operator.index(number)
    if found is None or not least <= found <= most:
        wanted = "at least 1" if least == 1 else "at least 0" if least == 0 else f"{least} to {most}"
        raise InvalidArgumentError(f"{name} is {number!r:.80}; it must be a whole number, and {wanted} is needed")
    return found


def at_least_0(name: str, number: Any) -> float:
    """The number as a float. Raises InvalidArgumentError for one below 0, one that is not finite, and what is none."""
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool) or hasattr(number, "item") and getattr(number, "shape", ()) == ()
    if not is_number or not 0 <= (found := float(number)) < math.inf:
        raise InvalidArgumentError(f"{name} is {number!r:.80}; it must be a number, 0 or more, and finite")
    return found
