#!/usr/bin/env python3
"""A training step of ResNet-18 and of a UNet in Segue, PyTorch eager and torch.compile, in one sitting.

    python bench/images/run.py                          # both, 2 threads
    python bench/images/run.py --models unet --bf16
    python bench/images/run.py --table out/images.md

Each peer is a process of its own (bench/peers/images.py) that starts from the same weights and sees the same images, channels-last. They run one
after the other, in rounds, and the best median of each counts. Exit status 1 if a peer failed or the losses differ.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import PEERS, loss_errors, output, processor, publish  # noqa: E402

MODELS, MODES = ["resnet18", "unet"], ["segue", "eager", "compile"]
#: Relative difference of losses, after some ten updates of batch norms over few values: f32 peers show 1e-6 in the first.
LOSS_TOLERANCE = {False: 1e-3, True: 2e-2}


def run_peer(model: str, mode: str, args: argparse.Namespace) -> dict | None:
    """The result line of a process; None with the reason on stderr."""
    line = [sys.executable, PEERS / "images.py", model, "--mode", mode, "--threads", str(args.threads), "--steps", str(args.steps),
            *["--bf16"] * args.bf16, *([f"--size={args.size}"] if args.size else [])]
    done = subprocess.run(line, capture_output=True, text=True, timeout=args.timeout, env=os.environ | {"OMP_NUM_THREADS": str(args.threads)})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{model}, {mode}: exit status {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def table(results: dict[str, dict[str, list[dict]]], args: argparse.Namespace) -> str:
    command = f"python bench/images/run.py {' '.join(args.given)}".strip()
    lines = [f"### Training step of networks for images, {args.threads} threads{', bf16' * args.bf16}", "",
             f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end; `{command}`;"
             f" best of {args.rounds} medians over {args.steps - 5} steps, batch 8, channels-last.", "",
             "| model | peer | step ms (each run) | ratio to the faster of PyTorch | CPU share | peak RSS MiB | start-up s | loss after the last step |",
             "| --- | --- | --- | --: | --: | --: | --: | --: |"]
    for model, peers in results.items():
        best = {mode: min(runs, key=lambda r: r["step_ms_median"]) for mode, runs in peers.items()}
        theirs = [row["step_ms_median"] for mode, row in best.items() if mode != "segue"]
        for mode, row in best.items():
            each = ", ".join(f"{r['step_ms_median']:.0f}" for r in peers[mode])
            ratio = f"{row['step_ms_median'] / min(theirs):.2f}" if theirs else "-"
            lines.append(f"| {model} | {row['peer']} | {each} | {ratio} | {row['cpu_share']} | {row['peak_rss_mb']} | {row['compile_s']} | {row['late_loss']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="of these; default: all")
    parser.add_argument("--peers", default=",".join(MODES), help="of these; default: all")
    parser.add_argument("--bf16", action="store_true", help="with autocast: products and convolutions in bfloat16")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--steps", type=int, default=12, help="per run; the first 5 are left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", type=int, help="of a side of an image, in pixels, a multiple of 8; default: 224 and 128")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    models, modes = args.models.split(","), args.peers.split(",")
    for name, known in [*((model, MODELS) for model in models), *((mode, MODES) for mode in modes)]:
        if name not in known:
            parser.error(f"{name!r} is none of {', '.join(known)}")
    if args.steps < 8:
        parser.error(f"--steps: {args.steps} given, 8 are needed: the first 5 are left out, and a median of less than 3 says little")
    results, whole, errors = {}, True, []
    for turn in range(args.rounds):
        for model in models:
            for mode in modes:
                print(f"round {turn + 1} of {args.rounds}: {model}, {mode}", file=sys.stderr)
                row = run_peer(model, mode, args)
                whole &= row is not None
                if row is not None:
                    results.setdefault(model, {}).setdefault(mode, []).append(row)
    for model, peers in results.items():
        errors += [f"{model}: {error}" for error in loss_errors(peers, LOSS_TOLERANCE[args.bf16])]
    return publish(table(results, args), args.table, errors, whole) if results else 1


if __name__ == "__main__":
    sys.exit(main())
