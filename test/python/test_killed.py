# ===- test_killed.py - a killed run goes on as if nothing had been ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Kill -9 at random moments of a run of 200 steps, 50 times: each resumed run prints the losses of the unbroken one, to
the bit, with services that stream weights and spill activations too, and with a disk below a budget or below the host of a device, whose checkpoints are
sealed there. A checkpoint is there whole or not at all."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SEGUE_BUILD", ROOT / "build")) / "bin"
INPUTS = ROOT / "test/tools/segue-run/Inputs"
STEPS, KILLS = 200, 50
# Module, initial values, device, and a config or the words of a budget.
PLAIN = ("bigram", {"table": 0}, "cpu:threads=1", None)
SERVICES = ("bigram-blocks", {"table": 0.01, "w0": 0.002, "w1": 0.001}, "sim:dram=16MiB,pinned=8MiB,threads=1",
            INPUTS / "stream-and-spill.json")
# The spill file is one of the build, since a temporary folder may lie in memory.
SPILL = BIN.parent / "check" / "killed"
DISK = ("bigram-blocks", SERVICES[1], "cpu:threads=1", ["--budget", "2400KiB", "--spill-dir", SPILL, "--spill-capacity", "16MiB"])
# The host holds as much of the 2.2 MiB of weights and moments as it may.
BELOW = (*DISK[:2], "sim:host=1MiB,latency=0s,threads=1", DISK[3])


def start(folder, run, checkpoint=None):
    name, values, device, config = run
    begin = [arg for key, value in values.items() for arg in ("--parameter", f"{key}=256x256xf32={value}")]
    if checkpoint and checkpoint.exists():
        begin = ["--resume", checkpoint]
    return subprocess.Popen(
        [BIN / "segue-run", "train", folder / f"{name}.segue", *begin, "--data", folder / "text", "--lr", "0.02"]
        + ["--clip", "0.5", "--until", str(STEPS), "--device", device]
        + (config if isinstance(config, list) else ["--config", config] if config else [])
        + (["--save", checkpoint, "--save-every", "3"] if checkpoint else []),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()


@pytest.mark.parametrize("run, kills", [(PLAIN, KILLS), (SERVICES, KILLS), (DISK, KILLS), (BELOW, 16)], ids=["plain", "services", "disk", "below"])
def test_losses_after_kills_are_those_of_the_unbroken_run(tmp_path, run, kills):
    name = run[0]
    SPILL.mkdir(parents=True, exist_ok=True)
    compiled = [BIN / "segue-compile", INPUTS / f"{name}.mlir", "--optimizer=adamw", "-o", tmp_path / f"{name}.segue"]
    subprocess.run(compiled, check=True, timeout=60)
    (tmp_path / "text").write_bytes(bytes(random.Random(1).choices(b"abcdefgh", k=4000)))
    whole = finish(start(tmp_path, run))
    assert [int(line.split()[1]) for line in whole] == list(range(1, STEPS + 1))
    assert whole == finish(start(tmp_path, (*run[:3], None))), "services change no digit"

    checkpoint = tmp_path / "checkpoint.safetensors"
    moments = random.Random(9)
    seen, killed, resumed_at, sealed = set(), 0, set(), 0
    while killed < kills:
        # Some steps further, then anywhere in a step or in the writing of a checkpoint. A run that is nearly at its end
        # begins anew.
        if seen and max(int(line.split()[1]) for line in seen) > STEPS - 20:
            checkpoint.unlink(missing_ok=True)
            for sealed_in in SPILL.iterdir():  # nobody knows whether a checkpoint that is not there was moved
                sealed_in.unlink()
            seen.clear()
        process = start(tmp_path, run, checkpoint)
        lines = [process.stdout.readline() for _ in range(moments.randint(1, 16))]
        time.sleep(moments.random() * 0.004)
        process.kill()
        lines += process.stdout.readlines()
        process.wait(timeout=60)
        killed += 1
        sealed += checkpoint.exists() and b'"segue.sealed.file"' in checkpoint.read_bytes()
        lines = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        assert lines, process.stderr.read()
        resumed_at.add(int(lines[0].split()[1]))
        for line in lines:
            assert line == whole[int(line.split()[1]) - 1]
        seen.update(lines)
    assert len(resumed_at) > 5, "the runs did not go on from checkpoints"
    assert (sealed > kills // 2) == (run in (DISK, BELOW))
    rest = finish(start(tmp_path, run, checkpoint))
    assert rest and rest == whole[-len(rest) :]
    assert list(SPILL.iterdir()) == []
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".safetensors") and name != checkpoint.name]
