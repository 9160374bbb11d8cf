# ===- test_updates.py - where parameters are updated is chosen by forecasts ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`AdamW(updates="auto")`: of the ways that a run allows, the one whose step is forecast to be fastest within its budget; to the same bits."""

import logging

import pytest
import torch
import torch.nn as nn

import segue
from service_configs import services
from test_in_backward import adamw, made, trained

#: A link that the budget's traffic fills, beside products that take as long.
DEVICE = "sim:link=1GB/s,threads=1"
TIGHT = {"budget": "400KiB"}


def trainer_of(updates="auto", rows=32, **options):
    model, _ = made("net")
    optimizer, batch = adamw(updates=updates), (torch.zeros(rows, 64), torch.zeros(rows, 64))
    return segue.Trainer([segue.compile(model, batch, device=DEVICE, optimizer=optimizer)], optimizer=optimizer, **options)


@pytest.mark.parametrize("options, chosen, refused", [
    ({"budget": "1GiB", "rows": 1 << 14}, "after_backward", ()),  # products take so long that nothing else counts
    (TIGHT, "in_backward", ()),
    (TIGHT | {"clip_grad_norm": 0.05}, "in_forward", ("in_backward",))])
def test_the_fastest_is_taken(options, chosen, refused, caplog):
    with caplog.at_level(logging.INFO, "segue"):
        trainer = trainer_of(**options)
    updates = trainer.updates
    assert updates.chosen == trainer.optimizer.updates == chosen, str(updates)
    assert tuple(updates.refused) == refused and {*updates.seconds, *refused} == {"after_backward", "in_backward", "in_forward"}
    assert all(updates.seconds[chosen] <= seconds * 1.01 for seconds in updates.seconds.values())
    assert str(updates) in caplog.text and str(updates) in str(trainer.memory()) and trainer.memory().updates == updates
    for way, seconds in updates.seconds.items():  # they are the forecasts of those who ask for that way
        assert trainer_of(way, **options).memory().plan.seconds == seconds


def test_the_choice_changes_no_bit():
    want = trained(adamw(), "net")
    found = trained(adamw(updates="auto"), "net", DEVICE, **TIGHT)
    assert found[0] == want[0] and all((found[2][name] == want[2][name]).all() for name in want[2])
    assert found[3] <= 400 << 10


@pytest.mark.parametrize("options, way, why", [
    ({"grad_accumulation": 2}, "in_backward", "gradients of several batches"),
    ({"loss_scale": segue.LossScale()}, "in_backward", "known after backward"),
    ({"config": services(("watermark",), 1 << 20)}, "in_forward", "no place for")])
def test_what_a_run_does_not_allow_is_said(options, way, why):
    model, batches = made("net")
    rows = 32 // options.get("grad_accumulation", 1)
    optimizer = adamw(updates="auto")
    module = segue.compile(model, [part[:rows] for part in batches[0]], device=DEVICE, optimizer=optimizer)
    updates = segue.Trainer([module], optimizer=optimizer, budget="1MiB", **options).updates
    assert why in updates.refused[way] and f"; not {' '.join(way.split('_'))}".replace("in forward", "in the next forward") in str(updates)


def test_modules_with_a_parameter_in_common_update_after_backward():
    shared = nn.Linear(8, 8)

    class Half(nn.Module):
        def __init__(self, ends):
            super().__init__()
            self.shared, self.ends = shared, ends

        def forward(self, x):
            y = self.shared(x).tanh()
            return y.square().mean() if self.ends else y

    modules = [segue.compile(Half(ends), (torch.ones(4, 8),), device=DEVICE) for ends in (False, True)]
    updates = segue.Trainer(modules, optimizer=segue.AdamW(updates="auto"), budget="1MiB").updates
    assert updates.chosen == "after_backward" and {*updates.refused} == {"in_backward", "in_forward"}


def test_without_a_budget_and_for_a_file_there_is_nothing_to_choose(tmp_path):
    trainer = trainer_of()
    assert trainer.updates is None and trainer.optimizer.updates == "after_backward" and trainer.memory().updates is None
    model, batches = made("net")
    segue.compile(model, batches[0], optimizer=adamw(updates="in_forward")).save(tmp_path / "net.segue", weights=True)
    loaded = segue.load(tmp_path / "net.segue", weights=tmp_path / "net.safetensors")
    assert segue.Trainer([loaded], optimizer=adamw(updates="auto")).optimizer.updates == "in_forward"


def test_forecasts_choose_as_a_run_does():
    model, batches = made("net")
    tight = segue.compile(model, batches[0], device=DEVICE, optimizer=adamw(updates="auto")).memory("400KiB")
    assert tight.updates == trainer_of(**TIGHT).updates
    fitted = segue.fit(model, batches[0], device=DEVICE, optimizer=adamw(updates="auto"), budget="400KiB")
    assert fitted.updates == tight.updates and fitted.plan.seconds == fitted.updates.seconds[fitted.updates.chosen]
    with pytest.raises(segue.BudgetInfeasibleError):
        segue.compile(model, batches[0], device=DEVICE, optimizer=adamw(updates="auto")).memory("20KiB")
