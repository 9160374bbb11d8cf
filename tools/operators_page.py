#!/usr/bin/env python3
# ===- operators_page.py - writes docs/operators.md ------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Prints the page of PyTorch's operators: tools/operators_page.py > docs/operators.md (`make docs`)."""

from segue.supported import page

print(page(), end="")
