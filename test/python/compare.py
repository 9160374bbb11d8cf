# ===- compare.py - how results are compared with PyTorch's ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How results are compared with PyTorch's: norm-wise, as the project's goals are written."""

import torch


def assert_close(actual, expected, tolerance=1e-4, what="value"):
    """Norm of the difference at most `tolerance` times the norm of what is expected; integers and truths exactly."""
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, expected {expected.dtype}"
    if not expected.is_floating_point():
        assert torch.equal(actual, expected), f"{what}: {actual} instead of {expected}"
        return
    actual, expected = actual.detach().double(), expected.detach().double()
    finite = torch.isfinite(expected)
    assert torch.equal(finite, torch.isfinite(actual)), f"{what}: not finite at other places"
    actual, expected = actual[finite], expected[finite]
    difference, scale = (actual - expected).norm(), expected.norm()
    # What should be zero is judged by an absolute bound: rounding of values of size 1.
    assert difference <= tolerance * scale + 1e-6 * max(1, expected.numel()) ** 0.5, (
        f"{what}: off by {difference / scale:.2e} relative ({difference:.2e} absolute)")


def flat(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def assert_case_agrees(compiled, case, inputs):
    """Values of `compiled` and of the case's function for `inputs`, and the gradients of a weighted sum of them."""
    ours = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    theirs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    actual, expected = flat(compiled(*ours)), flat(case.function(*theirs))
    total_ours = total_theirs = 0
    generator = torch.Generator().manual_seed(1)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, case.tolerance, f"output {i}")
        if e.is_floating_point() and e.requires_grad:
            weight = torch.randn(e.shape, generator=generator).to(e.dtype)
            total_ours, total_theirs = total_ours + (a * weight).sum(), total_theirs + (e * weight).sum()
    if not isinstance(total_theirs, torch.Tensor):
        return
    total_ours.backward()
    total_theirs.backward()
    for i, (a, e) in enumerate(zip(ours, theirs)):
        if e.grad is not None:
            assert_close(a.grad, e.grad, case.tolerance, f"gradient of input {i}")


def losses_close(actual, expected, tolerance=1e-4):
    worst = max(abs(a - b) / abs(b) for a, b in zip(actual, expected))
    assert len(actual) == len(expected) and worst <= tolerance, (
        f"losses differ by {worst:.2e} relative:\n{actual}\n{expected}")
