#!/usr/bin/env python3
"""What `segue.fit` says of 20 models beside what their runs then take.

    python bench/fit/run.py --spill-dir FOLDER
    python bench/fit/run.py --models gpt-2,lora-2 --steps 3

Each model is asked about without weights, in memory and within a budget half way between the smallest and all that it
takes; then it trains with as much and the high-water of its device's memory is compared: with the bytes that were said to
live at once, and with those that were certified to do. Times are those of the machine: its profile is measured first
(`segue-run profile-device`), or given by --profile. The table goes to stdout; exit status 1 if a run holds more than was
certified, or, within a budget, less than was said to live by more than 3 %.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import segue

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from models import GPT, GPTConfig, Llama, LlamaConfig, add_lora  # noqa: E402

TOLERANCE = 0.03


class Mlp(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x, y):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.mse_loss(x, y)


class Cnn(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, 3, stride=s, padding=1)
                                          for i, o, s in ((3, width, 1), (width, width, 2), (width, 2 * width, 2), (2 * width, 2 * width, 1)))
        self.last = nn.Linear(2 * width * 64, 10)

    def forward(self, images, classes):
        for convolution in self.convolutions:
            images = F.relu(convolution(images))
        return F.cross_entropy(self.last(images.flatten(1)), classes)


def tokens(batch, sequence):
    return {name: ((batch, sequence), torch.int64) for name in ("tokens", "targets")}


def rows(batch, width):
    return {name: ((batch, width), torch.float32) for name in ("x", "y")}


def images(batch):
    return {"images": ((batch, 3, 32, 32), torch.float32), "classes": ((batch,), torch.int64)}


def gpt(layers, dim, seq, vocab=256):
    return lambda: GPT(GPTConfig(layers=layers, dim=dim, heads=4, seq=seq, vocab=vocab))


def llama(layers, dim, seq, rank=0):
    make = lambda: Llama(LlamaConfig(layers=layers, dim=dim, heads=4, hidden=dim * 8 // 3 // 8 * 8, seq=seq, vocab=512))  # noqa: E731
    return (lambda: add_lora(make(), rank, ("wq", "wv", "w1", "w2"))) if rank else make


ADAMW, SGD, MOMENTUM = segue.AdamW(lr=1e-4), segue.SGD(lr=1e-3), segue.SGD(lr=1e-3, momentum=0.9)
#: Name: how it is made, its batch, its optimizer.
MODELS = {
    "mlp-1": (lambda: Mlp(256, 4), rows(256, 256), SGD),
    "mlp-2": (lambda: Mlp(256, 16), rows(1024, 256), ADAMW),
    "mlp-3": (lambda: Mlp(768, 6), rows(64, 768), ADAMW),
    "mlp-4": (lambda: Mlp(512, 8), rows(512, 512), MOMENTUM),
    "cnn-1": (lambda: Cnn(16), images(16), SGD),
    "cnn-2": (lambda: Cnn(32), images(32), ADAMW),
    "cnn-3": (lambda: Cnn(24), images(64), MOMENTUM),
    "gpt-1": (gpt(2, 64, 64), tokens(4, 64), ADAMW),
    "gpt-2": (gpt(4, 128, 128), tokens(4, 128), ADAMW),
    "gpt-3": (gpt(4, 192, 128), tokens(8, 128), ADAMW),
    "gpt-4": (gpt(8, 128, 256), tokens(2, 256), SGD),
    "gpt-5": (gpt(2, 256, 64, vocab=8192), tokens(2, 64), ADAMW),
    "gpt-6": (gpt(6, 256, 128), tokens(4, 128), MOMENTUM),
    "gpt-7": (gpt(12, 96, 64), tokens(16, 64), ADAMW),
    "llama-1": (llama(2, 96, 64), tokens(4, 64), ADAMW),
    "llama-2": (llama(4, 192, 128), tokens(4, 128), ADAMW),
    "llama-3": (llama(6, 128, 256), tokens(2, 256), SGD),
    "lora-1": (llama(2, 128, 64, rank=4), tokens(4, 64), ADAMW),
    "lora-2": (llama(4, 192, 128, rank=8), tokens(4, 128), ADAMW),
    "lora-3": (llama(6, 256, 128, rank=16), tokens(2, 128), MOMENTUM),
}


def trained(make, shapes, optimizer, steps, **where):
    """The high-water of the device's memory in three steps, and the median seconds of later ones.

    After three a session plans again, with measured times: the plan that was said is the first.
    """
    torch.manual_seed(0)
    batch = {name: torch.randint(0, 10, shape) if dtype == torch.int64 else torch.randn(shape) for name, (shape, dtype) in shapes.items()}
    module = segue.compile(make(), batch)
    with segue.Trainer([module], optimizer=optimizer, **where) as trainer:
        for _ in range(3):
            trainer.step(**batch)
        held = trainer.peak_bytes
        if "budget" not in where:  # there, what is not trained stays in PyTorch's memory, which the device does not count
            held += sum(tensor.nbytes for tensor in module.parameters() if not tensor.requires_grad)
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            trainer.step(**batch)
            seconds.append(time.perf_counter() - begin)
        return held, statistics.median(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, parted by commas")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed")
    parser.add_argument("--spill-dir", type=Path, default=ROOT / "build", help="a folder on a disk")
    parser.add_argument("--profile", type=Path, help="of this machine; otherwise it is measured")
    parser.add_argument("--json", type=Path, help="figures for other programs")
    args = parser.parse_args()
    names = args.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as folder:
        profile = args.profile or Path(folder) / "profile.json"
        if not args.profile:
            tool = Path(os.environ.get("SEGUE_BUILD", ROOT / "build")) / "bin" / "segue-run"
            subprocess.run([tool, "profile-device", "--device", f"cpu:disk={args.spill_dir}", "-o", profile], check=True)
        device = f"cpu:profile={profile}"
        print("| model | budget | certified, MiB | said, MiB | held, MiB | | said, ms | took, ms | | asked in, s |")
        print("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |", flush=True)
        found, wrong = [], []
        for name in names:
            make, shapes, optimizer = MODELS[name]
            begin = time.process_time()
            free = segue.fit(make, shapes, optimizer=optimizer, device=device)
            asking = time.process_time() - begin
            budget = (free.unconstrained.peak_bytes + free.smallest_budget_bytes) // 2
            within = segue.fit(make, shapes, optimizer=optimizer, device=device, budget=budget)
            # Each on a device of its own, whose books begin empty.
            number = 64 + names.index(name)
            runs = [(free.unconstrained, None, dict(device=f"cpu:dram={free.unconstrained.peak_bytes + (number << 20)}")),
                    (within.plan, budget, dict(device=device, budget=budget, spill_dir=args.spill_dir))]
            for told, limit, where in runs:
                held, seconds = trained(make, shapes, optimizer, args.steps, **where)
                difference = held / told.live_bytes - 1
                if held > told.peak_bytes or (limit is not None and difference < -TOLERANCE):
                    wrong.append(name)
                found.append({"model": name, "budget": limit, "said_bytes": told.live_bytes, "certified_bytes": told.peak_bytes,
                              "held_bytes": held, "said_seconds": told.seconds, "took_seconds": seconds, "asking_seconds": asking})
                print(f"| {name} | {'-' if limit is None else f'{limit / 2**20:.1f}'} | {told.peak_bytes / 2**20:.2f} | {told.live_bytes / 2**20:.2f} | {held / 2**20:.2f} | "
                      f"{difference:+.2%} | {told.seconds * 1e3:.1f} | {seconds * 1e3:.1f} | {seconds / told.seconds:.2f} | {asking:.1f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    for name in wrong:
        print(f"{name}: held other memory than was said", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
