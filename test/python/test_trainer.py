# ===- test_trainer.py - the training step in the runtime -------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The trainer: optimizers, clipping, accumulation, schedules, files, faults."""

import copy
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close, losses_close
from known_optimizers import KNOWN, ours, theirs

import segue


class Regression(nn.Module):

    def __init__(self, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 2))

    def forward(self, x, y):
        return F.mse_loss(self.net(x), y)


class Front(nn.Module):

    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 6)

    def forward(self, x):
        return torch.tanh(self.h(x))


class Back(nn.Module):

    def __init__(self):
        super().__init__()
        self.h = nn.Linear(6, 2)

    def forward(self, z, y):
        return F.mse_loss(self.h(z), y)


def data(count, rows=8, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(rows, 4, generator=generator), torch.randn(rows, 2, generator=generator)) for _ in range(count)]


def trainer_of(module, rows=8, **options):
    x, y = data(1, rows)[0]
    options.setdefault("optimizer", segue.AdamW(lr=1e-2))
    return segue.Trainer([segue.compile(module, (x, y))], **options)


@pytest.mark.parametrize("precision", ["f32", "bf16-mixed"])
@pytest.mark.parametrize("name", KNOWN)
def test_optimizers_agree_with_torch(name, precision):
    model = Regression()
    reference = copy.deepcopy(model)
    trainer, optimizer = trainer_of(model, optimizer=ours(name), precision=precision), theirs(name, reference.parameters())
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision != "f32")
    for x, y in data(20):
        found = trainer.step(x=x, y=y)
        optimizer.zero_grad()
        with autocast:
            loss = reference(x, y)
        loss.backward()
        optimizer.step()
        if precision == "f32":
            losses_close([found], [loss.item()])
        else:  # bf16 has three digits, and Lion takes the sign of what may be near zero
            assert found == pytest.approx(loss.item(), rel=0.05)
    for (key, a), (_, b) in zip(model.named_parameters(), reference.named_parameters()):
        assert_close(a, b, 1e-4 if precision == "f32" else 0.05, key)


def test_gradients_of_a_batch_are_not_computed():
    """Where there is one module, no other has given it its inputs."""
    def given(trainer):
        return [{v.of for p in binary.programs if p.name == "backward" for v in p.outputs if v.role == "gradient"} for _, binary in trainer._binaries()]

    names = {name for name, _ in Regression().named_parameters()}
    assert given(trainer_of(Regression())) == [names]
    front, back, x = Front(), Back(), torch.zeros(8, 4)
    both = segue.Trainer([segue.compile(front, x), segue.compile(back, (front(x).detach(), torch.zeros(8, 2)))], optimizer=segue.SGD(lr=0.1))
    assert "x" in given(both)[0] and "z" in given(both)[1]


def test_without_momentum_there_is_no_state(tmp_path):
    """Its bytes are not held, and a run goes on from its checkpoint to the bit."""
    model, batches = Regression(), data(6)
    peaks = []
    for momentum, spec in ((0.0, "sim:dram=1MiB"), (0.5, "sim:dram=2MiB")):
        trainer = trainer_of(copy.deepcopy(model), optimizer=segue.SGD(lr=1e-1, momentum=momentum), device=spec)
        losses = [trainer.step(x=x, y=y) for x, y in batches]
        peaks.append(trainer.peak_bytes)
        assert len(trainer.state_dict()["state"]) == (4 if momentum else 0)
        straight = straight if momentum else losses
    assert peaks[1] - peaks[0] >= sum(p.numel() for p in model.parameters()) * 4

    trainer.save(tmp_path / "momentum.safetensors")
    first = trainer_of(copy.deepcopy(model), optimizer=segue.SGD(lr=1e-1))
    with pytest.raises(segue.NameUnknownError, match="optimizer state \"u.* or another optimizer. Its parameters alone can be loaded"):
        first.resume(tmp_path / "momentum.safetensors")
    start = [first.step(x=x, y=y) for x, y in batches[:3]]
    first.save(tmp_path / "run.safetensors")
    second = trainer_of(Regression(), optimizer=segue.SGD(lr=1e-1))
    second.resume(tmp_path / "run.safetensors")
    assert start + [second.step(x=x, y=y) for x, y in batches[3:]] == straight


