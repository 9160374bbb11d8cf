# ===- state_codes.py - the codes of optimizer states of 8 bits, in PyTorch -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `lib/Dialect/Segue/Transforms/StateCodes.h` defines, written again in float64, and the optimizers that go by it."""

import torch

#: Of means with a sign, and of means of squares.
SIGNED, SQUARE = "signed", "square"
LEAST_SCALE = 2.0**-100


def block_of(elements: int) -> int:
    """How many elements share a scale; 0 where the state stays in f32."""
    return next((block for block in (256, 128, 64) if elements >= 4096 and elements % block == 0), 0)


def decoded(code: str, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The elements, as blocks x elements of a block."""
    steps, scales = codes.double(), scales.double().unsqueeze(1)
    if code == SQUARE:
        return (scales * ((steps + 129) / 256) ** 2) ** 2
    return scales * (steps / 127) * (steps / 127).abs()


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Numbers as kernels read them, to which those below the least normal f32 are zeros."""
    return torch.where(x.abs() < 2.0**-126, 0.0, x)


def thresholds(step: int, block: int) -> torch.Tensor:
    """At which share of the way between two codes the elements of a block get the upper one."""
    return (torch.arange(block, dtype=torch.float64) * 0.7548776662466927 + step * 0.6180339887498949) % 1


def encoded(code: str, state: torch.Tensor, step: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and how far each element was from getting another code, of the way between the two. Without a step, each gets the
    nearest."""
    x = flushed(state.double()).sqrt() if code == SQUARE else state.double()
    scales = x.abs().amax(1).clamp(min=LEAST_SCALE)
    most = 256 if code == SQUARE else 127
    steps = (x.abs() / scales.unsqueeze(1)).sqrt() * most
    below = steps.floor()
    share = (steps**4 - below**4) / ((below + 1)**4 - below**4) if code == SQUARE else steps - below
    limits = 0.5 if step is None else 1 - thresholds(step, state.shape[1])
    codes = below + (share > limits)
    codes = (codes - 129).clamp(min=-128) if code == SQUARE else codes * x.sign()
    return codes, scales, torch.minimum((share - limits).abs(), torch.minimum(share, 1 - share))


def adam(p, g, states, step, lr, *, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=True, amsgrad=False):
    """The parameter after a step, and its states before they are coded."""
    if not decoupled:
        g = g + decay * p
    m = betas[0] * states["m"] + (1 - betas[0]) * g
    v = betas[1] * states["v"] + (1 - betas[1]) * g * g
    largest = torch.maximum(states["vmax"], v) if amsgrad else v
    p = p * (1 - lr * decay) if decoupled else p
    p = p - lr / (1 - betas[0]**step) * m / ((largest / (1 - betas[1]**step)).sqrt() + eps)
    return p, {"m": m, "v": v} | ({"vmax": largest} if amsgrad else {})


def lion(p, g, states, step, lr, *, betas=(0.9, 0.99), decay=0.0):
    direction = (betas[0] * states["m"] + (1 - betas[0]) * g).sign()
    return p * (1 - lr * decay) - lr * direction, {"m": betas[1] * states["m"] + (1 - betas[1]) * g}


def momentum(p, g, states, step, lr, *, momentum, decay=0.0, nesterov=False):
    g = g + decay * p
    u = momentum * states["u"] + g
    return p - lr * (g + momentum * u if nesterov else u), {"u": u}


def rmsprop(p, g, states, step, lr, *, alpha=0.99, eps=1e-8, momentum=0.0):
    v = alpha * states["v"] + (1 - alpha) * g * g
    u = momentum * states["u"] + g / (v.sqrt() + eps)
    return p - lr * u, {"v": v, "u": u}


def adamax(p, g, states, step, lr, *, betas=(0.9, 0.999), eps=1e-8, decay=0.0):
    g = g + decay * p
    m = betas[0] * states["m"] + (1 - betas[0]) * g
    largest = torch.maximum(betas[1] * states["largest"], g.abs() + eps)
    return p - lr / (1 - betas[0] ** step) * m / largest, {"m": m, "largest": largest}


#: The code of each state; None is for one that stays in f32 beside others.
CODES = {"m": SIGNED, "u": SIGNED, "v": SQUARE, "vmax": SQUARE, "largest": None}
