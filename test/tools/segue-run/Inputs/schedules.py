"""Runs a command with each --lr-schedule, and compares the rates that it tells with those of segue's schedules, to the bit."""

import json
import subprocess
import sys

from segue import _runtime as segue  # what segue.schedules returns, without importing PyTorch

LR, STEPS = 0.37, 9
SCHEDULES = {
    "cosine": segue.warmup_cosine(LR, STEPS, 0, 0.0),
    "cosine:final=0.011 --warmup 4": segue.warmup_cosine(LR, STEPS, 4, 0.011),
    "linear:steps=5": segue.warmup_linear(LR, 5, 0, 0.0),
    "constant --warmup 5": lambda step: LR * (step + 1) / 5 if step < 5 else LR,
    "one-cycle:rise=0.4,start=0.1,final=0.01": segue.one_cycle(LR, STEPS, 0.4, 0.1, 0.01),
    "step-decay:every=3,factor=0.7": segue.step_decay(LR, 3, 0.7),
    "step-decay:at=2,at=7": segue.step_decay_at(LR, [2, 7], 0.1),
}
for words, rate in SCHEDULES.items():
    command = [*sys.argv[1:], "--lr", str(LR), "--steps", str(STEPS), "--lr-schedule", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line)["lr"] for line in done.stdout.splitlines()]
    assert told == [rate(step) for step in range(STEPS)] and len(set(told)) > 1, (words, told)
print(f"{len(SCHEDULES)} schedules have the rates of Python's")
