#!/usr/bin/env python3
"""Convolutions and their gradients in Segue and in PyTorch, as one table of Markdown.

    OMP_NUM_THREADS=1 python bench/engine/convolutions.py

Each is one compiled function, called through `segue.compile`: the submit is part of the time, and so is bringing NCHW
into oneDNN's layouts and back, on both sides. The least CPU time of the calls, in ms; ratios are Segue's time by
PyTorch's. Build beside it in PYTHONPATH, as for the tests.
"""
import argparse
import time

import torch
import torch.nn.functional as F

import segue

#: Name, input, weight, options.
SHAPES = [
    ("3 x 3, 64 to 64, 56 x 56", (8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ("3 x 3 by 2, 64 to 128", (8, 64, 56, 56), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    ("1 x 1, 256, 28 x 28", (8, 256, 28, 28), (256, 256, 1, 1), {}),
    ("7 x 7 by 2, 3 to 64, 112 x 112", (8, 3, 112, 112), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ("3 x 3 per channel, 128, 28 x 28", (8, 128, 28, 28), (128, 1, 3, 3), {"padding": 1, "groups": 128}),
    ("3 x 3, 512, 7 x 7", (8, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
]


class Function(torch.nn.Module):

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def least(call, count):
    call()
    times = []
    for _ in range(count):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def functions(options):
    """Forward, and the gradients of input and weight."""
    stride, padding = (options.get(name, default) for name, default in (("stride", 1), ("padding", 0)))

    def gradient(place):
        mask = [place == 0, place == 1, False]
        return lambda grad, x, w: torch.ops.aten.convolution_backward(
            grad, x, w, [0], [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], options.get("groups", 1), mask)[place]

    return [lambda grad, x, w: F.conv2d(x, w, **options), gradient(0), gradient(1)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the name of a shape")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| convolution, batch 8 | | forward | PyTorch | ratio | by input | PyTorch | ratio | by weight | PyTorch | ratio |")
    print("| --- | --- |" + " --: |" * 9)
    for name, image, weight, options in SHAPES:
        if args.only not in name:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            x, w = torch.randn(image, dtype=dtype), torch.randn(weight, dtype=dtype)
            grad = torch.randn_like(F.conv2d(x, w, **options))
            cells = []
            with torch.no_grad():
                for function in functions(options):
                    compiled = segue.compile(Function(function), (grad, x, w))
                    ours = least(lambda: compiled(grad, x, w), args.calls)
                    theirs = least(lambda: function(grad, x, w), args.calls)
                    cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}"]
            short = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
            print(f"| {name} | {short} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
