"""Trains a GPT with AdamW whose weights, gradients, moments and activations are four times the memory it is given.

    python examples/bigger_than_memory.py --spill-dir /mnt/ssd --out out/bigger

What has no room in the budget lies in one unnamed file in the folder and comes when it is needed, as a plan made before the
first step decides. Each step prints what is in memory and what is on the disk; the page out/bigger/report.html draws both over a
step, by kind. `--compare` trains in memory, too, and compares every loss and every weight.

    python examples/bigger_than_memory.py --spill-dir /mnt/ssd --out out/bigger --limit

runs the same under a limit that the system enforces (RLIMIT_DATA: all memory that a process may write to), which is set when the model
is built: what the process has by then, the budget, and BESIDE. After it, PyTorch trains the same model under the same limit. As a
service or in a container the limit is that of the control group: `systemd-run --scope -p MemoryMax=2G -p MemorySwapMax=0 python ...`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import segue
from models import GPT, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
#: Of a process besides what it had before training and the budget: buffers of copies (64 MiB), stacks of threads, Python's own.
BESIDE = 160 * MIB


def batches(config: GPTConfig, rows: int, count: int):
    """Bytes of the README, the same in every run."""
    data, rng = np.frombuffer((ROOT / "README.md").read_bytes(), np.uint8), np.random.default_rng(0)
    for _ in range(count):
        windows = np.stack([data[s : s + config.seq + 1] for s in rng.integers(0, len(data) - config.seq - 1, rows)]).astype(np.int64)
        yield {"tokens": torch.from_numpy(windows[:, :-1].copy()), "targets": torch.from_numpy(windows[:, 1:].copy())}


def model_of(config: GPTConfig) -> GPT:
    torch.manual_seed(0)
    return GPT(config)


def of_process(figure: str) -> int:
    """Bytes of this process: "VmData" may be written to, "VmHWM" is the most that was in memory at once."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(figure + ":"))
    return int(line.split()[1]) * 1024


def hold_to(budget: int) -> int:
    """Lets the system refuse this process more than it has now, the budget and BESIDE. Returns that limit."""
    limit = of_process("VmData") + budget + BESIDE
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


def where(held: dict[str, int]) -> str:
    return f"{sum(held.values()) / MIB:.1f} MiB ({', '.join(f'{kind} {size / MIB:.1f}' for kind, size in sorted(held.items(), key=lambda i: -i[1]))})"


def compiled(args, config: GPTConfig):
    example, adamw = next(batches(config, args.batch, 1)), segue.AdamW(lr=3e-4)
    return segue.compile(model_of(config), (example["tokens"], example["targets"]), optimizer=adamw).build(), adamw


def with_segue(args, config: GPTConfig) -> None:
    module, adamw = compiled(args, config)
    forecast = module.memory()
    free = forecast.unconstrained.peak_bytes
    budget = int(free * args.percent / 100)
    if budget < forecast.smallest_budget_bytes:
        raise SystemExit(f"{budget / MIB:.1f} MiB are less than any step of this model keeps to: at least "
                         f"{forecast.smallest_budget_bytes / MIB:.1f} MiB, set by {forecast.set_by}; give --percent, or more layers")
    weights = sum(p.numel() for p in module.parameters())
    print(f"{weights / 1e6:.1f} M parameters: a step in memory holds {free / MIB:.1f} MiB; the budget is {budget / MIB:.1f} MiB, "
          f"{free / budget:.1f} times less")
    limit = hold_to(budget) if args.limit else None
    if limit:
        print(f"the system lets this process have {limit / MIB:.0f} MiB: {(limit - budget - BESIDE) / MIB:.0f} that it had before "
              f"training, the budget, and {BESIDE / MIB:.0f}")
    losses = []
    with segue.Trainer([module], optimizer=adamw, budget=budget, spill_dir=args.spill_dir, report=args.out / "report.html") as trainer:
        for step, batch in enumerate(batches(config, args.batch, args.steps), 1):
            begin = time.perf_counter()
            losses.append(trainer.step(**batch))
            held = trainer.held()
            print(f"step {step}: loss {losses[-1]:.6f}, {time.perf_counter() - begin:.2f} s; in memory {where(held['device_dram'])}; "
                  f"on the disk {where(held['disk'])}", flush=True)
        trainer.sync()
        most = trainer.peak_bytes
    print(f"at most {most / MIB:.1f} of {budget / MIB:.1f} MiB; the process {of_process('VmHWM') / MIB:.0f} MiB, PyTorch and all; "
          f"memory and disk over a step: {args.out / 'report.html'}")
    if args.compare:
        compare(args, config, losses, module)
    print(json.dumps({"trained": "segue", "losses": losses, "free_bytes": free, "budget_bytes": budget, "peak_bytes": most,
                      "process_bytes": of_process("VmHWM"), "limit_bytes": limit}))


