# ===- test_torch_optimizers.py - a trainer that is given an optimizer of PyTorch ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`Trainer(optimizer=torch.optim...)`: the steps of PyTorch, with its groups and schedulers, or an error that says what to write."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close
from known_optimizers import KNOWN, Lion, muon_in_torch

import segue

TRANSLATED = {name: (made, options) for name, (_, made, options) in KNOWN.items() if made not in (Lion, muon_in_torch)}


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, y):
        return F.mse_loss(self.last(torch.tanh(self.first(x))), y)


def batches(count):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(count)]


def compare(make, scheduler=lambda optimizer: None, steps=6):
    """Trains twins, one in PyTorch, with what `make` gives for each."""
    torch.manual_seed(2)
    net = Net()
    twin = copy.deepcopy(net)
    ours, theirs = make(net), make(twin)
    trainer = segue.Trainer([segue.compile(net, batches(1)[0])], optimizer=ours)
    schedulers = [scheduler(ours), scheduler(theirs)]
    for x, y in batches(steps):
        trainer.step(x=x, y=y)
        theirs.zero_grad()
        twin(x, y).backward()
        theirs.step()
        for each in filter(None, schedulers):
            each.step()
    for (key, a), (_, b) in zip(net.named_parameters(), twin.named_parameters()):
        assert_close(a, b, 1e-4, key)
    return trainer


@pytest.mark.parametrize("name", TRANSLATED)
def test_the_steps_are_those_of_torch(name):
    made, options = TRANSLATED[name]
    trainer = compare(lambda net: made(net.parameters(), **options))
    assert type(trainer.optimizer).__name__ == made.__name__


@pytest.mark.filterwarnings("error")
def test_groups_and_schedulers():
    trainer = compare(lambda net: torch.optim.AdamW([
        {"params": net.last.parameters(), "weight_decay": 0.0}, {"params": [net.first.weight], "lr": 3e-2},
        {"params": [net.first.bias], "weight_decay": 0.3}], lr=1e-2, weight_decay=0.1),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.5**t, lambda t: 1.0 / (1 + t)]))
    assert [group.patterns for group in trainer.optimizer.groups] == [("first.weight",), ("first.bias",)]


def test_decoupled_decay_is_that_of_adamw():
    trainer = compare(lambda net: torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=0.2, decoupled_weight_decay=True))
    assert isinstance(trainer.optimizer, segue.AdamW)


def stepped(net):
    optimizer = torch.optim.Adam(net.parameters())
    net(*batches(1)[0]).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("make, said", [
    (lambda net: torch.optim.LBFGS(net.parameters()), "torch.optim.LBFGS has no counterpart in segue, which has Adadelta, Adafactor, Adagrad, Adam, AdamW"),
    (lambda net: torch.optim.SGD(net.parameters(), maximize=True), "has maximize=True, which segue.SGD does not have"),
    (lambda net: torch.optim.Adam([{"params": net.first.parameters(), "eps": 1e-3}, {"params": net.last.parameters()}]),
     "differ in eps: 0.001 and 1e-08; those of a segue.Adam differ in lr and weight_decay alone"),
    (lambda net: torch.optim.Adam(net.first.parameters()), "parameter 'last.weight' is trained, but the optimizer does not have it"),
    (lambda net: torch.optim.Adam([*net.parameters(), nn.Parameter(torch.zeros(3))]), r"of shape \[3\] that no module of the trainer trains"),
    (stepped, "the torch.optim.Adam has made steps, whose states would be lost"),
    (lambda net: torch.optim.NAdam, r"the optimizer is the class NAdam; give segue.NAdam\(lr=...\)"),
    (lambda net: "adam", r"the optimizer is a str; give segue.AdamW\(lr=...\)"),
])
def test_what_cannot_be_followed(make, said):
    net = Net()
    with pytest.raises(segue.InvalidArgumentError, match=said):
        segue.Trainer([segue.compile(net, batches(1)[0])], optimizer=make(net))


def test_momenta_that_a_scheduler_changes():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    trainer = segue.Trainer([segue.compile(net, batches(1)[0])], optimizer=optimizer)
    x, y = batches(1)[0]
    trainer.step(x=x, y=y)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
    with pytest.raises(segue.InvalidArgumentError, match="momentum of the optimizer is 0.95 now; it was 0.9 .*cycle_momentum=False"):
        trainer.step(x=x, y=y)


def test_one_name_in_two_groups():
    front, net = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    modules = [segue.compile(front, (torch.zeros(2, 4),), name="a"), segue.compile(net, (torch.zeros(2, 4),), name="b")]
    optimizer = torch.optim.SGD([{"params": front.parameters()}, {"params": net.parameters(), "lr": 1.0}], lr=0.1)
    with pytest.raises(segue.InvalidArgumentError, match="two modules have a parameter '0.weight', and the optimizer has them in groups 0 and 1"):
        segue.Trainer(modules, optimizer=optimizer)


def test_files_and_forecasts_take_ours():
    net = Net()
    with pytest.raises(segue.InvalidArgumentError, match=r"the optimizer is a SGD; give segue.SGD\(lr=...\)"):
        segue.compile(net, batches(1)[0], optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


class Pair(list):
    """Several optimizers of PyTorch's, as a loop of one's own has them."""

    def zero_grad(self):
        for each in self:
            each.zero_grad()

    def step(self):
        for each in self:
            each.step()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has it since 2.9")
def test_several_optimizers_together():
    """Muon for the matrices and AdamW for the rest, in two groups; a parameter that none has is named."""

    def make(net):
        matrices = [net.first.weight, net.last.weight]
        rest = [{"params": [net.first.bias]}, {"params": [net.last.bias], "lr": 3e-3, "weight_decay": 0.0}]
        return Pair([torch.optim.Muon(matrices, lr=1e-2, ns_steps=3), torch.optim.AdamW(rest, lr=2e-2)])

    trainer = compare(make)
    assert isinstance(trainer.optimizer, segue.Muon) and {"u.first.weight", "m.last.bias"} <= set(trainer.state_dict()["state"])
    net = Net()
    with pytest.raises(segue.InvalidArgumentError, match="parameter 'last.bias' is trained, but the optimizer does not have it"):
        segue.Trainer([segue.compile(net, batches(1)[0])], optimizer=[
            torch.optim.Muon([net.first.weight, net.last.weight]), torch.optim.SGD([net.first.bias], lr=0.1)])
