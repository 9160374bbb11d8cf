# ===- batched_gradients.py - one backward for several gradients -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Backward of a call under PyTorch's batches of gradients: `torch.autograd.grad(..., is_grads_batched=True)`, and `jacobian` and `hessian` of
`torch.autograd.functional` with ``vectorize=True``. A program takes one gradient of a result, so it runs once for each.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch


def are_batched(gradients: Sequence[Any]) -> bool:
    """Whether the gradients of a backward are batches of them."""
    return any(isinstance(g, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(g) for g in gradients)


def one_by_one(run: Callable[[list[Any], bool], Sequence[Any]], given: Sequence[Any]) -> list[Any]:
    """The results of `run`, batched, for arguments of which some are batches.

    `run` is given the arguments of one row, and whether what the call has saved is needed by another row.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    batched = [are_batched([g]) for g in given]
    plain = [torch._remove_batch_dim(g, level, 1, 0) if is_batched else g for g, is_batched in zip(given, batched)]
    count = next(g.shape[0] for g, is_batched in zip(plain, batched) if is_batched)
    rows = [run([g[i] if is_batched else g for g, is_batched in zip(plain, batched)], i + 1 < count) for i in range(count)]
    return [torch._add_batch_dim(torch.stack(each), 0, level) if isinstance(each[0], torch.Tensor) else each[0]
            for each in zip(*rows)]
