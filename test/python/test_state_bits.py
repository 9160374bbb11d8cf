# ===- test_state_bits.py - optimizers whose states have 8 bits -------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`state_bits=8`: steps are those of the formula at ordinary and at extreme gradients, states are as small as they are said to be,
and budgets, checkpoints, frozen parameters and updates in backward do with them what they do with others."""

import functools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import segue
import state_codes as sc

#: Twice as many elements as a block has, fewer than are coded, blocks of 128, of 64, and a number that 64 does not divide.
SHAPES = {"w": (96, 64), "b": (64,), "t": (5, 29, 128), "s": (4160,), "odd": (71, 67)}
STEPS = 5


class Given(nn.Module):
    """The gradients of its parameters are its inputs."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, dtype=dtype)))

    def forward(self, gw, gb, gt, gs, godd):
        return sum((getattr(self, name) * g).sum() for name, g in zip(SHAPES, (gw, gb, gt, gs, godd))).float()


def ordinary(step):
    return {name: torch.randn(shape) * 10 ** torch.linspace(-4, 0, math.prod(shape)).reshape(shape) for name, shape in SHAPES.items()}


def extreme(step):
    """Blocks without a gradient, then with one; one huge number among small ones; subnormal ones; the same size in all."""
    gradients = ordinary(step)
    w = gradients["w"].view(-1, 256)
    w[0] = 0
    w[1] = 0 if step < 3 else w[1]
    w[2] = w[2] if step < 3 else 0
    w[3, 17] = 1e15
    w[4] *= 1e-39
    w[5] = 1e-41
    w[6] *= 1e-13
    w[7] = 3.0
    w[8] = 0
    w[8, 5] = 1e-3
    return gradients


FORMULAS = {
    "adamw": (segue.AdamW(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, state_bits=8), sc.adam,
              dict(betas=(0.8, 0.95), eps=1e-4, decay=0.1)),
    "adam": (segue.Adam(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True, state_bits=8), sc.adam,
             dict(betas=(0.8, 0.95), decay=0.1, decoupled=False, amsgrad=True)),
    "lion": (segue.Lion(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, state_bits=8), sc.lion, dict(betas=(0.8, 0.95), decay=0.1)),
    "nesterov": (segue.SGD(lr=1e-2, momentum=0.8, nesterov=True, weight_decay=0.1, state_bits=8), sc.momentum,
                 dict(momentum=0.8, nesterov=True, decay=0.1)),
    "adamax": (segue.Adamax(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, state_bits=8), sc.adamax,
               dict(betas=(0.8, 0.95), eps=1e-4, decay=0.1)),
    "rmsprop": (segue.RMSprop(lr=1e-2, alpha=0.8, momentum=0.5, state_bits=8), sc.rmsprop, dict(alpha=0.8, momentum=0.5)),
}


def states_of(trainer, folder):
    trainer.save(folder / "state.safetensors")
    return {name.removeprefix("segue.state."): tensor for name, tensor in load_file(folder / "state.safetensors").items()
            if name.startswith("segue.state.")}


@pytest.mark.parametrize("kind", FORMULAS)
def test_steps_are_those_of_the_formula(kind, tmp_path):
    """Each step from the states that the one before it left, so that a code which lies between two is no matter later."""
    optimizer, formula, constants = FORMULAS[kind]
    model = Given()
    trainer = segue.Trainer([segue.compile(model, tuple(ordinary(0).values()), optimizer=optimizer)], optimizer=optimizer)
    kept = states_of(trainer, tmp_path)
    for step in range(1, STEPS + 1):
        given = ordinary(step) if step in (2, 5) else extreme(step)
        before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
        trainer.step(**{f"g{name}": g for name, g in given.items()})
        trainer.sync()
        after = states_of(trainer, tmp_path)
        for name, parameter in model.named_parameters():
            block, shape = sc.block_of(parameter.numel()), parameter.shape
            names = [key for key in sc.CODES if f"{key}.{name}" in kept]
            old = {key: (sc.decoded(sc.CODES[key], kept[f"{key}.{name}"], kept[f"{key}_scale.{name}"]).reshape(shape) if block and sc.CODES[key]
                         else kept[f"{key}.{name}"].double()) for key in names}
            value, new = formula(before[name], sc.flushed(given[name].double()), old, step, 1e-2, **constants)
            torch.testing.assert_close(parameter.detach(), value.float(), rtol=2e-5, atol=2e-6, msg=lambda m: f"{step}, {name}: {m}")
            for key in names:
                found = after[f"{key}.{name}"]
                if not block or not sc.CODES[key]:
                    torch.testing.assert_close(found, new[key].float(), rtol=1e-5, atol=1e-6 * new[key].abs().max().item())
                    continue
                assert found.dtype == torch.int8 and found.shape == (parameter.numel() // block, block)
                codes, scales, margin = sc.encoded(sc.CODES[key], new[key].reshape(found.shape), step)
                torch.testing.assert_close(after[f"{key}_scale.{name}"], scales.float(), rtol=1e-5, atol=0)
                off = (found - codes).abs()
                assert off.max() <= 1 and (off[margin > 1e-3] == 0).all() and (off > 0).sum() < found.numel() / 200, (step, name, key)
        kept = after
    assert all(torch.isfinite(p).all() for p in model.parameters())


class Mixed(nn.Module):
    """A table of which a step reads some rows, layers, and a bias that stays in f32."""

    def __init__(self, width=64, words=128):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens, targets):
        x = self.table(tokens)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.cross_entropy(self.head(x), targets)


