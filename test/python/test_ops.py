# ===- test_ops.py - every operator agrees with PyTorch ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every case of op_cases.py through the whole chain: values and gradients agree with PyTorch."""

import pytest
import torch
from compare import assert_close
from op_cases import CASES, Apply
from together import Together

import segue


together = Together(CASES, lambda function, inputs: segue.compile(Apply(function), tuple(x.detach() for x in inputs)), inference=True)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_values_and_gradients(case):
    together.check(case)


def test_another_input_gives_another_result():
    """Guards the test above against a result that was fixed when compiling."""
    compiled = segue.compile(Apply(lambda x, y: x @ y), (torch.zeros(3, 4), torch.zeros(4, 5)))
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(3, 4), torch.randn(4, 5)
        assert_close(compiled(x, y), x @ y)


def test_index_outside_of_the_table_is_an_error():
    compiled = segue.compile(Apply(torch.nn.functional.embedding), (torch.tensor([0, 1]), torch.randn(3, 2)))
    with pytest.raises(segue.IndexOutOfRangeError), torch.no_grad():
        compiled(torch.tensor([0, 3]), torch.randn(3, 2))


def test_dropout_keeps_the_mean_and_its_gradient_matches_the_mask():
    compiled = segue.compile(torch.nn.Dropout(0.25), (torch.ones(64, 512),))
    x = torch.ones(64, 512, requires_grad=True)
    y = compiled(x)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)
    torch.manual_seed(1)
    first = compiled(x)
    assert not torch.equal(first, compiled(x))
    torch.manual_seed(1)
    assert torch.equal(first, compiled(x))
