#!/usr/bin/env python3
"""Sorts and what is made of them in Segue and in PyTorch, as one table of Markdown.

    OMP_NUM_THREADS=2 python bench/engine/sorting.py

Each is one compiled function, called through `segue.compile`: the submit is part of the time. The least wall time of the calls, by turns, in ms;
ratios are Segue's time by PyTorch's. Build beside it in PYTHONPATH, as for the tests.
"""
import argparse
import os
import time

import torch

import segue

f32, bf16, i64 = torch.float32, torch.bfloat16, torch.int64

#: Name, shape, element type, what is called.
CASES = [
    ("sort", (1024,), f32, lambda x: torch.sort(x)),
    ("sort", (1_000_003,), f32, lambda x: torch.sort(x)),
    ("sort", (1_000_003,), bf16, lambda x: torch.sort(x)),
    ("sort", (1_000_003,), i64, lambda x: torch.sort(x)),
    ("sort", (64, 1024), f32, lambda x: torch.sort(x)),
    ("sort", (4096, 128), f32, lambda x: torch.sort(x)),
    ("sort", (65536, 8), f32, lambda x: torch.sort(x)),
    ("topk 50", (1, 50257), f32, lambda x: torch.topk(x, 50)),
    ("topk 50", (64, 50257), f32, lambda x: torch.topk(x, 50)),
    ("topk 2", (4096, 8), f32, lambda x: torch.topk(x, 2)),
    ("topk 1000", (1_000_003,), f32, lambda x: torch.topk(x, 1000)),
    ("kthvalue", (1_000_003,), f32, lambda x: torch.kthvalue(x, 500_000)),
    ("median", (1_000_003,), f32, lambda x: torch.median(x, 0)),
]


class Function(torch.nn.Module):

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return tuple(self.function(x))


def least_by_turns(calls, count, together=4):
    """The least time of each, in ms. So many calls of one come together: threads that it leaves spinning for more work, as OpenMP's do for a
    while, hold processors in the first call of the other."""
    times = [[] for _ in calls]
    for turn in range(count + 1):
        for call, found in zip(calls, times):
            for _ in range(together):
                start = time.perf_counter()
                call()
                if turn:  # the first turn warms up
                    found.append(time.perf_counter() - start)
    return [min(found) * 1e3 for found in times]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the name of a case")
    args = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    torch.set_num_threads(threads)
    print("| call | rows | | Segue | PyTorch | ratio |\n| --- | --- | --- | --: | --: | --: |")
    for name, shape, dtype, function in CASES:
        if args.only not in name:
            continue
        torch.manual_seed(0)
        x = torch.randint(-(1 << 62), 1 << 62, shape) if dtype == i64 else torch.randn(shape).to(dtype)
        compiled = segue.compile(Function(function), (x,), device=f"cpu:threads={threads}")
        with torch.no_grad():
            if not all(torch.equal(a, b) for a, b in zip(compiled(x)[:1], function(x)[:1])):
                raise SystemExit(f"{name} of {shape}: the elements are not PyTorch's")
            ours, theirs = least_by_turns([lambda: compiled(x), lambda: function(x)], args.calls)
        short = {f32: "f32", bf16: "bf16", i64: "i64"}[dtype]
        print(f"| {name} | {' x '.join(map(str, shape))} | {short} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
