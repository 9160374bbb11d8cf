# ===- test_memory.py - what a budget means, said beforehand ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`model.memory` and `trainer.memory`: the figures of `segue-run fit`, kept by a run; options of the trainer."""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
import warm

import segue
from nets import Net
from segue import _runtime
from segue.trainer import _write_files

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))

from models import GPTConfig, GPTFirst, GPTLast  # noqa: E402

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))
DEVICE = "sim:dram=64MiB,link=16GB/s"
MIB = 2**20


def net(rows=2048, optimizer=segue.AdamW(lr=1e-3), device=DEVICE):
    torch.manual_seed(0)
    return segue.compile(Net(), (torch.randn(rows, 64), torch.randn(rows, 64)), optimizer=optimizer, device=device)


def gpt_trainer(**options):
    cfg = GPTConfig(layers=4, dim=48, heads=6, seq=64)
    tokens = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(2))
    batch = dict(tokens=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())
    torch.manual_seed(1)
    modules = {"first": segue.compile(GPTFirst(cfg, 2), batch["tokens"]),
               "last": segue.compile(GPTLast(cfg, 2), (torch.zeros(4, 64, 48), batch["targets"]))}
    return segue.Trainer(modules, optimizer=segue.AdamW(lr=1e-3), clip_grad_norm=1.0, **options), batch


def test_a_module_says_what_it_needs():
    memory = net().memory()
    assert memory.budget_bytes == 64 * MIB and memory.fits and not memory.why and memory.plan is memory.unconstrained
    assert memory.smallest.peak_bytes == memory.smallest_budget_bytes < memory.unconstrained.peak_bytes
    dram = memory.unconstrained.peaks["device_dram"]
    assert {"forward", "backward", "optimizer"} <= set(dram)
    live = max(dram.values())
    assert live == memory.unconstrained.live_bytes <= memory.unconstrained.peak_bytes
    # Six layers of 2048 x 64 floats are saved at least once, and those can leave.
    assert sum(t["bytes"] for t in memory.can_leave) >= 5 * 2048 * 64 * 4
    assert memory.unconstrained.services["activation_stagehand"]["leave"] == 0
    assert memory.smallest.services["activation_stagehand"]["leave"] > 0
    assert memory.smallest.peaks["host_pinned"], "what leaves lies on the host"
    assert memory.smallest.seconds >= memory.unconstrained.seconds > 0 and memory.unconstrained.added == 0
    assert memory.held and sum(size for _, size in memory.held) == memory.smallest.live_bytes <= memory.smallest_budget_bytes
    pinned = memory.smallest.tiers["host_pinned"]
    assert 0 < pinned["bytes"] == max(memory.smallest.peaks["host_pinned"].values()) <= pinned["capacity_bytes"] == 256 * MIB
    assert memory.unconstrained.tiers.keys() == {"device_dram"}
    dram = memory.unconstrained.tiers["device_dram"]
    assert dram["bytes"] == memory.unconstrained.peak_bytes and dram["capacity_bytes"] == 64 * MIB
    assert memory.unconstrained.peaks["device_dram"][dram["phase"]] == live >= sum(holder["bytes"] for holder in dram["held"]) > 0.9 * live
    link = memory.smallest.link
    assert link["out_bytes"] >= memory.smallest.services["activation_stagehand"]["out_bytes"] > 0 < link["in_bytes"]
    assert link["in_seconds"] == link["in_bytes"] / 16e9 < memory.smallest.seconds
    text = str(memory)
    for part in ("It fits in 64.00 MiB: a step takes ", "\nunconstrained ", "\nsmallest budget ", memory.set_by, memory.held[0][0]):
        assert part in text, text


