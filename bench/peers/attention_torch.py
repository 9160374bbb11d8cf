#!/usr/bin/env python3
"""Causal attention of config S in PyTorch, forward and with backward, as segue-bench-engine measures it.

    attention_torch.py --threads 1

q, k and v are views of one projection [8, 256, 3, 6, 64]; its gradient and the result in [8, 256, 384] are part of the
time, as they are part of Segue's. Prints the least wall and CPU time of 30 calls, in ms, as one JSON line.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F


def least(fn, clock, count=30):
    fn()
    times = []
    for _ in range(count):
        start = clock()
        fn()
        times.append(clock() - start)
    return round(min(times) * 1e3, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    qkv = torch.randn(8, 256, 3 * 384, requires_grad=True)
    grad = torch.randn(8, 256, 384)

    def forward():
        q, k, v = qkv.view(8, 256, 3, 6, 64).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=args.dropout).transpose(1, 2).reshape(8, 256, 384)

    def both():
        qkv.grad = None
        forward().backward(grad)

    row = dict(peer="torch " + torch.__version__, threads=args.threads)
    for name, clock in (("wall_ms", time.perf_counter), ("cpu_ms", time.process_time)):
        with torch.no_grad():
            row["forward_" + name] = least(forward, clock)
        row["both_" + name] = least(both, clock)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