def batches(count):
    torch.manual_seed(3)
    return [dict(tokens=torch.randint(96, (48,)), targets=torch.randint(128, (48,))) for _ in range(count)]


def mixed(optimizer, device="cpu", **options):
    torch.manual_seed(2)
    model = Mixed()
    first = batches(1)[0]
    return model, segue.Trainer([segue.compile(model, tuple(first.values()), device=device, optimizer=optimizer)], optimizer=optimizer, **options)


def run(trainer, steps, begin=0):
    return [trainer.step(**batch) for batch in batches(begin + steps)[begin:]]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


ADAMW = segue.AdamW(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, state_bits=8)


@functools.cache
def free():
    """A trainer after four steps in memory, their losses, and the checkpoint."""
    _, trainer = mixed(ADAMW)
    losses = run(trainer, 4)
    with tempfile.TemporaryDirectory() as folder:
        return trainer, losses, states_of(trainer, Path(folder))


@pytest.mark.parametrize("where", ("in backward", "sim", "disk"))
def test_no_bit_depends_on_where_states_are(where, tmp_path):
    """Losses, codes and scales, within the smallest budget and where they are updated in backward."""
    reference, losses, expected = free()
    device = "sim:link=1GB/s,adversarial=7" if where == "sim" else "cpu"
    options = {}
    if where != "in backward":
        options["budget"] = reference.memory("1GiB", device=device).smallest_budget_bytes
    if where == "disk":
        options["spill_dir"] = tmp_path
    _, trainer = mixed(replace(ADAMW, in_backward=where == "in backward"), device, **options)
    assert run(trainer, 4) == losses
    assert same(states_of(trainer, tmp_path), expected)
    if options:
        assert trainer.peak_bytes <= options["budget"] < reference.memory().unconstrained.peak_bytes
        assert trainer.traffic()["out"]["bytes"] > 0


def test_a_checkpoint_has_codes(tmp_path):
    _, losses, expected = free()
    _, first = mixed(ADAMW)
    run(first, 2)
    first.save(tmp_path / "run.safetensors")
    _, second = mixed(ADAMW)
    second.resume(tmp_path / "run.safetensors")
    assert run(second, 2, begin=2) == losses[2:] and same(states_of(second, tmp_path), expected)
    _, other = mixed(replace(ADAMW, state_bits=32))
    of_codes = (r'optimizer state "m\.head\.weight" is i8\[32,256\] in the checkpoint, which was written with state_bits=8, and f32\[128,64\] here, '
                r'with state_bits=32. Give the optimizer state_bits=8, or load')
    of_floats = (r'optimizer state "m\.head\.weight" is f32\[128,64\] in the checkpoint, which was written with state_bits=32, and i8\[32,256\] here, '
                 r'with state_bits=8. Give the optimizer state_bits=32, or load')
    with pytest.raises(segue.LayoutMismatchError, match=of_codes):
        other.resume(tmp_path / "run.safetensors")
    with pytest.raises(segue.LayoutMismatchError, match=of_codes):
        other.load_state_dict(second.state_dict())
    other.save(tmp_path / "other.safetensors")
    with pytest.raises(segue.LayoutMismatchError, match=of_floats):
        second.resume(tmp_path / "other.safetensors")
    assert same(states_of(second, tmp_path), expected)


