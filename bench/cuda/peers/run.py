#!/usr/bin/env python3
"""Runs train_torch.py in several modes, one process each: compiles several at once, times one at a time.

    python run.py --config gpt2 --json out/gpt2.json
    python run.py --config llama --modes eager,compile,budget:0.5 --together 2 --seconds 300
"""
import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

MODES = "eager,compile,graphs,checkpoint,checkpoint-compile,offload,budget:0.8,budget:0.5,budget:0.3,budget:0.1,budget:0"


def start(args, mode):
    name, _, budget = mode.partition(":")
    command = [sys.executable, str(Path(__file__).with_name("train_torch.py")), "--config", args.config, "--wait", "--device", args.device,
               "--steps", str(args.steps), *(["--batch", str(args.batch)] if args.batch else [])]
    weights, _, rest = name.partition("/")
    if rest:
        command += ["--weights", weights]
    command += ["--mode", rest or name, *(["--budget", budget] if budget else [])]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="gpt2")
    parser.add_argument("--modes", default=MODES, help="as bf16/compile for weights in bf16, budget:0.5 for a budget")
    parser.add_argument("--together", type=int, default=4, help="processes that are there at once: their memory must fit")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="no group of processes starts after this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows, modes, began = [], args.modes.split(","), time.monotonic()
    while modes and time.monotonic() - began < args.seconds:
        group, modes = modes[: args.together], modes[args.together:]
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
                rows.append(json.loads(out.splitlines()[-1]))
            else:
                rows.append({"config": args.config, "mode": child.mode, "failed": "".join(child.errors)[-600:]})
            print(json.dumps(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    for mode in modes:
        print(json.dumps({"config": args.config, "mode": mode, "failed": "no time"}), flush=True)
    return any("failed" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
