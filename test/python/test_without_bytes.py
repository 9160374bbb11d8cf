# ===- test_without_bytes.py - models that are on PyTorch's meta device ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Models that never have bytes in PyTorch train as those that do: a trainer is given their values one tensor after the other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import segue

WORDS, WIDTH = 24, 16
ADAMW = segue.AdamW(lr=1e-2, weight_decay=0.1)


class Net(nn.Module):
    """An embedding that is the head as well, a frozen layer, running statistics, random masks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH).eval()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers[1].requires_grad_(False)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, targets):
        x = self.norm(self.embed(tokens))
        for layer in self.layers:
            x = x + self.dropout(F.gelu(layer(x)))
        return F.cross_entropy(self.head(x), targets)


def batches(count):
    generator = torch.Generator().manual_seed(4)
    return [dict(tokens=torch.randint(WORDS, (8,), generator=generator), targets=torch.randint(WORDS, (8,), generator=generator)) for _ in range(count)]


def made(place, seed=3):
    torch.manual_seed(seed)
    with torch.device(place):
        return Net()


def trainer_of(place, *, precision=None, **options):
    model = made(place)
    return model, segue.Trainer([segue.compile(model, tuple(batches(1)[0].values()), device="cpu:threads=1", precision=precision)], optimizer=ADAMW, **options)


def losses(trainer, steps=5):
    return [trainer.step(**batch) for batch in batches(steps)]


def weights():
    return {name: tensor.clone() for name, tensor in made("cpu").state_dict().items() if name not in ("head.weight", "norm.num_batches_tracked")}


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"budget": "64KiB", "spill_dir": "."}, {"device": "sim:dram=1MiB,link=16GB/s,adversarial=2"}],
                         ids=["in memory", "bf16-mixed", "on a disk", "on a device"])
def test_trains_as_with_bytes(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, expected = trainer_of("cpu", **options)
    model, trainer = trainer_of("meta", **options)
    with pytest.raises(segue.MissingWeightError, match="has no value .*; set parameters or load weights first"):
        trainer.step(**batches(1)[0])
    trainer.load_weights(weights())
    assert losses(trainer) == losses(expected)
    assert {n: v.tolist() for n, v in trainer.parameters().items()} == {n: v.tolist() for n, v in expected.parameters().items()}
    trainer.sync()
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    batch = batches(9)[8]
    assert trainer.evaluate(**batch)["loss"].item() == expected.evaluate(**batch)["loss"].item()
    for each in (trainer, expected):
        each.freeze("layers.0.*")
    assert losses(trainer, 2) == losses(expected, 2)


def test_values_come_from_files(tmp_path):
    """Of one file, of several with an index, of a checkpoint."""
    _, expected = trainer_of("cpu")
    values = weights()
    save_file(values, tmp_path / "all.safetensors")
    names = sorted(values)
    for part, some in enumerate((names[:4], names[4:])):
        save_file({name: values[name] for name in some}, tmp_path / f"{part}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{int(i >= 4)}.safetensors" for i, name in enumerate(names)}}))
    first = losses(expected)
    for path in (tmp_path / "all.safetensors", str(index)):
        _, trainer = trainer_of("meta")
        trainer.load_weights(path)
        assert losses(trainer) == first
    expected.save(tmp_path / "run.safetensors")
    _, trainer = trainer_of("meta")
    trainer.resume(tmp_path / "run.safetensors")
    assert losses(trainer) == losses(expected)
    for path, text in ((tmp_path / "none.safetensors", "none.safetensors"), (tmp_path / "bad.json", "KeyError: 'weight_map'")):
        if path.suffix == ".json":
            path.write_text("{}")
        with pytest.raises(segue.FileError, match=text):
            trainer.load_weights(path)


def test_values_are_drawn_as_pytorch_draws_them():
    """Module by module, what is tied once; PyTorch's random state stays."""
    model, trainer = trainer_of("meta")
    before = torch.get_rng_state()
    trainer.init_weights(seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    found, drawn = trainer.parameters(), {}
    torch.manual_seed(7)
    for path, part in model.named_modules():
        if hasattr(part, "reset_parameters"):
            bare = type(part)(*{nn.Embedding: (WORDS, WIDTH), nn.BatchNorm1d: (WIDTH,), nn.Linear: (WIDTH, WORDS if path == "head" else WIDTH)}[type(part)],
                              **({"bias": False} if path == "head" else {}))
            drawn |= {f"{path}.{name}": tensor for name, tensor in bare.state_dict().items()}
    assert len(found) == 11 and all(torch.equal(tensor, drawn[name]) for name, tensor in found.items())
    assert losses(trainer)[0] > 0


class Tables(nn.Module):
    """A table that the model computes has bytes, and the rest has none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, WIDTH, device="cpu"))
        self.linear, self.own = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(WIDTH))
        draw(self)
        draw(self.linear)

    def forward(self, x):
        return (self.linear(x * self.table) * self.own).square().mean()


def draw(module):
    for parameter in module.parameters(recurse=False):
        nn.init.normal_(parameter, std=0.5)


def test_values_are_drawn_by_a_function():
    def losses_of(place):
        torch.manual_seed(2)
        with torch.device(place):
            model = Tables()
        trainer = segue.Trainer([segue.compile(model, (torch.ones(4, WIDTH),))], optimizer=ADAMW)
        if place == "meta":
            trainer.init_weights(init=draw)
            found = trainer.parameters()
            torch.manual_seed(0)
            own = torch.empty(WIDTH).normal_(std=0.5)
            assert torch.equal(found["own"], own) and torch.equal(found["table"], torch.linspace(0, 1, WIDTH)) and len(found) == 4
        return [trainer.step(torch.ones(4, WIDTH)) for _ in range(3)]

    assert all(loss > 0 for place in ("cpu", "meta") for loss in losses_of(place))


def test_modules_that_share_a_parameter(tmp_path):
    class First(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def forward(self, tokens):
            return self.table(tokens)

    class Last(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.linear, self.weight = nn.Linear(WIDTH, WIDTH), table.weight

        def forward(self, h, targets):
            return F.cross_entropy(self.linear(h) @ self.weight.T, targets)

    def trained(place):
        torch.manual_seed(0)
        with torch.device(place):
            table = nn.Embedding(WORDS, WIDTH)
            modules = [First(table), Last(table)]
        tokens = batches(1)[0]["tokens"]
        trainer = segue.Trainer([segue.compile(modules[0], (tokens,)), segue.compile(modules[1], (torch.zeros(8, WIDTH), tokens))], optimizer=ADAMW)
        if place == "meta":
            torch.manual_seed(0)
            table, linear = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
            keys = list(trainer._session.parameters)
            assert len(keys) == 3, keys
            trainer.load_weights({info.key: table.weight.detach() if "linear" not in info.key else getattr(linear, info.key.rpartition(".")[2]).detach()
                                  for info in keys})
        return losses(trainer)

    assert trained("meta") == trained("cpu")


class Token(nn.Module):
    def __init__(self, has_buffer=False):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        if has_buffer:
            self.register_buffer("scale", torch.ones(WIDTH))
        else:
            self.token = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return (self.linear(x * (self.scale if hasattr(self, "scale") else self.token))).square().mean()


def test_errors():
    x = torch.zeros(4, WIDTH)
    for has_buffer, text in ((False, r"module '0' \(Token\) has 'token' on PyTorch's meta device and no reset_parameters\(\) that draws it"),
                             (True, r"module '0' \(Token\) has the buffer 'scale' on PyTorch's meta device, and what the module computed for it is lost")):
        with torch.device("meta"):
            model = Token(has_buffer)
        module = segue.compile(model, (x,))
        trainer = segue.Trainer([module], optimizer=ADAMW)
        with pytest.raises(segue.InvalidArgumentError, match=text):
            trainer.init_weights()
        with pytest.raises(segue.MissingWeightError):  # nothing was given
            trainer.parameters()
        with pytest.raises(segue.InvalidArgumentError, match="is on PyTorch's meta device and has no values; train the module by a segue.Trainer"):
            module(x)
    trainer.load_weights({"linear.weight": torch.ones(1, WIDTH), "linear.bias": torch.zeros(1), "scale": torch.ones(WIDTH)})
    trainer.step(x)
    model.to_empty(device="cpu")
    with pytest.raises(segue.InvalidArgumentError, match="has another memory than when the trainer was made"):
        trainer.step(x)


def test_a_model_is_never_whole_in_memory(tmp_path):
    """A process that trains one on a disk, within a budget, takes less than it has."""
    program = """
import sys, torch, segue
from torch import nn
def taken():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(60))
    def forward(self, x):
        for layer in self.layers:
            x = x + 0.01 * torch.relu(layer(x))
        return x.square().mean()
with torch.device("meta"):
    model = Net()
module = segue.compile(model, (torch.zeros(8, 1024),), device="cpu:threads=1").build()
before = taken()
trainer = segue.Trainer([module], optimizer=segue.SGD(lr=1e-3), budget="48MiB", spill_dir=".")
trainer.init_weights()
assert trainer.step(torch.ones(8, 1024)) > 0
print(taken() - before, sum(p.numel() * 4 for p in model.parameters()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    taken, whole = map(int, done.stdout.split())
    assert taken < 0.75 * whole, (taken, whole)
    assert not list(Path(tmp_path).iterdir())
