# ===- test_devices.py - the same training on other devices -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Devices by name: calls, autograd and training on simulated accelerators equal the CPU to the bit."""

import copy
import gc
import json
import os
import sys
import weakref

import nets
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from service_configs import services

import segue

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))

from models import GPTConfig, GPTFirst, GPTLast  # noqa: E402

DEVICES = ["sim:dram=64MiB,link=16GB/s", "sim:dram=64MiB,pinned=1MiB,adversarial=3",
           "sim:streams,dram=64MiB,link=16GB/s", "sim:streams,dram=64MiB,pinned=1MiB,adversarial=4"]


class Front(nn.Module):

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh())

    def forward(self, x):
        return self.net(x)


class Back(nn.Module):

    def __init__(self):
        super().__init__()
        self.h = nn.Linear(6, 2)

    def forward(self, z, y):
        return F.mse_loss(self.h(z), y)


def halves():
    torch.manual_seed(5)
    return Front(), Back()


def data(count, rows=8):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(rows, 4, generator=generator), torch.randn(rows, 2, generator=generator)) for _ in range(count)]


def compiled(device):
    x, y = data(1)[0]
    front, back = halves()
    return segue.compile(front, x, device=device), segue.compile(back, (torch.zeros(8, 6), y), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_autograd_equals_the_cpu(device):
    def run(spec):
        front, back = compiled(spec)
        seen = []
        for x, y in data(3):
            x = x.clone().requires_grad_()
            loss = back(front(x), y)
            loss.backward()
            seen += [loss.detach(), x.grad]
            with torch.no_grad():
                for parameter in (*front.parameters(), *back.parameters()):
                    seen.append(parameter.grad.clone())
                    parameter -= 0.1 * parameter.grad  # in PyTorch's memory: the next call has to see it
                    parameter.grad = None
        return seen

    for here, there in zip(run(device), run("cpu"), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("device", DEVICES)
def test_calls_without_autograd(device):
    front, _ = compiled(device)
    reference, _ = compiled("cpu")
    x = data(1)[0][0]
    with torch.no_grad():
        assert torch.equal(front(x), reference(x))
    result = front(x.numpy())
    assert isinstance(result, np.ndarray) and np.array_equal(result, reference(x.numpy()))


@pytest.mark.parametrize("device", DEVICES)
def test_training_equals_the_cpu(device, tmp_path):
    def trainer(spec):
        return segue.Trainer(compiled("cpu"), optimizer=segue.AdamW(lr=1e-2), clip_grad_norm=0.5, grad_accumulation=2,
                             seed=4, device=spec)

    def batch(i):
        (x, y), (x2, y2) = data(2 * i + 2)[-2:]
        return dict(x=torch.cat([x, x2]), y=torch.cat([y, y2]))

    here, there = trainer(device), trainer("cpu")
    for step in range(4):
        assert here.step(**batch(step)) == there.step(**batch(step))
        assert here.last.grad_norm == there.last.grad_norm
    expected = there.parameters()
    for key, value in here.parameters().items():
        assert torch.equal(value, expected[key]), key
    x, y = data(1)[0]
    assert torch.equal(here.evaluate(x=x, y=y)["loss"], there.evaluate(x=x, y=y)["loss"])
    for (_, mine), (_, other) in zip(here.gradients(x=x, y=y)[1].items(), there.gradients(x=x, y=y)[1].items(), strict=True):
        assert torch.equal(mine, other)

    # PyTorch's parameters are apart until they are brought in step.
    module = here.modules["0"]
    assert not torch.equal(module.get_parameter("net.0.weight"), expected["net.0.weight"])
    here.sync()
    assert torch.equal(module.get_parameter("net.0.weight"), expected["net.0.weight"])

    # A checkpoint from there resumes anywhere, and so does a state dictionary.
    here.save(tmp_path / "c.safetensors")
    moved, again = trainer("cpu"), trainer(device)
    moved.resume(tmp_path / "c.safetensors")
    again.load_state_dict(copy.deepcopy(there.state_dict()))
    loss = there.step(**batch(5))
    assert [t.step(**batch(5)) for t in (here, moved, again)] == [loss] * 3


def test_gpt_trains_on_sim_as_on_the_cpu():
    cfg = GPTConfig(layers=2, dim=48, heads=6, seq=32)
    tokens = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(2))
    batch = dict(tokens=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())

    def losses(device):
        torch.manual_seed(1)
        first, last = GPTFirst(cfg, 1), GPTLast(cfg, 1)
        modules = {"first": segue.compile(first, batch["tokens"]),
                   "last": segue.compile(last, (torch.zeros(2, 32, 48), batch["targets"]))}
        trainer = segue.Trainer(modules, optimizer=segue.AdamW(lr=1e-3), clip_grad_norm=1.0, device=device)
        return [trainer.step(**batch) for _ in range(4)], trainer.parameters()

    here, there = losses("sim:dram=64MiB,adversarial=9"), losses("cpu:threads=1")
    assert here[0] == there[0]
    for key, value in here[1].items():
        assert torch.equal(value, there[1][key]), key


@pytest.mark.parametrize("spec, message", [
    ("tpu", "tpu"),
    ("sim:dram=lots", "dram=lots is not a quantity such as 512MiB"),
    ("sim:ram=1GiB", 'there is no option "ram"; known are '),
])
def test_unknown_devices(spec, message):
    front, _ = halves()
    with pytest.raises(segue.InvalidArgumentError) as error:
        segue.compile(front, data(1)[0][0], device=spec)
    assert message in str(error.value)
    with pytest.raises(segue.InvalidArgumentError):
        segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), device=spec)


