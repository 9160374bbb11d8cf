# ===- known_optimizers.py - optimizers of Segue and those of PyTorch that do the same -------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The optimizers with options away from their defaults, and what gives the same steps in PyTorch, for tests."""

import torch

import segue


class Lion(torch.optim.Optimizer):
    """Lion as its paper has it (arXiv:2302.06675, Algorithm 2); torch.optim has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (m * beta1 + p.grad * (1 - beta1)).sign()
                p.sub_(group["lr"] * (direction + group["weight_decay"] * p))
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Both:
    """Several optimizers of PyTorch's that step together."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def step(self):
        for each in self.optimizers:
            each.step()

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()


def muon(**options):
    """Muon for matrices, and AdamW for all else."""
    return segue.Muon(**options, groups=[segue.Group("*bias", optimizer=segue.AdamW(lr=1e-2, betas=(0.8, 0.95)))])


def muon_in_torch(parameters, **options):
    parameters = list(parameters)
    return Both(torch.optim.Muon([p for p in parameters if p.ndim == 2], **options),
                torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=1e-2, betas=(0.8, 0.95)))


#: By name: the class here, that of PyTorch, and the options of both.
KNOWN = {
    "adamw": (segue.AdamW, torch.optim.AdamW, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)),
    "adamw-amsgrad": (segue.AdamW, torch.optim.AdamW, dict(lr=1e-2, betas=(0.8, 0.5), amsgrad=True)),
    "adam": (segue.Adam, torch.optim.Adam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, amsgrad=True)),
    "adamax": (segue.Adamax, torch.optim.Adamax, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    "nadam": (segue.NAdam, torch.optim.NAdam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, momentum_decay=0.05)),
    "nadam-decoupled": (segue.NAdam, torch.optim.NAdam, dict(weight_decay=0.1, decoupled_weight_decay=True)),
    "radam": (segue.RAdam, torch.optim.RAdam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)),
    "radam-decoupled": (segue.RAdam, torch.optim.RAdam, dict(weight_decay=0.1, decoupled_weight_decay=True)),
    "lion": (segue.Lion, Lion, dict(lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1)),
    "adagrad": (segue.Adagrad, torch.optim.Adagrad,
                dict(lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.01, eps=1e-4, weight_decay=0.01)),
    "adadelta": (segue.Adadelta, torch.optim.Adadelta, dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.01)),
    "rmsprop": (segue.RMSprop, torch.optim.RMSprop, dict(lr=1e-2, alpha=0.8, eps=1e-4, weight_decay=0.01)),
    "rmsprop-centered": (segue.RMSprop, torch.optim.RMSprop, dict(lr=1e-3, alpha=0.9, eps=1e-3, momentum=0.5, centered=True)),
    "adafactor": (segue.Adafactor, torch.optim.Adafactor, dict(lr=0.3, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5, weight_decay=0.1)),
    "adafactor-default": (segue.Adafactor, torch.optim.Adafactor, dict()),
    "sgd": (segue.SGD, torch.optim.SGD, dict(lr=1e-1, dampening=0.5, weight_decay=0.01)),
    "momentum": (segue.SGD, torch.optim.SGD, dict(lr=1e-1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    "muon": (muon, muon_in_torch, dict(lr=1e-2, momentum=0.9, ns_steps=4, adjust_lr_fn="match_rms_adamw")),
    "nesterov": (segue.SGD, torch.optim.SGD, dict(lr=1e-1, momentum=0.9, nesterov=True)),
}


def ours(name: str, **more) -> segue.Optimizer:
    made, _, options = KNOWN[name]
    return made(**options, **more)


def theirs(name: str, parameters) -> torch.optim.Optimizer:
    _, made, options = KNOWN[name]
    return made(parameters, **options)
