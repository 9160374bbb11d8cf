# ===- test_sizes.py - batches of other extents in a trainer ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A last batch with fewer rows, and other lengths, train and are evaluated as in PyTorch."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close, losses_close
from service_configs import services
from test_in_backward import Tied, adamw
from test_trainer import Back, Front, Regression, data, trainer_of
from torch import nn

import segue


def test_partial_batches_train_as_in_torch(caplog):
    """Two stitched modules: what the first gives has other extents, too."""
    front, back = Front(), Back()
    reference = copy.deepcopy((front, back))
    (x, y), = data(1)
    adamw = segue.AdamW(lr=1e-2, weight_decay=0.1)
    trainer = segue.Trainer({"front": segue.compile(front, x), "back": segue.compile(back, (torch.zeros(8, 6), y))},
                            optimizer=adamw, clip_grad_norm=0.5)
    parameters = [p for m in reference for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    batches = [data(1, rows, seed)[0] for seed, rows in enumerate((8, 8, 3, 8, 8, 3, 1))]
    losses = trainer.fit({"x": x, "y": y} for x, y in batches)
    expected = []
    for x, y in batches:
        loss = reference[1](reference[0](x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    losses_close(losses, expected)
    for actual, wanted in zip((p for m in (front, back) for p in m.parameters()), parameters):
        assert_close(actual, wanted)
    assert caplog.text.count("compiling one more variant") == 4  # 3 rows and 1 row, two modules; each once
    (x, y), = data(1, 5)
    assert_close(trainer.evaluate(x=x, y=y)["loss"], reference[1](reference[0](x), y))
    loss, gradients = trainer.gradients(x=x, y=y)
    total = reference[1](reference[0](x), y)
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    assert_close(gradients["front.h.weight"], reference[0].h.weight.grad)


class Lengths(nn.Module):

    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(11, 8), nn.Dropout(0.5)

    def forward(self, tokens, targets):
        h = self.table(tokens)
        h = F.scaled_dot_product_attention(h, h, h, is_causal=True)
        return F.cross_entropy((self.drop(h) @ self.table.weight.T).flatten(0, 1), targets.flatten())


def test_lengths_in_micro_batches():
    """Other lengths and rows in both micro-batches; dropout drops as when the module was compiled."""

    def batch(rows, length):
        return {"tokens": torch.randint(0, 11, (rows, length)), "targets": torch.randint(0, 11, (rows, length))}

    model = Lengths()
    compiled = segue.compile(model, batch(2, 6))
    trainer = segue.Trainer([compiled], optimizer=segue.SGD(lr=0.5), grad_accumulation=2)
    trainer.step(**batch(4, 6))
    model.eval()
    given = batch(6, 9)
    first, second = (trainer.gradients(**{n: t[:3] for n, t in given.items()})[0] for _ in range(2))
    assert first == second  # of one step, so of one mask
    dropped = [trainer.step(lr=0.0, **given) for _ in range(2)]
    assert dropped[0] != dropped[1] and abs(dropped[0] - model(**given).item()) > 1e-3
    assert trainer.evaluate(**batch(3, 4))["loss"].isfinite()
    state = trainer.state_dict()
    losses = [trainer.step(**given), trainer.step(**batch(4, 6))]
    trainer.load_state_dict(state)
    assert trainer.step(**given) == losses[0]


#: By step the extents of its batch, of three: those of the example, fewer, and more than it has.
ORDER = (0, 0, 1, 0, 2, 0, 1, 2, 1)


@pytest.fixture(scope="module")
def tied():
    """The model of the budgets' tests, compiled once, its weights, batches of three lengths, and what a free run makes of them."""
    torch.manual_seed(1)
    model = Tied()
    batches = [{"tokens": torch.randint(64, (n,)), "targets": torch.randint(64, (n,))} for n in (48, 20, 80)]
    first = {name: value.clone() for name, value in model.state_dict().items()}
    module = segue.compile(model, batches[0], optimizer=adamw())
    return module, first, batches, run_of(module, first, batches, device="sim:dram=64MiB,link=1GB/s")


def run_of(module, first, batches, **options):
    """Losses of steps and of evaluations without dropout, weights, and the highest peak."""
    module.load_state_dict(first)
    trainer = segue.Trainer([module], optimizer=adamw(), **options)
    losses = [trainer.step(**batches[i]) for i in ORDER]
    losses += [trainer.evaluate(**batches[i])["loss"].item() for i in (1, 0)]
    losses.append(trainer.step(**batches[1]))
    trainer.sync()
    return losses, {name: value.clone() for name, value in module.state_dict().items()}, trainer.peak_bytes


@pytest.mark.parametrize("share, modes", [(0.5, ("planned",)), (0.55, ("watermark",)), (0.5, ("watermark", "states")), (0.5, ("ring",)),
                                          (0.5, ("ring", "planned")), (0.5, ("ring", "watermark", "states"))],
                         ids=lambda given: " and ".join(given) if isinstance(given, tuple) else str(given))
def test_a_budget_changes_no_bit(tied, share, modes):
    """Fewer rows than in the example, and more, under each service of memory: losses, weights, evaluations; the device is as large as the cap."""
    module, first, batches, (losses, weights, peak) = tied
    cap = int(share * peak)
    device = f"sim:streams,dram={cap},link=1GB/s,adversarial={len(str(modes))}"  # one that no other test holds
    found = run_of(module, first, batches, device=device, config=services(modes, cap))
    assert found[0] == losses
    assert all(torch.equal(found[1][name], weights[name]) for name in weights)
    assert found[2] <= cap


def test_a_budget_with_a_disk(tied, tmp_path):
    module, first, batches, (losses, weights, _) = tied
    found = run_of(module, first, batches, device="cpu", budget="1MiB", spill_dir=tmp_path)
    assert found[0] == losses
    assert all(torch.equal(found[1][name], weights[name]) for name in weights)


def test_each_size_is_planned_once(tied, caplog):
    """Plans are kept: steps that change from one size to another and back make none anew, once constants of both are on the device."""
    module, first, batches, (_, _, peak) = tied
    cap = int(0.6 * peak)
    module.load_state_dict(first)
    trainer = segue.Trainer([module], optimizer=adamw(), device=f"sim:dram={cap},link=2GB/s", config=services(("planned",), cap))
    caplog.set_level("INFO", logger="segue")
    for i in (0, 1, 0, 1, 0, 0, 1, 0):
        trainer.step(**batches[i])
    steps = re.findall(r"step (\d+): planned for batches of other extents", caplog.text)
    assert "2" in steps and not [step for step in steps if int(step) > 3]


def test_a_size_that_no_step_keeps_to_is_refused(tied):
    """The error names the smallest budget for it; smaller batches train on."""
    module, first, batches, (_, _, peak) = tied
    cap = int(0.45 * peak)
    module.load_state_dict(first)
    large = {name: torch.randint(64, (2000,)) for name in batches[0]}
    for modes in (("planned",), ("watermark", "states")):
        cap += 512  # another device
        trainer = segue.Trainer([module], optimizer=adamw(), device=f"sim:dram={cap},link=1GB/s", config=services(modes, cap))
        before = trainer.step(**batches[0])
        with pytest.raises(segue.BudgetInfeasibleError, match="the smallest budget is"):
            trainer.step(**large)
        assert trainer.step_count == 1
        assert trainer.step(**batches[0]) < before


def test_what_is_refused(tmp_path):
    (x, y), (few, few_y) = data(1)[0], data(1, 3)[0]
    compiled = segue.compile(Regression(), (x, y), max_variants=2)
    trainer = segue.Trainer([compiled], optimizer=segue.SGD(lr=0.1))
    trainer.step(x=few, y=few_y)
    trainer.step(x=x, y=y)
    with pytest.raises(segue.InvalidArgumentError, match=r"x: \[2, 4\], y: \[2, 2\]: the modules are there for 2 sets"):
        trainer.step(x=few[:2], y=few_y[:2])
    with pytest.raises(segue.LayoutMismatchError):  # the model refuses it
        trainer_of(Regression()).step(x=x[:, :3], y=y)
    compiled.save(tmp_path / "m.segue", weights=True)
    loaded = segue.load(tmp_path / "m.segue", tmp_path / "m.safetensors", allow_native_kernels=True)
    assert loaded(x, y).isfinite()
