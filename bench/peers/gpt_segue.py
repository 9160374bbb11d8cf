#!/usr/bin/env python3
"""The GPT training step of gpt_torch.py, compiled by Segue and run whole in its runtime.

    gpt_segue.py gpt_s.npz --config S --threads 2 --modules 2

The model is the class of gpt_torch.py, captured by torch.export. With `--modules 2` it is cut in the middle of its blocks
and the halves are compiled apart and stitched, as in the demo; the losses must not differ.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import gpt_common as g
from gpt_torch import GPT


class First(nn.Module):
    """Embedding and the first half of the blocks."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.wte, self.wpe, self.h = gpt.wte, gpt.wpe, gpt.h[: len(gpt.h) // 2]

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return x


class Last(nn.Module):
    """The other blocks, the head and the loss."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.h, self.lnf, self.head = gpt.h[len(gpt.h) // 2 :], gpt.lnf, gpt.head

    def forward(self, x, targets):
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.lnf(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--config", choices=g.CONFIGS, default="S")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--modules", type=int, choices=[1, 2], default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # PyTorch only captures the model here; its pool would take processors from ours

    import segue

    cfg = g.CONFIGS[args.config]
    weights, data = g.load(args.weights)
    model = GPT(cfg)
    model.load(weights)
    tokens, targets = (torch.from_numpy(a) for a in g.batch_at(data, cfg, 0))
    device, start = f"cpu:threads={args.threads}", time.perf_counter()
    if args.modules == 1:
        modules = [segue.compile(model, (tokens, targets), device=device)]
    else:
        hidden = torch.zeros(cfg.batch, cfg.seq, cfg.dim)
        modules = [segue.compile(First(model), (tokens,), device=device),
                   segue.compile(Last(model), (hidden, targets), device=device)]
    optimizer = segue.AdamW(lr=g.LR, betas=(g.BETA1, g.BETA2), eps=g.EPS, weight_decay=g.DECAY)
    trainer = segue.Trainer(modules, optimizer=optimizer)
    compile_s = time.perf_counter() - start

    def step(i):
        x, y = (torch.from_numpy(a) for a in g.batch_at(data, cfg, i))
        return trainer.step(tokens=x, targets=y)

    run = g.run_steps(step, args.steps)
    peer = "segue" + " 2 modules" * (args.modules == 2)
    g.result(peer, args.config, args.threads, run, compile_s, version=segue.__version__)


if __name__ == "__main__":
    main()
