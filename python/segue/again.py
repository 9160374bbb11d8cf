# ===- again.py - derivatives that programs do not have ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What PyTorch runs in the place of a compiled module: backwards that are differentiated again, and transforms of `torch.func`.

A program has one backward, with the gradients of a call. Gradients of these
gradients (`create_graph=True`), levels of `torch.func` and tangents of forward
mode belong to PyTorch's own operators, which the module that was compiled
still has. It runs there, with a `FallbackWarning`.
"""

from __future__ import annotations

import warnings
from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .errors import FallbackWarning, InvalidArgumentError
from .frontend.autocast import place_of
from .frontend.signature import Constant
from .precision import entered_precision

_TRANSFORMS = {"Grad": "grad", "Vmap": "vmap", "Jvp": "jvp", "Functionalize": "functionalize"}


def transform_around(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What surrounds a call that a program cannot take part in: a transform by its name in `torch.func`, or None."""
    level = torch._C._functorch.peek_interpreter_stack()
    if level is not None:
        kind = level.key().name
        return f"torch.func.{_TRANSFORMS.get(kind, kind)}"
    if torch.autograd.forward_ad._current_level >= 0:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and torch.autograd.forward_ad.unpack_dual(leaf).tangent is not None:
                return "torch.autograd.forward_ad"
    return None


def warn_of(name: str, what: str) -> None:
    """Says that a call runs in PyTorch."""
    warnings.warn(f"{name}: a call under {what} runs in PyTorch", FallbackWarning, stacklevel=3)


class Again:
    """Gradients of one call by PyTorch's operators, which can be differentiated once more."""

    def __init__(self, source: nn.Module, name: str, program: Any, precision: str | None, random: bool):
        self._source, self._name, self._program = source, name, program
        self._precision, self._random = precision, random

    def gradients(self, values: Mapping[str, torch.Tensor], names: Sequence[str], wanted: Sequence[bool],
                  given: Sequence[torch.Tensor | None]) -> list[Any]:
        """Gradients of those of `names`, inputs and trained parameters, that are `wanted`; `values` has them all.

        Raises
        ------
        InvalidArgumentError
            The call drew random numbers, which PyTorch would draw anew; the module came from a file; an input was made in
            inference mode.
        """
        captured = self._program.captured
        why = ""
        if captured is None:
            why = "the module came from a file, which has no graph of it"
        elif self._random:
            why = "the call drew random numbers (dropout), and would draw others"
        elif missing := [name for name in names if name not in values]:
            why = f"{missing[0]!r} was made in inference mode"
        if why:
            raise InvalidArgumentError(f"{self._name}: a backward with create_graph=True runs forward again in PyTorch, which cannot be: {why}")
        warnings.warn(f"{self._name}: gradients that are to be differentiated (create_graph=True) are computed by PyTorch", FallbackWarning, stacklevel=2)
        structure = captured.structure
        inputs = set(structure.input_names())
        args, kwargs = pytree.tree_unflatten([leaf.value if isinstance(leaf, Constant) else values[leaf] for leaf in structure.leaves], structure.in_spec)
        weights = {name: value for name, value in values.items() if name not in inputs}
        with entered_precision(self._precision, place_of(t for t in values.values() if isinstance(t, torch.Tensor))):
            results = pytree.tree_leaves(torch.func.functional_call(self._source, weights, args, kwargs))
        outputs = {leaf: result for leaf, result in zip(structure.result_leaves, results) if not isinstance(leaf, Constant)}
        pairs = [(outputs[i], g) for i, g in enumerate(given) if g is not None and outputs[i].requires_grad]
        asked = [values[name] for name, want in zip(names, wanted) if want]
        found = iter(torch.autograd.grad([o for o, _ in pairs], asked, [g for _, g in pairs], create_graph=True, allow_unused=True))
        return [next(found) if want else None for want in wanted]
