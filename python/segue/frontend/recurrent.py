# ===- recurrent.py - recurrent layers, step by step ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""LSTM in terms of other operators.

PyTorch writes GRU and plain recurrent layers in terms of others for whoever
compiles them. Of an LSTM it does so only where the input wants a gradient, and
calls oneDNN otherwise, which has a derivative that nothing can take apart.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.nn.functional as F


def lstm(inputs: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], has_biases: bool,
         layers: int, dropout: float, train: bool, bidirectional: bool,
         batch_first: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`aten.lstm.input`: the outputs of the last layer, and the last state and cell of each layer and direction."""
    x = inputs.transpose(0, 1) if batch_first else inputs
    directions, projects = (2 if bidirectional else 1), states[0].shape[2] != states[1].shape[2]
    each = 2 + 2 * has_biases + projects
    hidden, cells = [], []
    for layer in range(layers):
        outputs = []
        for place in range(layer * directions, (layer + 1) * directions):
            own = list(weights[place * each : (place + 1) * each])
            output, h, c = _direction(x, states[0][place], states[1][place], own, has_biases, projects,
                                      backwards=place % directions == 1)
            outputs.append(output)
            hidden.append(h)
            cells.append(c)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout, training=True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(hidden), torch.stack(cells)


def _direction(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Sequence[torch.Tensor], has_biases: bool,
               projects: bool, backwards: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer in one direction. `x` is [steps, batch, features]."""
    of_input, of_state = weights[:2]
    bias, state_bias = weights[2:4] if has_biases else (None, None)
    projection = weights[-1] if projects else None
    # The products with the inputs of all steps are one.
    gates = F.linear(x, of_input, bias)
    outputs = []
    for step in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
        i, f, g, o = (gates[step] + F.linear(h, of_state, state_bias)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        h = h if projection is None else F.linear(h, projection)
        outputs.append(h)
    return torch.stack(outputs[::-1] if backwards else outputs), h, c


#: As `torch.export` takes decompositions.
DECOMPOSITIONS = {torch.ops.aten.lstm.input: lstm}
