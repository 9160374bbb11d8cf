# ===- test_fit.py - will it fit? -------------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.fit`: answers without weights, and what runs then take; tables; what cannot be answered."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import warm
from torch import nn

import segue
from nets import Net

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))

from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
TOKENS = {"tokens": ((4, 64), torch.int64), "targets": ((4, 64), torch.int64)}
ROWS = (((512, 64), torch.float32), ((512, 64), torch.float32))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Linear(16 * 64, 10)

    def forward(self, images, classes):
        return F.cross_entropy(self.last(F.relu(self.second(F.relu(self.first(images)))).flatten(1)), classes)


def gpt():
    return GPT(GPTConfig(layers=2, dim=96, heads=4, seq=64))


def lora():
    return add_lora(Llama(LlamaConfig(layers=2, dim=96, heads=4, hidden=256, seq=64)), 4, ("wq", "wv"))


CASES = {
    "net": (Net, {"x": ROWS[0], "y": ROWS[1]}, segue.SGD(momentum=0.9)),
    "gpt": (gpt, TOKENS, segue.AdamW()),
    "lora": (lora, TOKENS, segue.AdamW()),
    "convolutions": (Convolutions, {"images": ((16, 3, 16, 16), torch.float32), "classes": ((16,), torch.int64)}, segue.SGD()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_takes_what_was_said_without_its_weights(name, tmp_path_factory):
    """In memory to the byte that a device must have, and within a budget that lets much of it leave for a disk."""
    make, shapes, optimizer = CASES[name]
    free = segue.fit(make, shapes, optimizer=optimizer)
    assert free.fits and free.plan is free.unconstrained
    torch.manual_seed(0)
    model = make()
    batch = {key: torch.randint(0, 10, shape) if dtype == torch.int64 else torch.randn(shape) for key, (shape, dtype) in shapes.items()}

    def run(**where):
        with segue.Trainer([segue.compile(model, batch)], optimizer=optimizer, **where) as trainer:
            return [trainer.step(**batch) for _ in range(3)], trainer.peak_bytes

    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    losses, held = run(device=f"sim:dram={free.unconstrained.peak_bytes},link=16GB/s")  # ends with DEVICE_OOM if it is a byte too few
    assert 0.97 * free.unconstrained.live_bytes <= held <= free.unconstrained.peak_bytes
    model.load_state_dict(weights)
    cap = (free.unconstrained.peak_bytes + 2 * free.smallest_budget_bytes) // 3
    told = segue.fit(make, shapes, optimizer=optimizer, budget=cap)
    assert told.fits and told.plan.peak_bytes <= cap < free.plan.peak_bytes
    if name != "convolutions":  # whose values are computed again rather than moved
        assert told.plan.tiers["disk"]["bytes"] > 0 < told.plan.link["out_bytes"]
    spill = BUILD / "check" / "fit"  # a temporary folder may lie in memory
    spill.mkdir(parents=True, exist_ok=True)
    within, held = run(device="cpu", budget=cap, spill_dir=spill)
    assert within == losses and 0.97 * told.plan.live_bytes <= held <= cap


def test_a_model_is_left_alone_and_its_place_changes_nothing():
    model = gpt()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    here = segue.fit(model, TOKENS, lora_rank=2)
    assert all(p.requires_grad for p in model.parameters()) and not any("down" in key for key in model.state_dict())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    with torch.device("meta"):
        nowhere = gpt()
    assert segue.fit(nowhere, TOKENS, lora_rank=2) == here == segue.fit(gpt, TOKENS, lora_rank=2)
    trained = {tensor["tensor"] for tensor in here.can_leave if tensor["role"] == "state"}
    assert trained and all("down" in name or "up" in name for name in trained)
    # A batch is given by tensors, by position, or by the two numbers of a batch of tokens.
    tokens = torch.zeros(4, 64, dtype=torch.int64)
    whole = segue.fit(nowhere, TOKENS)
    assert segue.fit(nowhere, (tokens, tokens)) == whole == segue.fit(nowhere, {"tokens": tokens.to("meta"), "targets": tokens})

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = gpt()

        def forward(self, tokens, targets, *, scale=None):
            return self.model(tokens, targets)

    assert segue.fit(Alone, (4, 64)).unconstrained.live_bytes == whole.unconstrained.live_bytes
    assert segue.fit(nowhere, TOKENS, precision="bf16-mixed").unconstrained.live_bytes < whole.unconstrained.live_bytes


def test_the_question_takes_no_memory():
    """A block of a model of 7 B parameters with its embedding: what is asked about has 50 times the memory that asking takes."""
    import resource

    cfg = LlamaConfig(layers=1, dim=4096, heads=32, kv_heads=32, hidden=11008, seq=512, vocab=32000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = segue.fit(lambda: Llama(cfg), {"tokens": ((1, 512), torch.int64), "targets": ((1, 512), torch.int64)}, budget="7000MiB",
                       device="sim:virtual,dram=80GiB,pinned=64GiB,link=55GB/s,flops=400TFLOP/s,membw=3000GB/s")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert memory.unconstrained.peak_bytes > 16 * 460e6 and grown < memory.unconstrained.peak_bytes // 50
    assert memory.fits and memory.plan.peak_bytes <= 7000 << 20 and memory.plan.seconds > memory.unconstrained.seconds


def test_no_is_an_answer():
    memory = segue.fit(gpt, TOKENS, budget="1MiB")
    assert not memory.fits and memory.plan is None and memory.why.startswith("no plan keeps to 1048576 bytes")
    assert f"It does not fit in 1.00 MiB: {memory.why}" in str(memory)
    # The budget that is named is the same whatever was asked for, and enough; a byte less is not.
    for budget in (1000, memory.smallest_budget_bytes - 4096, memory.smallest_budget_bytes - 1):
        less = segue.fit(gpt, TOKENS, budget=budget)
        assert not less.fits and f"the smallest budget is {memory.smallest_budget_bytes} bytes" in less.why
    again = segue.fit(gpt, TOKENS, budget=memory.smallest_budget_bytes)
    assert again.fits and again.plan.peak_bytes == memory.smallest_budget_bytes
    disk = sum(again.plan.tiers["disk"][part] for part in ("bytes", "planning_bytes"))
    for room, fits in ((disk, True), (disk - 1, False)):
        memory = segue.fit(gpt, TOKENS, device=again.device.replace(f"disk={again.plan.tiers['disk']['capacity_bytes']}", f"disk={room}"),
                           budget=memory.smallest_budget_bytes)
        assert memory.fits == fits and memory.plan is not None
    assert memory.why.startswith("it takes ") and "of disk, " in memory.why and ", and there are" in memory.why


def test_a_table():
    whole = segue.fit(gpt, TOKENS)
    budget = whole.smallest_budget_bytes - 1
    table = segue.fit_table(gpt, TOKENS, sequence_lengths=[32, 64], optimizers=[segue.AdamW(), segue.SGD(momentum=0.9)], lora_ranks=[0, 8],
                            budget=budget)
    found = {(r.batch_size, r.sequence_length, r.optimizer.kind, r.lora_rank): r.memory for r in table.rows}
    assert len(table.rows) == len(found) == 8 and {batch for batch, *_ in found} == {4}
    live = {case: memory.unconstrained.live_bytes for case, memory in found.items()}
    for length, kind, rank in ((length, kind, rank) for _, length, kind, rank in live):
        assert live[4, 32, kind, rank] < live[4, 64, kind, rank] and live[4, length, kind, 8] < live[4, length, kind, 0]
    assert live[4, 64, "adamw", 0] - live[4, 64, "sgd", 0] >= 4 * sum(p.numel() for p in gpt().parameters())
    assert found[4, 64, "adamw", 0].unconstrained == whole.unconstrained
    assert not found[4, 64, "adamw", 0].fits and found[4, 32, "sgd", 8].fits
    lines = str(table).splitlines()
    assert len(lines) == 3 + 8 and lines[2].split()[:4] == ["batch", "sequence", "optimizer", "lora"]
    assert {line.split()[2] for line in lines[3:]} == {"adamw", "sgd"} and {" yes " in line for line in lines[3:]} == {True, False}
    sizes = segue.fit_table(lambda: Net(16, 1), (((8, 16), torch.float32), ((8, 16), torch.float32)), batch_sizes=[8, 32]).rows
    assert [row.batch_size for row in sizes] == [8, 32] and sizes[0].memory.plan.live_bytes < sizes[1].memory.plan.live_bytes
    with pytest.raises(segue.InvalidArgumentError, match="fit_table has no option 'budgets'"):
        segue.fit_table(gpt, TOKENS, budgets=["1MiB"])
    with pytest.raises(segue.InvalidArgumentError, match="no tensor of the batch has a dimension 1"):
        segue.fit_table(gpt, ((4,), torch.int64), sequence_lengths=[3])


@pytest.mark.parametrize("batch", [None, 7, "4x64", (), (4,), [4, 64, 2], {"tokens": 4}, {"tokens": ((4, "a"), torch.int64)}, [(4, 64), "i64"]])
def test_batches_that_are_none(batch):
    with pytest.raises(segue.InvalidArgumentError, match="(of the batch|the batch) is .*give "):
        segue.fit(gpt, batch)


@pytest.mark.parametrize("change, message", [
    (dict(batch=(0, 64)), "every size must be a whole number above 0"),
    (dict(batch={"tokens": ((4, 64), torch.int64)}), 'float scalar output called "loss"'),
    (dict(batch={"words": ((4, 64), torch.int64)}), "missing a required argument: 'tokens'"),
    (dict(model=nn.Linear), "Linear\\(\\) made no model on PyTorch's meta device: TypeError: .* missing 2 required"),
    (dict(model="gpt2"), "a str was given where"),
    (dict(model=lambda: 3), "an int was given where"),
    (dict(model=lambda: gpt().requires_grad_(False)), "no parameter that requires a gradient"),
    (dict(optimizer=torch.optim.AdamW), "the optimizer is the class AdamW"),
    (dict(optimizer=segue.AdamW(groups=[segue.Group("*.bios", weight_decay=0.0)])), "a group has '\\*.bios'"),
    (dict(lora_rank=-1), "lora_rank is -1"),
    (dict(lora_rank=True), "lora_rank is True"),
    (dict(lora_rank=2, lora_targets=["wz"]), "lora_targets has 'wz', which no linear layer is called; there are 'first.h.0.qkv'"),
    (dict(lora_targets=["wq"]), "without a lora_rank"),
    (dict(precision="f16"), "precision is 'f16'"),
    (dict(budget="much"), "is not a quantity such as 512MiB"),
    (dict(budget=0.5), "a float was given"),
    (dict(micro_batches=0), "micro_batches is 0"),
    (dict(device="tpu"), 'there is no driver "tpu"'),
    (dict(device="cpu:disk=/nowhere"), "disk=/nowhere is not a folder"),
])
def test_what_cannot_be_answered(change, message):
    given = {"model": gpt, "batch": TOKENS} | change
    with pytest.raises(segue.Error, match=message):
        segue.fit(**given)


class Config:
    """What a config of transformers looks like from outside."""

    model_type = "gpt2"

    def to_dict(self):
        return {}


def test_a_config_needs_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(segue.InvalidArgumentError, match="a config of transformers was given, and transformers cannot be imported"):
        segue.fit(Config(), (1, 64))


def test_a_config_of_a_causal_language_model(monkeypatch):
    """By stand-ins of the same interface: transformers is not among what the tests need."""
    import types

    class PreTrained(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = gpt()

        def forward(self, input_ids=None, labels=None, use_cache=None):
            assert use_cache is False
            return types.SimpleNamespace(loss=self.model(input_ids, labels), logits=self.model(input_ids))

    class Auto:
        @staticmethod
        def from_config(config):
            assert config.model_type == "gpt2" and torch.get_default_device().type == "meta"
            return PreTrained().eval()

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoModelForCausalLM=Auto, PreTrainedModel=PreTrained))
    memory = segue.fit(Config(), (4, 64))
    assert memory.unconstrained.live_bytes == segue.fit(gpt, TOKENS).unconstrained.live_bytes
    assert segue.fit(PreTrained(), (4, 64)).unconstrained.live_bytes == memory.unconstrained.live_bytes


def test_the_guide_is_true():
    guide = (ROOT / "docs/guides/fit.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", guide, re.M | re.S)
    assert [kind for kind, _ in blocks] == ["python", "sh"]
    environment = os.environ | {"PATH": f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(BUILD / "python")}
    run = lambda *command: subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)  # noqa: E731
    folder = BUILD / "check" / "fit"  # a temporary folder may lie in memory, where there is no disk to measure
    folder.mkdir(parents=True, exist_ok=True)
    save = "\nsegue.compile(Net(), (torch.zeros(256, 1024), torch.zeros(256, 1024)), optimizer=segue.AdamW()).save('net.segue')\n"
    done = run(warm.python(), "-c", blocks[0][1] + save)
    assert done.returncode == 0 and "It fits in 96.00 MiB: " in done.stdout and "go to the disk in a step" in done.stdout, done.stderr
    done = run("bash", "-euo", "pipefail", "-c", blocks[1][1].replace("profile-device", "profile-device --seconds 0.5"))
    assert done.returncode == 0 and "\nIt fits in 96.00 MiB: " in done.stdout, done.stderr
    for link in re.findall(r"\]\(([^)#]+)\)", guide):
        assert (ROOT / "docs/guides" / link).exists()


def test_dropout_beside_what_is_taken_apart():
    """Where PyTorch takes an operator of a graph apart, its dropout becomes another one."""

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            y = F.dropout(self.layer(x), 0.25, self.training)
            y = y.clone()
            y.mul_(2.0)  # a change in place has the graph taken apart
            return y.square().mean()

    model, x = Dropped(), torch.randn(64, 16)
    compiled = segue.compile(model, (x,), optimizer=segue.SGD())
    with torch.no_grad():
        same = [compiled(x) for _ in range(2)]
        expected = (2 * model.layer(x)).square().mean() / 0.75
    assert same[0] != same[1] and all(abs(loss / expected - 1) < 0.25 for loss in same)
    model.eval()
    with torch.no_grad():
        assert torch.allclose(compiled(x), (2 * model.layer(x)).square().mean(), rtol=1e-5)
