# ===- test_resuming.py - a run that goes on in the midst of an epoch ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`fit(resume=True)`: losses, evaluations and weights of a run that was ended at any step are those of one that was not, to the bit,
over loaders of many kinds whose data sets draw random numbers; by `kill -9` too."""

import copy
import functools
import json
import os
import pickle
import random
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn as nn
import warm
from test_trainer import Regression, data, trainer_of
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import segue


class Noisy(Dataset):
    """Rows with noise by all that draws random numbers; counts what is loaded."""

    def __init__(self):
        self.x, self.y = data(1, 22)[0]
        self.loaded = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.loaded += 1
        noise = 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return self.x[index] + noise, self.y[index]


class Stream(IterableDataset):

    def __iter__(self):
        rows = Noisy()
        yield from (rows[index] for index in torch.randperm(len(rows)).tolist())


class SavesItself:
    """A loader with a state, as torchdata's: each epoch has another order, which its state begins in the midst of."""

    def __init__(self):
        self.epoch, self.at = 0, 0

    def __iter__(self):
        batches = data(6, 4, seed=self.epoch)
        while self.at < len(batches):
            self.at += 1
            yield batches[self.at - 1]
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


def torchdata():
    found = pytest.importorskip("torchdata.stateful_dataloader")
    return found.StatefulDataLoader(Noisy(), batch_size=4, shuffle=True)


LOADERS = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True),
    "generator": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(8), drop_last=True),
    "sampler": lambda: DataLoader(Noisy(), batch_size=4, sampler=WeightedRandomSampler(torch.arange(1.0, 23), 22)),
    "by-rows": lambda: DataLoader([(x, y) for x, y in data(6, 4)], batch_size=None, shuffle=True),
    "workers": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "list": lambda: data(6, 4),
    "saves-itself": SavesItself,
    "torchdata": torchdata,
}


class End(segue.Callback):
    """Ends a run as an error would."""

    class Now(Exception):
        pass

    def __init__(self, step):
        self.last = step

    def on_step(self, run):
        if run.step == self.last:
            raise End.Now


class Counts(segue.Callback):
    """A callback with a state."""

    def __init__(self):
        self.losses = []

    def on_step(self, run):
        self.losses.append(run.loss)

    def state_dict(self):
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    def load_state_dict(self, state):
        self.losses = state["losses"].tolist()


@functools.lru_cache
def compiled_once():
    """With all variants that a run takes."""
    x, y = data(1, 4)[0]
    compiled = segue.compile(Regression(dropout=0.2), (x, y))
    trainer = segue.Trainer([compiled], optimizer=segue.AdamW())
    trainer.step(x=x[:2], y=y[:2]), trainer.evaluate_on(data(1, 11))
    return compiled


class Model:
    """A run over three epochs, and all that it is to go on with; made anew as a new process would make it."""

    def __init__(self, folder, make, seed):
        compiled = copy.deepcopy(compiled_once())  # with its code
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        for parameter in compiled.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.net = compiled
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2e-2, total_steps=30, cycle_momentum=False)
        self.trainer = segue.Trainer([compiled], optimizer=self.optimizer, seed=3)
        self.loader, self.counts, self.stop = make(), Counts(), segue.EarlyStop(patience=9)
        self.path = folder / "run.safetensors"

    def fit(self, *more, **options):
        held_out = DataLoader(Noisy(), batch_size=11, shuffle=True)
        return self.trainer.fit(self.loader, epochs=3, evaluate_on=held_out, evaluate_every=5, scheduler=self.scheduler,
                                callbacks=[self.counts, self.stop, *more], **options)

    def weights(self):
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}


@pytest.mark.parametrize("name", LOADERS)
def test_a_run_goes_on_to_the_bit(tmp_path, name):
    make = LOADERS[name]
    whole = Model(tmp_path, make, seed=1)
    losses = whole.fit(checkpoint=tmp_path / "whole.safetensors", save_every=3)
    per_epoch = len(losses) // 3
    ends = [4, per_epoch + 2, 2 * per_epoch + 1] if name == "shuffled" else [2 * per_epoch - 1]
    for last in (*ends, None):  # begun, and ended after so many steps, each time in what might be another process
        run = Model(tmp_path, make, seed=1 if last == ends[0] else 100 + (last or 0))
        if last is None:
            rest = run.fit(checkpoint=run.path, save_every=3, resume=True)
        else:
            with pytest.raises(End.Now):
                run.fit(End(last), checkpoint=run.path, save_every=3, resume=True)
    assert 0 < len(rest) < per_epoch * 2 and list(losses[-len(rest):]) == list(rest)
    assert run.counts.losses == list(losses) and rest.evaluations == losses.evaluations
    assert run.stop.best == whole.stop.best and run.scheduler.last_epoch == whole.scheduler.last_epoch
    for key, value in whole.weights().items():
        assert torch.equal(value, run.weights()[key]), key
    if name == "shuffled":  # what was trained before is not loaded again
        assert run.loader.dataset.loaded < 4 * (len(rest) + 1)
    finished = Model(tmp_path, make, seed=5)  # as does a run that had ended
    assert finished.fit(checkpoint=run.path, save_every=3, resume=True) == [] and finished.counts.losses == list(losses)
    assert all(torch.equal(value, finished.weights()[key]) for key, value in whole.weights().items())


