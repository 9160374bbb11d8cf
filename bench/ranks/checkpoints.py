#!/usr/bin/env python3
"""Seconds that ranks take to save 50 million parameters with AdamW's states, by turns to a file and to a folder with a file of each.

    torchrun --nproc-per-node 2 bench/ranks/checkpoints.py
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import segue


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(12)])

    def forward(self, x, y):
        return {"loss": nn.functional.mse_loss(self.layers(x), y)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="out", help="where to save")
    parser.add_argument("--width", type=int, default=2048, help="of 12 layers")
    parser.add_argument("--turns", type=int, default=8, help="saves of each kind")
    parser.add_argument("--strategies", default="ddp,zero1", help="of the ranks, by commas")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x, y = torch.randn(4, args.width), torch.randn(4, args.width)
    for strategy in args.strategies.split(","):
        module = segue.compile(Net(args.width), (x, y), device="cpu:threads=1", name="net")
        trainer = segue.Trainer([module], optimizer=segue.AdamW(lr=1e-4), distributed=strategy)
        trainer.step(x, y)
        taken = {"checkpoint.safetensors": [], "checkpoints/": []}
        for _ in range(args.turns):
            for name, seconds in taken.items():
                dist.barrier()
                begin = time.monotonic()
                trainer.save(os.path.join(args.folder, name))
                dist.barrier()
                seconds.append(time.monotonic() - begin)
        if dist.get_rank() == 0:
            for name, seconds in taken.items():
                print(f"{strategy} {name}: best {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s of {args.turns}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
