#!/usr/bin/env python3
"""What a pipeline of two ranks gains over one, in Segue and in PyTorch (torch.distributed.pipelining), in one sitting.

    python bench/ranks/pipeline.py
    python bench/ranks/pipeline.py --config T --batches 4 --rounds 1 --peers segue

Each peer trains a GPT of two modules by one process that has both, and by two ranks that have one each, with one thread per process. A step has
M micro-batches, so that two ranks take (M + 1) / 2M of the time of one at best: each waits for one batch. The table says how much of that is reached.
It goes to stdout; exit status 1 if a peer failed, or if two ranks of Segue's have not the losses of one to the bit.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]

CONFIGS = {"S": (6, 384, 6, 256, 2), "T": (4, 64, 2, 64, 2)}  # layers, width, heads, tokens, rows of a micro-batch
PEERS = ("segue", "torch")
WARMUP = 3


# --- one process ------------------------------------------------------------------------------


def segue_step(models, rows, batches, several):
    import segue

    first, last = models
    cfg, (tokens, targets) = first[1], rows
    modules = {"first": segue.compile(first[0], (tokens,), device="cpu:threads=1"),
               "last": segue.compile(last[0], (first[0](tokens).detach(), targets), device="cpu:threads=1")}
    trainer = segue.Trainer(modules, optimizer=segue.AdamW(lr=1e-3), grad_accumulation=batches, distributed="pipeline" if several else None, **({"stages": [1, 1]} if several else {}))
    return lambda x, y: trainer.step(tokens=x, targets=y)


def torch_step(models, rows, batches, several):
    import torch
    import torch.distributed as dist

    (first, _), (last, _) = models
    if not several:
        optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=1e-3, foreach=True)

        def step(x, y):
            total = 0.0
            for one, target in zip(x.chunk(batches), y.chunk(batches)):
                loss = last(first(one), target)
                (loss / batches).backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return total / batches

        return step
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    model = models[rank][0]
    head = torch.nn.functional.cross_entropy
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, batches, loss_fn=lambda logits, y: head(logits.flatten(0, 1), y.flatten()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def step(x, y):
        losses = []
        schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(mean, 1)
        return mean.item()

    return step


def child(args):
    import torch
    import torch.distributed as dist
    from models import GPTConfig, GPTFirst, GPTLast

    torch.set_num_threads(1)
    several = "RANK" in os.environ
    if several:
        dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
    layers, dim, heads, seq, rows = CONFIGS[args.config]
    cfg = GPTConfig(layers=layers, dim=dim, heads=heads, seq=seq)
    torch.manual_seed(0)
    models = [(GPTFirst(cfg, layers // 2), cfg), (GPTLast(cfg, layers - layers // 2), cfg)]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, cfg.vocab, (args.steps, rows * args.batches, seq + 1), generator=generator)
    example = (tokens[0, :rows, :-1].contiguous(), tokens[0, :rows, 1:].contiguous())
    step = (segue_step if args.peer == "segue" else torch_step)(models, example, args.batches, several)
    times, losses = [], []
    for batch in tokens:
        x, y = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        begin = time.perf_counter()
        losses.append(float(step(x, y)))
        times.append(time.perf_counter() - begin)
    print(json.dumps({"ms": statistics.median(times[WARMUP:]) * 1e3, "losses": [loss.hex() for loss in losses]}), flush=True)


# --- all ----------------------------------------------------------------------------------------


def run_way(peer, ranks, args):
    """The result line of the last rank; None, with the reason on stderr, where one has failed."""
    line = [sys.executable, __file__, "--child", "--peer", peer, "--config", args.config, "--batches", str(args.batches), "--steps", str(args.steps)]
    with tempfile.TemporaryDirectory() as folder:
        environments = [os.environ | {"OMP_NUM_THREADS": "1"} | ({"RANK": str(rank), "MEET": f"file://{folder}/meet"} if ranks > 1 else {}) for rank in range(ranks)]
        processes = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=each) for each in environments]
        try:
            for process in processes:
                out, error = process.communicate(timeout=args.timeout)
                if process.returncode:
                    print(f"{peer} on {ranks}: exit status {process.returncode}\n{error[-2000:]}", file=sys.stderr)
                    return None
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return json.loads(out.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="S")
    parser.add_argument("--batches", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--timeout", type=int, default=300, help="seconds that a run may take")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    from run import processor

    best, whole = {}, True
    for _ in range(args.rounds):
        for peer in args.peers.split(","):
            for ranks in (1, 2):
                row = run_way(peer, ranks, args)
                whole &= row is not None
                if row is not None:
                    best[peer, ranks] = min(best.get((peer, ranks), row), row, key=lambda each: each["ms"])
    print(f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end; config {args.config}, "
          f"{args.batches} micro-batches, one thread for each rank, best of {args.rounds} medians over {args.steps - WARMUP} steps, gloo\n")
    print("| peer | one rank, ms | two stages, ms | one / two | of the ideal |\n| --- | --: | --: | --: | --: |")
    ideal = 2 * args.batches / (args.batches + 1)
    for peer in args.peers.split(","):
        if (peer, 1) in best and (peer, 2) in best:
            gain = best[peer, 1]["ms"] / best[peer, 2]["ms"]
            print(f"| {peer} | {best[peer, 1]['ms']:.0f} | {best[peer, 2]['ms']:.0f} | {gain:.2f} | {gain / ideal:.2f} |")
    if ("segue", 2) in best and best["segue", 1]["losses"] != best["segue", 2]["losses"]:
        print("segue: two ranks have not the losses of one", file=sys.stderr)
        whole = False
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