def test_a_budget_is_planned_or_refused():
    module = net()
    free = module.memory()
    between = (free.unconstrained.peak_bytes + free.smallest_budget_bytes) // 2
    memory = module.memory(between)
    assert memory.fits and memory.budget_bytes == between >= memory.plan.peak_bytes >= memory.plan.live_bytes == max(memory.plan.peaks["device_dram"].values())
    assert 0 < memory.plan.services["activation_stagehand"]["leave"]
    assert memory.plan.services["activation_stagehand"]["out_bytes"] >= free.unconstrained.live_bytes - between
    with pytest.raises(segue.BudgetInfeasibleError) as error:
        module.memory(free.smallest_budget_bytes - 1)
    assert error.value.report["smallest_budget_bytes"] == free.smallest_budget_bytes
    assert error.value.report["set_by"] == free.set_by and error.value.report["held"] == free.held
    assert str(free.smallest_budget_bytes) in str(error.value) and free.held[0][0] in str(error.value)
    assert isinstance(error.value, MemoryError)


def test_budgets_as_people_write_them():
    module = net(rows=8)
    assert module.memory("1.5 MiB").budget_bytes == 3 * MIB // 2
    assert module.memory("2MB").budget_bytes == 2_000_000
    assert module.memory(4 * MIB).budget_bytes == 4 * MIB
    for wrong in ("lots", "12 parsecs", "-3MiB"):
        with pytest.raises(segue.InvalidArgumentError, match="is not a quantity such as 512MiB"):
            module.memory(wrong)
    with pytest.raises(segue.InvalidArgumentError, match="a float was given"):
        module.memory(0.5)


def test_other_shapes_and_devices():
    module = net(rows=64, device="cpu")
    free = module.memory()
    assert re.match(r"sim:virtual,dram=\d+,pinned=67108864,disk=\d+,", free.device) and "disk" in free.smallest.tiers
    larger = module.memory(None, torch.randn(512, 64), torch.randn(512, 64))
    assert larger.unconstrained.peak_bytes > module.memory().unconstrained.peak_bytes
    slow = module.memory(device="sim:dram=1GiB,link=1MB/s")
    assert slow.device.startswith("sim:virtual") and slow.smallest.seconds > module.memory().smallest.seconds
    assert module.memory(micro_batches=3).unconstrained.seconds > 1.5 * module.memory().unconstrained.seconds
    with pytest.raises(segue.InvalidArgumentError, match="micro_batches is 0"):
        module.memory(micro_batches=0)
    assert module.memory(device="cpu:dram=1MiB").budget_bytes == MIB


def test_what_a_module_alone_lacks():
    with pytest.raises(segue.InvalidArgumentError, match="compiled without an optimizer.*memory\\(optimizer="):
        net(rows=8, optimizer=None).memory()
    assert net(rows=8, optimizer=None).memory(optimizer=segue.SGD(lr=0.1)).smallest_budget_bytes > 0
    half = segue.compile(nn.Linear(4, 4), torch.zeros(2, 4), optimizer=segue.SGD(lr=0.1))
    with pytest.raises(segue.InvalidArgumentError, match='float scalar output called "loss"'):
        half.memory()


def test_the_tool_says_the_same(tmp_path):
    module = net()
    module.save(tmp_path / "net.segue")
    memory = module.memory("6MiB")
    told = subprocess.run([BUILD / "bin" / "segue-run", "fit", tmp_path / "net.segue", "--budget", "6MiB", "--device", DEVICE,
                           "--json"], capture_output=True, text=True, timeout=60, check=True)
    plans = {plan["what"]: plan for plan in json.loads(told.stdout)["plans"]}
    for step in (memory.unconstrained, memory.plan, memory.smallest):
        assert plans[step.what]["peaks"] == step.peaks and plans[step.what]["services"] == step.services


