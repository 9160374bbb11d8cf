# ===- loops.py - plain loops within a budget ------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a step of a plain loop takes in a part of the memory that it takes freely, by plans and by watermarks.

    PYTHONPATH=build/python .venv/bin/python bench/memory/loops.py --percent 60

A stack of blocks as GPT-2 has them, and one as Llama has them, through ``torch.compile(backend="segue")`` on the simulated
device: without a budget, with one by watermarks alone, and with one by plans. Losses and gradients of all must be equal to
the bit. The runs take turns, and the least time of a step counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time

import torch

import segue
from segue import budgets

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))

from models import GPT, GPTConfig, Llama, LlamaConfig  # noqa: E402


def models(args):
    sizes = dict(layers=args.layers, dim=args.dim, vocab=args.vocab)
    return {"gpt": lambda: GPT(GPTConfig(heads=args.dim // 32, seq=args.seq, **sizes)),
            "llama": lambda: Llama(LlamaConfig(heads=args.dim // 32, kv_heads=args.dim // 64, seq=args.seq,
                                                        hidden=args.dim * 8 // 3 // 32 * 32, **sizes))}


def train(make, args, device, **options):
    """Losses and gradients of each step, the seconds of each, and the report on the budget."""
    torch.manual_seed(0)
    model = make()
    window = torch.randint(0, args.vocab, (args.batch, args.seq + 1), generator=torch.Generator().manual_seed(7))
    batch = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    ours = torch.compile(model, backend="segue", options={"device": device, "fallback": "error", **options})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen, seconds = [], []
    for _ in range(args.steps):
        began = time.perf_counter()
        loss = ours(*batch)
        loss.backward()
        seconds.append(time.perf_counter() - began)
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    report = next(iter(budgets.reports()), None)
    peak = segue.tensors.device(device).peak_bytes if report is None else report.peak_bytes
    del ours, loss
    torch.compiler.reset()
    gc.collect()
    return seen, seconds, peak, report


def compare(name, make, args, number):
    # A device per run without a budget, as its books have the highest mark.
    freely = f"sim:dram=8GiB,pinned=4GiB,link={args.link},latency={10 + number}us"
    within = f"sim:dram=8GiB,pinned=4GiB,link={args.link},latency=10us"
    times = {"free": [], "watermarks": [], "plans": []}
    wanted, seconds, peak, _ = train(make, args, freely)
    times["free"] += seconds[2:]
    budget, result = peak * args.percent // 100, {}
    for _ in range(args.rounds):
        for kind in ("watermarks", "plans"):
            budgets.DeviceBudget.is_planned = kind == "plans"
            found, seconds, most, report = train(make, args, within, budget=budget)
            if not all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)):
                raise SystemExit(f"{name}, {kind}: the results differ")
            if most > budget:
                raise SystemExit(f"{name}, {kind}: {most} bytes of a budget of {budget}")
            times[kind] += seconds[4:]
            result[kind] = {"peak_bytes": most, "report": str(report), "stall_seconds": report.stall_seconds,
                            "planning_seconds": report.planning_seconds, "certified_bytes": report.certified_bytes}
        _, seconds, _, _ = train(make, args, freely)
        times["free"] += seconds[2:]
    result |= {"model": name, "free_peak_bytes": peak, "budget_bytes": budget,
               "milliseconds": {kind: round(min(each) * 1e3, 1) for kind, each in times.items()}}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--percent", type=int, default=60, help="of the memory that a step takes freely")
    parser.add_argument("--link", default="16GB/s")
    for name, default in (("layers", 6), ("dim", 384), ("vocab", 1024), ("seq", 256), ("batch", 4), ("steps", 8), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--models", nargs="*", default=["gpt", "llama"])
    args = parser.parse_args()
    if args.steps < 5:
        parser.error("--steps: give 5 or more, as the first four of a run within a budget are not in its time")
    for number, name in enumerate(args.models):
        print(json.dumps(compare(name, models(args)[name], args, number), indent=1), flush=True)


if __name__ == "__main__":
    main()
