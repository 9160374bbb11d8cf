"""Fine-tunes low-rank adapters on a frozen base that lies in a SquareQ slab.

    python examples/lora_slab.py --out out/lora

A small GPT is trained on one text and saved; `segue-run quantize` makes the slab of it. A new model takes its linear
layers from the slab, gets adapters, and is trained on another text: only the adapters change. At step 0 an adapter adds
nothing, so the model is the quantised base, to the bit.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import segue

sys.path.insert(0, str(Path(__file__).resolve().parent))
from models import GPT, GPTConfig, add_lora  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def batches(text: Path, batch: int, seq: int, seed: int):
    """Endless batches of bytes from random places of a file."""
    data, rng = np.frombuffer(text.read_bytes(), np.uint8), np.random.default_rng(seed)
    while True:
        windows = np.stack([data[s : s + seq + 1] for s in rng.integers(0, len(data) - seq - 1, batch)]).astype(np.int64)
        yield {"tokens": torch.from_numpy(windows[:, :-1].copy()), "targets": torch.from_numpy(windows[:, 1:].copy())}


def train(model, data, steps: int, lr: float) -> segue.Trainer:
    batch = next(data)
    adamw = segue.AdamW(lr=lr)
    trainer = segue.Trainer([segue.compile(model, (batch["tokens"], batch["targets"]), optimizer=adamw)], optimizer=adamw,
                            clip_grad_norm=1.0)
    trainer.fit(data, steps=steps)
    trainer.sync()
    return trainer


def loss_of(model, batch) -> float:
    compiled = segue.compile(model, (batch["tokens"], batch["targets"]))
    with torch.no_grad():
        return float(compiled(batch["tokens"], batch["targets"]))


def quantize(checkpoint: Path, slab: Path) -> None:
    tool = os.environ.get("SEGUE_RUN") or shutil.which("segue-run") or ROOT / "build" / "bin" / "segue-run"
    subprocess.run([tool, "quantize", checkpoint, "-o", slab], check=True)


def digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/lora"))
    parser.add_argument("--base-text", type=Path, default=ROOT / "LICENSE")
    parser.add_argument("--text", type=Path, default=ROOT / "runtime" / "lib" / "Layout" / "Layout.cpp")
    parser.add_argument("--base-steps", type=int, default=150)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = GPTConfig(layers=args.layers, dim=args.dim, heads=4, seq=64)

    base = GPT(config)
    train(base, batches(args.base_text, 8, config.seq, seed=1), args.base_steps, lr=3e-3)
    checkpoint, slab = args.out / "base.safetensors", args.out / "slab.safetensors"
    save_file(base.state_dict(), checkpoint)
    quantize(checkpoint, slab)
    files = slab, args.out / "slab.manifest.json"
    before = digest(*files)

    data = batches(args.text, 8, config.seq, seed=2)
    held_out = next(batches(args.text, 8, config.seq, seed=3))
    model = GPT(config)
    report = segue.squareq.load(model, slab, checkpoint=checkpoint)
    print(f"{len(report.from_slab)} tensors from the slab, {len(report.from_checkpoint)} from the checkpoint")
    quantised = loss_of(model, held_out)
    print(f"loss of the base {loss_of(base, held_out):.6f}, of the quantised base {quantised:.6f}")

    add_lora(model, args.rank, ("qkv", "proj", "fc", "out"))
    at_start = loss_of(model, held_out)
    print(f"with adapters at step 0: {at_start:.6f}, {'equal to the bit' if at_start == quantised else 'DIFFERENT'}")
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    train(model, data, args.steps, lr=3e-3)
    print(f"after {args.steps} steps: {loss_of(model, held_out):.6f}")

    parameters = dict(model.named_parameters())
    changed = [name for name, value in frozen.items() if not torch.equal(parameters[name], value)]
    print(f"frozen tensors changed: {len(changed)} of {len(frozen)}; slab {'as it was' if digest(*files) == before else 'CHANGED'}")
    adapters = {name: p.detach().clone() for name, p in parameters.items() if p.requires_grad}
    save_file(adapters, args.out / "adapters.safetensors")
    print(f"adapters: {sum(p.numel() for p in adapters.values()):,} of {sum(p.numel() for p in parameters.values()):,} parameters, "
          f"in {args.out / 'adapters.safetensors'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
