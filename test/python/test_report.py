# ===- test_report.py - a run as one page --------------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""report.html: the figures in the page are those of the telemetry, one file shows them, however long the run was."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import segue
from nets import Net

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
RUN = BUILD / "bin" / "segue-run"
MIB = 2**20


def data_of(page):
    text = Path(page).read_text()
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert len(found) == 1
    return json.loads(found[0])


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def flat(line, prefix=""):
    """What of a line is a number, by key."""
    numbers = {}
    for key, value in line.items():
        if isinstance(value, dict) and key != "block_details":
            numbers.update(flat(value, f"{prefix}{key}."))
        elif isinstance(value, (bool, int, float)):
            numbers[prefix + key] = float(value)
    return numbers


def same_columns(table, lines, step_key):
    assert table["lines"] == len(lines) and not table["bucketed"]
    assert table["step"] == [line[step_key] for line in lines]
    rows = [flat(line) for line in lines]
    keys = set().union(*rows) - {step_key}
    assert set(table["columns"]) == keys
    for key in keys:
        assert table["columns"][key]["mean"] == [row.get(key) for row in rows], key


def run(folder, mode, device, steps=6):
    x, y = torch.randn(1024, 64), torch.randn(1024, 64)
    torch.manual_seed(0)
    activation = {"enabled": True, "mode": mode, "telemetry_file": str(folder / "activation.jsonl")}
    module = segue.compile(Net(layers=5), (x, y), device=device)
    memory = module.memory(optimizer=segue.AdamW(lr=1e-3))
    # Of what a plan may do, it sends saved tensors away at this one.
    cap = (3 * memory.smallest_budget_bytes + memory.unconstrained.peak_bytes) // 4 / MIB
    if mode == "watermark":
        cap = (memory.smallest_budget_bytes + memory.unconstrained.peak_bytes) / MIB
        activation |= {"vram_high_watermark_mb": 1.2, "vram_low_watermark_mb": 1, "pinned_pool_classes_mb": [1],
                       "slabs_per_class": 8}
    config = {"memory": {
        "stitch": {"telemetry_file": str(folder / "stitch.jsonl")},
        "stagehand": {"conductor_config": {"enabled": True, "vram_hard_cap_mb": cap, "vram_soft_cap_mb": cap,
                                           "telemetry_interval_steps": 1,
                                           "telemetry_file": str(folder / "conductor.jsonl")},
                      "activation_stagehand": activation}}}
    trainer = segue.Trainer([module], optimizer=segue.AdamW(lr=1e-3), clip_grad_norm=1.0, config=config,
                            report=folder / "run.html")
    results = []
    with trainer:
        for _ in range(steps):
            trainer.step(x=x, y=y)
            results.append(trainer.last)
    return results, cap * MIB


