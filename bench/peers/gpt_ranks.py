#!/usr/bin/env python3
"""One rank of a GPT training step that several ranks take: Segue's, or one of PyTorch's.

    PLACE=0 RANK=0 WORLD_SIZE=2 MEET=file:///tmp/meet gpt_ranks.py gpt_s.npz --config S --threads 1 --peer segue-zero1

Each rank has a batch of its own; the process of PLACE 0 prints the result line, with the mean losses over ranks. Without RANK there is one rank,
which MEET has end when another such process does: two that train apart.
"""
import os
import sys

import torch
import torch.distributed as dist

import gpt_common as g
from gpt_torch import GPT


def rank():
    return int(os.environ.get("RANK", "0"))


def ranks():
    return int(os.environ.get("WORLD_SIZE", "1"))


def segue_step(model, cfg, example, strategy, threads):
    import segue

    torch.set_num_threads(1)
    module = segue.compile(model, example, device=f"cpu:threads={threads}")
    optimizer = segue.AdamW(lr=g.LR, betas=(g.BETA1, g.BETA2), eps=g.EPS, weight_decay=g.DECAY)
    trainer = segue.Trainer([module], optimizer=optimizer, distributed=strategy if ranks() > 1 else None)
    return lambda x, y: trainer.step(tokens=x, targets=y), segue.__version__


def torch_step(model, cfg, example, strategy, threads):
    torch.set_num_threads(threads)
    adamw = {"lr": g.LR, "betas": (g.BETA1, g.BETA2), "eps": g.EPS, "weight_decay": g.DECAY}
    if ranks() > 1 and strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (ranks(),))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif ranks() > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if ranks() > 1 and strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, foreach=True, **adamw)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True, **adamw)
    compute = torch.compile(model) if strategy == "compile" else model

    def step(x, y):
        loss = compute(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, torch.__version__


def main():
    parser = g.arguments()
    parser.add_argument("--peer", required=True, help="segue-ddp, segue-zero1, segue-zero2, segue-zero3, torch-ddp, torch-compile, torch-fsdp2 or torch-zero1")
    args = parser.parse_args()
    system, _, strategy = args.peer.partition("-")
    if os.environ.get("MEET"):
        dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=int(os.environ["PLACE"]), world_size=2)
    cfg, before = g.CONFIGS[args.config], g.rss_mb()
    weights, data = g.load(args.weights)
    model = GPT(cfg)
    model.load(weights)
    example = tuple(torch.from_numpy(a) for a in g.batch_at(data, cfg, 0))
    take, version = (segue_step if system == "segue" else torch_step)(model, cfg, example, strategy, args.threads)

    def step(i):
        x, y = (torch.from_numpy(a) for a in g.batch_at(data, cfg, i * ranks() + rank()))
        return take(x, y)

    losses, times, share = g.run_steps(step, args.steps)
    if ranks() > 1 and system == "torch":
        mean = torch.tensor(losses, dtype=torch.float64)
        dist.all_reduce(mean)
        losses = (mean / ranks()).tolist()
    if os.environ.get("MEET"):
        dist.barrier()
    if int(os.environ.get("PLACE", "0")) == 0:
        g.result(args.peer, args.config, args.threads, (losses, times, share), None, before, version=version)
    sys.stdout.flush()
    if os.environ.get("MEET"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