GROUPS = [segue.Group("net.0.bias", weight_decay=0.0), segue.Group("*.bias", lr=lambda step: 1e-3 * (step + 1)),
          segue.Group("net.3.*", lr=5e-2, weight_decay=0.1)]


@pytest.mark.parametrize("device", ["cpu", "sim:dram=16MiB"])
@pytest.mark.parametrize("in_backward", [False, True])
def test_groups_have_rates_and_decays_of_their_own(device, in_backward):
    """The first group that has a pattern for a parameter is its own; a rate may be a schedule."""
    model = Regression()
    reference = copy.deepcopy(model)
    trainer = trainer_of(model, optimizer=segue.AdamW(lr=1e-2, weight_decay=0.5, groups=GROUPS, in_backward=in_backward), device=device)
    named = dict(reference.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [named["net.0.weight"]]}, {"params": [named["net.0.bias"]], "weight_decay": 0.0},
        {"params": [named["net.3.bias"]]}, {"params": [named["net.3.weight"]], "lr": 5e-2, "weight_decay": 0.1}], lr=1e-2, weight_decay=0.5)
    for step, (x, y) in enumerate(data(5)):
        optimizer.param_groups[2]["lr"] = 1e-3 * (step + 1)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 2e-2 if step == 3 else 1e-2
        trainer.step(x=x, y=y, lr=2e-2 if step == 3 else None)
        optimizer.zero_grad()
        reference(x, y).backward()
        optimizer.step()
    trainer.sync()
    for key, parameter in model.named_parameters():
        assert_close(parameter, named[key], 1e-4, key)


@pytest.mark.parametrize("make, said", [
    (lambda: segue.Group(weight_decay=0.0), "give names of parameters"),
    (lambda: segue.Group("*", weight_decay=-1.0), "weight_decay of a group is -1.0"),
    (lambda: segue.SGD(groups=["*.bias"]), r"a group is a str; give segue.Group\('\*.bias'"),
    (lambda: segue.Adam(betas=(0.9, 1.0)), r"beta2 of Adam is 1.0; it must be in \[0, 1\)"),
    (lambda: segue.SGD(clip_grad_value=0.0), "clip_grad_value is 0.0; it must be above 0"),
    (lambda: segue.SGD(ema_decay=1.0), "ema_decay is 1.0; it must be between 0 and 1"),
    (lambda: segue.one_cycle(0.1, 0), "one_cycle has 0 steps"),
    (lambda: segue.step_decay(0.1, 0), "falls every 0 steps"),
    (lambda: segue.RMSprop(eps=-1.0), "eps of RMSprop is -1.0; it must be 0 or more"),
])
def test_what_no_optimizer_can_have(make, said):
    with pytest.raises(segue.InvalidArgumentError, match=said):
        make()


def test_clipping_and_what_the_step_reports():
    model = Regression()
    reference = copy.deepcopy(model)
    trainer = trainer_of(model, optimizer=segue.SGD(lr=0.1), clip_grad_norm=0.05)
    x, y = data(1)[0]
    trainer.step(x=x, y=y)
    reference(x, y).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert abs(trainer.last.grad_norm - norm.item()) < 1e-4 * norm.item()
    assert 0 < trainer.last.clip < 1 and trainer.last.step == 1
    for a, b in zip(model.parameters(), reference.parameters()):
        assert_close(a, b)


@pytest.mark.parametrize("options", [dict(), dict(clip_grad_norm=0.5), dict(grad_accumulation=2), dict(in_backward=True)])
def test_clipping_by_value(options):
    """Elements are bounded after the norm is, and of the mean of several batches."""
    model = Regression()
    reference = copy.deepcopy(model)
    rows = 8 // options.get("grad_accumulation", 1)
    updates = options.pop("in_backward", False)
    trainer = trainer_of(model, rows, optimizer=segue.Adam(lr=1e-2, in_backward=updates), clip_grad_value=0.02, **options)
    optimizer, clipped = torch.optim.Adam(reference.parameters(), lr=1e-2), 0
    for x, y in data(5):
        trainer.step(x=x, y=y)
        optimizer.zero_grad()
        reference(x, y).backward()
        if "clip_grad_norm" in options:
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        clipped += sum((p.grad.abs() > 0.02).sum().item() for p in reference.parameters())
        torch.nn.utils.clip_grad_value_(reference.parameters(), 0.02)
        optimizer.step()
    assert clipped > 50
    for (key, a), (_, b) in zip(model.named_parameters(), reference.named_parameters()):
        assert_close(a, b, 1e-4, key)
    assert trainer.optimizer.spec().endswith("clip-value=0.02" + (",in-backward=true" if updates else ""))