@pytest.mark.parametrize("mode", ["planned", "watermark"])
def test_the_page_of_a_run_has_the_figures_of_its_telemetry(tmp_path, mode):
    # A line that an earlier run left is not of this one.
    (tmp_path / "stitch.jsonl").write_text('{"step": 900, "inputs_elided": 1}\n')
    device = f"sim:dram=32MiB,pinned=32MiB,link=4GB/s,latency={'2us' if mode == 'planned' else '3us'}"
    results, cap = run(tmp_path, mode, device)
    page = tmp_path / "run.html"
    data = data_of(page)
    assert data["version"] == 1 and data["device"] == device and data["cap_bytes"] == cap
    assert data["link"] == {"h2d_bytes_per_second": 4e9, "d2h_bytes_per_second": 4e9}

    head = data["head"]
    assert head["model"] == "Net" and head["parameters"] == head["trained"] == sum(p.numel() for p in Net(layers=5).parameters())
    assert head["settings"] == {"optimizer": "AdamW", "learning rate": 1e-3, "clip_grad_norm": 1.0, "precision": "f32"}
    assert head["config"]["stagehand"]["activation_stagehand"]["mode"] == mode and head["peak_bytes"] <= cap
    assert head["version"] == segue.__version__ and "processor" in head["machine"] and head["began"] <= head["written"] and "refresh_seconds" not in head

    steps = data["steps"]
    assert steps["step"] == [1, 2, 3, 4, 5, 6]
    assert steps["columns"]["loss"]["mean"] == [r.loss for r in results]
    assert steps["columns"]["grad_norm"]["mean"] == [r.grad_norm for r in results]
    assert all(seconds > 0 for seconds in steps["columns"]["seconds"]["mean"])

    same_columns(data["services"]["activations"], lines_of(tmp_path / "activation.jsonl"), "step")
    same_columns(data["services"]["conductor"], lines_of(tmp_path / "conductor.jsonl"), "step_id")
    same_columns(data["services"]["stitch"], lines_of(tmp_path / "stitch.jsonl")[1:], "step")
    # Until a plan is made again with measured times, it takes computing for fast and may leave the link alone.
    columns = data["services"]["activations"]["columns"]
    spilled, recomputed = (columns[f"activations_{what}"]["mean"] for what in ("spilled", "recomputed"))
    assert any(spilled) and all(map(max, spilled, recomputed))

    # Steps 1 to 4 were traced, 5 and 6 not.
    assert [t["step"] for t in data["timelines"]] == [1, 2, 3, 4]
    activation = lines_of(tmp_path / "activation.jsonl")
    named = 0
    for timeline, line in zip(data["timelines"], activation):
        assert [p["name"] for p in timeline["phases"]] == ["step_begin", "forward", "backward", "optimizer", "step_end"]
        memory = timeline["memory"]
        assert len(memory["ms"]) == len(memory["total"]) and 0 < max(memory["total"]) <= cap
        assert [sum(parts) for parts in zip(*memory["by"].values())] == memory["total"]
        assert max(memory["by"]["activations"]) > 0
        # Who holds the most is told by name, with the line of the model that made it.
        peak = timeline["peak"]
        assert peak["bytes"] == max(memory["total"]) == sum(holder["bytes"] for holder in peak["held"])
        assert peak["ms"] == pytest.approx(memory["ms"][memory["total"].index(peak["bytes"])], abs=1e-3)
        assert [h["bytes"] for h in peak["held"]] == sorted((h["bytes"] for h in peak["held"]), reverse=True)
        saved = [h for h in peak["held"] if h["role"] == "saved"]
        named += len(saved)  # none where watermarks have sent all of them away before a peak in the optimizer
        assert all(re.search(r"nets\.py:\d+:\d+", h.get("location", "")) and h["kind"] == "activations" for h in saved), saved
        weight = next(h for h in peak["held"] if h["value"].endswith(".weight") and h["kind"] == "weights")
        assert re.search(rf"nets\.py:\d+:\d+ \({re.escape(weight['value'].removesuffix('.weight'))}\)", weight["location"])
        # A session's own tensors have their names, but a few numbers for the device.
        assert max(memory["by"]["weights"]) > 0 and max(memory["by"]["optimizer"]) > 0
        assert max(memory["by"].get("other", [0])) <= 64
        # What left and came back went over the link, with the batch and the loss.
        link = timeline["link"]
        assert link["d2h_bytes"] >= line["spill_bytes"] and link["h2d_bytes"] >= line["restore_bytes"]
        assert line["spill_bytes"] > 0 or line["activations_recomputed"] > 0
        for direction in ("d2h", "h2d"):
            carried = sum(link[direction]) * link["bin_ms"] / 1e3
            assert carried == pytest.approx(link[f"{direction}_bytes"], rel=0.02)
    assert named
    # Working memory is told by what a program has in it, with lines, and the rest of it.
    held = [holder for timeline in data["timelines"] for holder in timeline["peak"]["held"]]
    temporaries = [holder for holder in held if holder.get("temporary")]
    assert temporaries and all(h["kind"] == "temporaries" and h["program"] in ("forward", "backward") for h in temporaries)
    assert any(re.search(r"nets\.py:\d+:\d+", h.get("location", "")) for h in temporaries)
    assert data["seams"]["elided"] > 0 and isinstance(data["seams"]["edges"], list)

    text = page.read_text()
    for outside in ("http://www.w3.org/2000/svg", "http-equiv"):  # names, not addresses that anybody asks
        text = text.replace(outside, "")
    assert "http" not in text and "src=" not in text and "@import" not in text


