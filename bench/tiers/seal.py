#!/usr/bin/env python3
"""What a sealed checkpoint costs: a GPT trained within a part of its memory, whose weights and moments lie on a disk.

    python bench/tiers/seal.py --spill-dir /mnt/ssd                      # config M, 1 GB of weights and moments, 25 %

Cycles of `--every` steps alternate: one begins with a seal, the next with none, so that what else the machine does is in both. The cost is
the time of the seals, and that of the cycles with a seal over those without: the first step after a seal writes to other places than before.
Beside that, what a checkpoint takes that is written whole. Ends with status 1 if the losses from the last seal on are not those of the run
that went on.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "peers")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spill-dir", type=Path, required=True, help="a folder on the disk")
    parser.add_argument("--config", choices=["T", "S", "M", "L"], default="M")
    parser.add_argument("--budget", type=float, default=25, help="percent of the unconstrained peak")
    parser.add_argument("--every", type=int, default=10, help="steps between two seals")
    parser.add_argument("--cycles", type=int, default=3, help="of each kind")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    args.spill_dir.mkdir(parents=True, exist_ok=True)

    import torch
    torch.set_num_threads(1)  # PyTorch only captures the model
    import gpt_common as g
    import segue
    from gpt_torch import GPT
    from run import processor

    cfg, data = g.CONFIGS[args.config], g.corpus()
    batch = lambda i: dict(zip(("tokens", "targets"), (torch.from_numpy(a) for a in g.batch_at(data, cfg, i))))  # noqa: E731
    checkpoint, whole = args.spill_dir / "bench.seal", args.spill_dir / "bench.safetensors"

    def make(seal):
        model = GPT(cfg)
        model.load(g.initial_weights(cfg))
        module = segue.compile(model, tuple(batch(0).values()), device=f"cpu:threads={args.threads}")
        optimizer = segue.AdamW(lr=g.LR, betas=(g.BETA1, g.BETA2), eps=g.EPS, weight_decay=g.DECAY)
        cap = int(segue.Trainer(module, optimizer=optimizer).memory().unconstrained.peak_bytes * args.budget / 100)
        return segue.Trainer(module, optimizer=optimizer, budget=cap, spill_dir=args.spill_dir, seal=seal), cap

    trainer, cap = make(checkpoint)
    steps = lambda count: [trainer.step(**batch(trainer.step_count)) for _ in range(count)]  # noqa: E731
    steps(5)  # plans, and plans again with measured times
    cycles, seals = {False: [], True: []}, []
    for i in range(2 * args.cycles):
        begin = time.perf_counter()
        if i % 2:
            seals.append(trainer.seal())
        losses = steps(args.every)
        cycles[bool(i % 2)].append(time.perf_counter() - begin)
    begin = time.perf_counter()
    trainer.save(whole)
    save = time.perf_counter() - begin
    bytes_of_whole = whole.stat().st_size
    whole.unlink()
    trainer.resume(checkpoint)
    again = steps(args.every)
    step = statistics.median(cycles[False]) / args.every
    seal = statistics.median(each["seconds"] for each in seals)
    sealed, written, manifest = (statistics.median(each[key] for each in seals) / 2**20 for key in ("sealed_bytes", "written_bytes", "file_bytes"))
    print(f"### Sealed checkpoints, config {args.config}, {args.threads} threads\n\n{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, "
          f"load {os.getloadavg()[0]:.1f} at the end; `python bench/tiers/seal.py {' '.join(sys.argv[1:])}`; medians of {args.cycles} cycles.\n\n"
          "| budget MiB | step ms | sealed MiB | written MiB | file MiB | seal ms (each) | of a step | of the steps between | cycles with over without"
          " | whole checkpoint ms, MiB |\n| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n"
          f"| {cap / 2**20:.0f} | {step * 1e3:.0f} | {sealed:.1f} | {written:.1f} | {manifest:.2f} | {seal * 1e3:.1f} "
          f"({', '.join(format(each['seconds'] * 1e3, '.0f') for each in seals)}) | {seal / step:.3f} | {seal / step / args.every:.4f} | "
          f"{statistics.median(b / a for a, b in zip(cycles[False], cycles[True])):.3f} | {save * 1e3:.0f}, {bytes_of_whole / 2**20:.0f} |")
    del trainer
    checkpoint.unlink()
    for file in args.spill_dir.glob("segue-*.sealed"):
        file.unlink()
    if again != losses:
        print(f"after the seal: {again}\nthe run that went on: {losses}", file=sys.stderr)
    return int(again != losses)


if __name__ == "__main__":
    sys.exit(main())
