# ===- test_silent_errors.py - what would be wrong without a word --------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Uses that gave wrong values silently: tensors changed between forward and backward, an optimizer that a file does not
follow, patterns that match nothing, parameters that were replaced; and threads and copies of compiled modules."""

import copy
import io
import json
import pickle
import threading

import pytest
import torch
from torch import nn

import segue


class Scaled(nn.Module):
    """Backward reads the frozen weight and the buffer again."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.full((4, 4), 2.0), requires_grad=False)
        self.register_buffer("scale", torch.full((4,), 3.0))

    def forward(self, x):
        return ((self.fc(x) @ self.frozen) * self.scale).sum()


# --- changed in place between forward and backward ----------------------------------------------


@pytest.mark.parametrize("how, changed", [
    *(("compile", n) for n in ("frozen", "scale", "x", "fc.weight")),
    *(("backend", n) for n in ("frozen", "scale", "x")),  # there, what backward does not read is not saved
])
def test_what_changes_before_backward_is_an_error(how, changed):
    net = Scaled()
    x = torch.randn(2, 4)
    model = segue.compile(net, (x,)) if how == "compile" else torch.compile(net, backend="segue")
    named = {**dict(net.named_parameters()), **dict(net.named_buffers()), "x": x}
    loss = model(x)
    with torch.no_grad():
        named[changed].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    model(x).backward()  # a new forward sees the new values
    got = net.fc.weight.grad.clone()
    net.zero_grad()
    net(x).backward()
    torch.testing.assert_close(got, net.fc.weight.grad)


# --- optimizers that are not followed ---------------------------------------------------------------


class Net(nn.Module):

    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(width, 2)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        loss = self.fc(self.norm(x)).square().mean()
        return {"loss": loss}


def made_with(rate=0.1, pattern="*.bias", **options):
    options = {"betas": (0.8, 0.9), "weight_decay": 0.1} | options
    return segue.AdamW(groups=[segue.Group(pattern, weight_decay=0.0), segue.Group("norm.*", lr=rate)], **options)


@pytest.fixture(scope="module")
def filed(tmp_path_factory):
    path = tmp_path_factory.mktemp("filed") / "net.segue"
    torch.manual_seed(0)
    segue.compile(Net(), (torch.zeros(3, 4),), optimizer=made_with()).save(path, weights=True)
    return path


@pytest.mark.parametrize("given, both", [
    (segue.SGD(momentum=0.9), ["adamw:beta1=0.8", "sgd:momentum=0.9"]),
    (made_with(betas=(0.8, 0.95)), ["beta2=0.9,", "beta2=0.95"]),
    (made_with(weight_decay=0.2), ["decay=0.1'", "decay=0.2'"]),
    (segue.AdamW(betas=(0.8, 0.9), weight_decay=0.1), ["'fc.bias'", "weight decay of 0.0", "0.1", "1 others"]),
    (made_with(pattern="*"), ["'fc.weight'"]),
    (made_with(rate=None), ["'norm.weight'", "learning rate of group 1", "has 0"]),
])
def test_a_file_keeps_its_optimizer(filed, given, both):
    module = segue.load(filed, filed.with_suffix(".safetensors"))
    with pytest.raises(segue.InvalidArgumentError) as refused:
        segue.Trainer([module], optimizer=given)
    for part in both:
        assert part in str(refused.value)


def test_a_file_trains_with_the_optimizer_that_it_has(filed):
    module = segue.load(filed, filed.with_suffix(".safetensors"))
    same = made_with(lr=segue.warmup_cosine(0.1, 10), rate=segue.warmup_cosine(0.2, 10))
    assert segue.Trainer([module], optimizer=same).step(x=torch.ones(3, 4)) >= 0


def test_patterns_of_groups_must_match():
    with pytest.raises(segue.InvalidArgumentError, match=r"'\*\.biass'.*matches no parameter.*'fc.bias'"):
        segue.compile(Net(), (torch.zeros(3, 4),), optimizer=segue.AdamW(groups=[segue.Group("norm.*", "*.biass", weight_decay=0.0)]))
    modules = {"a": segue.compile(nn.Linear(4, 4, bias=False), (torch.zeros(3, 4),)), "b": segue.compile(Net(), (torch.zeros(3, 4),))}
    with pytest.raises(segue.InvalidArgumentError, match=r"'nrom\.\*'.*'norm\."):
        segue.Trainer(modules, optimizer=segue.AdamW(groups=[segue.Group("*.bias", "nrom.*", weight_decay=0.0)]))
    segue.Trainer(modules, optimizer=segue.AdamW(groups=[segue.Group("*.bias", "norm.*", weight_decay=0.0)]))  # in one of the two is enough


# --- parameters that were replaced ------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "sim:dram=16MiB"])
def test_a_parameter_that_was_replaced_is_refused(device):
    net = Net()
    trainer = segue.Trainer([segue.compile(net, (torch.zeros(3, 4),), device=device)], optimizer=segue.SGD(), device=device)
    batch = {"x": torch.randn(3, 4)}
    trainer.step(**batch)
    kept = net.fc.weight.data
    net.fc.weight.data = torch.zeros(2, 4)
    with pytest.raises(segue.InvalidArgumentError, match=r"fc\.weight.* has another memory than when the trainer was made"):
        trainer.step(**batch)
    net.fc.weight.data = kept
    trainer.step(**batch)
    net.load_state_dict({n: t.clone() for n, t in net.state_dict().items()}, assign=True)
    with pytest.raises(segue.InvalidArgumentError, match="another memory"):
        trainer.step(**batch)
    assert trainer.step_count == 2