def test_a_page_without_services(tmp_path):
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    trainer = segue.Trainer([segue.compile(Net(layers=5), (x, y))], optimizer=segue.SGD(lr=0.1), report=tmp_path / "run.html",
                            trace=tmp_path / "trace.json")
    losses, means = [], []
    for step in range(1, 6):
        losses.append(trainer.step(x=x, y=y))
        if step % 2 == 0:
            means.append(trainer.evaluate_on([(x, y)], metrics={"greatest": lambda outputs, batch: batch["y"].max()}))
    trainer.close()
    data = data_of(tmp_path / "run.html")
    assert data["steps"]["columns"]["loss"]["mean"] == losses
    evaluations = data["evaluations"]
    assert evaluations["step"] == [2, 4] and evaluations["columns"]["eval_loss"]["mean"] == [m["loss"] for m in means]
    assert evaluations["columns"]["metrics.greatest"]["mean"] == pytest.approx([float(y.max())] * 2)
    assert data["services"] == {} and data["link"] is None and data["precision"] is None
    # One trace serves both: the report shows every step of it.
    assert [t["step"] for t in data["timelines"]] == [1, 2, 3, 4, 5]
    spans = [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e.get("ph") == "X"]
    assert spans.count("backward") == 5


@pytest.mark.parametrize("device", ["cpu", "sim:dram=32MiB,pinned=32MiB,link=4GB/s"])
def test_a_trace_has_kernels_and_copies(tmp_path, device):
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    trainer = segue.Trainer([segue.compile(Net(layers=5), (x, y), device=device)], optimizer=segue.SGD(lr=0.1), trace=tmp_path / "trace.json")
    trainer.step(x=x, y=y)
    trainer.profile([(x, y)] * 2, steps=1)  # which times the same commands by itself
    trainer.step(x=x, y=y)
    trainer.close()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    track = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    commands = [e for e in spans if track[e["tid"]] == "compute" and "program" in e["args"]]
    # Five layers, forward and twice backward but for the first, in each of three steps.
    products = [e for e in commands if e["args"]["kind"] == "Matmul"]
    assert len(products) == 3 * (5 + 2 * 5 - 1) or len(products) == 3 * (5 + 2 * 5)
    assert all(e["args"]["bytes"] > 0 and e["args"]["flops"] == 2 * 8 * 64 * 64 and "nets.py:" in e["args"]["location"] for e in products)
    assert any(e["name"].startswith("launch ") and e["args"]["bytes"] > 0 for e in commands)
    # They lie within the phase of their program, one behind the other.
    for phase in (e for e in spans if track[e["tid"]] == "phase" and e["name"] == "backward"):
        inside = [e for e in commands if phase["ts"] - 1e-3 <= e["ts"] <= phase["ts"] + phase["dur"]]
        assert any(e["args"]["program"] == "backward" for e in inside) and not any(e["args"]["program"] == "forward" for e in inside)
    commands.sort(key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in zip(commands, commands[1:]))
    copies = [e for e in spans if track[e["tid"]] == "h2d"]
    assert bool(copies) == (device != "cpu") and all(e["args"]["bytes"] > 0 for e in copies)


