# ===- reached.py - which lowerings were called, and with what ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Watches the table of lowerings: which were reached, and which of their options had another value than by default; and what was taken apart."""

import inspect

from segue.frontend import parts
from segue.frontend.ops import OPS


def _options(function):
    """Name -> default of the arguments that may be left out."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()
            if p.default is not inspect.Parameter.empty}


def _is(value, default):
    """True if an argument is the default; a value of the graph never is."""
    if isinstance(value, (list, tuple)):
        value = tuple(value)
    return type(value) in (int, float, bool, str, tuple, type(None)) and value == default


class Reached:
    """A context in which every call of a lowering is noted.

    functions : the lowerings that were called. Aliases in the table are one function.
    operators : names of the operators that were written in terms of others, if anything does that.
    """

    def __init__(self):
        self.functions = set()
        self.operators = set()
        self._changed = set()

    def __enter__(self):
        self._originals = dict(OPS)
        for name, function in self._originals.items():
            OPS[name] = self._watched(function)
        self._written = parts._function
        parts._function = self._asked
        return self

    def __exit__(self, *_):
        OPS.update(self._originals)
        parts._function = self._written

    def _asked(self, target):
        self.operators.add(str(target))
        return self._written(target)

    def _watched(self, function):
        original = getattr(function, "watched", function)

        def call(*args, **kwargs):
            self.functions.add(original)
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            for name, default in _options(original).items():
                if name in given and not _is(given[name], default):
                    self._changed.add((original, name))
            return function(*args, **kwargs)

        call.watched = original
        return call

    def options_left_alone(self, of=lambda function: True):
        """"function.option" of those that had no other value in any call."""
        every = {getattr(f, "watched", f) for f in OPS.values()}
        return {f"{f.__name__}.{name}" for f in every if of(f) for name in _options(f) if (f, name) not in self._changed}
