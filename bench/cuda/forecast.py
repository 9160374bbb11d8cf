#!/usr/bin/env python3
"""What Segue's planner says of a step of the GPT-2 that peers/train_torch.py times, on a device of the measured profile.

    PYTHONPATH=build/python python bench/cuda/forecast.py [--weights bf16] [--json out/forecast.json]

Nothing is trained: the model is captured and compiled for the CPU, and a step is played in virtual time with the figures of
h100.json. The kernels are those of the CPU target; their flops and bytes are what is timed.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import gpt_common as g  # noqa: E402
from gpt_torch import GPT  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--caps", default="80,60,40", help="percent of the peak without a cap")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    import segue

    cfg = g.Config(layers=args.layers, dim=768, heads=12, seq=1024, batch=args.batch, vocab=50304)
    model = GPT(cfg)
    if args.weights == "bf16":
        model = model.to(torch.bfloat16)
    tokens, targets = torch.randint(cfg.vocab, (2, cfg.batch, cfg.seq)).unbind()
    started = time.perf_counter()
    device = f"sim:virtual,profile={Path(__file__).with_name('h100.json')}"
    compiled = segue.compile(model, (tokens, targets), device="cpu:threads=1")
    rows = []

    def note(step, cap):
        rows.append({"cap_percent": cap, "peak_mib": round(step.peak_bytes / 2**20), "step_ms": round(step.seconds * 1e3, 2), "added": round(step.added, 4)})
        print(json.dumps(rows[-1]), flush=True)
    optimizer = segue.AdamW(lr=g.LR, betas=(g.BETA1, g.BETA2), eps=g.EPS, weight_decay=g.DECAY)
    ask = lambda budget=None: compiled.memory(budget, optimizer=optimizer, device=device)  # noqa: E731
    free = ask().unconstrained
    note(free, 100)
    for cap in (float(c) for c in args.caps.split(",") if c):
        try:
            found = ask(int(free.peak_bytes * cap / 100))
            note(found.plan, cap)
        except segue.BudgetInfeasibleError as error:
            rows.append({"cap_percent": cap, "refused": str(error).splitlines()[0]})
            print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"seconds": round(time.perf_counter() - started, 1)}))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
