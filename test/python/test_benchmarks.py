# ===- test_benchmarks.py - the benchmarks of single parts, for a moment -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every program of bench/ runs and prints its figures; what they are is for an idle machine (bench/RESULTS.md)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))


def output(*command, status=(0,)) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode in status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program, chosen", [
    ("engine", ["matmul/f32/threads:1/fc.*", "attention_grad/f32/threads:1.*", "region/.*gap:0us.*"]),
    ("services", ["conductor.*"]),
])
def test_google_benchmarks(program, chosen):
    for pattern in chosen:
        text = output(BUILD / "bin" / f"segue-bench-{program}", f"--benchmark_filter={pattern}", "--benchmark_min_time=0.001", "--benchmark_format=json")
        rows = json.loads(text)["benchmarks"]
        assert rows and all(row["real_time"] > 0 and "error_occurred" not in row for row in rows)


def test_convolutions():
    text = output(warm.python(), ROOT / "bench/engine/convolutions.py", "--calls=1", "--only=512")
    rows = re.findall(r"^\| .* \| (?:f32|bf16) \|(?: [\d.]+ \| [\d.]+ \| [\d.]+ \|){3}$", text, re.M)
    assert len(rows) == 2, text


def test_sorting():
    text = output(warm.python(), ROOT / "bench/engine/sorting.py", "--calls=1", "--only=topk 50")
    assert len(re.findall(r"^\| topk 50 \| \d+ x 50257 \| f32 \|(?: [\d.]+ \|){3}$", text, re.M)) == 2, text


def test_pooling():
    text = output(warm.python(), ROOT / "bench/engine/pooling.py", "--calls=1", "--only=3 x 3 by 2", "--size=8")
    assert len(re.findall(r"^\| (?:max|mean) 3 x 3 by 2 \| 8 x 64 x 8 x 8 \| [a-z ]+ \| (?:forward|step) \|(?: [\d.]+ \|){3}$", text, re.M)) == 8, text


def test_generation():
    text = output(warm.python(), ROOT / "bench/generate/run.py", "--config=T", "--length=24", "--tokens=6", "--rounds=1", "--profile")
    assert re.findall(r"^\| (segue|eager) \|(?: [\d.]+ \|){3} equal \|$", text, re.M) == ["segue", "eager"], text


def test_a_training_step_beside_pytorchs_autocast(tmp_path):
    text = output(warm.python(), ROOT / "bench/run.py", "--config=T", "--bf16", "--peers=segue,eager", "--steps=8", "--rounds=1", f"--work={tmp_path}")
    assert re.findall(r"^\| (segue|torch eager) bf16 \|", text, re.M) == ["segue", "torch eager"], text


def test_networks_for_images():
    text = output(warm.python(), ROOT / "bench/images/run.py", "--models=unet", "--peers=segue,eager", "--size=32", "--steps=8", "--rounds=1")
    assert re.findall(r"^\| unet \| (segue|eager) \|", text, re.M) == ["segue", "eager"], text


