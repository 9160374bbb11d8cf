#!/usr/bin/env python3
"""Trains a model by PyTorch and by Segue in several modes, one process each: compiles several at once, times one at a time.

    PYTHONPATH=build/python python run.py --config gpt2 --json out/gpt2.json
    PYTHONPATH=build/python python run.py --config llama --modes eager,compile,segue,segue:0.6,budget:0.5 --together 2 --seconds 300

The modes of PyTorch are those of train_torch.py; `segue` and `segue:0.6`, within 60 % of what its step holds, are train_segue.py.
After the rows come ratios: each run of Segue beside `compile`, beside Segue without a budget, and beside the fastest run of PyTorch that
holds no more.
"""
import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

MODES = ("eager,compile,graphs,checkpoint,checkpoint-compile,offload,budget:0.8,budget:0.5,budget:0.3,budget:0.1,budget:0,"
         "segue,segue:0.8,segue:0.6,segue:0.4")


def start(args, mode):
    name, _, budget = mode.partition(":")
    weights, _, rest = name.rpartition("/")
    is_segue = rest == "segue"
    command = [sys.executable, str(Path(__file__).with_name("train_segue.py" if is_segue else "train_torch.py")), "--config", args.config,
               "--wait", "--device", args.segue_device if is_segue else args.device, "--steps", str(args.steps), *(["--batch", str(args.batch)] if args.batch else [])]
    if weights:
        command += ["--weights", weights]
    command += ["--mode", ("budget" if budget else "free") if is_segue else rest, *(["--budget", budget] if budget else [])]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.mode, child.lines, child.errors = mode, [], []
    # Both pipes are drained, or a child that warns a lot would wait for its reader.
    child.drain = threading.Thread(target=lambda: child.errors.extend(child.stderr), daemon=True)
    child.drain.start()
    return child


def ready(child):
    line = child.stdout.readline()
    while line and line.strip() != "ready":
        line = child.stdout.readline()
    return bool(line)


def group_of(modes, together):
    """The modes that are there at once. Segue takes what memory is free as its own, so it comes alone."""
    if "segue" in modes[0]:
        return modes[:1]
    return list(itertools.takewhile(lambda mode: "segue" not in mode, modes))[:together]


def ratios(rows):
    """Of each run of Segue, as speeds: above 1 it is the faster one."""
    ran = [row for row in rows if "step_ms" in row]
    of_torch = [row for row in ran if row["peer"].startswith("torch")]
    found = []
    for row in ran:
        if not row["peer"].startswith("segue"):
            continue
        alike = [other for other in of_torch if other["weights"] == row["weights"]]
        speed = lambda other: round(other["step_ms"] / row["step_ms"], 3)  # noqa: E731
        ratio = {"config": row["config"], "ratios_of": row["name"], "predicted_of_measured_ms": round(row["predicted_ms"] / row["step_ms"], 3),
                 "predicted_of_measured_mib": round(row["predicted_mib"] / row["peak_mib"], 3)}
        for other in alike:
            if other["mode"] == "compile":
                ratio["of_torch_compile"] = speed(other)
        for other in ran:
            if other["peer"] == row["peer"] and other["mode"] == "free" and other["weights"] == row["weights"] and other is not row:
                ratio |= {"of_segue_free": speed(other), "part_of_its_peak": round(row["peak_mib"] / other["peak_mib"], 3)}
        lean = [other for other in alike if other.get("peak_mib", float("inf")) <= row["peak_mib"]]
        if lean:
            best = min(lean, key=lambda other: other["step_ms"])
            ratio |= {"of_torch_within_its_peak": speed(best), "which_is": best["name"]}
        found.append(ratio)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="gpt2")
    parser.add_argument("--modes", default=MODES, help="as bf16/compile for weights in bf16, budget:0.5 for a budget")
    parser.add_argument("--together", type=int, default=4, help="processes that are there at once: their memory must fit")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cuda", help="of PyTorch")
    parser.add_argument("--segue-device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=1e9, help="no group of processes starts after this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows, modes, began = [], args.modes.split(","), time.monotonic()
    while modes and time.monotonic() - began < args.seconds:
        group = group_of(modes, args.together)
        modes = modes[len(group):]
        children = [start(args, mode) for mode in group]
        alive = [child for child in children if ready(child)]
        for child in children:
            if child in alive:
                child.stdin.write("\n")
                child.stdin.flush()
                out = child.stdout.read()
            child.wait()
            child.drain.join(5)
            if child in alive and child.returncode == 0:
                rows.append(json.loads(out.splitlines()[-1]) | {"name": child.mode})
            else:
                rows.append({"config": args.config, "name": child.mode, "failed": "".join(child.errors)[-600:]})
            print(json.dumps(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    for mode in modes:
        print(json.dumps({"config": args.config, "name": mode, "failed": "no time"}), flush=True)
    for ratio in ratios(rows):
        rows.append(ratio)
        print(json.dumps(ratio), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return any("failed" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