def test_a_run_keeps_to_what_was_said(tmp_path):
    """The cap that the plan was made for is all that the device has: the run would fail if it held one byte more."""
    free, batch = gpt_trainer(device=DEVICE)
    losses = [free.step(**batch) for _ in range(3)]
    told = free.memory()
    without, _ = gpt_trainer(device=f"sim:dram={told.unconstrained.peak_bytes},link=16GB/s")
    assert [without.step(**batch) for _ in range(3)] == losses, "what a run takes that nobody caps"
    cap = (told.unconstrained.peak_bytes + told.smallest_budget_bytes) // 2
    assert free.memory(cap).plan.services["activation_stagehand"]["leave"] > 0

    def config(bytes_):
        return {"memory": {"stagehand": {
            "conductor_config": {"enabled": True, "vram_hard_cap_mb": bytes_ / MIB, "vram_soft_cap_mb": bytes_ / MIB,
                                 "telemetry_enabled": False},
            "activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_enabled": False}}}}

    kept, _ = gpt_trainer(device=f"sim:dram={cap},link=16GB/s", config=config(cap))
    assert [kept.step(**batch) for _ in range(3)] == losses
    least, _ = gpt_trainer(device=f"sim:dram={told.smallest_budget_bytes},link=16GB/s", config=config(told.smallest_budget_bytes))
    assert [least.step(**batch) for _ in range(3)] == losses
    refused, _ = gpt_trainer(device="sim:dram=97MiB,link=16GB/s", config=config(told.smallest_budget_bytes - MIB // 4))
    with pytest.raises(segue.BudgetInfeasibleError):
        refused.step(**batch)
    assert refused.step_count == 0


def test_a_run_on_the_cpu_takes_what_was_said():
    """As many bytes live at once there, to one per cent, with the parameters, whose memory is PyTorch's."""
    trainer, batch = gpt_trainer(device="cpu:threads=1")  # a device of this test alone: its books begin empty
    for _ in range(3):
        trainer.step(**batch)
    told = trainer.memory().unconstrained
    taken = trainer.peak_bytes + _runtime.outside_bytes(trainer._device)
    assert abs(taken - told.live_bytes) <= 0.01 * told.live_bytes and taken <= told.peak_bytes


def test_a_config_as_a_dict(tmp_path):
    telemetry = tmp_path / "stitch.jsonl"
    config = {"memory": {"stitch": {"telemetry_file": str(telemetry)}}}
    trainer, batch = gpt_trainer(device=DEVICE, config=config)
    trainer.step(**batch)
    assert json.loads(telemetry.read_text())["step"] == 1
    with pytest.raises(segue.ConfigError) as error:
        gpt_trainer(device=DEVICE, config={"memory": {"stich": {}}})
    assert "stitch" in str(error.value)


def test_logs_of_the_services(tmp_path):
    config = {"memory": {"stagehand": {"conductor_config": {"enabled": True, "telemetry_enabled": False}}}}
    trainer, batch = gpt_trainer(device="sim:dram=65MiB,link=16GB/s", config=config, record_events=tmp_path)
    trainer.step(**batch)
    del trainer
    gc.collect()
    checked = subprocess.run([BUILD / "bin" / "segue-run", "replay", tmp_path / "conductor.json", "--check"],
                             capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    with pytest.raises(segue.FileError, match="does not exist; make it first"):
        gpt_trainer(device=DEVICE, config=config, record_events=tmp_path / "absent")


def test_weights_that_come_by_block(tmp_path):
    plain, batch = gpt_trainer(device="sim:dram=68MiB,link=16GB/s")
    expected = [plain.step(**batch) for _ in range(3)]
    with pytest.raises(segue.InvalidArgumentError, match="no weights are streamed; give a config"):
        plain.keep_resident("first/blocks.0")
    config = {"memory": {"stagehand": {"telemetry_enabled": False, "prefetch_window_blocks": 1}}}
    trainer, batch = gpt_trainer(device="sim:dram=69MiB,link=16GB/s", config=config, record_events=tmp_path)
    blocks = trainer.streamed_blocks()
    assert len(blocks) == 4 and {block.split("/")[0] for block in blocks} == {"first", "last"}
    claim = trainer.reserve("first", 1 << 20, primary=False)
    with trainer.keep_resident(*blocks[:2]), trainer.as_guest("last"):
        losses = [trainer.step(**batch) for _ in range(3)]
    claim.release()
    assert losses == expected
    with pytest.raises(segue.NameUnknownError, match="is not registered"):
        trainer.keep_resident("first/none")
    del trainer
    gc.collect()
    log = tmp_path / "weight.json"
    events = json.loads(log.read_text())["events"]
    ops = [event["op"] for event in events]
    assert ops.count("reserve") == ops.count("guest") == 1 and ops.count("release") == 3
    errors = [event.get("expect", {}).get("error") for event in events if event["op"] == "keep"]
    assert errors == [None, "NAME_UNKNOWN"], "a claim that was refused is an event, too"
    checked = subprocess.run([BUILD / "bin" / "segue-run", "replay", log, "--check"], capture_output=True, text=True,
                             timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_a_trace_of_the_run(tmp_path):
    def spans(path):
        return [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]

    with gpt_trainer(device="sim:dram=66MiB,link=16GB/s", trace=tmp_path / "with.json")[0] as trainer:
        trainer.step(**gpt_trainer()[1])
    assert {"forward", "backward", "optimizer"} <= set(spans(tmp_path / "with.json"))
    trainer, batch = gpt_trainer(device="sim:dram=67MiB,link=16GB/s", trace=tmp_path / "gone.json")
    trainer.step(**batch)
    assert not (tmp_path / "gone.json").exists()
    del trainer
    gc.collect()
    assert spans(tmp_path / "gone.json").count("backward") == 1
    with pytest.raises(segue.FileError, match="absent"):  # before the first step, not after the last
        gpt_trainer(trace=tmp_path / "absent" / "trace.json")


def test_a_trace_that_is_full_says_so(tmp_path, caplog):
    """What it does then, StepTraceTest.EndsWhereItIsFull shows; here is who says it."""
    class Full:
        ended_after = 7

        def write(self, path):
            self.path = path

    full = Full()
    _write_files(SimpleNamespace(finish_records=lambda: None), [(full, tmp_path / "trace.json"), (None, None)])
    assert full.path == str(tmp_path / "trace.json") and "trace.json has the first 7 steps" in caplog.text


def test_gradients_take_the_memory_of_what_backward_has_freed():
    torch.manual_seed(0)
    layers = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(256, 256, bias=False), nn.Tanh())))
    x = torch.randn(256, 256)
    module = segue.compile(layers, (x,), device="cpu:threads=1")
    module(x).sum().backward()
    saved = gradients = 12 * 256 * 256 * 4
    assert gradients < module._device.peak_bytes < 0.85 * (saved + gradients)


GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/memory-budget.md").read_text()


def test_the_guide_is_true(tmp_path, monkeypatch):
    """Its Python runs, its commands run, its config is one, in this order and in one folder."""
    monkeypatch.chdir(tmp_path)  # telemetry goes to the current folder
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.M | re.S)
    environment = os.environ | {"PATH": f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(BUILD / "python")}
    run = lambda command: subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)  # noqa: E731
    done = {"python": 0, "sh": 0, "json": 0}
    for kind, text in blocks:
        done[kind] += 1
        if kind == "json":
            batch = torch.randn(64, 64), torch.randn(64, 64)
            module = segue.compile(Net(), batch, optimizer=segue.AdamW(lr=1e-3), device="sim:dram=640MiB,pinned=8MiB,link=16GB/s")
            with segue.Trainer([module], optimizer=segue.AdamW(lr=1e-3), config=json.loads(text)) as trainer:
                assert trainer.step(x=batch[0], y=batch[1]) > 0
            continue
        result = run([warm.python(), "-c", text] if kind == "python" else ["bash", "-euo", "pipefail", "-c", text])
        assert result.returncode == 0, text + result.stdout + result.stderr
        if "--verify-invariance" in text:
            assert "no run differs" in result.stdout
            assert "departed" not in result.stderr, "every step keeps to the addresses of its plan"
    assert done == {"python": 1, "sh": 3, "json": 1}
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (Path(__file__).resolve().parents[2] / "docs/guides" / link).exists()