def in_torch(make, **options):
    torch.manual_seed(2)
    model, first = Mixed(), batches(1)[0]
    return segue.Trainer([segue.compile(model, tuple(first.values()))], optimizer=make(model), **options)


def test_an_optimizer_of_pytorch_keeps_the_same_codes(tmp_path):
    _, losses, expected = free()
    trainer = in_torch(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1), state_bits=8)
    assert run(trainer, 4) == losses and same(states_of(trainer, tmp_path), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has it since 2.9")
def test_several_optimizers_of_pytorch_have_codes(tmp_path):
    def make(model):
        matrices = [layer.weight for layer in model.layers]
        taken = {id(p) for p in matrices}
        return torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW([p for p in model.parameters() if id(p) not in taken], lr=1e-2)

    states = in_torch(make, state_bits=8).state_dict()["state"]
    assert {name: states[name].dtype for name in ("u.layers.0.weight", "m.table.weight", "v.head.weight", "v.layers.0.bias")} == {
        "u.layers.0.weight": torch.int8, "m.table.weight": torch.int8, "v.head.weight": torch.int8, "v.layers.0.bias": torch.float32}


def test_a_trainer_has_the_last_word_on_its_optimizer():
    """A schedule, a rate and patterns of groups stay; so does f32, where that is asked for."""
    rate = segue.warmup_cosine(1e-2, steps=10)
    given = segue.Muon(lr=rate, groups=[segue.Group("table.*", lr=1e-3, optimizer=segue.AdamW(lr=1e-2, eps=1e-6)), segue.Group("head.*", weight_decay=0.5)])
    coded = given.with_state_bits(8)
    assert coded == replace(given, state_bits=8, groups=[
        segue.Group("table.*", lr=1e-3, optimizer=segue.AdamW(lr=1e-2, eps=1e-6, state_bits=8)), given.groups[1]])
    assert coded.with_state_bits(32) == given


def test_frozen_parameters_keep_their_codes(tmp_path):
    _, trainer = mixed(ADAMW)
    run(trainer, 2)
    before = states_of(trainer, tmp_path)
    trainer.freeze("layers.1.*")
    run(trainer, 2, begin=2)
    after = states_of(trainer, tmp_path)
    assert before.keys() == after.keys()
    assert [name for name in before if "layers.1." in name and not torch.equal(before[name], after[name])] == []
    assert not torch.equal(before["m.layers.0.weight"], after["m.layers.0.weight"])
    trainer.unfreeze("layers.1.*")
    run(trainer, 1, begin=4)
    assert not torch.equal(before["m.layers.1.weight"], states_of(trainer, tmp_path)["m.layers.1.weight"])


def test_states_are_a_byte_per_element():
    """And a scale for every 256, but for what stays in f32; a forecast counts as much."""
    _, _, states = free()
    model = Mixed()
    coded = sum(p.numel() for p in model.parameters() if sc.block_of(p.numel()))
    plain = sum(p.numel() for p in model.parameters()) - coded
    assert coded > 0 < plain
    assert sum(state.nbytes for state in states.values()) == 2 * (coded * (1 + 4 / 256) + 4 * plain)
    peaks = [segue.fit(model, batches(1)[0], optimizer=replace(ADAMW, state_bits=bits)).unconstrained.peak_bytes for bits in (8, 32)]
    spared = 2 * coded * (3 - 4 / 256)
    assert 0.9 * spared < peaks[1] - peaks[0] < 1.02 * spared  # less where an update that decodes is the peak


def test_a_group_may_keep_f32_and_others_codes(tmp_path):
    optimizer = segue.Muon(lr=1e-2, state_bits=8, groups=[segue.Group("table.*", optimizer=segue.AdamW(lr=1e-2)), segue.Group(
        "*.bias", "head.*", optimizer=segue.AdamW(lr=1e-2, state_bits=8))])
    _, trainer = mixed(optimizer)
    losses, states = [trainer.step(**batches(1)[0]) for _ in range(4)], states_of(trainer, tmp_path)
    assert losses[-1] < losses[0]
    assert {name: states[name].dtype for name in ("m.table.weight", "u.layers.0.weight", "v.head.weight", "v.layers.0.bias")} == {
        "m.table.weight": torch.float32, "u.layers.0.weight": torch.int8, "v.head.weight": torch.int8, "v.layers.0.bias": torch.float32}


def test_masters_in_f32_beside_a_model_in_bf16(tmp_path):
    losses = {}
    for bits in (8, 32):
        torch.manual_seed(2)
        model, optimizer = Mixed(), replace(ADAMW, state_bits=bits)
        module = segue.compile(model, tuple(batches(1)[0].values()), optimizer=optimizer, precision="bf16-mixed")
        trainer = segue.Trainer([module], optimizer=optimizer)
        losses[bits] = [trainer.step(**batches(1)[0]) for _ in range(8)]
    assert losses[8] == pytest.approx(losses[32], rel=0.02) and losses[8][-1] < 0.8 * losses[8][0]


def test_a_mean_that_moves_slowly_is_followed(tmp_path):
    """A second moment of beta2 = 0.999 after gradients became smaller and larger. If each element got the nearest code, those that
    should fall would stay, and those that should rise would lag."""
    optimizer = segue.AdamW(lr=0.0, betas=(0.9, 0.999), weight_decay=0.0, state_bits=8)

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(16, 256))

        def forward(self, g):
            return (self.w * g).sum()

    trainer = segue.Trainer([segue.compile(One(), (torch.zeros(16, 256),), optimizer=optimizer)], optimizer=optimizer)
    before, after = 10 ** torch.linspace(-2, 0, 256), 10 ** torch.linspace(-2, 0, 256)[torch.randperm(255).tolist() + [255]]
    v = torch.zeros(16, 256)
    for step in range(400):
        g = (before if step < 100 else after) * torch.randn(16, 256)
        v = 0.999 * v + 0.001 * g * g
        trainer.step(g=g)
    states = states_of(trainer, tmp_path)
    share = (sc.decoded(sc.SQUARE, states["v.w"], states["v_scale.w"]) / v).sqrt().mean(0)
    assert 0.9 < share.min() and share.max() < 1.1 and 0.98 < share.median() < 1.02  # of nearest codes 0.79 and 1.73