@pytest.mark.parametrize("in_backward", [False, True])
def test_moving_averages_of_parameters(tmp_path, in_backward):
    model = Regression()
    reference = copy.deepcopy(model)
    optimizer = segue.SGD(lr=0.3, momentum=0.5, ema_decay=0.7, in_backward=in_backward)
    trainer, theirs = trainer_of(model, optimizer=optimizer), torch.optim.SGD(reference.parameters(), lr=0.3, momentum=0.5)
    average = torch.optim.swa_utils.AveragedModel(reference, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7))
    with pytest.raises(segue.InvalidArgumentError, match="from the first step on"):
        trainer.averages()
    for step, (x, y) in enumerate(data(6)):
        trainer.step(x=x, y=y)
        theirs.zero_grad()
        reference(x, y).backward()
        theirs.step()
        average.update_parameters(reference)
        if step == 2:
            trainer.save(tmp_path / "third.safetensors")
    found = trainer.averages()
    for key, value in average.module.named_parameters():
        assert_close(found[key], value.detach(), 1e-5, key)
        assert not torch.equal(found[key], model.get_parameter(key))
    trainer.resume(tmp_path / "third.safetensors")
    for x, y in data(6)[3:]:
        trainer.step(x=x, y=y)
    assert all(torch.equal(value, found[key]) for key, value in trainer.averages().items())
    twin = Regression()
    assert not twin.load_state_dict(found, strict=False).unexpected_keys


def test_accumulation_equals_the_large_batch():
    model = Regression()
    small, large = copy.deepcopy(model), model
    a = trainer_of(small, rows=4, grad_accumulation=2)
    b = trainer_of(large, rows=8)
    for x, y in data(5, rows=8):
        losses_close([a.step(x=x, y=y)], [b.step(x=x, y=y)], 1e-5)
    for rows in (7, 5, 3, 6):  # a last partial batch
        x, y = data(1, rows=rows)[0]
        losses_close([a.step(x=x, y=y)], [b.step(x=x, y=y)], 1e-5)
    with pytest.raises(segue.InvalidArgumentError, match=r"'y' has shape \[5, 2\].*3 micro-batches"):
        a.step(x=data(1, rows=9)[0][0], y=y[:5])


def test_batches_without_names_and_what_is_printed():
    (x, y), = data(1)
    model = Regression()
    trainer, twin = trainer_of(model), trainer_of(copy.deepcopy(model))
    wanted = [twin.step(x=x, y=y) for _ in range(3)]
    assert [trainer.step(x, y), trainer.step({"x": x, "y": y, "text": "left out"}), trainer.step((x, y))] == wanted
    assert trainer.evaluate(x, y)["loss"] == twin.evaluate(x=x, y=y)["loss"] and trainer.gradients([x, y])[0] == twin.gradients(x=x, y=y)[0]
    assert re.fullmatch(r"Trainer\(Regression; AdamW, \d+ trained parameters, step 3, on 'cpu'\)", repr(trainer))
    assert re.fullmatch(r"StepResult\(step=3, loss=[0-9.e-]+, grad_norm=[0-9.e-]+\)", repr(trainer.last))
    with pytest.raises(segue.InvalidArgumentError, match="a batch has 1 tensor, and the modules take 2 inputs from outside: x, y"):
        trainer.step(x)
    for plain in (model, [model], {"a": model}):
        with pytest.raises(segue.InvalidArgumentError, match=r"is a Regression, which is not compiled by segue; give it segue.compile\(module, example\)"):
            segue.Trainer(plain, optimizer=segue.AdamW())


