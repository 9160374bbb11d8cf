#!/usr/bin/env python3
"""Where the time of a step of train_torch.py's GPT-2 goes on the GPU, and what copies beside a product cost.

    python breakdown.py --json out/breakdown.json
"""
import argparse
import json
import statistics
from pathlib import Path

import torch
from train_torch import CONFIGS, Model

rows = []


def note(**row):
    rows.append(row)
    print(json.dumps(row), flush=True)


def kind(name):
    low = name.lower()
    for word, what in (("flash", "attention"), ("fmha", "attention"), ("sdpa", "attention"), ("nvjet", "product"), ("gemm", "product"), ("cutlass", "product"),
                       ("adam", "optimizer"), ("memcpy", "copy"), ("memset", "fill")):
        if word in low:
            return what
    return "other kernels"


def step_kinds(mode):
    c = CONFIGS["gpt2"]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(c, False)
    call = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = torch.randint(c.vocab, (c.batch, c.seq + 1), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kinds, events = {}, [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    for e in events:
        found = kinds.setdefault(kind(e.name), [0, 0.0])
        found[0] += 1
        found[1] += e.device_time_total
    for what, (count, us) in sorted(kinds.items(), key=lambda pair: -pair[1][1]):
        note(part="step", mode=mode, kind=what, launches=round(count / 3, 1), ms=round(us / 3e3, 3))


def beside_copies():
    """A product again and again, alone and with copies in both directions on streams of their own."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    host = [torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    far = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
    up, down = torch.cuda.Stream(), torch.cuda.Stream()
    for what in ("alone", "up", "down", "both", "alone again"):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(8):
                if what in ("up", "both"):
                    with torch.cuda.stream(up):
                        far[0].copy_(host[0], non_blocking=True)
                if what in ("down", "both"):
                    with torch.cuda.stream(down):
                        host[1].copy_(far[1], non_blocking=True)
            begin.record()
            for _ in range(20):
                torch.matmul(a, b, out=out)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3 / 20)
        took = statistics.median(times)
        note(part="product beside copies", copies=what, tflops=round(2 * 8192**3 / took / 1e12, 1), each=[round(2 * 8192**3 / t / 1e12) for t in times])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for part in (beside_copies, lambda: step_kinds("eager"), lambda: step_kinds("compile")):
        part()
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
