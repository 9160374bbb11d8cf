# ===- table.py - how a decomposition is entered -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How a decomposition is entered, and in which element type it computes."""

from __future__ import annotations

import functools
from typing import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind, elementwise_dtypes

#: Operator -> function, as AOTAutograd and `torch.export` take decompositions.
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable] = {}

#: Function of PyTorch -> function: called in its place before autograd sees it, which has no derivative then that could be taken
#: apart. What they cannot write they leave to the function itself.
BEFORE_AUTOGRAD: dict[Callable, Callable] = {}


def writes(*operators: torch._ops.OpOverload):
    """Enter a function as what is done in the place of operators."""

    def enter(function: Callable) -> Callable:
        for operator in operators:
            assert operator not in DECOMPOSITIONS, f"{operator} is entered twice"
            DECOMPOSITIONS[operator] = function
        return function

    return enter


def replaces(*functions: Callable):
    """Enter a function as what is called in the place of others before derivatives are taken."""

    def enter(function: Callable) -> Callable:
        BEFORE_AUTOGRAD.update(dict.fromkeys(functions, function))
        return function

    return enter


def in_floats(function: Callable) -> Callable:
    """Of tensors and numbers, promoted as PyTorch promotes them: integers become floats, and halves are computed in f32."""

    @functools.wraps(function)
    def promoted(*args, **kwargs):
        wide, result = elementwise_dtypes(*args, type_promotion_kind=Kind.INT_TO_FLOAT)
        args = [a.to(wide) if isinstance(a, torch.Tensor) else a for a in args]
        return function(*args, **kwargs).to(result)

    return promoted
