# ===- test_buckets.py - a few lengths that all others are padded to ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Calls that are padded to a bucket give the values and gradients of calls that are not; a module for which they do not is refused."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close, losses_close
from torch import nn

import segue

BUCKETS = [6, 10]


class Language(nn.Module):
    """Tokens, positions and attention; what hides padding is the mask, or that no token looks ahead."""

    def __init__(self, looks_ahead=False, drop=0.0):
        super().__init__()
        self.table, self.places, self.qkv, self.head = nn.Embedding(11, 8), nn.Embedding(16, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.gate = nn.Parameter(torch.zeros(()))  # whatever is behind it shows in no value at first
        self.looks_ahead, self.drop = looks_ahead, nn.Dropout(drop)

    def forward(self, tokens, targets, mask=None):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(x).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = None if mask is None else (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None and not self.looks_ahead)
        logits = self.head(self.drop(x + self.gate * y.transpose(1, 2).reshape(x.shape)))
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()), "logits": logits[:, 1:]}


def batch(length, rows=2, mask=False, generator=torch.Generator().manual_seed(3)):
    given = {name: torch.randint(0, 11, (rows, length), generator=generator) for name in ("tokens", "targets")}
    given["targets"][0, 2] = -100
    if mask:
        given["mask"] = torch.ones(rows, length, dtype=torch.bool)
        given["mask"][1, -2:] = False
    return given


@pytest.mark.parametrize("mask", [False, True], ids=["causal", "masked"])
def test_values_and_gradients_are_those_without_padding(mask):
    model = Language(looks_ahead=mask)
    with torch.no_grad():
        model.gate += 0.7
    reference = copy.deepcopy(model)
    compiled = segue.compile(model, batch(7, mask=mask), buckets=BUCKETS)
    for length in (7, 3, 6, 10):
        given = batch(length, mask=mask)
        found, expected = compiled(**given), reference(**given)
        assert found["logits"].shape == expected["logits"].shape == (2, length - 1, 11)
        weights = torch.randn_like(expected["logits"])
        for module, results in ((model, found), (reference, expected)):
            module.zero_grad()
            (results["loss"] + (results["logits"] * weights).sum()).backward()
        for name in found:
            assert_close(found[name], expected[name], 1e-5, f"{name} at {length}")
        for (name, p), e in zip(model.named_parameters(), reference.parameters()):
            assert_close(p.grad, e.grad, 1e-5, f"gradient of {name} at {length}")
    assert len(compiled._variants) == len(BUCKETS)
    with torch.no_grad():
        assert_close(compiled(**given)["logits"], expected["logits"])