def test_modules_that_changed_since_they_were_compiled(caplog):
    """What was frozen or replaced between `segue.compile` and the trainer is as it is, and a change after that is not lost in silence."""
    model = Regression()
    (x, y), = data(1, 8)
    module = segue.compile(model, (x, y))
    name, frozen = next(iter(model.named_parameters()))
    frozen.requires_grad_(False)
    before = frozen.detach().clone()
    trainer = segue.Trainer([module], optimizer=segue.SGD(lr=0.1))
    trainer.step(x=x, y=y)
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    with pytest.raises(segue.InvalidArgumentError, match=f"requires_grad of parameter '{name}' is True now and was False when .* call trainer.unfreeze"):
        trainer.step(x=x, y=y)
    frozen.requires_grad_(False)
    model.factor = 2.0
    with caplog.at_level("WARNING", logger="segue"):
        trainer.step(x=x, y=y)
        trainer.step(x=x, y=y)
    assert caplog.text.count("has other submodules, hooks or attributes than when the trainer was made") == 1


def test_schedules():
    rate = segue.warmup_cosine(1.0, steps=10, warmup=2, final=0.1)
    assert [round(rate(i), 3) for i in (0, 1, 2, 6, 10, 50)] == [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    rate = segue.warmup_linear(1.0, steps=10, warmup=2, final=0.1)
    assert [round(rate(i), 3) for i in (0, 1, 2, 6, 10, 50)] == [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    frozen = Regression()
    before = copy.deepcopy(frozen.state_dict())
    trainer = trainer_of(frozen, optimizer=segue.AdamW(lr=lambda step: 0.0 if step < 2 else 1e-2))
    for i, (x, y) in enumerate(data(3)):
        assert trainer.step_count == i
        assert all(torch.equal(v, before[k]) for k, v in frozen.state_dict().items())
        trainer.step(x=x, y=y)
    assert not all(torch.equal(v, before[k]) for k, v in frozen.state_dict().items())


@pytest.mark.parametrize("ours, theirs", [
    (segue.one_cycle(0.3, 20), lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, 20)),
    (segue.one_cycle(0.3, 31, rise=0.5, start=0.1, final=0.01),
     lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, 31, pct_start=0.5, div_factor=10, final_div_factor=10)),
    (segue.step_decay(0.3, 4, 0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.5)),
    (segue.step_decay(0.3, [3, 9]), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 9])),
    (segue.warmup_cosine(0.3, 19), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 19)),
    (segue.warmup_linear(0.3, 19, final=0.1), lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 1 / 3, 19)),
])
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedules_are_those_of_torch(ours, theirs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = theirs(optimizer)
    for step in range(20):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-9), step
        if step < 19:
            scheduler.step()


def test_parameters_stay_in_the_memory_of_torch():
    model = Regression()
    places = [p.data_ptr() for p in model.parameters()]
    trainer = trainer_of(model)
    x, y = data(1)[0]
    before = model(x, y).item()
    for _ in range(20):
        trainer.step(x=x, y=y)
    assert [p.data_ptr() for p in model.parameters()] == places
    assert model(x, y).item() < before
    assert all(bound.is_shared for bound in trainer._bound)


def test_save_and_resume_is_exact_to_the_bit(tmp_path):
    batches = data(12)
    model = Regression(dropout=0.2)
    initial = copy.deepcopy(model)
    trainer = trainer_of(model, seed=5)
    straight = [trainer.step(x=x, y=y) for x, y in batches]

    first = trainer_of(copy.deepcopy(initial), seed=5)
    start = [first.step(x=x, y=y) for x, y in batches[:6]]
    first.save(tmp_path / "run.safetensors")
    state = first.state_dict()

    second = trainer_of(Regression(dropout=0.2), seed=99)
    second.resume(tmp_path / "run.safetensors")
    assert second.step_count == 6
    assert start + [second.step(x=x, y=y) for x, y in batches[6:]] == straight

    third = trainer_of(Regression(dropout=0.2))
    third.load_state_dict(state)
    assert start + [third.step(x=x, y=y) for x, y in batches[6:]] == straight
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.safetensors"]


def test_seed_decides_the_masks():
    x, y = data(1)[0]
    model = Regression(dropout=0.5)
    losses = {}
    for seed in (1, 1, 2):
        loss = trainer_of(copy.deepcopy(model), seed=seed).step(x=x, y=y)
        assert losses.setdefault(seed, loss) == loss
    assert losses[1] != losses[2]


