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


def leaves(inputs):
    """Copies of tensors, of which those that have gradients require them."""
    return [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]


def weighted_sum(outputs, expected):
    """Of those that have a gradient in PyTorch, with the same weights for `outputs` as for `expected`; 0 if there are none."""
    total, generator = 0, torch.Generator().manual_seed(1)
    for output, e in zip(outputs, expected, strict=True):
        if e.is_floating_point() and e.requires_grad:
            total = total + (output * torch.randn(e.shape, generator=generator).to(e.dtype)).sum()
    return total


class Expected:
    """What PyTorch makes of a case: its values, and the gradients of a weighted sum of them."""

    def __init__(self, case, inputs):
        self.case = case
        self.inputs = leaves(inputs)
        self.outputs = flat(case.function(*self.inputs))
        total = weighted_sum(self.outputs, self.outputs)
        self.has_gradients = isinstance(total, torch.Tensor)
        if self.has_gradients:
            total.backward()

    def assert_values(self, actual, what="output"):
        for i, (a, e) in enumerate(zip(actual, self.outputs, strict=True)):
            assert_close(a, e, self.case.tolerance, f"{what} {i}")

    def assert_gradients(self, inputs):
        for i, (a, e) in enumerate(zip(inputs, self.inputs)):
            if e.grad is not None:
                assert_close(a.grad, e.grad, self.case.tolerance, f"gradient of input {i}")


def losses_close(actual, expected, tolerance=1e-4):
    worst = max(abs(a - b) / abs(b) for a, b in zip(actual, expected))
    assert len(actual) == len(expected) and worst <= tolerance, (
        f"losses differ by {worst:.2e} relative:\n{actual}\n{expected}")
