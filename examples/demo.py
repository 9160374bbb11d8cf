#!/usr/bin/env python3
"""Trains a byte-level GPT, given as two PyTorch modules, through stitched Segue programs on the CPU.

    python examples/demo.py                      # the Python standard library's own sources
    python examples/demo.py --text book.txt      # your text
    python examples/demo.py --steps 50 --no-torch

The two halves are compiled apart; neither knows of the other. The runtime stitches them, runs the whole training step, and
PyTorch then trains the same model from the same weights on the same bytes, for the comparison. Written to --out: the
programs (`first.segue`, `last.segue`), the trained weights (`weights.safetensors`) and the curves (`loss.png`).
"""

import argparse
import copy
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import segue
from models import GPTConfig, GPTFirst, GPTLast


def read_text(path: Path | None, limit: int = 4 << 20) -> np.ndarray:
    """The bytes of `path`, or of the standard library's top-level sources, at most `limit`."""
    if path is not None:
        data = path.read_bytes()[:limit]
    else:
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        data = b"".join(source.read_bytes() for source in sources)[:limit]
    return np.frombuffer(data, np.uint8)


def batches(data: np.ndarray, args: argparse.Namespace):
    """Endless pairs (tokens, targets), i64 [batch, seq], from random places of `data`; the same for the same seed."""
    rng = np.random.default_rng(args.seed)
    while True:
        starts = rng.integers(0, len(data) - args.seq - 1, args.batch)
        window = np.stack([data[s : s + args.seq + 1] for s in starts]).astype(np.int64)
        yield torch.from_numpy(window[:, :-1].copy()), torch.from_numpy(window[:, 1:].copy())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up over a tenth of the run, then a cosine down to a tenth; steps count from 0."""
    warm = max(1, args.steps // 10)
    if step < warm:
        return args.lr * (step + 1) / warm
    progress = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.55 + 0.45 * float(np.cos(np.pi * progress)))


def run(name: str, step, data: np.ndarray, args: argparse.Namespace) -> tuple[list[float], float]:
    """Calls `step(tokens, targets, lr)` for --steps batches. Returns the losses and the tokens per second, the first steps left out."""
    losses, times, source = [], [], batches(data, args)
    with tqdm(total=args.steps, desc=f"{name:8}", unit="step", file=sys.stderr, disable=None) as bar:
        for i in range(args.steps):
            tokens, targets = next(source)
            start = time.perf_counter()
            losses.append(step(tokens, targets, learning_rate(i, args)))
            times.append(time.perf_counter() - start)
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
            if bar.disable and (i == 0 or (i + 1) % max(1, args.steps // 10) == 0):  # a log gets eleven lines and no bar
                print(f"{name:8} step {i + 1} of {args.steps}: loss {losses[-1]:.3f}", flush=True)
    steady = times[min(3, len(times) - 1) :]
    return losses, args.batch * args.seq / float(np.median(steady))


def torch_step(first: torch.nn.Module, last: torch.nn.Module, args: argparse.Namespace):
    parameters = [*first.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    def step(tokens, targets, lr):
        optimizer.param_groups[0]["lr"] = lr
        loss = last(first(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


@torch.no_grad()
def sample(first, last, prompt: bytes, count: int, args: argparse.Namespace) -> str:
    """Continues `prompt` by `count` bytes, drawn at temperature 0.8 from a sliding window of `seq` bytes."""
    rng, text = torch.Generator().manual_seed(args.seed), list(prompt)
    for _ in range(count):
        window = text[-args.seq :]
        tokens = torch.tensor([window + [32] * (args.seq - len(window))])
        logits = last(first(tokens))[0, len(window) - 1] / 0.8
        text.append(int(torch.multinomial(logits.softmax(-1), 1, generator=rng)))
    return bytes(text).decode("utf-8", "replace")


def plot(path: Path, curves: dict, speeds: dict, args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"PyTorch": "#999999", "Segue": "#d1495b"}
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 1), layout="constrained")
    for name, losses in curves.items():
        style = dict(lw=3.5, alpha=0.7) if name == "PyTorch" else dict(lw=1.2)
        left.plot(losses, label=name, color=colours[name], **style)
    left.set(xlabel="step", ylabel="loss (nats per byte)", title="Same weights, same bytes: the losses")
    left.legend()
    bars = right.bar(list(speeds), list(speeds.values()), color=[colours[name] for name in speeds])
    right.bar_label(bars, fmt="{:,.0f}")
    right.set(title="Tokens per second", yticks=[])
    right.margins(y=0.15)
    fig.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="train on this file (default: the standard library's sources)")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="bytes to generate at the end")
    parser.add_argument("--no-torch", action="store_true", help="leave out the comparison")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    args = parser.parse_args()
    try:
        data = read_text(args.text)
    except OSError as error:
        parser.error(f"--text: {error}")
    if len(data) < args.seq + 2:
        parser.error(f"--text: {len(data)} bytes are too few for windows of {args.seq + 1}")
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    cfg = GPTConfig(layers=args.layers, dim=args.dim, heads=max(1, args.dim // 32), seq=args.seq)
    first, last = GPTFirst(cfg, args.layers // 2), GPTLast(cfg, args.layers - args.layers // 2)
    reference = copy.deepcopy((first, last))
    count = sum(p.numel() for m in (first, last) for p in m.parameters())
    print(f"A GPT of {count / 1e6:.2f} M parameters in two modules, {len(data) / 1e6:.1f} MB of text.\n")

    start = time.perf_counter()
    tokens, targets = next(batches(data, args))
    hidden = torch.zeros(args.batch, args.seq, args.dim)
    optimizer = segue.AdamW(lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    program_first = segue.compile(first, (tokens,), optimizer=optimizer).build()
    program_last = segue.compile(last, (hidden, targets), optimizer=optimizer).build()
    print(f"Compiled apart in {time.perf_counter() - start:.1f} s. What the binaries contain:")
    for name, program in (("first", program_first), ("last", program_last)):
        program.save(args.out / f"{name}.segue")
        print(program.inspect())

    # The names of the files, so that `segue-run train first.segue last.segue --weights weights.safetensors` goes on from here.
    trainer = segue.Trainer({"first": program_first, "last": program_last}, optimizer=optimizer, clip_grad_norm=1.0)
    curves, speeds = {}, {}

    def segue_step(tokens, targets, lr):
        return trainer.step(tokens=tokens, targets=targets, lr=lr)

    curves["Segue"], speeds["Segue"] = run("Segue", segue_step, data, args)
    trainer.sync()  # the trained values back into the PyTorch modules
    if not args.no_torch:
        curves["PyTorch"], speeds["PyTorch"] = run("PyTorch", torch_step(*reference, args), data, args)
        curves = {name: curves[name] for name in ("PyTorch", "Segue")}
        difference = max(abs(a - b) / b for a, b in zip(curves["Segue"][:20], curves["PyTorch"][:20]))
        print(f"\nLargest relative difference of the losses of the first 20 steps: {difference:.1e}")
    for name, speed in speeds.items():
        print(f"{name:8} {speed:8,.0f} tokens per second, loss {curves[name][0]:.3f} -> {np.mean(curves[name][-10:]):.3f}")
    plot(args.out / "loss.png", curves, speeds, args)
    trainer.save_weights(args.out / "weights.safetensors")

    window = torch.zeros(1, args.seq, dtype=torch.long)
    generate_first = segue.compile(first, (window,))
    generate_last = segue.compile(last, (torch.zeros(1, args.seq, args.dim),))
    print("\nA sample:\n" + "-" * 80)
    print(sample(generate_first, generate_last, b"def ", args.sample, args) + "\n" + "-" * 80)
    print(f"Written to {args.out}: first.segue, last.segue, weights.safetensors, loss.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
