# ===- test_mpi.py - ranks that mpirun starts -------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`mpirun segue-run train --ranks mpi`: the bits of one rank that has the batches of all, and ends that every rank has alike."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import segue

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
RUN = BUILD / "bin" / "segue-run"

sys.path.insert(0, str(ROOT / "examples"))

from models import GPT, GPTConfig, GPTFirst, GPTLast  # noqa: E402

# Tests may run as root, on fewer processors than ranks, and where a process may not read another's memory.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none"]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """A compiled GPT with its weights."""
    folder = tmp_path_factory.mktemp("gpt")
    torch.manual_seed(0)
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    segue.compile(GPT(GPTConfig(layers=3, dim=32, heads=4, seq=32)), (tokens, tokens), optimizer=segue.AdamW(lr=1e-2),
                  name="gpt").save(folder / "gpt.segue", weights=True)
    return folder


def command(*arguments, device="cpu:threads=1", steps=20):
    return [RUN, "train", "gpt.segue", "--weights", "gpt.safetensors", "--data", ROOT / "README.md", "--steps", str(steps), "--lr", "0.01", "--clip", "1",
            "--device", device, *map(str, arguments)]


def run(folder, words, **more):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TMPDIR": "/tmp"}
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env=environment | more)


def ranks(folder, count, words, **more):
    return run(folder, [*MPIRUN, "-n", str(count), *words], **more)


def steps_of(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return re.findall(r"^step \d+ loss .*$", done.stdout, re.M)


MODES = {
    "in memory": ("cpu:threads=1", None),
    "simulated": ("sim:dram=64MiB,pinned=64MiB,link=16GB/s,threads=1", None),
    "by marks": ("sim:dram=2MiB,pinned=64MiB,link=16GB/s,threads=1",
                 {"activation_stagehand": {"enabled": True, "telemetry_enabled": True, "telemetry_file": "activations.jsonl", "min_spill_bytes": 0,
                                           "vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.25}}),
    "above a disk": ("cpu:threads=1", None),
    "by a plan": ("sim:streams,dram=1MiB,pinned=64MiB,threads=1,adversarial=3",
                  {"activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_enabled": False}}),
}


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_are_one_with_two_batches(gpt, mode, tmp_path):
    """Losses, norms and parameters to the bit, whatever each rank's budget does; rank 0 alone prints and writes."""
    device, services = MODES[mode]
    more = []
    if services:
        (tmp_path / "run.json").write_text(json.dumps({"memory": {"stagehand": services}}).replace("activations.jsonl", str(tmp_path / "activations.jsonl")))
        more = ["--config", tmp_path / "run.json"]
    if mode == "above a disk":
        more = ["--budget", "1MiB", "--spill-dir", tmp_path, "--spill-capacity", "64MiB", "--report", tmp_path / "run.html", "--trace", tmp_path / "run.json"]
    one = run(gpt, command("--accumulate", 2, "--save", tmp_path / "one.safetensors"))
    two = ranks(gpt, 2, command("--ranks", "mpi", "--save", tmp_path / "two.safetensors", *more, device=device))
    assert len(steps_of(one)) == 20 and steps_of(two) == steps_of(one)
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    if mode == "above a disk":
        assert two.stderr.count("memory: ") == 1 and re.search(r"on the disk [1-9]", two.stderr), two.stderr
        page = (tmp_path / "run.html").read_text()
        table = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])["ranks"]
        assert [line["rank"] for line in table] == [0, 1] and all(line["device_bytes"] <= 2**20 and line["messages"] >= 20 for line in table)
        trace = json.loads((tmp_path / "run.json").read_text())
        network = next(event["tid"] for event in trace["traceEvents"] if event["ph"] == "M" and event["args"]["name"] == "network")
        messages = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == network and event["name"] == "a sum over ranks"]
        assert len(messages) == 20 and all(event["dur"] > 0 and event["args"]["bytes"] for event in messages)
        assert trace["otherData"]["network"]["meetings"] > 3 * 20 and trace["otherData"]["network"]["messages"] == 20
    if mode == "by marks":
        records = [json.loads(line) for line in (tmp_path / "activations.jsonl").read_text().splitlines()]
        assert [record["step"] for record in records] == list(range(1, 21)) and records[-1]["activations_spilled"] > 0


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_three_ranks_that_add_in_order(gpt, strategy):
    assert steps_of(ranks(gpt, 3, command("--ranks", "mpi", "--strategy", strategy, "--add-in-order"))) == steps_of(run(gpt, command("--accumulate", 3)))


