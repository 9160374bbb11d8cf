# ===- lacking.py - why an operator has no lowering -------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What kind of thing an operator is that Segue leaves to PyTorch, where that is more than "not yet"."""

from __future__ import annotations

import re

import torch

COMPLEX = "complex numbers are no element type of Segue"
_KINDS = (
    (re.compile(r"_?fft_(?!i?fftshift|r?fftfreq).*|i?stft"), f"a Fourier transform; {COMPLEX}"),
    (re.compile(r".*complex.*|polar|imag|view_as_real"), COMPLEX),
    (re.compile(r"_?linalg_(?!matmul|multi_dot|norm|vector_norm|matrix_norm|matrix_power|vecdot|cross|diagonal|vander|_powsum).*|"
                r"_?cholesky.*|geqrf|orgqr|ormqr|qr|svd|.*lu_(solve|unpack|with_info)|triangular_solve|pinverse|inverse|det|logdet|"
                r"slogdet|matrix_exp|nuclear_norm"), "linear algebra, which PyTorch has LAPACK for"),
)
_OF_VALUES = "the shape of its result depends on values, and a program has none but static shapes"
_TO_PYTHON = "it gives a value to Python, which no program returns to in the midst"


def reason(target: object) -> str:
    """Why PyTorch runs this operator, or an empty text where it has just no lowering yet."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    if torch.Tag.dynamic_output_shape in target.tags:
        return _OF_VALUES
    if torch.Tag.data_dependent_output in target.tags:
        return _TO_PYTHON
    name = target._schema.name.partition("::")[2]
    return next((why for kind, why in _KINDS if kind.fullmatch(name)), "")