def test_memory_runs_out():
    front, back = compiled("cpu")
    with pytest.raises(segue.BudgetInfeasibleError, match="512 bytes of device_dram: the smallest budget is \\d+ bytes") as error:
        segue.Trainer([front, back], optimizer=segue.AdamW(lr=0.1), device="sim:dram=512B")
    assert isinstance(error.value, MemoryError)


def test_a_cap_ends_with_its_trainer():
    """A device is its process's, and trainers on it come and go in any order, as where a variable is bound again."""
    device = "sim:dram=8MiB,pinned=8MiB,latency=7us"
    modules = {rows: segue.compile(nets.Net(width=16, layers=2), (torch.randn(rows, 16), torch.randn(rows, 16)), device=device) for rows in (64, 4096)}
    adamw = segue.AdamW(lr=1e-3)

    def step(rows, trainer):
        trainer.step(x=torch.randn(rows, 16), y=torch.randn(rows, 16))

    make = lambda rows, config=None: segue.Trainer([modules[rows]], optimizer=adamw, config=config)  # noqa: E731
    small, large = (modules[rows].memory(optimizer=adamw).smallest_budget_bytes for rows in (64, 4096))
    assert 2 * small < large
    trainer = make(64, services({"planned"}, 2 * small))
    step(64, trainer)
    trainer = make(4096, services({"planned"}, 2 * large))  # the one before goes when this one is there
    step(4096, trainer)
    gone = weakref.ref(trainer)
    gc.disable()  # trainers go when nobody has them, and their memory with them
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()
    step(4096, make(4096))


def test_config_telemetry_and_report(tmp_path):
    path, telemetry = tmp_path / "segue.json", tmp_path / "stitch.jsonl"
    path.write_text(json.dumps({"memory": {"stitch": {"telemetry_file": str(telemetry)}}}))
    trainer = segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), config=path, device="sim:dram=32MiB")
    for x, y in data(3):
        trainer.step(x=x, y=y)
    lines = [json.loads(line) for line in telemetry.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["inputs"] == line["inputs_elided"] + line["inputs_converted"] + line["cache_hits"] > 0
        assert line["inputs_converted"] == 0
        assert line["h2d_bytes"] > 0

    report = trainer.stitch_report()
    assert report.steps == 3
    seams = [e for e in report.edges if e["producer"] and e["consumer"]["program"] == "forward"]
    assert [e["consumer"]["input"] for e in seams] == ["z"]
    assert seams[0]["elided"] == 3 and seams[0]["converted"] == 0
    assert "other edges copied nothing" in str(report)
    report.write_hints(tmp_path / "stitch_hints.json")
    assert json.loads((tmp_path / "stitch_hints.json").read_text()) == {"version": 1, "edges": []}
    report.reset()
    assert report.steps == 0 and report.edges == []


def test_wrong_configs(tmp_path):
    path = tmp_path / "segue.json"
    for text, message in (('{"memory": {"stitch": {"staging_bufers": 2}}}', "staging_buffers"),
                          ('{"memory": {"stitch": {"staging_buffers": 99}}}', "staging_buffers")):
        path.write_text(text)
        with pytest.raises(segue.ConfigError) as error:
            segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), config=path)
        assert message in str(error.value)
    with pytest.raises(segue.FileError):
        segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), config=tmp_path / "absent.json")


def nested(levels: int) -> dict:
    config: dict = {}
    for _ in range(levels):
        config = {"memory": config}
    return config


@pytest.mark.parametrize("config, message", [
    (nested(1000), "nested too deeply"),
    (nested(200), "levels"),  # as in a file
    ({"memory": {"stitch": {"telemetry_file": object()}}}, "cannot be written as JSON: .*object"),
])
def test_configs_that_are_no_json(config, message):
    with pytest.raises(segue.ConfigError, match=message):
        segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), config=config)


def test_a_config_that_contains_itself():
    config: dict = {"memory": {}}
    config["memory"]["stitch"] = config
    with pytest.raises(segue.ConfigError, match="cannot be written as JSON: [Cc]ircular"):
        segue.Trainer(compiled("cpu"), optimizer=segue.SGD(lr=0.1), config=config)


def test_a_shadowed_output_is_logged(caplog):
    torch.manual_seed(0)
    first, second, head = nn.Linear(4, 4), nn.Linear(4, 4), Back()
    head.h = nn.Linear(4, 2)
    x, y = data(1)[0]
    modules = [segue.compile(first, x), segue.compile(second, x), segue.compile(head, (x, y))]
    name = modules[0]._primary.captured.structure.input_names()[0]
    trainer = segue.Trainer(modules, optimizer=segue.SGD(lr=0.1))
    with caplog.at_level("WARNING", "segue"):
        for _ in range(2):
            trainer.step(**{name: x, "y": y})
    assert [r.message for r in caplog.records if "takes the batch's tensor of that name" in r.message] == [
        f'module "1", input "{name}" (f32[8,4]): takes the batch\'s tensor of that name, and nothing takes '
        'output "out0" of module "0", which fits too; if that was meant, rename the tensor or give a wire'
    ]
