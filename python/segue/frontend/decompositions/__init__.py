# ===- decompositions - operators in terms of others ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators in terms of others, where PyTorch has no such form or one that does not serve here.

A function is entered by `@writes(torch.ops.aten.name.overload, ...)` and called by PyTorch's tracers with the arguments of
the operator. It gives the values that the operator gives; whoever traces below autograd has PyTorch's own derivative, and
`segue.compile` that of the parts. Where that derivative is an operator that nothing takes apart, `@replaces(function)` enters
what TorchDynamo's graph calls instead.
"""

import importlib
import pkgutil

from .table import BEFORE_AUTOGRAD, DECOMPOSITIONS, replaces, writes

# Each module enters its operators when it is imported.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["BEFORE_AUTOGRAD", "DECOMPOSITIONS", "replaces", "writes"]
