# ===- test_killed.py - a killed run goes on as if nothing had been ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Kill -9 at random moments of a run of 200 steps, 50 times: each resumed run prints the losses of the unbroken one, to
the bit. A checkpoint is there whole or not at all."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SEGUE_BUILD", ROOT / "build")) / "bin"
STEPS, KILLS = 200, 50


def start(folder, device, checkpoint=None):
    begin = ["--resume", checkpoint] if checkpoint and checkpoint.exists() else ["--parameter", "table=256x256xf32=0"]
    return subprocess.Popen(
        [BIN / "segue-run", "train", folder / "bigram.segue", *begin, "--data", folder / "text", "--lr", "0.02"]
        + ["--clip", "0.5", "--until", str(STEPS), "--device", device]
        + (["--save", checkpoint, "--save-every", "3"] if checkpoint else []),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()


@pytest.mark.parametrize("device", ["cpu:threads=1"])
def test_losses_after_kills_are_those_of_the_unbroken_run(tmp_path, device):
    source = ROOT / "test/tools/segue-run/Inputs/bigram.mlir"
    compiled = [BIN / "segue-compile", source, "--optimizer=adamw", "-o", tmp_path / "bigram.segue"]
    subprocess.run(compiled, check=True, timeout=60)
    (tmp_path / "text").write_bytes(bytes(random.Random(1).choices(b"abcdefgh", k=4000)))
    whole = finish(start(tmp_path, device))
    assert [int(line.split()[1]) for line in whole] == list(range(1, STEPS + 1))

    checkpoint = tmp_path / "checkpoint.safetensors"
    moments = random.Random(9)
    seen, killed, resumed_at = set(), 0, set()
    while killed < KILLS:
        # Some steps further, then anywhere in a step or in the writing of a checkpoint. A run that is nearly at its end
        # begins anew.
        if seen and max(int(line.split()[1]) for line in seen) > STEPS - 20:
            checkpoint.unlink(missing_ok=True)
            seen.clear()
        process = start(tmp_path, device, checkpoint)
        lines = [process.stdout.readline() for _ in range(moments.randint(1, 16))]
        time.sleep(moments.random() * 0.004)
        process.kill()
        lines += process.stdout.readlines()
        process.wait(timeout=60)
        killed += 1
        lines = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        assert lines, process.stderr.read()
        resumed_at.add(int(lines[0].split()[1]))
        for line in lines:
            assert line == whole[int(line.split()[1]) - 1]
        seen.update(lines)
    assert len(resumed_at) > 5, "the runs did not go on from checkpoints"
    rest = finish(start(tmp_path, device, checkpoint))
    assert rest and rest == whole[-len(rest) :]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".safetensors") and name != checkpoint.name]