def test_a_page_that_follows_its_run(tmp_path):
    page = tmp_path / "run.html"
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    with segue.Trainer([segue.compile(Net(layers=5), (x, y))], optimizer=segue.SGD(lr=0.1), report=page) as trainer:
        assert not page.exists()
        trainer.step(x=x, y=y)
        first = page.read_text()
        assert data_of(page)["head"]["refresh_seconds"] == 2 and data_of(page)["steps"]["lines"] == 1
        for _ in range(3):  # far less than two seconds
            trainer.step(x=x, y=y)
        assert page.read_text() == first
        with pytest.raises(segue.NanLossError):
            trainer.step(x=x * math.nan, y=y)
    head, steps = data_of(page)["head"], data_of(page)["steps"]
    assert "refresh_seconds" not in head and steps["lines"] == 4
    assert "NAN_LOSS" in head["failure"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.html"]


def test_segue_run_keeps_a_page(tmp_path):
    """segue-run train --report, followed until somebody ends it. A pipe gets one page, at the end."""
    compiled = [BUILD / "bin" / "segue-compile", ROOT / "test/tools/segue-run/Inputs/bigram.mlir", "--optimizer=adamw", "-o", tmp_path / "bigram.segue"]
    subprocess.run(compiled, check=True, timeout=60)
    (tmp_path / "text").write_bytes(b"abcdefgh" * 500)
    train = [RUN, "train", tmp_path / "bigram.segue", "--parameter", "table=256x256xf32=0.01", "--data", tmp_path / "text", "--lr", "0.02", "--report"]
    page = tmp_path / "run.html"
    with subprocess.Popen([*train, page, "--steps", "10000000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        until = time.monotonic() + 60
        while not page.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert data_of(page)["head"]["refresh_seconds"] == 2
        run.terminate()
        run.wait(timeout=60)
    data = data_of(page)
    assert "refresh_seconds" not in data["head"] and data["head"]["model"] == "bigram" and data["head"]["settings"] == {"learning rate": 0.02}
    assert data["head"]["parameters"] == 256 * 256 and data["steps"]["lines"] > 1
    piped = subprocess.run([*train, "/dev/stderr", "--steps", "3"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
    assert piped.returncode == 0 and piped.stderr.count("<!DOCTYPE html>") == 1


def test_the_page_is_written_seldom(tmp_path):
    """At once where no time is to pass between two pages, but no more than a fiftieth of the time goes into it."""
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    trainer = segue.Trainer([segue.compile(Net(layers=5), (x, y))], optimizer=segue.SGD(lr=0.1), report=tmp_path / "run.html")
    trainer._report.keep_at(tmp_path / "run.html", seconds=0)
    written = 0
    begin, before = time.perf_counter(), None
    while written < 3 and time.perf_counter() - begin < 60:  # beside others a page may take as long as a second of the run pays for
        trainer.step(x=x, y=y)
        now = (tmp_path / "run.html").stat().st_mtime_ns
        written, before = written + (now != before), now
    trainer.close()
    assert written == 3 and data_of(tmp_path / "run.html")["steps"]["lines"] > 2 * written


def test_a_run_goes_on_without_its_page(tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    trainer = segue.Trainer([segue.compile(Net(layers=5), (x, y))], optimizer=segue.SGD(lr=0.1), report=folder / "run.html")
    folder.rmdir()
    trainer.step(x=x, y=y)
    with pytest.raises(segue.FileError):
        trainer.close()


def report(*arguments):
    return subprocess.run([RUN, "report", *map(str, arguments)], capture_output=True, text=True, timeout=100)


def weights_line(step):
    return {"step": step, "h2d_bytes": 1000 * step, "stall_time_ms": 0.25, "reload_ratio": 1.5, "aborted": False}


def precision_line(step):
    details = {f"h.{i}": {"sensitivity": 0.1 * i, "precision": "int8" if step >= 10 * i else "bf16", "reason": "x"} for i in range(4)}
    return {"step_id": step, "blocks_bf16": sum(step < 10 * i for i in range(4)), "blocks_int8": 0, "block_details": details}


def test_a_page_of_what_a_run_left(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    weights, precision = [weights_line(i) for i in range(1, 31)], [precision_line(i) for i in range(0, 40, 10)]
    losses = [{"step": i, "loss": 1 / i, "grad_norm": None, "seconds": 0.1} for i in range(1, 31)]
    for name, lines in (("stagehand", weights), ("precision", precision), ("train", losses)):
        (logs / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (logs / "other.jsonl").write_text('{"something": 1}\n\n{"step": 1, "lo')  # half a line: the run was killed
    done = report("--telemetry", logs, "-o", tmp_path / "r.html", "--cap", "3MiB", "--device", "sim:dram=8MiB,h2d=2GB/s,d2h=1GB/s")
    assert done.returncode == 0 and "1 lines are of no service" in done.stderr, done.stderr
    data = data_of(tmp_path / "r.html")
    same_columns(data["services"]["weights"], weights, "step")
    same_columns(data["services"]["precision"], precision, "step_id")
    assert data["precision"] == {"step": [0, 10, 20, 30], "blocks": {
        "h.0": ["int8"] * 4, "h.1": ["bf16", "int8", "int8", "int8"], "h.2": ["bf16", "bf16", "int8", "int8"],
        "h.3": ["bf16", "bf16", "bf16", "int8"]}}
    assert data["steps"]["columns"]["loss"]["mean"] == [line["loss"] for line in losses]
    assert data["cap_bytes"] == 3 * MIB and data["link"] == {"h2d_bytes_per_second": 2e9, "d2h_bytes_per_second": 1e9}
    assert data["timelines"] == []


def test_a_long_run_stays_readable(tmp_path):
    """100,000 lines: buckets that lose neither the greatest nor the least, in a page that a browser opens at once."""
    count = 100_000
    with open(tmp_path / "activation.jsonl", "w") as file:
        for step in range(1, count + 1):
            stall = 777.0 if step == 61_803 else math.sin(step) + 2
            file.write(json.dumps({"step": step, "activations_saved": 12, "stall_time_ms": stall, "kept_reasons": {}}) + "\n")
    done = report("--telemetry", tmp_path / "activation.jsonl", "-o", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").stat().st_size < 400_000
    table = data_of(tmp_path / "r.html")["services"]["activations"]
    assert table["bucketed"] and table["lines"] == count and len(table["step"]) == 2000
    assert table["step"][0] == 1 and table["last_step"] == count and table["step"] == sorted(table["step"])
    column = table["columns"]["stall_time_ms"]
    assert max(column["max"]) == 777.0
    at = column["max"].index(777.0)
    assert table["step"][at] <= 61_803 < table["step"][at + 1]
    assert all(low <= mean <= high for low, mean, high in zip(column["min"], column["mean"], column["max"]))
    assert sum(column["mean"]) / 2000 == pytest.approx((sum(math.sin(s) + 2 for s in range(1, count + 1)) + 774) / count, rel=1e-2)


def test_what_cannot_be_a_report(tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"step": 1, "loss": 2}\nnot JSON\n{"step": 2, "loss": 2}\n')
    done = report("--telemetry", broken, "-o", tmp_path / "r.html")
    assert done.returncode == 1 and "FILE_CORRUPT" in done.stderr and "broken.jsonl, line 2: a JSON object was expected" in done.stderr
    assert not (tmp_path / "r.html").exists()
    (tmp_path / "empty").mkdir()
    done = report("--telemetry", tmp_path / "empty", "-o", tmp_path / "r.html")
    assert done.returncode == 1 and "there is no .jsonl file in this folder" in done.stderr
    broken.write_text("{}\n")
    (tmp_path / "trace.json").write_text("[]")
    done = report("--telemetry", broken, "--trace", tmp_path / "trace.json", "-o", tmp_path / "r.html")
    assert done.returncode == 1 and "no trace of segue-run train --trace" in done.stderr
    done = report("--telemetry", broken, "-o", tmp_path / "absent" / "r.html")
    assert done.returncode == 1 and "IO_FAILED" in done.stderr


def test_names_do_not_end_the_script(tmp_path):
    hostile = "</script><b>"
    (tmp_path / "p.jsonl").write_text(json.dumps(
        {"step_id": 1, "blocks_bf16": 1, "block_details": {hostile: {"precision": "bf16"}}}) + "\n")
    assert report("--telemetry", tmp_path, "-o", tmp_path / "r.html").returncode == 0
    assert hostile not in (tmp_path / "r.html").read_text()
    assert list(data_of(tmp_path / "r.html")["precision"]["blocks"]) == [hostile]