@pytest.mark.parametrize("made, said", [
    (lambda: segue.AdamW(state_bits=16), "state_bits is 16; it must be 32 or 8"),
    (lambda: segue.Adagrad(state_bits=8), "Adagrad, as it is set, keeps no state"),
    (lambda: segue.Adafactor(state_bits=8), "Adafactor, as it is set, keeps no state"),
    (lambda: segue.SGD(state_bits=8), "SGD, as it is set, keeps no state"),
    (lambda: segue.RMSprop(centered=True, state_bits=8), "RMSprop, as it is set, keeps no state"),
])
def test_what_has_no_codes_says_so(made, said):
    with pytest.raises(segue.InvalidArgumentError, match=said):
        made()


@functools.cache
def captured():
    return segue.compile(Mixed(), tuple(batches(1)[0].values()))


@pytest.mark.parametrize("make, bits, said", [
    (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), 8, "SGD, as it is set, keeps no state that has a code of 8 bits"),
    (lambda model: torch.optim.Adagrad(model.parameters()), 8, "Adagrad, as it is set, keeps no state"),
    (lambda model: segue.AdamW(groups=[segue.Group("head.*", optimizer=segue.SGD(lr=0.1))]), 8, "SGD, as it is set, keeps no state"),
    (lambda model: torch.optim.AdamW(model.parameters()), 4, "state_bits is 4; it must be 32 or 8"),
])
def test_a_trainer_refuses_codes_where_there_are_none(make, bits, said):
    with pytest.raises(segue.InvalidArgumentError, match=said):
        segue.Trainer([captured()], optimizer=make(captured()), state_bits=bits)


def test_a_file_says_how_its_states_are_kept(tmp_path):
    torch.manual_seed(2)
    segue.compile(Mixed(), tuple(batches(1)[0].values()), optimizer=ADAMW).save(tmp_path / "m.segue", weights=True)
    loaded = segue.load(tmp_path / "m.segue", weights=tmp_path / "m.safetensors")
    with pytest.raises(segue.InvalidArgumentError, match="state-bits=8"):
        segue.Trainer([loaded], optimizer=replace(ADAMW, state_bits=32))
    assert run(segue.Trainer([loaded], optimizer=ADAMW), 2) == free()[1][:2]