def compare(args, config: GPTConfig, losses: list[float], module) -> None:
    """The same training in memory, and whether a bit differs."""
    other, adamw = compiled(args, config)
    trainer = segue.Trainer([other], optimizer=adamw)
    if [trainer.step(**batch) for batch in batches(config, args.batch, args.steps)] != losses:
        raise SystemExit("the losses differ from those of a run in memory")
    differ = [name for (name, a), b in zip(module.named_parameters(), other.parameters()) if not torch.equal(a, b)]
    if differ:
        raise SystemExit(f"the weights differ from those of a run in memory: {differ[0]} and {len(differ) - 1} others")
    print("all losses and weights equal those of a run in memory, to the bit")


def with_pytorch(args, config: GPTConfig) -> None:
    model = model_of(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    resource.setrlimit(resource.RLIMIT_DATA, (args.held_to, args.held_to))
    print(f"PyTorch under the limit of {args.held_to / MIB:.0f} MiB, of which it has {of_process('VmData') / MIB:.0f} before training", flush=True)
    for step, batch in enumerate(batches(config, args.batch, args.steps), 1):
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)


def under_a_limit(args) -> None:
    """Each in a process of its own, which has nothing of the other, nor of what came before."""
    def child(who: str, *more: str) -> subprocess.CompletedProcess:
        # Few arenas: what one thread has freed, another takes.
        return subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", who, *more], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env={**os.environ, "MALLOC_ARENA_MAX": "2"})

    done = child("segue")
    *lines, last = done.stdout.splitlines() or [""]
    print("\n".join(lines))
    if done.returncode:
        raise SystemExit(f"Segue did not keep to it: exit status {done.returncode}\n{last}\n{done.stderr[-2000:]}")
    result = json.loads(last)
    done = child("pytorch", "--held-to", str(result["limit_bytes"]))
    print(done.stdout, end="")
    trained = done.stdout.count(": loss ")
    if done.returncode == 0:
        raise SystemExit("PyTorch trained under the limit: the model is too small to show anything; give it more layers or rows")
    why = f"the system killed it (signal {-done.returncode})" if done.returncode < 0 else (done.stderr.splitlines() or ["no word"])[-1]
    print(f"PyTorch ended after {trained} of {args.steps} steps: {why}")
    print(json.dumps({**result, "pytorch_steps": trained, "pytorch_ended": why}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spill-dir", type=Path, required=True, help="a folder on a disk")
    parser.add_argument("--out", type=Path, default=Path("out/bigger"))
    parser.add_argument("--percent", type=float, default=25, help="of the memory that a step takes by itself")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compare", action="store_true", help="train in memory, too, and compare the bits")
    parser.add_argument("--limit", action="store_true", help="under a limit of the system; PyTorch after it")
    parser.add_argument("--child", choices=["segue", "pytorch"], help=argparse.SUPPRESS)
    parser.add_argument("--held-to", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for folder in (args.spill_dir, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    config = GPTConfig(layers=args.layers, dim=args.dim, heads=args.dim // 64, seq=args.seq)
    if args.child == "pytorch":
        with_pytorch(args, config)
    elif args.limit and not args.child:
        under_a_limit(args)
    else:
        with_segue(args, config)


if __name__ == "__main__":
    main()
