# ===- boxed.py - functions as AOTAutograd calls them ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Functions as AOTAutograd calls them, and what it gives them and takes from them."""

from __future__ import annotations

from typing import Any, Callable

#: Arguments or results of a graph, by position: tensors, numbers and None. Which of these stands where is in the graph
#: alone.
Flat = list[Any]

#: A function of the arguments of a graph that empties their list, so that each tensor is freed when it is used up.
Boxed = Callable[[Flat], Flat]

#: What TorchDynamo calls in the place of a graph.
Compiled = Callable[..., Any]


def boxed(function: Boxed) -> Boxed:
    """The function, marked as one that takes a list: AOTAutograd hands others their arguments one by one, and keeps
    them."""

    def call(args: Flat) -> Flat:
        return function(args)

    setattr(call, "_boxed_call", True)
    return call
