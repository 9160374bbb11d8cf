# ===- verify.py - kernels against the reference interpreter ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""``SEGUE_VERIFY=values``: every kernel of a model is compared with the reference interpreter.

Asked for by the environment, so that a script that trains wrongly need not be changed. It happens at the first call of
each variant, with the tensors of that call; see docs/guides/testing.md for what is compared, and with what tolerance.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Mapping

import numpy as np
import torch

from .errors import InvalidArgumentError, ValuesDifferError

log = logging.getLogger("segue")

VARIABLE = "SEGUE_VERIFY"


def enabled() -> bool:
    """Returns whether the environment asks for it. Raises InvalidArgumentError for a value that is not known."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "values"):
        raise InvalidArgumentError(f"{VARIABLE} is {asked!r}; known is 'values', or nothing")
    return asked == "values"


def verify_values(text: str, name: str, values: Mapping[str, Any], *, training: bool) -> None:
    """Calls every kernel of a module with what the interpreter has come to, and compares.

    Parameters
    ----------
    text : str
        The graph in the `segue` dialect.
    name : str
        Of the module, in messages.
    values : mapping
        Tensors by the names of arguments; gradients and others that are missing are drawn.
    training : bool
        Derive ``@backward`` and compare its kernels too; false where it is in the text already.

    Raises
    ------
    ValuesDifferError
        A kernel differs by more than rounding explains. The message names the first.
    CompileError
        The graph cannot be interpreted with these values; the report has the ``diagnostics``.
    """
    from safetensors.torch import save

    from . import _compiler  # the compiler is loaded when code is made, not before

    tensors = {n: _torch(v).detach().cpu().clone().contiguous() for n, v in values.items()}
    difference, kernels, launches, calls = _compiler.verify_values(text, name, save(tensors), training=training)
    if difference:
        raise ValuesDifferError(f"VALUES_DIFFER: {name}: {difference}", report={"difference": difference})
    log.warning("%s: %d kernels agree with the reference interpreter in %d launches, %d calls (%s=values)", name, kernels,
                launches, calls, VARIABLE)


def _torch(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.from_numpy(np.array(value)) if hasattr(value, "__array__") else torch.from_dlpack(value)  # type: ignore[attr-defined]  # public, and left out of __all__
