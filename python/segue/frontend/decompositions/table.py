# ===- table.py - how a decomposition is entered -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How a decomposition is entered, and in which element type it computes."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, Union

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind, elementwise_dtypes

from ..fx import Operator

#: A function that gives what an operator gives, or NotImplemented for a call that it leaves to PyTorch.
Written = Callable[..., Any]

_Results = TypeVar("_Results")
#: What a decomposition gives that leaves some calls to PyTorch: NotImplemented is of any type to mypy.
Attempt = Union[_Results, Any]

_Function = TypeVar("_Function", bound=Written)

#: Operator -> function, as AOTAutograd and `torch.export` take decompositions.
DECOMPOSITIONS: dict[Operator, Written] = {}

#: Function of PyTorch -> function: called in its place before autograd sees it, which has no derivative then that could be taken
#: apart. What they cannot write they leave to the function itself.
BEFORE_AUTOGRAD: dict[Callable[..., Any], Written] = {}


def writes(*operators: Operator) -> Callable[[_Function], _Function]:
    """Enter a function as what is done in the place of operators."""

    def enter(function: _Function) -> _Function:
        for operator in operators:
            assert operator not in DECOMPOSITIONS, f"{operator} is entered twice"
            DECOMPOSITIONS[operator] = function
        return function

    return enter


def replaces(*functions: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Enter a function as what is called in the place of others before derivatives are taken."""

    def enter(function: _Function) -> _Function:
        BEFORE_AUTOGRAD.update(dict.fromkeys(functions, function))
        return function

    return enter


def in_floats(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of tensors and numbers, promoted as PyTorch promotes them: integers become floats, and halves are computed in f32."""

    @functools.wraps(function)
    def promoted(*args: object, **kwargs: object) -> torch.Tensor:
        wide, result = elementwise_dtypes(*args, type_promotion_kind=Kind.INT_TO_FLOAT)
        given = [a.to(wide) if isinstance(a, torch.Tensor) else a for a in args]
        return function(*given, **kwargs).to(result)

    return promoted
