# ===- in_pieces.py - training of a model of which some pieces run in PyTorch ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Compares a model under ``torch.compile(backend="segue")`` with itself, piece by piece."""

import copy
import re
import warnings

import torch
from compare import assert_close

import segue


def check(model, *inputs, pieces, tolerance=1e-5, steps=2, named="aten.sin.default|grad"):
    """Values, gradients of parameters and inputs, and buffers, of steps of training; and where the pieces ran.

    Every warning has something that `named`, a regular expression, finds.
    """
    reference = copy.deepcopy(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = torch.compile(model, backend="segue", dynamic=False)
        for step in range(steps):
            found = []
            for module in (ours, reference):
                given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
                y = module(*given)
                y.square().mean().backward()
                found.append((y, [x.grad for x in given if x.grad is not None]))
            (y, grads), (expected, wanted) = found
            assert_close(y, expected, tolerance)
            for a, e in zip(grads, wanted, strict=True):
                assert_close(a, e, tolerance)
            for (name, a), e in zip(model.named_parameters(), reference.parameters()):
                assert_close(a.grad, e.grad, tolerance, f"gradient of {name} in step {step}")
            for (name, a), e in zip(model.named_buffers(), reference.buffers()):
                assert_close(a, e, tolerance, name)
    messages = [str(w.message) for w in caught if w.category is segue.FallbackWarning]
    assert messages and all(re.search(named, m) for m in messages), messages
    result = segue.backend_report()
    assert ["segue" if s.compiled else "torch" for s in result.segments] == pieces, str(result)
    assert all(s.forward_calls == s.backward_calls == steps for s in result.segments if s.compiled)
    return result
