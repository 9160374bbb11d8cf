#!/usr/bin/env python3
"""What it costs two ranks to train together, in Segue and in PyTorch, in one sitting.

    python bench/ranks/run.py
    python bench/ranks/run.py --config M --rounds 1 --peers segue-ddp,torch-ddp

Each peer trains a GPT three times, with one thread per process: in one process; in two at once that know nothing of each other, which is what
two cores cost that share caches and memory; and in two ranks that train together. The last two differ by what messages cost, and their ratio is
the share of the ideal that is reached. Ranks have batches of their own, so that a step of two learns from twice as many. The table goes to stdout; exit status 1 if a
peer failed or the losses of ranks differ from those of PyTorch's DistributedDataParallel.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import LOSS_TOLERANCE, PEERS, chosen, output, processor, publish, weights_file  # noqa: E402

COMMANDS = {name: [] for name in ("segue-ddp", "segue-zero1", "segue-zero2", "segue-zero3", "torch-ddp", "torch-compile", "torch-zero1", "torch-fsdp2")}
WAYS = ("alone", "apart", "together")


def run_way(peer: str, way: str, weights: Path, args: argparse.Namespace) -> dict | None:
    """The result line of the first process; None, with the reason on stderr, where one has failed."""
    line = [sys.executable, str(PEERS / "gpt_ranks.py"), str(weights), "--config", args.config, "--threads", "1", "--steps", str(args.steps), "--peer", peer]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for place in range(1 if way == "alone" else 2):
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PLACE": str(place)}
            environment |= {} if way == "alone" else {"MEET": f"file://{folder}/meet"}
            environment |= {"RANK": str(place), "WORLD_SIZE": "2"} if way == "together" else {}
            processes.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
        until, found = time.monotonic() + args.timeout, None
        try:
            for place, process in enumerate(processes):
                out, error = process.communicate(timeout=max(until - time.monotonic(), 1))
                lines = [line for line in out.splitlines() if line.startswith("{")]
                if process.returncode or (place == 0 and not lines):
                    print(f"{peer} {way}: exit status {process.returncode}\n{error[-2000:]}", file=sys.stderr)
                    return None
                found = found or json.loads(lines[-1])
        except subprocess.TimeoutExpired:
            print(f"{peer} {way}: no result within {args.timeout} s", file=sys.stderr)
            return None
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return found


def loss_errors(best: dict[str, dict[str, dict]]) -> list[str]:
    """Peers whose ranks have not the losses of PyTorch's."""
    if "torch-ddp" not in best:
        return []
    want, errors = best["torch-ddp"]["together"], []
    for peer, ways in best.items():
        for key in ("loss0", "late_loss"):
            error = abs(ways["together"][key] - want[key]) / abs(want[key])
            if not error <= LOSS_TOLERANCE:  # NaN is an error too
                errors.append(f"{peer}: {key} is {ways['together'][key]}, torch-ddp has {want[key]} (relative {error:.1e})")
    return errors


def table(best: dict[str, dict[str, dict]], args: argparse.Namespace) -> str:
    ms = {peer: {way: row["step_ms_median"] for way, row in ways.items()} for peer, ways in best.items()}
    slowest = ms.get("torch-ddp")
    lines = [
        f"### Two ranks of one thread, config {args.config}", "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end; "
        f"`python bench/ranks/run.py {' '.join(args.given)}`; best of {args.rounds} medians over {args.steps - 5} steps, gloo.".replace(" `;", "`;"), "",
        "| peer | one process, ms | two apart, ms | two ranks, ms | apart / ranks | alone / ranks | ratio to torch-ddp | peak RSS of a rank, MB | loss of the last step |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for peer, ways in ms.items():
        ratio = f"{ways['together'] / slowest['together']:.2f}" if slowest else "-"
        row = best[peer]["together"]
        lines.append(f"| {peer} | {ways['alone']:.0f} | {ways['apart']:.0f} | {ways['together']:.0f} | {ways['apart'] / ways['together']:.2f} | "
                     f"{ways['alone'] / ways['together']:.2f} | {ratio} | {row['peak_rss_mb']} | {row['late_loss']:.4f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=["S", "T", "M", "G"], default="S")
    parser.add_argument("--peers", help=f"some of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=600, help="seconds that a peer may take")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder for weights")
    parser.add_argument("--table", type=output, help="a file for the table, too")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    names = chosen(parser, args, COMMANDS)
    weights, best, whole = weights_file(args.config, args.work), {}, True
    for turn in range(args.rounds):
        for peer in names:
            for way in WAYS:
                print(f"round {turn + 1} of {args.rounds}: {peer}, {way}", file=sys.stderr)
                row = run_way(peer, way, weights, args)
                whole &= row is not None
                if row is not None:
                    rows = best.setdefault(peer, {})
                    rows[way] = min(rows.get(way, row), row, key=lambda each: each["step_ms_median"])
    best = {peer: ways for peer, ways in best.items() if len(ways) == len(WAYS)}
    return publish(table(best, args), args.table, loss_errors(best), whole)


if __name__ == "__main__":
    sys.exit(main())