def test_nan_loss_keeps_the_last_state():
    model = Regression()
    trainer = trainer_of(model)
    (x, y), (x2, y2) = data(2)
    trainer.step(x=x, y=y)
    before = trainer.state_dict()
    bad = x2.clone()
    bad[0, 0] = float("nan")
    with pytest.raises(segue.NanLossError):
        trainer.step(x=bad, y=y2)
    after = trainer.state_dict()
    assert after["step"] == before["step"] == 1
    for part in ("parameters", "state"):
        for key, value in before[part].items():
            assert torch.equal(value, after[part][key]), key
    trainer.step(x=x2, y=y2)


@pytest.mark.parametrize("batch, error, words", [
    (dict(x=torch.randn(8, 4)), segue.MissingInputError, "y"),
    (dict(x=torch.randn(9, 4), y=torch.randn(8, 2)), segue.LayoutMismatchError, "x"),
    (dict(x=torch.randn(8, 4), y=torch.randn(8, 2).long()), segue.LayoutMismatchError, "y"),
    (dict(x=torch.randn(8, 4), y=torch.randn(8, 2), z=torch.randn(1)), segue.NameUnknownError, "z"),
])
def test_batches_that_do_not_fit(batch, error, words):
    with pytest.raises(error, match=words):
        trainer_of(Regression()).step(**batch)


def test_equal_names_are_two_parameters():
    front, back = Front(), Back()
    (x, y), = data(1)
    trainer = segue.Trainer({"front": segue.compile(front, x), "back": segue.compile(back, (torch.zeros(8, 6), y))},
                            optimizer=segue.SGD(lr=0.1))
    assert {"front.h.weight", "back.h.weight"} <= set(trainer.parameters())
    reference = copy.deepcopy((front, back))
    trainer.step(x=x, y=y)
    loss = reference[1](reference[0](x), y)
    loss.backward()
    torch.optim.SGD([*reference[0].parameters(), *reference[1].parameters()], lr=0.1).step()
    for ours, theirs in zip((front, back), reference):
        for a, b in zip(ours.parameters(), theirs.parameters()):
            assert_close(a, b)


def test_one_tensor_in_two_modules_is_one_parameter():

    class Square(nn.Module):

        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return torch.tanh(x @ self.weight)

    class SquareLoss(Square):

        def forward(self, hidden, target):  # not called x: the batch has an x
            return F.mse_loss(super().forward(hidden), target)

    weight = nn.Parameter(torch.randn(4, 4))
    a, b = Square(weight), SquareLoss(weight)
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    trainer = segue.Trainer([segue.compile(a, x), segue.compile(b, (x, target))], optimizer=segue.SGD(lr=0.1))
    reference = weight.detach().clone().requires_grad_()
    F.mse_loss(torch.tanh(torch.tanh(x @ reference) @ reference), target).backward()
    trainer.step(x=x, target=target)
    assert_close(weight, reference - 0.1 * reference.grad)


def test_gradients_and_evaluate():
    model = Regression()
    trainer = trainer_of(model)
    x, y = data(1)[0]
    loss, gradients = trainer.gradients(x=x, y=y)
    expected = model(x, y)
    expected.backward()
    assert_close(torch.tensor(loss, dtype=torch.float32), expected)
    for key, parameter in model.named_parameters():
        assert_close(gradients[key], parameter.grad, what=key)
    assert_close(trainer.evaluate(x=x, y=y)["loss"], expected)
    assert trainer.step_count == 0


def test_fit_takes_batches():
    trainer = trainer_of(Regression())
    losses = trainer.fit((dict(x=x, y=y) for x, y in data(10)), steps=4)
    assert len(losses) == trainer.step_count == 4


def test_weights_as_safetensors(tmp_path):
    from safetensors.torch import load_file

    model = Regression()
    trainer = trainer_of(model)
    x, y = data(1)[0]
    trainer.step(x=x, y=y)
    trainer.save_weights(tmp_path / "w.safetensors")
    saved = load_file(tmp_path / "w.safetensors")
    assert set(saved) == set(dict(model.named_parameters()))
    for key, value in model.named_parameters():
        assert torch.equal(saved[key], value)
