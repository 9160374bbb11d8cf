# ===- test_exported.py - programs of torch.export, from files ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `torch.export.save` has written is compiled as the module that it was made of: values, gradients, names, blocks, training."""

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close
from torch import nn

import segue


class Blocks(nn.Module):

    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)) for _ in range(2))
        self.register_buffer("scale", torch.tensor(0.5))
        self.h[0][0].bias.requires_grad = False

    def forward(self, x, *, targets):
        for block in self.h:
            x = block(x) * self.scale
        return F.mse_loss(x, targets)


def loaded(module, args, kwargs, folder, **options):
    torch.export.save(torch.export.export(module, args, kwargs, **options), folder / "m.pt2")
    return torch.export.load(folder / "m.pt2")


def test_a_program_from_a_file_trains(tmp_path):
    module = Blocks().eval()  # a program has the mode that it was exported in
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    program = loaded(module, (x,), {"targets": y}, tmp_path)
    compiled = segue.compile(program)  # with its own example
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in module.named_parameters()]
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    assert {a.name for a in compiled._primary.captured.named("parameter")} == trained
    assert 'segue.block = "h.1"' in compiled.mlir
    loss, expected = compiled(x, targets=y), module(x, targets=y)
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for (name, a), e in zip(compiled.named_parameters(), module.parameters()):
        assert (a.grad is None) == (e.grad is None), name
        if e.grad is not None:
            assert_close(a.grad, e.grad, what=name)
    trainer = segue.Trainer([compiled], optimizer=segue.SGD(lr=0.5))
    losses = [trainer.step(x=x, targets=y) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_program_for_many_sizes(tmp_path):
    rows = torch.export.Dim("rows", min=2, max=64)
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    program = loaded(module, (torch.randn(8, 4),), {}, tmp_path, dynamic_shapes={"input": {0: rows}})
    compiled = segue.compile(program, torch.randn(5, 4))
    for count in (5, 2, 64):
        x = torch.randn(count, 4)
        assert_close(compiled(x), module(x))


def test_sizes_that_a_program_lacks(tmp_path):
    compiled = segue.compile(loaded(nn.Linear(4, 3), (torch.randn(8, 4),), {}, tmp_path))
    with pytest.raises(segue.ExportError, match="8"):
        compiled(torch.randn(5, 4))
