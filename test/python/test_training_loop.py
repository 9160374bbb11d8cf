# ===- test_training_loop.py - fit, as people write loops ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`Trainer.fit` on loaders: names of batches, epochs, evaluation, early stops, callbacks, the bar of progress; and its guide."""

import contextlib
import copy
import io
import re
import sys
from collections import UserDict, namedtuple
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close, losses_close
from safetensors.torch import load_file
from test_trainer import Back, Front, Regression, data, trainer_of
from torch.utils.data import DataLoader, Dataset, TensorDataset

import segue


class Rows(Dataset):
    """Rows of a regression as dictionaries, with a text that no module takes."""

    def __init__(self, rows):
        self.x, self.y = data(1, rows)[0]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index], "text": f"row {index}"}


ROWS = Rows(20)


def loader(**options):
    return DataLoader(TensorDataset(ROWS.x, ROWS.y), batch_size=8, **options)


def in_torch(model, batches, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, **options)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


SGD = segue.SGD(lr=0.1)


# --- batches ------------------------------------------------------------------------------


Pair = namedtuple("Pair", "y x")


@pytest.mark.parametrize("batch_of", [
    lambda x, y: (x, y), lambda x, y: [x, y], lambda x, y: ((x,), [y]), lambda x, y: {"y": y, "x": x, "text": ["a"] * len(x)},
    lambda x, y: UserDict(x=x, y=y), lambda x, y: Pair(y, x), lambda x, y: (x.numpy(), y.numpy())])
def test_batches_have_many_forms(batch_of):
    model = Regression()
    twin = copy.deepcopy(model)
    losses = trainer_of(model, optimizer=SGD).fit([batch_of(x, y) for x, y in data(3)])
    losses_close(losses, in_torch(twin, data(3)))


def test_a_batch_that_is_one_tensor_and_what_makes_a_batch():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (self.w * x).square().mean()

    x = torch.randn(3, 4)
    trainer = segue.Trainer([segue.compile(Square(), x)], optimizer=SGD)
    expected = trainer.evaluate(x=x)["loss"].item()
    assert trainer.fit([x]) == [pytest.approx(expected)]

    class Batch:
        def __init__(self, x):
            self.rows = x

    with pytest.raises(segue.InvalidArgumentError, match="a batch is a Batch, whose tensors have no names .*to_batch="):
        trainer.fit([Batch(x)])
    assert len(trainer.fit([Batch(x)], to_batch=lambda batch: batch.rows)) == 1
    with pytest.raises(segue.InvalidArgumentError, match="a batch has 2 tensors, and the modules take 1 input from outside: x. Let the loader"):
        trainer.fit([(x, x)])


def test_names_over_stitched_modules():
    """What one module gives the next is not in a batch, whatever the order of inputs; what cannot be told is said."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.Linear(6, 2)

        def forward(self, y, z, x):  # x is of the batch, and the first module takes it, too
            return F.mse_loss(self.h(z), y) + x.square().mean()

    (x, y), = data(1)
    front, back = Front(), Masked()
    twins = copy.deepcopy((front, back))
    trainer = segue.Trainer([segue.compile(front, x), segue.compile(back, (y, torch.zeros(8, 6), x))], optimizer=SGD)
    losses_close(trainer.fit([(x, y)]), [twins[1](y, twins[0](x), x).item()])

    class Same(Back):
        def forward(self, z, y):
            return F.mse_loss(z, y) + self.h(z).mean()

    trainer = segue.Trainer([segue.compile(front, x), segue.compile(Same(), (torch.zeros(8, 6), torch.zeros(8, 6)))], optimizer=SGD)
    with pytest.raises(segue.InvalidArgumentError, match=r"which of the inputs z, y of module '1' come from the module before it cannot be told"):
        trainer.fit([(x, torch.zeros(8, 6))])
    assert len(trainer.fit([{"x": x, "y": torch.zeros(8, 6)}])) == 1


# --- epochs, evaluation, callbacks --------------------------------------------------------


class Told(segue.Callback):
    """Keeps what it was told."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda run: self.calls.append((name[3:], run.step, run.epoch, run.batch))