KILLED = """
import json, os, pickle, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_resuming
from test_resuming import LOADERS, Model
import segue

compiled = pickle.loads(Path(sys.argv[5]).read_bytes())  # with its code
test_resuming.compiled_once = lambda: compiled

class Prints(segue.Callback):
    def on_step(self, run):
        print(json.dumps([run.step, run.loss]), flush=True)
        if run.step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

run = Model(Path(sys.argv[2]), LOADERS["shuffled"], seed=int(sys.argv[4]))
run.fit(Prints(), checkpoint=run.path, save_every=4, resume=True)
print(json.dumps(["end", {name: value.tolist() for name, value in run.weights().items()}]))
"""


def test_a_killed_process_goes_on_to_the_bit(tmp_path):
    (tmp_path / "compiled").write_bytes(pickle.dumps(compiled_once()))

    def start(folder, last, seed):
        folder.mkdir(exist_ok=True)
        arguments = [os.path.dirname(__file__), folder, str(last), str(seed), tmp_path / "compiled"]
        done = subprocess.run([warm.python(), "-c", KILLED, *arguments], timeout=120, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.returncode == (-9 if last else 0), done.stderr
        return dict(map(json.loads, done.stdout.splitlines()))

    whole = start(tmp_path / "whole", 0, seed=1)
    first, second, rest = (start(tmp_path / "killed", last, seed) for last, seed in ((7, 1), (15, 2), (0, 3)))
    assert min(second) == 5 and min(k for k in rest if k != "end") == 13 and len(whole) == 19
    for part in (first, second, rest):
        assert part == {key: whole[key] for key in part}


class FullDisk(segue.Callback):
    """No file of this process may grow from the second step to the fourth, as on a disk that is full."""

    def __init__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step(self, run):
        if run.step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, self.before[1]))
        if run.step == 4:
            self.on_end(run)

    def on_end(self, run):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, caplog):
    """The run goes on beside the checkpoint before; where the last one cannot be written, that is an error."""
    batches, path = data(5), tmp_path / "run.safetensors"
    trainer = trainer_of(Regression())
    saved = []
    saves = type("Saves", (segue.Callback,), {"on_save": lambda self, run: saved.append(run.step)})()
    assert len(trainer.fit(batches, checkpoint=path, save_every=1, callbacks=[FullDisk(), saves])) == 5
    assert saved == [1, 4, 5]
    assert [text.split(":")[0] for text in caplog.messages if "checkpoint" in text] == ["no checkpoint of step 2", "no checkpoint of step 3"]
    assert "cannot be written" in caplog.text and "the checkpoint before it, if there is one, stays" in caplog.text
    again = trainer_of(Regression())
    assert again.resume(path)["fit"]["step"] == 5
    full = FullDisk()
    with pytest.raises(segue.FileError, match="cannot be written"):
        trainer_of(Regression()).fit(batches[:3], checkpoint=path, save_every=1, callbacks=[full])
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == full.before


def test_what_a_run_cannot_go_on_from(tmp_path):
    path = tmp_path / "run.safetensors"
    run = Model(tmp_path, LOADERS["shuffled"], seed=1)
    with pytest.raises(End.Now):
        run.fit(End(5), checkpoint=path, save_every=4)
    other = trainer_of(Regression(), rows=4, optimizer=segue.AdamW())
    with pytest.raises(segue.InvalidArgumentError, match="has the states of Counts, EarlyStop, and this run has none with a state; give fit the same"):
        other.fit(run.loader, checkpoint=path, resume=True)
    with pytest.raises(segue.InvalidArgumentError, match="is of a run with a scheduler"):
        other.fit(run.loader, evaluate_on=data(1, 4), callbacks=[Counts(), segue.EarlyStop()], checkpoint=path, resume=True)
    run.loader = SavesItself()
    with pytest.raises(segue.InvalidArgumentError, match="whose loader did not save its own state, .* a SavesItself, does. Go on with"):
        run.fit(End(5), checkpoint=path, resume=True)
    run.loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
    with pytest.raises(segue.InvalidArgumentError, match="had trained 4 batches of epoch 1, and this loader has 3; give it the same data"):
        run.fit(End(5), checkpoint=path, resume=True)
    run.loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=torch.Generator())
    with pytest.raises(segue.InvalidArgumentError, match="whose loader had 0 random generators, and this one has 1"):
        run.fit(End(5), checkpoint=path, resume=True)
    run.trainer.save(path)
    with pytest.raises(segue.InvalidArgumentError, match="is a checkpoint that fit has not written"):
        run.fit(checkpoint=path, resume=True)

    class Keeps(Counts):
        def state_dict(self):
            return {"this": self}

    with pytest.raises(segue.InvalidArgumentError, match="cannot be kept in a checkpoint, which takes numbers, texts"):
        run.trainer.fit(data(1, 4), callbacks=[Keeps()], checkpoint=path)


def test_notes_of_a_loop_of_ones_own(tmp_path):
    trainer = trainer_of(Regression(), rows=4)
    trainer.save(tmp_path / "run.safetensors", notes={"epoch": 3, "seen": ["a", None]})
    assert trainer.resume(tmp_path / "run.safetensors") == {"epoch": 3, "seen": ["a", None]}
    trainer.save(tmp_path / "run.safetensors")
    assert trainer.resume(tmp_path / "run.safetensors") == {}
    with pytest.raises(segue.InvalidArgumentError, match="notes of a checkpoint are written as JSON"):
        trainer.save(tmp_path / "run.safetensors", notes={"net": trainer})
