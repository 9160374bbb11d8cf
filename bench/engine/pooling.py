#!/usr/bin/env python3
"""Pools over windows and their gradients in Segue and in PyTorch, as one table of Markdown.

    OMP_NUM_THREADS=2 python bench/engine/pooling.py

Each is one function under `torch.compile(backend="segue")`: the submit is part of the time. Forward runs without gradients; the step is
forward and backward with a gradient of ones. The least wall time of the calls, by turns, in ms; ratios are Segue's time by PyTorch's. Build
beside it in PYTHONPATH, as for the tests.
"""
import argparse
import os

import torch
import torch.nn.functional as F

import segue  # noqa: F401  # the backend
from sorting import least_by_turns

#: Name, shape, what is called.
CASES = [
    ("max 3 x 3 by 2", (8, 64, 112, 112), lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("max 2 x 2", (8, 32, 128, 128), lambda x: F.max_pool2d(x, 2)),
    ("max 3 x 3", (8, 64, 28, 28), lambda x: F.max_pool2d(x, 3, 1, 1)),
    ("mean 3 x 3 by 2", (8, 64, 112, 112), lambda x: F.avg_pool2d(x, 3, 2, 1)),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--size", type=int, help="of a side of the images, in place of those of the cases")
    args = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    torch.set_num_threads(threads)
    print("| pool | image | order | | Segue | PyTorch | ratio |\n| --- | --- | --- | --- | --: | --: | --: |")
    for name, shape, function in CASES:
        if args.only not in name:
            continue
        shape = (*shape[:2], args.size, args.size) if args.size else shape
        for order in ("rows", "channels last"):
            torch.manual_seed(0)
            torch.compiler.reset()
            x = torch.randn(shape).contiguous(memory_format=torch.channels_last if order == "channels last" else torch.contiguous_format)
            trained = x.clone(memory_format=torch.preserve_format).requires_grad_()
            compiled = torch.compile(function, backend="segue", options={"device": f"cpu:threads={threads}"}, dynamic=False)
            ones = torch.ones_like(function(x))

            def step(pool):
                y = pool(trained)
                return torch.autograd.grad(y, trained, ones)[0]

            with torch.no_grad():
                torch.testing.assert_close(compiled(x), function(x))
                forward = least_by_turns([lambda: compiled(x), lambda: function(x)], args.calls)
            torch.testing.assert_close(step(compiled), step(function))
            whole = least_by_turns([lambda: step(compiled), lambda: step(function)], args.calls)
            for what, (ours, theirs) in (("forward", forward), ("step", whole)):
                print(f"| {name} | {' x '.join(map(str, shape))} | {order} | {what} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