def test_epochs_train_and_evaluate_as_in_torch(caplog):
    """Shuffled, with a last partial batch; held-out means are over rows, not batches."""
    model = Regression()
    twin = copy.deepcopy(model)
    told, shuffled = Told(), loader(shuffle=True, generator=torch.Generator().manual_seed(3))
    trainer = trainer_of(model, optimizer=SGD)
    history = trainer.fit(shuffled, epochs=2, evaluate_on=DataLoader(ROWS, batch_size=8), callbacks=[told],
                          metrics={"off": lambda outputs, batch: (batch["x"][:, 0] - outputs["loss"]).abs().mean()})
    same = loader(shuffle=True, generator=torch.Generator().manual_seed(3))
    losses_close(history, in_torch(twin, [batch for _ in range(2) for batch in same]))
    assert [(e.step, e.epoch, list(e.metrics)) for e in history.evaluations] == [(3, 0, ["loss", "off"]), (6, 1, ["loss", "off"])]
    means = history.evaluations[-1].metrics
    assert means["loss"] == pytest.approx(twin(ROWS.x, ROWS.y).item(), rel=1e-5)
    off = [(x[:, 0] - twin(x, y)).abs().sum().item() for x, y in loader()]
    assert means["off"] == pytest.approx(sum(off) / 20, rel=1e-5)
    assert told.calls == [
        ("begin", 0, 0, 0), ("step", 1, 0, 1), ("step", 2, 0, 2), ("step", 3, 0, 3), ("evaluate", 3, 0, 3), ("epoch", 3, 0, 3),
        ("step", 4, 1, 1), ("step", 5, 1, 2), ("step", 6, 1, 3), ("evaluate", 6, 1, 3), ("epoch", 6, 1, 3), ("end", 6, 2, 0)]
    for (key, a), (_, b) in zip(model.named_parameters(), twin.named_parameters()):
        assert_close(a, b, what=key)
    assert caplog.text.count("compiling one more variant") == 1


def test_steps_go_on_over_epochs_and_evaluate_at_the_end():
    told = Told()
    trainer = trainer_of(Regression(), optimizer=SGD)
    history = trainer.fit(loader(), steps=7, evaluate_on=[(ROWS.x, ROWS.y)], evaluate_every=3, callbacks=[told])
    assert len(history) == trainer.step_count == 7 and [e.step for e in history.evaluations] == [3, 6, 7]
    assert [call for call in told.calls if call[0] == "epoch"] == [("epoch", 3, 0, 3), ("epoch", 6, 1, 3)] and history.stopped == ""
    told.calls.clear()
    trainer.fit(loader(), steps=6, epochs=5, evaluate_on=[(ROWS.x, ROWS.y)], callbacks=[told])  # ends with an epoch, whose evaluation is once
    assert [call[0] for call in told.calls[-5:]] == ["step", "step", "evaluate", "epoch", "end"] and told.calls[-1] == ("end", 6, 2, 0)
    batches = iter(loader())
    assert len(trainer.fit(batches, steps=2)) == 2 and len(trainer.fit(batches, steps=5)) == 1 and trainer.fit(batches) == []


def test_dropout_is_off_in_evaluations():
    model = Regression(dropout=0.5)
    trainer = trainer_of(model, optimizer=SGD)
    assert trainer.evaluate_on(loader())["loss"] == pytest.approx(model.eval()(ROWS.x, ROWS.y).item(), rel=1e-5)


class Stops(segue.Callback):

    def on_step(self, run):
        if run.step == 2:
            run.stop("enough")


def test_callbacks_may_stop_and_fail():
    trainer = trainer_of(Regression(), optimizer=SGD)
    history = trainer.fit(loader(), epochs=9, callbacks=[Stops()])
    assert len(history) == 2 and history.stopped == "enough"

    class Fails:  # of no class of ours
        ended = None

        def on_step(self, run):
            if run.step == 2:
                raise KeyError("mine")

        def on_end(self, run):
            self.ended = run.error

    fails = Fails()
    with pytest.raises(KeyError, match="mine"):
        trainer.fit(loader(), epochs=9, callbacks=[fails])
    assert isinstance(fails.ended, KeyError) and trainer.step_count == 4


