# ===- ops - the table from ATen operators to segue ops ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The table from ATen operators to functions that write `segue` ops.

A function is entered by `@lowers("aten.name.overload", ...)`. It is called with
the builder of the node and with the arguments of the operator: tensors as
`Value`, everything else as it is; its types, their order and its defaults are those of
the ATen schema, which test_supported.py compares. It returns a `Value`, or a list of
them for operators with several results. Shapes, element types and differentiability of
what it returns are checked by the importer against what PyTorch computed, so a wrong
lowering is found when compiling.
"""

import importlib
import pkgutil

from .table import OPS, lowers

# Each module enters its operators when it is imported.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OPS", "lowers"]