def test_changes_on_the_host_are_seen_or_refused():
    batch = {"x": torch.randn(3, 4)}
    losses = {}
    for device in ("cpu", "sim:dram=16MiB"):
        torch.manual_seed(0)
        net = Net()
        trainer = segue.Trainer([segue.compile(net, (torch.zeros(3, 4),), device=device)], optimizer=segue.SGD(lr=0.1), device=device)
        losses[device] = trainer.step(**batch)
        trainer.sync()
        trainer.step(**batch)  # what sync writes is no change
        trainer.sync()
        with torch.no_grad():
            net.fc.weight.zero_()
            net.fc.bias.zero_()
        if device == "cpu":
            assert trainer.step(**batch) == 0
        else:
            with pytest.raises(segue.InvalidArgumentError, match="changed in PyTorch"):
                trainer.step(**batch)
            state = trainer.state_dict()
            state["parameters"] |= {n: p.detach().clone() for n, p in net.named_parameters()}
            trainer.load_state_dict(state)
            assert trainer.step(**batch) == 0


# --- the config of a host application ----------------------------------------------------------------


def test_a_config_of_another_program_is_read(tmp_path, caplog):
    config = {"model_type": "x", "learning_rate": 1e-4,
              "memory": {"strategy": "stagehand",
                         "stagehand": {"activation_stagehand": {"enabled": True, "vram_high_watermark_mb": 16,
                                                                "vram_low_watermark_mb": 12, "slabs_per_class": [4, 1, 1, 0, 0],
                                                                "pinned_pool_max_mb": 64, "telemetry_enabled": False}}}}
    (tmp_path / "run.json").write_text(json.dumps(config))
    module = segue.compile(Net(), (torch.zeros(3, 4),), device="sim:dram=32MiB")
    trainer = segue.Trainer([module], optimizer=segue.SGD(), config=tmp_path / "run.json")
    trainer.step(x=torch.ones(3, 4))
    trainer.step(x=torch.ones(3, 4))
    warned = [r.getMessage() for r in caplog.records if r.name == "segue"]
    assert [w for w in warned if "strategy" in w] == ["config: keys of another program are left to it: model_type, learning_rate, memory.strategy"]
    config["memory"]["stagehand"]["activation_stagehand"]["vram_high_watermark"] = 3
    with pytest.raises(segue.ConfigError, match='nearest known key is "vram_high_watermark_mb"'):
        segue.Trainer([module], optimizer=segue.SGD(), config=config)


# --- bf16 under streamed weights ----------------------------------------------------------------------


class Block(nn.Module):
    """As libraries write them: statistics and the activation in f32, everything that is handed on in bf16."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x.float()).to(x.dtype)
        return x + self.down(nn.functional.silu(self.up(h).float()).to(x.dtype))


class Blocks(nn.Module):

    def __init__(self, width=32):
        super().__init__()
        self.h = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x):
        for block in self.h:
            x = block(x)
        loss = x.float().square().mean()
        return {"loss": loss}


def test_bf16_blocks_are_streamed_by_default(tmp_path):
    torch.manual_seed(0)
    config = {"memory": {"stagehand": {"pinned_pool_mb": 4, "pinned_slab_mb": 1, "vram_high_watermark_mb": 2,
                                       "vram_low_watermark_mb": 1, "telemetry_file": str(tmp_path / "t.jsonl")}}}
    x = torch.randn(16, 32).bfloat16()
    losses = []
    for given in (None, config):
        torch.manual_seed(0)
        module = segue.compile(Blocks().bfloat16(), (x,), device="sim:dram=16MiB,pinned=8MiB")
        trainer = segue.Trainer([module], optimizer=segue.AdamW(), config=given)
        losses.append([trainer.step(x=x) for _ in range(2)])
        if given:
            assert len(trainer.streamed_blocks()) == 3
    assert losses[0] == losses[1]


# --- threads and copies -------------------------------------------------------------------------------


def test_threads_compile_at_once():
    x = torch.randn(3, 8)
    nets = [nn.Sequential(nn.Linear(8, 8 + i), nn.GELU(), nn.LayerNorm(8 + i), nn.Linear(8 + i, 2)) for i in range(4)]
    results, start = [None] * 4, threading.Barrier(4)

    def run(i):
        start.wait()
        try:
            compiled = segue.compile(nets[i], (x,))
            results[i] = compiled(x).detach()
            compiled(x[:2])  # another variant
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for net, result in zip(nets, results):
        assert isinstance(result, torch.Tensor), result
        torch.testing.assert_close(result, net(x), rtol=1e-5, atol=1e-5)


def saved_by_torch(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_by_torch],
                         ids=["deepcopy", "pickle", "torch.save"])
def test_a_compiled_module_is_copied_with_its_code(copied):
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    module = segue.compile(Net(), (x,), optimizer=segue.SGD(), name="net")
    module.train()
    before = module(x)["loss"].item()
    other = copied(module)
    made = dict(other._primary._bytes)
    assert other(x)["loss"].item() == before
    assert len(other._variants) == 1 and other._primary._bytes == made == module._primary._bytes, "nothing was compiled again"
    assert other.name == "net" and other.training
    # Its parameters are its own, and those of its source.
    with torch.no_grad():
        other.get_parameter("fc.weight").zero_()
        other.get_parameter("fc.bias").zero_()
    assert other(x)["loss"].item() == 0 and module(x)["loss"].item() == before
    assert segue.Trainer([other], optimizer=segue.SGD()).step(x=x) == 0
    other(x[:2])  # and other shapes are compiled as before


def test_a_module_of_a_file_says_how_it_is_copied(filed):
    module = segue.load(filed, filed.with_suffix(".safetensors"))
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(segue.InvalidArgumentError, match="segue.load the file again"):
            copied(module)
