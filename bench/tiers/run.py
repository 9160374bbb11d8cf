#!/usr/bin/env python3
"""What a disk below the memory costs: the GPT training step at budgets of 100, 50 and 25 % of what it takes, in one sitting.

    python bench/tiers/run.py --spill-dir /mnt/ssd                       # config M
    python bench/tiers/run.py --spill-dir /mnt/ssd --config L --rounds 1 --timeout 3000 --table out/tiers.md

Each run is a process of its own that starts from the same weights and reads the same bytes: Segue in memory, Segue within a part of
the memory that a step takes by itself with the rest on the disk, the same with parameters updated in backward or in the next forward, PyTorch
eager, DeepSpeed's ZeRO-Infinity on the same disk, and these two under a limit of the system (RLIMIT_DATA) that gives
them the smallest of these budgets beside what they had when their model was built. They run in rounds, and the best median of
each counts. Where DeepSpeed is not installed, or cannot run, the table says why.

The bound is the longer of two: the step in memory, and the step's traffic over the disk's own speed, which segue-bench-spill measures
before the first round (plain direct I/O): reads and writes by the speed of both at once. A step is to take at most 1.05, 1.15 and 1.25
times the step in memory at 100, 50 and 25 % where the traffic's time is below the step's, and 1.1 times the traffic's elsewhere;
MISSED marks what does not. Exit status 1 if a run failed or a bit of Segue's losses or weights differs from the run in memory.
"""
import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import LOSS_TOLERANCE, chosen, output, processor, publish, run_rounds  # noqa: E402

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))
#: Percent of the free peak -> the most that a step may take, in steps in memory, where compute covers the disk.
TARGETS = {100: 1.05, 50: 1.15, 25: 1.25}
COVERED = 1.1  # of the traffic's time where it does not


def commands(budgets: list[int], folder: Path) -> dict[str, list[str]]:
    """Name -> script and arguments. The run in memory, which ratios refer to, comes first."""
    peers = {"segue": ["gpt_segue.py"]}
    for budget in budgets:
        peers[f"segue-{budget}"] = ["gpt_segue.py", "--mode", "disk", "--cap", str(budget), "--spill-dir", str(folder)]
    for budget in budgets:
        peers[f"segue-{budget}-in-backward"] = [*peers[f"segue-{budget}"], "--in-backward"]
        peers[f"segue-{budget}-in-forward"] = [*peers[f"segue-{budget}"], "--in-forward"]
    return peers | {"torch": ["gpt_torch.py"], "deepspeed": ["gpt_deepspeed.py", "--spill-dir", str(folder)]}


def disk_speed(folder: Path, mebibytes: int) -> dict[str, float]:
    """GB/s of plain direct I/O: writes, reads, and both at once."""
    done = subprocess.run([BUILD / "bin" / "segue-bench-spill", "3", str(mebibytes), folder], capture_output=True, text=True, timeout=600)
    rows = re.findall(r"^\| plain, [^|]*\|((?: [\d.]+ \|){6})$", done.stdout, re.M)
    if done.returncode or not rows:
        raise SystemExit(f"segue-bench-spill: exit status {done.returncode}\n{done.stderr[-2000:]}")
    speeds = [[float(figure) for figure in row.split("|")[:6:2]] for row in rows]
    return {way: max(row[i] for row in speeds) for i, way in enumerate(("out", "in", "both"))}


def untimed(row: dict) -> str | None:
    """What a run came to that has no time of a step."""
    if "refused" in row:
        return f"refused: {row['refused'].split(': ', 1)[-1]}"
    if "ended" in row:
        return f"after {row['steps']} steps: {row['ended']}"
    return f"skipped: {row['skipped']}" if "skipped" in row else None


def errors_of(results: dict[str, list[dict]]) -> list[str]:
    """A budget changes no bit; losses of PyTorch and DeepSpeed are those of Segue as far as f32 goes."""
    errors, want = [], results["segue"][0] if "segue" in results else None
    for name, runs in results.items():
        for run in runs:
            if want is None or untimed(run):
                continue
            if name.startswith("segue") and run["bits"] != want["bits"]:
                errors.append(f"{name}: losses and weights have the hash {run['bits']}, in memory {want['bits']}")
            elif abs(run["late_loss"] - want["late_loss"]) > LOSS_TOLERANCE * abs(want["late_loss"]):
                errors.append(f"{name}: late_loss is {run['late_loss']}, Segue in memory has {want['late_loss']}")
    return errors


