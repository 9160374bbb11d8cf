"""Trains a small GPT within a part of the device memory that its step takes by itself, with the same losses to the bit.

    python examples/under_a_cap.py --percent 60 --out out/cap

Before the first step the compiled programs say what a step holds, what a budget makes of it and how small it can be. Then
the model is trained twice on the simulated device: freely, and within the budget by a plan that sends saved activations,
weights, gradients and optimizer states to the host and brings them back before they are needed. The folder gets a page of
each run: memory against the cap, the link, stalls.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import segue
from models import GPT, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "sim:dram=256MiB,pinned=256MiB,link=16GB/s"


def device_of(budget: int) -> str:
    """One that has the budget and not a byte more, as a card's owner has it."""
    return DEVICE.replace("dram=256MiB", f"dram={budget}")


# The same with roughly the speed of two processors, for times before the first step; a run measures its own.
SPEED = DEVICE.replace("sim:", "sim:virtual,flops=100GFLOP/s,membw=20GB/s,launch=1us,")
MIB = 2**20


def batches(config: GPTConfig, count: int):
    """Bytes of the README, the same in every run."""
    data, rng = np.frombuffer((ROOT / "README.md").read_bytes(), np.uint8), np.random.default_rng(0)
    for _ in range(count):
        windows = np.stack([data[s : s + config.seq + 1] for s in rng.integers(0, len(data) - config.seq - 1, 8)]).astype(np.int64)
        yield {"tokens": torch.from_numpy(windows[:, :-1].copy()), "targets": torch.from_numpy(windows[:, 1:].copy())}


def trainer_of(gpt: GPTConfig, device: str = DEVICE, **options) -> segue.Trainer:
    torch.manual_seed(0)
    example = next(batches(gpt, 1))
    adamw = segue.AdamW(lr=1e-3)
    module = segue.compile(GPT(gpt), (example["tokens"], example["targets"]), optimizer=adamw, device=device)
    return segue.Trainer([module], optimizer=adamw, **options)


def within(budget: int, folder: Path) -> dict:
    """The config of a run that keeps to so many bytes of device memory."""
    return {"memory": {"stagehand": {
        "conductor_config": {"enabled": True, "vram_hard_cap_mb": budget / MIB, "vram_soft_cap_mb": budget / MIB,
                             "telemetry_file": str(folder / "conductor.jsonl"), "telemetry_interval_steps": 1},
        "activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_file": str(folder / "activation.jsonl")}}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--percent", type=float, default=60, help="of the memory that a step takes by itself")
    parser.add_argument("--steps", type=int, default=8)  # the eighth is traced, when plan and times are steady
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("out/cap"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = GPTConfig(layers=args.layers, dim=96, heads=6, seq=128)

    with trainer_of(config, report=args.out / "free.html") as free:
        budget = int(free.memory(device=SPEED).unconstrained.peak_bytes * args.percent / 100)
        print(free.memory(budget, device=SPEED))  # BudgetInfeasibleError, with the smallest budget, where no plan keeps to it
        losses = free.fit(batches(config, args.steps))

    with trainer_of(config, device_of(budget), config=within(budget, args.out), report=args.out / "report.html") as capped:
        capped_losses = capped.fit(batches(config, args.steps))
    for step, (loss, other) in enumerate(zip(losses, capped_losses), 1):
        print(f"step {step}: loss {loss:.6f} freely, {other:.6f} within {budget / MIB:.1f} MiB")
    if losses != capped_losses:
        raise SystemExit("the losses differ")
    print(f"equal to the bit; the run's page is {args.out / 'report.html'}")


if __name__ == "__main__":
    main()
