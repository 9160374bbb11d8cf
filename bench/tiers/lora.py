#!/usr/bin/env python3
"""Adapters on a frozen base of a billion parameters, trained by segue-run alone with the base in a SquareQ slab on the disk.

    python bench/tiers/lora.py --spill-dir /mnt/ssd                       # 953 M parameters, 4 GB on the disk, some minutes

Python captures the model (on PyTorch's meta device), and writes a base of random bf16 weights and the first adapters. From there on it is
`segue-run quantize` and `segue-run train --slab --budget`, each run under a limit of the system of 2 GiB (RLIMIT_DATA) but for the one in memory.
Ends with status 1 if a loss under a budget is not that of the run in memory, to the last digit that is printed.
"""
import argparse
import json
import math
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
LAYERS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
SHAPES = {"T": dict(layers=2, dim=64, heads=4, kv_heads=4, hidden=160, seq=32, vocab=512),
          "1B": dict(layers=16, dim=2048, heads=16, kv_heads=16, hidden=5632, seq=128, vocab=32000)}
LIMIT = 2 << 30


def write_weights(path: Path, shapes: dict, dtype: str, value) -> None:
    """A safetensors file of `value(name, shape)`, one tensor in memory at a time; `dtype` BF16 cuts the floats off."""
    width, header, at = {"BF16": 2, "F32": 4}[dtype], {}, 0
    for name, shape in shapes.items():
        bytes_ = width * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            floats = value(name, shape)
            file.write(((floats.view("uint32") >> 16).astype("uint16") if dtype == "BF16" else floats).tobytes())


def prepare(folder: Path, shape: dict, batch: int, rank: int) -> int:
    """The program, the base, what the slab does not hold, as f32, and the first adapters. Returns the parameters of the base."""
    import numpy as np
    import segue
    import torch
    from models import Llama, LlamaConfig, add_lora

    config = LlamaConfig(**shape)
    buffers = Llama(LlamaConfig(**{**shape, "layers": 0, "vocab": 1})).named_buffers()
    with torch.device("meta"):
        model = Llama(config)
    base = {name: tuple(p.shape) for name, p in model.named_parameters()}
    with torch.device("meta"):
        add_lora(model, rank, LAYERS)
        tokens = torch.zeros(batch, config.seq, dtype=torch.int64)
    segue.compile(model, (tokens, tokens), optimizer=segue.AdamW(), name="llama", frozen_storage="int8_row").save(folder / "llama.segue")

    random = np.random.default_rng(0)

    def value(name, shape):
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        if name.endswith(".b.weight"):
            return np.zeros(shape, np.float32)
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)

    write_weights(folder / "base.safetensors", base, "BF16", value)
    constants = {name: b.numpy() for name, b in buffers}
    rest = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad or p.dim() == 1 or name == "embedding.weight"}
    write_weights(folder / "rest.safetensors", rest | {name: b.shape for name, b in constants.items()}, "F32",
                  lambda name, shape: constants[name] if name in constants else value(name, shape))
    return sum(int(np.prod(shape)) for shape in base.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spill-dir", type=Path, required=True, help="a folder on the disk; base and slab are written there, too")
    parser.add_argument("--config", choices=SHAPES, default="1B")
    parser.add_argument("--budgets", default="1500,1000,700", help="MiB")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    run = os.environ.get("SEGUE_RUN") or shutil.which("segue-run") or ROOT / "build" / "bin" / "segue-run"
    folder = args.spill_dir / "lora"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        parameters = prepare(folder, SHAPES[args.config], args.batch, args.rank)
        subprocess.run([run, "quantize", folder / "base.safetensors", "-o", folder / "slab"], check=True, stdout=subprocess.DEVNULL)
        aliases = [word for name in LAYERS for word in ("--alias", f"{name}.base={name}")]

        def train(*more, limit=None):
            done = subprocess.run([run, "train", folder / "llama.segue", "--slab", folder / "slab.safetensors", "--weights",
                                   folder / "rest.safetensors", *aliases, "--data", ROOT / "LICENSE", "--steps", str(args.steps), *more],
                                  capture_output=True, text=True,
                                  preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))))
            if done.returncode:
                raise SystemExit(done.stderr)
            figures = {what: float(found[1]) for what, text in (("ms", r"([\d.]+) ms per step"), ("held", r"memory: ([\d.]+) of"),
                                                                ("disk", r"on the disk ([\d.]+) MiB"), ("process", r"the process ([\d.]+) MiB"))
                       if (found := re.search(text, done.stderr))}
            return done.stdout, figures

        print(f"{parameters / 1e6:.0f} M parameters, slab {(folder / 'slab.safetensors').stat().st_size / 2**20:.0f} MiB, "
              f"{args.batch} x {SHAPES[args.config]['seq']} tokens, adapters of rank {args.rank}, {args.threads} threads\n")
        print("| | budget MiB | step ms | ratio | held MiB | process MiB | on the disk MiB |\n| --- | --: | --: | --: | --: | --: | --: |")
        losses, whole = train("--device", f"cpu:threads={args.threads}")
        print(f"| in memory | - | {whole['ms']:.0f} | 1.000 | - | - | - |", flush=True)
        for budget in args.budgets.split(","):
            found, row = train("--device", f"cpu:threads={args.threads}", "--budget", f"{budget}MiB", "--spill-dir", args.spill_dir, limit=LIMIT)
            print(f"| within a budget | {budget} | {row['ms']:.0f} | {row['ms'] / whole['ms']:.3f} | {row['held']:.0f} | {row['process']:.0f} | "
                  f"{row['disk']:.0f} |", flush=True)
            if found != losses:
                print(f"losses under {budget} MiB differ:\n{found}in memory:\n{losses}", file=sys.stderr)
                return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