def test_gradients_of_inputs_have_their_length():
    """And dimension 0 may have the length."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8))
    compiled = segue.compile(model, torch.randn(5, 4), buckets=segue.Buckets([4, 8], dim=0))
    for length in (5, 3, 8):
        x = torch.randn(length, 4, requires_grad=True)
        (found,), (expected,) = (torch.autograd.grad(m(x).sin().sum(), x) for m in (compiled, model))
        assert_close(found, expected)
    assert len(compiled._variants) == 2


class Loss(nn.Module):

    def forward(self, x, y):
        return F.mse_loss(x, y)


class Last(nn.Module):

    def forward(self, x):
        return x.tanh()[:, -1]


class Tanh(nn.Module):

    def forward(self, x):
        return x.tanh()


class Flat(nn.Module):

    def forward(self, x):
        return x.tanh().flatten(0, 1)


class Scaled(nn.Module):

    def forward(self, x):
        return x * x.shape[1]


class Blind(nn.Module):
    """Rows that see nothing are NaN, and so is the gradient of what they are made of, though nobody reads them."""

    def forward(self, x, mask):
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, :, None], -torch.inf)
        return scores.softmax(-1).where(mask[:, :, None], 0.0)[:, :, :1]


@pytest.mark.parametrize("module, inputs, operator", [
    (Language(looks_ahead=True), tuple(batch(7).values()), "aten.scaled_dot_product_attention.default"),
    (Loss(), (torch.randn(2, 7, 4), torch.randn(2, 7, 4)), "aten.mse_loss.default"), (Last(), (torch.randn(2, 7, 4),), "aten.select.int"),
    (Flat(), (torch.randn(2, 7, 4),), "aten.flatten.using_ints"), (Scaled(), (torch.randn(2, 7, 4),), "aten.mul.Tensor"),
    (Blind(), (torch.randn(2, 7, 4), torch.ones(2, 7, dtype=torch.bool)), "aten.softmax.int")],
    ids=["attention", "loss", "last", "flat", "length", "nan"])
def test_what_padding_would_change_is_refused(module, inputs, operator):
    with pytest.raises(segue.UnsupportedOpError, match=rf"bucket 10 of \[6, 10\]: results for padded inputs are not .* operator {operator} ") as caught:
        segue.compile(module, inputs, buckets=BUCKETS)
    file, line = caught.value.report["source"].rsplit(":", 1)
    assert file == __file__ and 0 < int(line) - type(module).forward.__code__.co_firstlineno < 8


def test_what_inputs_are_padded_with():
    """A target by what its loss ignores; where it is a token as well, nothing serves for both."""

    class Itself(Language):

        def forward(self, tokens):
            return super().forward(tokens, tokens)

    class Ignores(nn.Module):

        def forward(self, logits, targets):
            return F.cross_entropy(logits.flatten(0, 1), targets.to(torch.int64).flatten(), ignore_index=-1)

    compiled = segue.compile(Ignores(), (torch.randn(2, 7, 5), torch.zeros(2, 7, dtype=torch.int32)), buckets=BUCKETS)
    assert compiled.bucketing.fills == {"logits": 0, "targets": -1}
    with pytest.raises(segue.InvalidArgumentError, match="an index is outside of its table, by what inputs are padded with"):
        segue.compile(Itself(), torch.zeros(2, 7, dtype=torch.int64), buckets=BUCKETS)
    with pytest.raises(segue.UnsupportedOpError, match="aten.cross_entropy_loss.default"):
        segue.compile(Itself(), torch.zeros(2, 7, dtype=torch.int64), buckets=segue.Buckets(BUCKETS, fill={"tokens": 0}))


def test_dropout_is_no_reason():
    """It draws other numbers for other lengths anyway."""
    compiled = segue.compile(Language(drop=0.5), batch(7), buckets=BUCKETS)
    assert compiled(**batch(5))["logits"].shape == (2, 4, 11)


def test_a_copy_pads_as_well():
    compiled = segue.compile(Tanh(), torch.randn(2, 7, 4), buckets=BUCKETS)
    copied, x = copy.deepcopy(compiled), torch.randn(2, 8, 4)
    assert copied.bucketing._source is copied._source is not compiled._source
    assert_close(copied(x), x.tanh())


class Front(nn.Module):

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return torch.tanh(self.cell(self.table(tokens)))


class Back(nn.Module):

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 11)

    def forward(self, hidden, targets):
        logits = self.head(F.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True))
        return F.cross_entropy(logits.transpose(1, 2), targets), logits


def test_a_trainer_pads_its_batches(caplog):
    """Of two stitched modules, in micro-batches; results of an evaluation are cut."""
    modules = Front(), Back()
    reference = copy.deepcopy(modules)
    first = batch(7)
    compiled = [segue.compile(modules[0], {"tokens": first["tokens"]}, buckets=BUCKETS),
                segue.compile(modules[1], {"hidden": torch.zeros(2, 7, 8), "targets": first["targets"]}, buckets=BUCKETS)]
    trainer = segue.Trainer(compiled, optimizer=segue.SGD(lr=0.5), grad_accumulation=2)
    parameters = [p for m in reference for p in m.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    losses, expected = [], []
    for length in (7, 4, 10, 8, 6, 5):
        given = batch(length, rows=4)
        losses.append(trainer.step(**given))
        parts = [reference[1](reference[0](given["tokens"][rows]), given["targets"][rows])[0] for rows in (slice(2), slice(2, 4))]
        loss = sum(parts) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    losses_close(losses, expected)
    for actual, wanted in zip((p for m in modules for p in m.parameters()), parameters):
        assert_close(actual, wanted, 1e-5)
    assert caplog.text.count("compiling one more variant") == 2  # each module, for the other bucket
    for length in (3, 8):
        given = batch(length)
        found, (loss, logits) = trainer.evaluate(**given), reference[1](reference[0](given["tokens"]), given["targets"])
        assert_close(found["loss"], loss, 1e-5)
        assert_close(found["out1"], logits, 1e-5)
        assert found["out1"].shape[1] == length
        assert trainer.gradients(**given)[0] == pytest.approx(loss.item(), rel=1e-4)
    with pytest.raises(segue.InvalidArgumentError, match="length 11, and the longest bucket is 10"):
        trainer.step(**batch(11, rows=4))
    given["targets"] = given["targets"][:, :-1]
    with pytest.raises(segue.LayoutMismatchError, match="'targets': shape .2, 7. given, where dimension 1 has the length, 8"):
        trainer.evaluate(**given)
    plain = segue.compile(Front(), {"tokens": first["tokens"]})
    with pytest.raises(segue.InvalidArgumentError, match="modules of a trainer see one length"):
        segue.Trainer([plain, compiled[1]], optimizer=segue.SGD(lr=0.5))


@pytest.mark.parametrize("given, message", [
    ([], "buckets are .*; give lengths of at least 1"), ([0, 4], "give lengths of at least 1"), ([4.0], "give lengths"),
    (dict(lengths=[4], dim=-1), "dim of the buckets is -1"), (dict(lengths=[4], dim=2), "has buckets, and no input has a dimension 2"),
    (dict(lengths=[4]), "length 7, and the longest bucket is 4"), (dict(lengths=[8], fill={"label": 1}), "say what 'label' is padded with; Front takes 'tokens'"),
])
def test_what_is_wrong_is_said(given, message):
    with pytest.raises(segue.InvalidArgumentError, match=message):
        segue.compile(Front(), torch.zeros(2, 7, dtype=torch.int64), buckets=segue.Buckets(**given) if isinstance(given, dict) else given)


def test_an_array_of_numpy_is_refused_in_words():
    """Also where it is the target of a loss, whose padding depends on its element type."""
    given = batch(7)
    with pytest.raises(segue.InvalidArgumentError, match="input 'targets' is a ndarray, and is to be padded; give a torch tensor"):
        segue.compile(Language(), {**given, "targets": given["targets"].numpy()}, buckets=segue.Buckets(BUCKETS))


def test_the_guide_is_true(capsys):
    from pathlib import Path

    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "lengths.md").read_text()
    exec(re.search(r"```python\n(.*?)```", guide, re.S)[1], {})
    assert "2 programs" in capsys.readouterr().out
