#!/usr/bin/env python3
"""What a training step takes beside busy programs, as a ratio to what it takes alone, in Segue and in PyTorch, in one sitting.

    python bench/neighbour/run.py
    python bench/neighbour/run.py --configs D --peers segue,eager --rounds 1

The busy programs are as many as there are processors, and each would keep one to itself. A fair share of the processors is then a
half, so that a step takes twice as long where nothing is lost. Means count, not medians: a step that waits is the matter. Each peer
runs alone and beside them in turns; of the runs alone the fastest counts, of those beside the median. The table goes to stdout; exit
status 1 if a peer failed.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import COMMANDS, chosen, output, processor, publish, run_peer, weights_file  # noqa: E402


class BusyPrograms:
    """Loops without end, while an object of it is entered."""

    def __init__(self, count: int):
        self.count, self.processes = count, []

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-SEc", "while True: pass"]) for _ in range(self.count)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def measure(names: list[str], args: argparse.Namespace) -> tuple[dict[tuple[str, str, bool], list[float]], bool]:
    """Milliseconds of a step, one figure per round, by config, peer and whether there are busy programs; and whether all runs gave one."""
    found, whole = {}, True
    for turn in range(args.rounds):
        for config in args.configs.split(","):
            weights = weights_file(config, args.work)
            for name in names:
                for beside in (False, True):
                    print(f"round {turn + 1} of {args.rounds}: {name}, config {config}, {'beside busy programs' if beside else 'alone'}", file=sys.stderr)
                    steps = args.steps * (1 if config in "SM" else 10)
                    with BusyPrograms(args.loops if beside else 0):
                        row = run_peer(name, COMMANDS[name], weights, argparse.Namespace(**vars(args) | {"config": config, "steps": steps}))
                    whole &= row is not None
                    if row is not None:
                        found.setdefault((config, name, beside), []).append(row["step_ms_mean"])
    return found, whole


def table(found: dict[tuple[str, str, bool], list[float]], args: argparse.Namespace) -> str:
    lines = [
        f"### A step beside {args.loops} busy programs, {args.threads} threads", "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors; `python bench/neighbour/run.py {' '.join(args.given)}`;"
        f" means of {args.steps - 5} steps and more, {args.rounds} runs of each.".replace(" `;", "`;"), "",
        "| config | peer | alone, ms | beside them, ms | ratio |", "| --- | --- | --: | --: | --: |",
    ]
    for (config, name, beside), times in found.items():
        alone = found.get((config, name, False))
        if beside and alone:
            each = [", ".join(f"{ms:.1f}" for ms in runs) for runs in (alone, times)]
            lines.append(f"| {config} | {name} | {each[0]} | {each[1]} | {statistics.median(times) / min(alone):.2f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default="S,D", help="of bench/peers/gpt_common.py; D is the demo's model")
    parser.add_argument("--peers", default="segue,eager", help=f"some of {', '.join(COMMANDS)}")
    parser.add_argument("--loops", type=int, default=os.cpu_count(), help="busy programs")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--steps", type=int, default=15, help="per run, and ten times as many of small models; the first 5 are left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the generated weights")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    found, whole = measure(chosen(parser, args, COMMANDS), args)
    return publish(table(found, args), args.table, [], whole)


if __name__ == "__main__":
    sys.exit(main())
