# ===- frontend - from PyTorch modules to the segue dialect ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""From a PyTorch module to a graph in the `segue` dialect, as MLIR text.

`capture` runs `torch.export` and translates its graph op by op. Three parts:

- `signature`: what the arguments and results of the graph are called and what they are for;
- `importer`: walks the exported graph and keeps track of places (block, module path, source line);
- `ops`: a table from ATen operators to functions that write `segue` ops through a `GraphWriter`.

To add an operator, write one decorated function in `ops`.
"""

from .importer import capture
from .signature import Argument, Captured, Result

__all__ = ["Argument", "Captured", "Result", "capture"]
