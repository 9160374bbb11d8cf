# ===- gradient_hooks.py - functions that see gradients and may change them ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `Trainer.on_gradient` keeps."""

from __future__ import annotations

from typing import Any, Callable

import torch

from . import _runtime
from .errors import LayoutMismatchError
from .tensors import give

#: Gets the gradient of a parameter, and may write into it or return another one.
GradientFunction = Callable[[torch.Tensor], Any]


class GradientHook:
    """A function on gradients, until `remove` is called or the ``with`` block ends.

    Attributes
    ----------
    keys : list of str
        The parameters whose gradients it gets.
    """

    def __init__(self, hooks: list["GradientHook"], keys: list[str], function: GradientFunction):
        self._hooks, self.keys, self._function = hooks, keys, function
        hooks.append(self)

    def remove(self) -> None:
        """Calls it no more. Nothing happens the second time."""
        if self in self._hooks:
            self._hooks.remove(self)

    def __enter__(self) -> "GradientHook":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()

    def calls(self) -> list[tuple[str, Callable[["_runtime.Tensor"], None]]]:
        """As the runtime takes them."""
        return [(key, self._call_of(key)) for key in self.keys]

    def _call_of(self, key: str) -> Callable[["_runtime.Tensor"], None]:
        def call(gradient: "_runtime.Tensor") -> None:
            seen = give(gradient, "torch")
            with torch.no_grad():
                result = self._function(seen)
                if result is None:
                    return
                if not isinstance(result, torch.Tensor) or result.shape != seen.shape:
                    what = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
                    raise LayoutMismatchError(f"the function on the gradient of {key!r} returned {what}; it returns None, or a tensor of shape "
                                              f"{list(seen.shape)}")
                seen.copy_(result)

        return call
