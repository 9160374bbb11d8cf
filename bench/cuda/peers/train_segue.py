#!/usr/bin/env python3
"""The training step of train_torch.py by Segue, on a GPU: seconds and memory.

    PYTHONPATH=build/python python train_segue.py --config gpt2
    PYTHONPATH=build/python python train_segue.py --config llama --mode budget --budget 0.6

The same model, batches and AdamW; weights and states are f32 under bf16-mixed, or all bf16 (`--weights bf16`). Modes: free; budget,
that part of what a step holds without one, kept by a plan. Prints one line of JSON with the names of train_torch.py; the peak
is that of Segue's books, with what the plan had foreseen of time and peak beside it. `--wait` as there.
"""
import json
import sys
import time

import torch

import train_torch as t


def main():
    args, c = t.arguments(__doc__, ["free", "budget"], "cuda:0")
    import segue

    torch.manual_seed(0)
    model = t.Model(c, use_checkpoint=False)
    if args.weights == "bf16":
        model = model.to(torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters())
    batches = [{"tokens": batch[:, :-1].contiguous(), "targets": batch[:, 1:].contiguous()} for batch in t.batches_of(c)]
    started = time.perf_counter()
    compiled = segue.compile(model, (batches[0]["tokens"], batches[0]["targets"]), device=args.device,
                             precision="bf16-mixed" if args.weights == "f32" else None)
    optimizer = segue.AdamW(lr=t.LR, betas=t.BETAS, eps=t.EPS, weight_decay=t.DECAY)
    memory = compiled.memory(optimizer=optimizer, device=args.device)
    more, plan, options = {}, memory.unconstrained, {}
    if args.mode == "budget":
        budget = int(memory.unconstrained.peak_bytes * args.budget)
        more = {"budget": args.budget, "budget_mib": round(budget / 2**20, 1)}
        try:
            plan, options = compiled.memory(budget, optimizer=optimizer, device=args.device).plan, {"budget": budget}
        except segue.BudgetInfeasibleError as error:
            if args.wait:
                print("ready", flush=True)
                sys.stdin.readline()
            print(json.dumps({"peer": f"segue {segue.__version__}", "config": args.config, "mode": args.mode, **more,
                              "refused": str(error).splitlines()[0]}), flush=True)
            return
    trainer = segue.Trainer(compiled, optimizer=optimizer, device=args.device, **options)
    step = lambda i: trainer.step(**batches[i % len(batches)])  # noqa: E731 - the loss is there when it returns
    losses = [step(0)]
    first = time.perf_counter() - started
    for i in range(1, 4):
        step(i)
    warm = time.perf_counter() - started
    if args.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    for i in range(2):
        step(i)
    times = []
    for i in range(args.steps):
        started = time.perf_counter()
        losses.append(step(i))
        times.append(time.perf_counter() - started)
    print(json.dumps(t.row_of(f"segue {segue.__version__}", args, c, parameters, times, losses, first_step_s=round(first, 2),
                              warm_s=round(warm, 2), peak_mib=round(trainer.peak_bytes / 2**20, 1),
                              predicted_ms=round(plan.seconds * 1e3, 2), predicted_mib=round(plan.peak_bytes / 2**20, 1), **more)), flush=True)


if __name__ == "__main__":
    main()