class Valley(nn.Module):
    """Goes down to 0 at w = 1, and beyond it up again."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0]))
        self.frozen = nn.Parameter(torch.tensor([1.0]), requires_grad=False)

    def forward(self, x):
        return (self.w * x * self.frozen).mean()


@pytest.mark.parametrize("has_file", [False, True])
def test_early_stop_restores_the_best(tmp_path, has_file):
    valley = Valley()
    trainer = segue.Trainer([segue.compile(valley, -torch.ones(4))], optimizer=segue.SGD(lr=0.25))  # each step adds 0.25
    stop = segue.EarlyStop(patience=3, monitor="off", min_delta=0.1)
    off = {"off": lambda outputs, batch: abs(valley.w.item() - 1)}
    files = {"checkpoint": tmp_path / "run.safetensors", "save_every": 1} if has_file else {}
    history = trainer.fit([-torch.ones(4)] * 100, evaluate_on=[-torch.ones(4)], evaluate_every=1, metrics=off, callbacks=[stop], **files)
    assert len(history) == 7 and stop.best == 0 and stop.best_step == 4 and valley.w.item() == 1.0
    assert history.stopped == "off was 0 after step 4, and no better in 3 evaluations since"
    if has_file:  # of the best weights there is one file, without what is not trained; the run itself could go on
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run.safetensors", "run.safetensors.best-4"]
        assert load_file(tmp_path / "run.safetensors.best-4").keys() == {"w"}
        assert load_file(tmp_path / "run.safetensors")["w"].item() == 1.75
        again = segue.EarlyStop(patience=5, monitor="off", min_delta=0.1)
        history = trainer.fit([-torch.ones(4)] * 100, evaluate_on=[-torch.ones(4)], evaluate_every=1, metrics=off, callbacks=[again],
                              resume=True, **files)
        assert len(history) == 2 and again.best_step == 4 and valley.w.item() == 1.0
        (tmp_path / "run.safetensors.best-4").unlink()
        with pytest.raises(segue.FileError, match="run.safetensors.best-4 is gone"):
            trainer.fit([-torch.ones(4)], evaluate_on=[-torch.ones(4)], metrics=off, callbacks=[again], resume=True, checkpoint=files["checkpoint"])
    else:
        assert trainer.step(x=-torch.ones(4)) == pytest.approx(-1.0) and valley.w.item() == 1.25


@pytest.mark.parametrize("given, said", [
    (dict(epochs=0), "epochs of fit is 0; it takes a whole number"),
    (dict(evaluate_every=3), "give it evaluate_on="),
    (dict(evaluate_on=iter([])), "evaluate_on of fit is an iterator, which gives its batches once"),
    (dict(evaluate_on=[]), "there was no batch to evaluate on"),
    (dict(save_every=3), "give it checkpoint="),
    (dict(schedule_by="hour"), "schedule_by of fit is 'hour'"),
    (dict(callbacks=[print]), "a callback is a function, which is never called; give an object with on_begin, on_step"),
    (dict(callbacks=[segue.EarlyStop]), "a callback is the class EarlyStop"),
    (dict(callbacks=[segue.EarlyStop()]), "EarlyStop goes by evaluations, and fit has none"),
    (dict(evaluate_on=loader(), callbacks=[segue.EarlyStop(monitor="accuracy")]), "EarlyStop monitors 'accuracy', and an evaluation has 'loss'"),
    (dict(evaluate_on=loader(), metrics={"top": lambda outputs, batch: "high"}), "metric 'top' gave 'high', which is no number"),
    (dict(checkpoint="/nowhere/run"), "/nowhere/run"),
    (dict(batches=[]), "an epoch has no batches"),
    (dict(batches=iter(loader()), epochs=2), "an iterator gives its batches once"),
    (dict(batches=3), "batches are an int, which cannot be iterated"),
])
def test_what_does_not_go_together_is_refused(given, said):
    trainer = trainer_of(Regression(), optimizer=SGD)
    batches = given.pop("batches", loader())
    with pytest.raises(segue.Error, match=re.escape(said).replace(r"\ ", " ")):
        trainer.fit(batches, **given)
    assert trainer.step_count <= 3


class Terminal(io.StringIO):

    def isatty(self):
        return True


def test_progress_is_for_terminals(capfd, monkeypatch):
    """A pipe or a log gets nothing; a terminal a bar with what the run is about."""
    trainer = trainer_of(Regression(), optimizer=SGD)
    trainer.fit(loader(), epochs=2, evaluate_on=loader(), progress=True)
    assert capfd.readouterr() == ("", "")
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal):
        trainer.fit(loader(), epochs=2, evaluate_on=loader(), progress=True)
    assert "6/6" in terminal.getvalue() and "loss" in terminal.getvalue() and sys.stderr is not terminal


def test_the_guide_is_true(capsys, tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs/guides/training-loop.md").read_text()
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"^```python\n(.*?)^```$", guide, re.M | re.S):
        exec(compile(code, "training-loop.md", "exec"), scope := locals().get("scope") or {"__name__": "guide"})
    assert "accuracy" in capsys.readouterr().out