def cells(name: str, row: dict, free: dict | None, speed: dict[str, float]) -> list[str]:
    """MiB in and out per step, the disk's time for them, ratio to memory, ratio to the bound, target."""
    if free is None or "step_ms_median" not in free:
        return ["-"] * 5
    ratio = row["step_ms_median"] / free["step_ms_median"]
    if "in_mb" not in row:
        return ["-", "-", f"{ratio:.3f}", "-", "-"]
    # Bytes over GB/s: what is both read and written goes beside each other, the rest alone.
    less, more = sorted((row["in_mb"], row["out_mb"]))
    alone = speed["in" if row["in_mb"] > row["out_mb"] else "out"]
    disk_ms = (2 * less / speed["both"] + (more - less) / alone) * 2**20 / 1e6
    bound = max(free["step_ms_median"], disk_ms)
    target = "-"
    if name.startswith("segue"):
        covered = disk_ms <= free["step_ms_median"]
        most = TARGETS.get(int(name.split("-")[1]), max(TARGETS.values())) * free["step_ms_median"] if covered else COVERED * disk_ms
        target = f"{most / bound:.2f}{'' if row['step_ms_median'] <= most else ' MISSED'}"
    return [f"{row['in_mb']:.0f} + {row['out_mb']:.0f}", f"{disk_ms:.0f}", f"{ratio:.3f}", f"{row['step_ms_median'] / bound:.3f}", target]


def table(results: dict[str, list[dict]], speed: dict[str, float], args: argparse.Namespace) -> str:
    median = lambda row: row.get("step_ms_median", float("inf"))  # noqa: E731
    best = {name: min(runs, key=median) for name, runs in results.items()}
    free = best.get("segue")
    lines = [
        f"### A disk below the memory, config {args.config}, {args.threads} threads", "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end; "
        f"`python bench/tiers/run.py {' '.join(args.given)}`; best of {args.rounds} medians over {args.steps - 5} steps. "
        f"The disk by itself: writes {speed['out']:.2f}, reads {speed['in']:.2f}, both at once {speed['both']:.2f} GB/s.", "",
        "| | budget MiB | step ms (each run) | MiB in + out | the disk's ms | ratio to memory | ratio to the bound | at most | copies in, out ms | peak RSS MB"
        " (before the model) | CPU share |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in best.items():
        cap = row.get("cap_mb", "-")
        if why := untimed(row):
            lines.append(f"| {row['peer']} | {cap} | {why} | | | | | | | | |")
            continue
        each = ", ".join(f"{run['step_ms_median']:.0f}" for run in results[name] if "step_ms_median" in run)
        busy = f"{row['in_ms']:.0f}, {row['out_ms']:.0f}" if "in_ms" in row else "-"
        lines.append(f"| {row['peer']} | {cap} | {each} | {' | '.join(cells(name, row, free, speed))} | {busy} | {row['peak_rss_mb']} ({row['before_rss_mb']})"
                     f" | {row['cpu_share']} |")
    if any(row.get("cpu_share", 9) < 0.9 * args.threads for name, row in best.items() if name in ("segue", "torch")):
        lines += ["", "A CPU share below 0.9 per thread in memory: something else held the processors; read ratios, not times."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spill-dir", type=Path, required=True, help="a folder on the disk")
    parser.add_argument("--config", choices=["T", "S", "M", "L"], default="M")
    parser.add_argument("--budgets", default="100,50,25", help="percent of the unconstrained peak")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--steps", type=int, default=25, help="per run; the first 5 are left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", help="some of them, by name; default: all")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run")
    parser.add_argument("--disk-mib", type=int, default=512, help="size of the file by which the disk is measured")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the generated weights")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    args.spill_dir.mkdir(parents=True, exist_ok=True)
    budgets = [int(budget) for budget in args.budgets.split(",")]
    peers = commands(budgets, args.spill_dir.resolve())
    names = chosen(parser, args, peers)
    speed = disk_speed(args.spill_dir, args.disk_mib)
    results, whole = run_rounds(names, peers, args)
    if not results:
        return 1
    caps = [row["cap_mb"] for runs in results.values() for row in runs if "cap_mb" in row]
    others = [name for name, runs in results.items() if not name.startswith("segue") and not untimed(runs[0])]
    if caps and others:
        limited = {f"{name}-limited": [*peers[name], "--limit-mib", str(min(caps))] for name in others}
        found, ran = run_rounds(list(limited), limited, argparse.Namespace(**{**vars(args), "rounds": 1}))
        results, whole = results | found, whole and ran
    return publish(table(results, speed, args), args.table, errors_of(results), whole)


if __name__ == "__main__":
    sys.exit(main())
