# ===- test_models.py - whole models train as in PyTorch ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Whole models: 20 losses within 1e-4 of PyTorch's, every gradient within 1e-4, same weights and data."""

import copy
import os
import sys

import pytest
import torch
from compare import assert_close, losses_close

import segue

ROOT = os.path.join(os.path.dirname(__file__), "../..")
sys.path.insert(0, os.path.join(ROOT, "examples"))

from models import GPT, GPTConfig, GPTFirst, GPTLast, Llama, LlamaConfig, add_lora  # noqa: E402

CONSTANTS = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def batches(count, batch, seq, vocab=256):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        window = torch.randint(0, vocab, (batch, seq + 1), generator=generator)
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


def lora(cfg):
    model = add_lora(GPT(cfg), 4, ("qkv", "proj"))
    for name, parameter in model.named_parameters():
        if name.endswith("b.weight"):  # zero at first: the gradient of a would be zero too
            torch.nn.init.normal_(parameter, std=0.02)
    return model


SMALL = GPTConfig(layers=2, dim=48, heads=6, seq=32)
MODELS = {
    "gpt": (lambda: GPT(SMALL), 4, 32),
    "gpt_demo": (lambda: GPT(GPTConfig()), 2, 128),
    "llama": (lambda: Llama(LlamaConfig()), 4, 32),
    "lora": (lambda: lora(SMALL), 4, 32),
    "config_S": (lambda: GPT(GPTConfig(layers=6, dim=384, heads=6, seq=256)), 2, 256),
}
# Twenty steps of config S read a quarter of the text: what a longer one adds is in the gradients of one step.
TWENTY_STEPS = MODELS | {"config_S": (lambda: GPT(GPTConfig(layers=6, dim=384, heads=6, seq=64)), 2, 64)}


def torch_losses(model, data, lr, clip=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, **CONSTANTS)
    losses = []
    for tokens, targets in data:
        loss = model(tokens, targets)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_every_parameter(name):
    make, batch, seq = MODELS[name]
    model = make()
    reference = copy.deepcopy(model)
    tokens, targets = next(batches(1, batch, seq))
    compiled = segue.compile(model, (tokens, targets))
    loss = compiled(tokens, targets)
    expected = reference(tokens, targets)
    assert_close(loss, expected, 1e-5, "loss")
    loss.backward()
    expected.backward()
    for (key, ours), (_, theirs) in zip(model.named_parameters(), reference.named_parameters()):
        assert (ours.grad is None) == (theirs.grad is None), key
        if theirs.grad is not None:
            assert_close(ours.grad, theirs.grad, 1e-4, key)


@pytest.mark.parametrize("name", TWENTY_STEPS)
def test_losses_of_twenty_steps(name):
    make, batch, seq = TWENTY_STEPS[name]
    model = make()
    reference = copy.deepcopy(model)
    data = list(batches(20, batch, seq))
    trainer = segue.Trainer([segue.compile(model, data[0])], optimizer=segue.AdamW(lr=3e-4, **CONSTANTS),
                            clip_grad_norm=1.0)
    losses = [trainer.step(tokens=tokens, targets=targets) for tokens, targets in data]
    losses_close(losses, torch_losses(reference, data, 3e-4, clip=1.0))
    for (key, ours), (_, theirs) in zip(model.named_parameters(), reference.named_parameters()):
        assert_close(ours, theirs, 1e-2, key)  # Adam divides by the gradient's size: small ones amplify rounding
        if not theirs.requires_grad:
            assert torch.equal(ours, theirs), f"{key} is frozen and has changed"


def test_two_modules_train_as_the_joined_one():
    cfg = GPTConfig(layers=4, dim=48, heads=6, seq=32)
    first, last = GPTFirst(cfg, 2), GPTLast(cfg, 2)
    joined = GPT(cfg)
    joined.first.load_state_dict(first.state_dict())
    joined.last.load_state_dict(last.state_dict())
    data = list(batches(20, 4, 32))
    hidden = torch.zeros(4, 32, cfg.dim)
    optimizer = segue.AdamW(lr=3e-4, **CONSTANTS)
    stitched = segue.Trainer([segue.compile(first, data[0][0]), segue.compile(last, (hidden, data[0][1]))],
                             optimizer=optimizer, clip_grad_norm=1.0)
    whole = segue.Trainer([segue.compile(joined, data[0])], optimizer=optimizer, clip_grad_norm=1.0)
    ours = [stitched.step(tokens=x, targets=y) for x, y in data]
    losses_close(ours, [whole.step(tokens=x, targets=y) for x, y in data], 1e-5)


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)])
def test_stitched_in_torch_autograd_with_any_optimizer(make):
    cfg = SMALL
    first, last = GPTFirst(cfg, 1), GPTLast(cfg, 1)
    reference = copy.deepcopy((first, last))
    data = list(batches(5, 2, 32))
    ours = (segue.compile(first, data[0][0]), segue.compile(last, (torch.zeros(2, 32, cfg.dim), data[0][1])))
    results = []
    for a, b in (ours, reference):
        optimizer = make([*a.parameters(), *b.parameters()], lr=1e-2)
        losses = []
        for tokens, targets in data:
            loss = b(a(tokens), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        results.append(losses)
    losses_close(*results)
