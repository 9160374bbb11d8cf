# ===- test_recurrent.py - LSTM and GRU ------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Recurrent layers are written step by step: values and gradients are PyTorch's."""

import pytest
import torch
from compare import assert_close, flat
from torch import nn

import segue

LAYERS = {
    "lstm": (lambda: nn.LSTM(5, 4, bidirectional=True, batch_first=True), "torch.compile"),
    "lstm_projected": (lambda: nn.LSTM(5, 6, num_layers=2, proj_size=3, bias=False), "segue.compile"),
    "gru": (lambda: nn.GRU(5, 4), "torch.compile"),
}


class Net(nn.Module):
    """Nothing before the layer is trained: there PyTorch would take oneDNN's LSTM."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.proj_size or layer.hidden_size, 3)

    def forward(self, x):
        outputs, state = self.layer(x)
        last = state if isinstance(state, torch.Tensor) else state[0]
        return self.head(last.tanh()), outputs.sum(1)


class Behind(nn.Module):
    """A layer behind others. (TorchDynamo leaves a Sequential with a graph break in it alone.)"""

    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Linear(5, 5), nn.GRU(5, 4)

    def forward(self, x):
        hidden = nn.functional.gelu(self.first(x))
        return self.layer(hidden)


def gradients(net, run, x):
    outputs = flat(run(x))
    net.zero_grad()
    sum((y * y).sum() for y in outputs).backward()
    return outputs + [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name):
    torch.manual_seed(0)
    layer, way = LAYERS[name]
    net, x = Net(layer()), torch.randn(3, 2, 5)
    expected = gradients(net, net, x)
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        if way == "torch.compile":
            run = torch.compile(net, backend="segue", fullgraph=True, options={"fallback": "error"})
        else:
            run = segue.compile(net, (x,))
        actual = gradients(net, run, x)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, what=f"result {i}")


def test_without_the_switch_pytorch_runs_the_layer_and_segue_what_is_around_it():
    torch.manual_seed(0)
    net, x = Behind(), torch.randn(3, 2, 5)
    torch.compiler.reset()
    compiled = torch.compile(net, backend="segue", options={"fallback": "error"})
    assert_close(compiled(x)[0], net(x)[0])
    assert segue.backend_report().compiled == 1