def with_evaluations(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert any("eval_loss" in line for line in lines)
    return lines


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_evaluations_and_schedules_of_ranks(gpt, strategy, tmp_path):
    """Two ranks share five batches out, and say the mean of one rank to the bit; their rates are its, too."""
    (tmp_path / "held").write_bytes((ROOT / "README.md").read_bytes()[-700:])
    more = ["--eval-data", tmp_path / "held", "--eval-every", 4, "--lr-schedule", "cosine", "--warmup", 3]
    assert with_evaluations(ranks(gpt, 2, command("--ranks", "mpi", "--strategy", strategy, *more, steps=6))) == \
        with_evaluations(run(gpt, command("--accumulate", 2, *more, steps=6)))


@pytest.mark.parametrize("device", ["cpu:threads=1", "sim:dram=64MiB,pinned=64MiB,link=16GB/s,threads=1"])
def test_states_that_are_shared_out(gpt, device, tmp_path):
    """The steps and files of one rank, those in mid-run too; and each rank holds half of the states."""
    one = run(gpt, command("--accumulate", 2, "--save", tmp_path / "one.safetensors"))
    two = ranks(gpt, 2, command("--ranks", "mpi", "--strategy", "zero1", "--save", tmp_path / "two.safetensors", "--save-every", 6, device=device))
    assert len(steps_of(one)) == 20 and steps_of(two) == steps_of(one)
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert steps_of(ranks(gpt, 2, command("--ranks", "mpi", "--strategy", "zero2", device=device))) == steps_of(one)
    on = [word for word in command("--ranks", "mpi", "--strategy", "zero1", "--add-in-order", steps=3) if word not in ("--weights", "gpt.safetensors")]
    alone = [word for word in command("--accumulate", 3, steps=3) if word not in ("--weights", "gpt.safetensors")]
    resumed = ["--resume", tmp_path / "two.safetensors"]
    assert steps_of(ranks(gpt, 3, on + resumed)) == steps_of(run(gpt, alone + resumed))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_are_shared_out_within_a_budget(gpt, accumulate):
    """Those that go when backward has ended, too, which the twin that plans is told of."""
    words = ["--ranks", "mpi", "--accumulate", accumulate]
    everywhere = steps_of(ranks(gpt, 2, command(*words, steps=5)))
    shared = ranks(gpt, 2, command(*words, "--strategy", "zero2", "--budget", "1300KiB", device="sim:pinned=64MiB,threads=1", steps=5))
    assert len(everywhere) == 5 and steps_of(shared) == everywhere


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_checkpoints_with_a_file_of_each_rank(gpt, strategy, tmp_path):
    """All that one rank has, in two files; any number of ranks goes on from them."""
    folder = f"{tmp_path}/all/"
    one = run(gpt, command("--accumulate", 2, "--save", tmp_path / "one.safetensors"))
    two = ranks(gpt, 2, command("--ranks", "mpi", "--strategy", strategy, "--save", folder, "--save-every", 6))
    assert len(steps_of(one)) == 20 and steps_of(two) == steps_of(one)
    assert len(os.listdir(folder)) == 3
    assert run(gpt, [RUN, "export", folder, tmp_path / "two.safetensors"]).stdout.startswith(f"{tmp_path}/two.safetensors: step 20, ")
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    alone = [word for word in command("--accumulate", 3, steps=3) if word not in ("--weights", "gpt.safetensors")]
    together = [word for word in command("--ranks", "mpi", "--strategy", strategy, "--add-in-order", steps=3) if word not in ("--weights", "gpt.safetensors")]
    expected = steps_of(run(gpt, [*alone, "--resume", tmp_path / "one.safetensors"]))
    assert steps_of(ranks(gpt, 3, [*together, "--resume", folder])) == expected
    # Above a disk checkpoints are sealed, where they are no folders.
    disk = ["--budget", "1MiB", "--spill-dir", tmp_path, "--spill-capacity", "64MiB"]
    assert steps_of(run(gpt, [*alone, *disk, "--resume", folder, "--save", folder, "--save-every", "1"])) == expected
    assert len(os.listdir(folder)) == 2


@pytest.mark.parametrize("device, budget", [("cpu:threads=1", None), ("sim:dram=64MiB,pinned=64MiB,link=16GB/s,threads=1", None), ("cpu:threads=1", "1MiB")])
def test_parameters_that_are_shared_out(gpt, device, budget, tmp_path):
    """The steps and files of one rank, whose parameters each rank has half of, within a budget too; and any number of ranks goes on from them."""
    more = ["--budget", budget, "--spill-dir", tmp_path, "--spill-capacity", "64MiB"] if budget else []
    one = run(gpt, command("--accumulate", 2, "--save", tmp_path / "one.safetensors"))
    two = ranks(gpt, 2, command("--ranks", "mpi", "--strategy", "zero3", "--save", tmp_path / "two.safetensors", "--save-every", 6, *more, device=device))
    assert len(steps_of(one)) == 20 and steps_of(two) == steps_of(one)
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    assert re.search(r"zero3: \d+ bytes of parameters come before their module runs and not with a block, as \"", two.stderr), two.stderr  # the table of tokens is the head's, too
    on = [word for word in command("--ranks", "mpi", "--strategy", "zero3", "--add-in-order", steps=3) if word not in ("--weights", "gpt.safetensors")]
    alone = [word for word in command("--accumulate", 3, steps=3) if word not in ("--weights", "gpt.safetensors")]
    resumed = ["--resume", tmp_path / "two.safetensors"]
    assert steps_of(ranks(gpt, 3, on + resumed)) == steps_of(run(gpt, alone + resumed))


@pytest.mark.parametrize("device, budget, tied", [("cpu:threads=1", None, False), ("sim:dram=64MiB,pinned=64MiB,link=16GB/s,threads=1", None, False),
                                                  ("sim:streams,dram=64MiB,pinned=64MiB,threads=1,adversarial=3", None, False), ("cpu:threads=1", "2MiB", False),
                                                  ("sim:streams,dram=64MiB,pinned=64MiB,threads=1,adversarial=3", None, True), ("cpu:threads=1", "2MiB", True)])
def test_files_that_run_one_behind_the_other(tmp_path, device, budget, tied):
    """Two halves of a GPT on two ranks: the steps and the file of one rank that has both, also where the table of tokens is the head's, too; a rank that is
    missing a file is told so."""
    torch.manual_seed(0)
    cfg = GPTConfig(layers=4, dim=64, heads=4, seq=32)
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    weights = {}
    for name, half, example in (("first", GPTFirst(cfg, 2), (tokens,)), ("last", GPTLast(cfg, 2), (torch.zeros(4, 32, 64), tokens))):
        segue.compile(half, example, optimizer=segue.AdamW(lr=1e-2), name=name).save(tmp_path / f"{name}.segue")
        weights |= {f"{name}.{key}" if key.startswith("h.") else key: value for key, value in half.state_dict().items()}
    if tied:
        del weights["head.weight"]
    save_file(weights, tmp_path / "both.safetensors")
    ties = ["--tie", "first.wte.weight=last.head.weight"] if tied else []
    words = [RUN, "train", "first.segue", "last.segue", *ties, "--weights", "both.safetensors", "--data", ROOT / "README.md", "--steps", "10", "--lr", "0.01", "--clip", "1", "--accumulate", "4"]
    more = ["--budget", budget, "--spill-dir", tmp_path, "--spill-capacity", "64MiB"] if budget else []
    together = [*words, "--device", device, "--ranks", "mpi", "--strategy", "pipeline"]
    one = run(tmp_path, [*words, "--device", "cpu:threads=1", "--save", "one.safetensors"])
    two = ranks(tmp_path, 2, [*together, "--save", "two.safetensors", "--trace", "trace.json", *more])
    assert len(steps_of(one)) == 10 and steps_of(two) == steps_of(one)
    sent = 1 + 10 * (4 + 1) if tied else 10 * 4  # activations, and a value when ranks agree and behind each step; gradients come
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["network"]["messages"] == sent
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
    if budget:  # stages evaluate together
        (tmp_path / "held").write_bytes((ROOT / "README.md").read_bytes()[-700:])
        evaluated = ["--eval-data", "held", "--lr-schedule", "linear"]
        assert with_evaluations(ranks(tmp_path, 2, [*together, *more, *evaluated])) == with_evaluations(run(tmp_path, [*words, *evaluated, "--device", "cpu:threads=1"]))
    small = ranks(tmp_path, 2, [*together, "--budget", "100KiB", "--spill-dir", tmp_path, "--spill-capacity", "64MiB"]) if budget else None
    assert not small or (small.returncode and "the smallest budget is" in small.stderr and small.stdout == ""), small.stderr
    three = ranks(tmp_path, 3, together)
    assert three.returncode and "a pipeline of 3 ranks over 2 modules: each rank runs one at least" in three.stderr, three.stderr
    forecast = run(tmp_path, [RUN, "plan", "first.segue", "last.segue", *ties, "--ranks", "2", "--strategy", "pipeline", "--stages", "1,1", "--accumulate", "2"])
    assert forecast.returncode == 0 and re.search(r"^pipeline +[0-9.]+ ", forecast.stdout, re.M), forecast.stdout + forecast.stderr


def test_a_run_goes_on_from_a_checkpoint_with_another_number_of_ranks(gpt, tmp_path):
    checkpoint = tmp_path / "half.safetensors"
    whole = steps_of(ranks(gpt, 2, command("--ranks", "mpi")))
    steps_of(ranks(gpt, 2, command("--ranks", "mpi", "--save", checkpoint, steps=10)))
    on = [word for word in command("--ranks", "mpi", steps=10) if word not in ("--weights", "gpt.safetensors")] + ["--resume", checkpoint]
    assert steps_of(ranks(gpt, 2, on)) == whole[10:]
    alone = [word for word in command("--accumulate", "2", steps=10) if word not in ("--weights", "gpt.safetensors")] + ["--resume", checkpoint]
    assert steps_of(run(gpt, alone)) == whole[10:]


def test_a_rank_that_cannot_begin_ends_all(gpt):
    """Weights that one rank alone does not find: nobody waits for it."""
    words = command("--ranks", "mpi")
    words[words.index("gpt.safetensors")] = "$OMPI_COMM_WORLD_RANK.safetensors"
    (gpt / "0.safetensors").write_bytes((gpt / "gpt.safetensors").read_bytes())
    began = time.monotonic()
    done = ranks(gpt, 2, ["sh", "-c", " ".join(f'"{word}"' for word in words)])
    assert done.returncode != 0 and time.monotonic() - began < 30
    assert re.search(r"this rank ends all others: rank 1: IO_FAILED: .*1\.safetensors", done.stderr), done.stderr


def test_another_model_is_refused_by_name(gpt):
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    (gpt / "0").symlink_to(gpt)
    (gpt / "1").mkdir()
    segue.compile(GPT(GPTConfig(layers=2, dim=32, heads=4, seq=32)), (tokens, tokens), optimizer=segue.AdamW(lr=1e-2),
                  name="gpt").save(gpt / "1" / "gpt.segue", weights=True)
    words = [f"$OMPI_COMM_WORLD_RANK/{word}" if str(word).startswith("gpt.") else word for word in command("--ranks", "mpi")]
    done = ranks(gpt, 2, ["sh", "-c", " ".join(f'"{word}"' for word in words)])
    assert done.returncode != 0 and re.search(r'RANK_FAILED: rank 0 has parameter "[^"]+", and rank 1 has not', done.stderr), done.stderr


def test_a_rank_that_is_killed_ends_all(gpt, tmp_path):
    """What was saved last is whole, and the run goes on from there."""
    checkpoint = tmp_path / "last.safetensors"
    words = command("--ranks", "mpi", "--save", checkpoint, "--save-every", 5, steps=100000)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TMPDIR": "/tmp"}
    process = subprocess.Popen([*MPIRUN, "-n", "2", "sh", "-c", "echo $$ > rank$OMPI_COMM_WORLD_RANK; exec " + " ".join(map(str, words))], cwd=gpt, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment)
    try:
        for line in process.stdout:
            if line.startswith("step 30 "):
                break
        os.kill(int((gpt / "rank1").read_text()), signal.SIGKILL)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0 and re.search(r"rank 1 .*signal 9", error), error
    on = [word for word in command(steps=2) if word not in ("--weights", "gpt.safetensors")] + ["--resume", checkpoint]
    first = int(re.match(r"step (\d+)", steps_of(run(gpt, on))[0]).group(1))
    assert first > 25 and first % 5 == 1


def content(checkpoint):
    """The bytes of a checkpoint, and of what it names."""
    if checkpoint.is_file():
        return [checkpoint.read_bytes()]
    manifest = (checkpoint / "model.safetensors.index.json").read_bytes()
    return [manifest, *((checkpoint / name).read_bytes() for name in sorted(set(json.loads(manifest)["weight_map"].values())))]


@pytest.mark.parametrize("name, full", [("last.safetensors", 0), ("last/", 0), ("last/", 1)])
def test_a_full_disk_costs_a_checkpoint_of_all_and_not_the_run(gpt, name, full, tmp_path):
    """Of rank 0, which writes what others send it, or of a rank that writes its part: none waits for what cannot be written, and the one before stays."""
    checkpoint = tmp_path / name
    words = command("--ranks", "mpi", "--strategy", "zero1", "--save", f"{tmp_path}/{name}", "--save-every", 4, steps=100000)
    process = subprocess.Popen([*MPIRUN, "-n", "2", "sh", "-c", "echo $$ > rank$OMPI_COMM_WORLD_RANK; exec " + " ".join(map(str, words))], cwd=gpt, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"})
    try:
        while not checkpoint.is_file() and not (checkpoint / "model.safetensors.index.json").exists():
            process.stdout.readline()
        # No file of that rank may grow from here on, as on a disk that is full.
        limited = int((gpt / f"rank{full}").read_text())
        unlimited = resource.prlimit(limited, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        warning = process.stderr.readline()
        last_good = content(checkpoint)
        lines = [process.stdout.readline() for _ in range(20)]
        assert lines[-1].startswith("step ") and content(checkpoint) == last_good
        assert "warning: no checkpoint of step" in warning and "File too large" in warning
        resource.prlimit(limited, resource.RLIMIT_FSIZE, unlimited)
        os.kill(int((gpt / "rank1").read_text()), signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert error.count("warning: no checkpoint") >= 3 and error.count("RANK_FAILED: rank 1 cannot save: IO_FAILED") == (error.count("warning") if full else 0), error
    on = [word for word in command(steps=1) if word not in ("--weights", "gpt.safetensors")] + ["--resume", checkpoint]
    assert content(checkpoint) != last_good and steps_of(run(gpt, on))
    assert checkpoint.is_file() or len(os.listdir(checkpoint)) == 3


def ended_when(folder, count, words, number=None):
    """What ranks say that are started as `words`, of which rank 1 is sent a signal after step 10."""
    process = subprocess.Popen([*MPIRUN, "-n", str(count), "sh", "-c", "echo $$ > rank$OMPI_COMM_WORLD_RANK; exec " + " ".join(map(str, words))], cwd=folder,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"})
    began = time.monotonic()
    try:
        for line in process.stdout if number else ():
            if line.startswith("step 10 "):
                began = time.monotonic()
                os.kill(int((folder / "rank1").read_text()), number)
                break
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    return error, time.monotonic() - began


@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_that_is_stopped_is_named(gpt, count):
    """By all that wait for it, with the same words; MPI itself would wait for ever."""
    error, seconds = ended_when(gpt, count, command("--ranks", "mpi", "--ranks-timeout", 2, steps=100000), signal.SIGSTOP)
    stopped = int((gpt / "rank1").read_text())
    named = re.findall(r"this rank ends all others: .*rank \d: (rank .*)", error)
    assert named and all(re.fullmatch(rf"rank 1 did not come to \w+ within 2 s: process {stopped} of this machine is stopped", text) for text in named), error
    assert seconds < 2 + 4  # mpirun takes its time to end what is stopped


@pytest.mark.parametrize("count, who", [(2, {1}), (3, {1}), (3, {1, 2})])
def test_ranks_that_do_something_else_are_named(gpt, count, who):
    """They neither come nor answer; here they wait for a file that nobody writes, after they have joined the others."""
    words = command("--ranks", "mpi", "--ranks-timeout", 2)
    words[words.index("--data") + 1] = "data$OMPI_COMM_WORLD_RANK"
    for rank in range(count):
        (gpt / f"data{rank}").unlink(missing_ok=True)
        os.mkfifo(gpt / f"data{rank}") if rank in who else (gpt / f"data{rank}").symlink_to(ROOT / "README.md")
    error, _ = ended_when(gpt, count, words)
    names = " and ".join(f"rank {rank}" for rank in sorted(who))
    places = " and ".join(rf"process {int((gpt / f'rank{rank}').read_text())} of this machine" for rank in sorted(who))
    assert re.search(rf"this rank ends all others: .*rank \d: {names} did not come to \w+ within 2 s: {places} do(es)? something else, or hangs?\n", error), error


WAITS = """
import ctypes, sys, time

class Calls(ctypes.Structure):  # SegueMpi
    _fields_ = [(name, ctypes.CFUNCTYPE(ctypes.c_int, *parameters)) for name, parameters in [
        ("start", [ctypes.POINTER(ctypes.c_int)] * 2 + [ctypes.c_char_p]), ("finish", []), ("abandon", [ctypes.c_char_p]), ("all_reduce", []), ("reduce", []),
        ("reduce_scatter", []), ("all_gather", []), ("broadcast", []), ("send", []), ("go_on", []),
        ("receive", [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_double, ctypes.c_char_p])]]

library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library.segueMpi.restype = ctypes.POINTER(Calls)
calls = library.segueMpi().contents
rank, ranks, why, data = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(512), ctypes.create_string_buffer(8)
assert calls.start(rank, ranks, why) == 0, why.value
waits_for = int(sys.argv[2 + rank.value])
if waits_for < 0:
    time.sleep(60)
assert calls.receive(data, 8, waits_for, 2 + 0.2 * rank.value, why) == 1
calls.abandon(f"rank {rank.value}: {why.value.decode()}".encode())
"""


@pytest.mark.parametrize("waits_for, expected", [
    ((1, -1, -1), r"rank 0: rank 1 did not come to MPI_Irecv within 2 s: process \d+ of this machine does something else, or hangs"),
    ((1, 2, -1), r"rank 0: rank 2 did not come to MPI_Irecv within 2 s: process \d+ of this machine does something else, or hangs"),
    ((1, 2, 0), r"rank 0: MPI_Irecv has not ended within 2 s, and all ranks wait: rank 1 in MPI_Irecv, rank 2 in MPI_Irecv")])
def test_who_is_named_where_one_rank_waits_for_another(waits_for, expected, tmp_path):
    """Not a rank that nobody waits for; the one that a rank waits for that is waited for; and nobody where they wait for each other. -1: it does something else."""
    (tmp_path / "waits.py").write_text(WAITS)
    done = ranks(tmp_path, 3, [sys.executable, "waits.py", BUILD / "lib" / "libSegueMPI.so", *map(str, waits_for)])
    assert done.returncode != 0 and re.search(rf"^segue: this rank ends all others: {expected}$", done.stderr, re.M), done.stderr


def is_running(process):
    """Whether there is such a process, but for what is left of it until somebody asks how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run_until_signals(folder, checkpoint, strategy, send):
    """Starts a long run of two ranks, calls `send` with their numbers after step 10, and returns the last step and the ranks that still run 5 s after the end."""
    words = command("--ranks", "mpi", "--strategy", strategy, "--save", checkpoint, "--save-every", 5, steps=100000)
    process = subprocess.Popen([*MPIRUN, "-n", "2", "sh", "-c", "echo $$ > rank$OMPI_COMM_WORLD_RANK; exec " + " ".join(map(str, words))], cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"})
    last, members = 0, []
    try:
        for line in process.stdout:
            last = int(line.split()[1])
            if last == 10:
                members = [int((folder / f"rank{rank}").read_text()) for rank in range(2)]
                send(process.pid, members)
        process.communicate(timeout=60)
    finally:
        process.kill()
    until = time.monotonic() + 5
    while any(map(is_running, members)) and time.monotonic() < until:
        time.sleep(0.05)
    return last, [member for member in members if is_running(member)]


def first_after(folder, checkpoint):
    """The first step that goes on from a checkpoint."""
    on = [word for word in command(steps=1) if word not in ("--weights", "gpt.safetensors")] + ["--resume", checkpoint]
    return int(steps_of(run(folder, on))[0].split()[1])


@pytest.mark.parametrize("strategy, to, number", [("ddp", "rank 1", signal.SIGTERM), ("zero1", "both", signal.SIGINT), ("zero1", "mpirun and both", signal.SIGINT)])
def test_a_signal_ends_all_after_one_step(gpt, strategy, to, number, tmp_path):
    """Whoever hears of it first: all stop after the same step, and rank 0 saves."""
    checkpoint = tmp_path / "last.safetensors"

    def send(mpirun, members):
        for process in {"rank 1": members[1:], "both": members, "mpirun and both": [mpirun, *members]}[to]:
            os.kill(process, number)

    last, left = run_until_signals(gpt, checkpoint, strategy, send)
    assert not left and first_after(gpt, checkpoint) == last + 1


@pytest.mark.parametrize("to_mpirun", [False, True])
def test_a_second_signal_ends_at_once(gpt, to_mpirun, tmp_path):
    """Nobody goes on alone, and what was saved last is whole."""
    checkpoint = tmp_path / "last.safetensors"

    def send(mpirun, members):
        for process in [mpirun, mpirun] if to_mpirun else members * 2:
            if is_running(process):  # the first one that goes may have taken the other with it
                os.kill(process, signal.SIGINT)
            time.sleep(0.02)

    last, left = run_until_signals(gpt, checkpoint, "zero1", send)
    assert not left and first_after(gpt, checkpoint) > 5  # that of step 10 may be under way
    if not to_mpirun:  # which kills them, maybe in the midst of a file that is to take the place of the last one
        assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]


def test_without_mpi_there_is_one_rank_or_an_error(gpt):
    assert steps_of(run(gpt, command("--ranks", "mpi", steps=3))) == steps_of(run(gpt, command(steps=3)))
    done = run(gpt, command("--ranks", "mpi"), SEGUE_MPI_LIBRARY="/nowhere/libSegueMPI.so")
    assert done.returncode == 1 and "apt-get install libopenmpi-dev" in done.stderr, done.stderr
