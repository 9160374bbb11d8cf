# ===- segue - train PyTorch modules as stitched programs ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Segue compiles PyTorch modules to small programs and trains them, stitched, in a runtime of its own."""

from . import errors
from .errors import *  # noqa: F403
