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


def losses_close(actual, expected, tolerance=1e-4):
    worst = max(abs(a - b) / abs(b) for a, b in zip(actual, expected))
    assert len(actual) == len(expected) and worst <= tolerance, (
        f"losses differ by {worst:.2e} relative:\n{actual}\n{expected}")