def test_where_the_steps_of_a_gpt_go(tmp_path):
    weights = tmp_path / "gpt_t.npz"
    output(warm.python(), ROOT / "bench/peers/gpt_gen.py", "T", weights)
    done = subprocess.run([warm.python(), ROOT / "bench/peers/gpt_segue.py", weights, "--config=T", "--threads=1", "--steps=6", "--profile=2"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.search(r"^2 steps of [\d.]+ ms, \d+ commands$", done.stderr, re.M), done.stderr


def test_a_submit_with_and_without_services():
    # Status 1 says that disabled services cost more than the noise: no finding of three rounds beside other work.
    text = output(BUILD / "bin" / "segue-bench-hook", 3, status=(0, 1))
    rows = re.findall(r"^(.+?) {2,}([\d.]+) +([+-][\d.]+) +([+-][\d.]+)$", text, re.M)
    assert [row[0] for row in rows] == ["no sink", "services disabled", "a sink that does nothing", "Conductor", "no sink, again"]
    assert all(float(row[1]) > 0 for row in rows)


def test_to_layout(record_property):
    text = output(BUILD / "bin" / "segue-bench-transfer", 1, 1, "768x3072")
    assert len(re.findall(r"^\| (?:de)?quantize int8 768x3072 +\|(?: +[\d.]+ \|){6} 0\.\d(?: MISSED)? \|$", text, re.M)) == 2
    for row in re.findall(r"^\| (.* MISSED) \|$", text, re.M):
        record_property("missed", row)


def test_fit():
    spill = BUILD / "check" / "bench-fit"  # on the disk of the build: a temporary folder may lie in memory
    spill.mkdir(parents=True, exist_ok=True)
    text = output(warm.python(), ROOT / "bench/fit/run.py", "--models", "mlp-1", "--steps", 1, "--spill-dir", spill)
    assert len(re.findall(r"^\| mlp-1 \| (?:-|[\d.]+) \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [+-]\d+\.\d\d% \|(?: [\d.]+ \|){4}$", text, re.M)) == 2, text


def test_a_spill_file():
    # Beside the build, which lies on a disk; the folder for temporary files may be memory.
    text = output(BUILD / "bin" / "segue-bench-spill", 1, 2, BUILD)
    rows = re.findall(r"^\| (.+?) \|((?: [\d.]+ \|){6})$", text, re.M)
    assert {"plain, 1 thread", "plain, 8 threads", "threads, calls of 1 MiB"} <= {row[0] for row in rows}, text
    assert all(float(figure) > 0 for _, figures in rows for figure in figures.split("|")[::2] if figure.strip())


def test_looking_for_nan():
    text = output(BUILD / "bin" / "segue-bench-nonfinite", 1)
    assert {row[0] for row in re.findall(r"(f32|bf16|f16) +\d+ KiB +([\d.]+) us +[\d.]+ GB/s", text)} == {"f32", "bf16", "f16"}


def test_the_cuda_probe():
    """Without a driver or a device it says so; with one, a part of it runs."""
    probe = BUILD / "bin" / "segue-cuda-probe"
    done = subprocess.run([probe, "queues"], capture_output=True, text=True, timeout=60)
    if done.returncode == 2:
        assert done.stdout == "" and re.fullmatch(r"cuda-probe: (no CUDA driver: \S+ is not there|cuInit: CUDA_ERROR_\w+ \(\d+\))\n", done.stderr)
    else:
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0 and {row["part"] for row in rows} == {"context", "queues"}, done.stderr
    refused = subprocess.run([probe, "quues"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and 'there is no part "quues"' in refused.stderr


@pytest.mark.parametrize("only", ["softmax_bf16_1024_v8_t128_registers", "colsum_f32_512_v4", "flash_64_128_s2"])
def test_cuda_kernels_lower(tmp_path, only):
    """The schedules that were measured on a GPU are valid MLIR down to NVVM; a toolkit makes PTX of it."""
    text = output(sys.executable, ROOT / "bench" / "cuda" / "kernels" / "build.py", "--small", "--only", only, "--out", tmp_path)
    [name] = text.split()
    lowered = (tmp_path / f"{name}.nvvm.mlir").read_text()
    assert "nvvm.kernel" in lowered and "nvvm.barrier" in lowered and "memref." not in lowered
    assert ("nvvm.mma.sync" in lowered) == only.startswith("flash")


def test_submit():
    text = output(sys.executable, ROOT / "bench" / "submit" / "run.py", "--build", BUILD, "--peers", "")
    assert len(re.findall(r"^\| segue \| .* \| [\d.]+ \|$", text, re.M)) == 4
    output(sys.executable, ROOT / "bench" / "submit" / "run.py", "--build", BUILD, "--peers", "jaxx", status=(2,))


@pytest.mark.parametrize("script, options, place", [
    ("run.py", ["--table"], "."), ("memory/run.py", ["--table"], "file/results"), ("memory/headline.py", ["--table"], "."),
    ("memory/headline.py", ["--json"], "file/results"), ("memory/figure.py", ["page.html", "-o"], "."), ("peers/gpt_gen.py", ["S"], "."),
])
def test_results_that_cannot_be_written_are_refused_before_the_work(tmp_path, script, options, place):
    (tmp_path / "file").write_text("")
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *options, tmp_path / place], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and str(tmp_path / place) in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ranks(tmp_path):
    text = output(warm.python(), ROOT / "bench/ranks/run.py", "--config", "T", "--steps", 8, "--peers", "segue-zero2", "--work", tmp_path)
    assert re.search(r"^\| segue-zero2 (\| \d+ ){3}\| [\d.]+ \| [\d.]+ \| - \| \d+ \| \d\.\d{4} \|$", text, re.M), text


def test_saves_of_ranks(tmp_path):
    text = output(warm.python(), ROOT / "bench/ranks/pipeline.py", "--config", "T", "--batches", 2, "--steps", 5)
    assert re.search(r"^\| segue \| +\d+ \| +\d+ \| [0-9.]+ \| [0-9.]+ \|$", text, re.M) and "| torch |" in text, text
    text = output(warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--no-python", warm.python(),
                  ROOT / "bench/ranks/checkpoints.py", "--folder", tmp_path, "--width", 32, "--turns", 1, "--strategies", "zero1")
    assert re.findall(r"^(\w+) \S+: best [\d.]+ s, median [\d.]+ s of 1$", text, re.M) == ["zero1", "zero1"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_beside_busy_programs(tmp_path):
    text = output(warm.python(), ROOT / "bench/neighbour/run.py", "--configs", "T", "--peers", "segue", "--rounds", 1, "--loops", 1, "--steps", 8, "--work", tmp_path)
    assert re.search(r"^\| T \| segue \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", text, re.M), text


def test_states_of_8_bits():
    # Status 1 says that losses differ, which two steps do not show.
    run = (warm.python(), ROOT / "bench/states/run.py", "--config", "T", "--steps", 2)
    rows = re.findall(r"^(32|8) \|[\d., ]+\| ([\d.]+) \| [\d.]+$", output(*run, "--repeat", 0, status=(0, 1)), re.M)
    assert [bits for bits, _ in rows] == ["32", "8"] and float(rows[1][1]) < 0.3 * float(rows[0][1])
    assert len(re.findall(r"^(?:int8|dynamic|fp8|nearest|ours) \|.*\|.*\|.*\|.*$", output(*run, "--codes"), re.M)) == 5
