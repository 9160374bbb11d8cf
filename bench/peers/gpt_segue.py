#!/usr/bin/env python3
"""The GPT training step of gpt_torch.py, compiled by Segue and run whole in its runtime.

    gpt_segue.py gpt_s.npz --config S --threads 2 --modules 2

The model is the class of gpt_torch.py, captured by torch.export. With `--modules 2` it is cut in the middle of its blocks
and the halves are compiled apart and stitched, as in the demo; the losses must not differ.

    gpt_segue.py gpt_s.npz --threads 1 --device sim:dram=512MiB,pinned=512MiB,link=16GB/s --mode planned --cap 80

trains on the simulated device within 80 % of what the step holds by itself, by plan or by watermarks.

    gpt_segue.py gpt_m.npz --config M --mode disk --cap 50 --spill-dir /mnt/ssd

trains on the CPU with half of that, and the rest on a disk.

    gpt_segue.py gpt_s.npz --bf16

captures the model as PyTorch's autocast runs it.

    gpt_segue.py gpt_s.npz --steps 8 --profile 3

says where three more steps go: each command beside its limit.
"""
import dataclasses
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import gpt_common as g
from gpt_torch import GPT


class First(nn.Module):
    """Embedding and the first half of the blocks."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.wte, self.wpe, self.drop, self.h = gpt.wte, gpt.wpe, gpt.drop, gpt.h[: len(gpt.h) // 2]

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe.weight)
        for block in self.h:
            x = block(x)
        return x


class Last(nn.Module):
    """The other blocks, the head and the loss."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.h, self.lnf, self.head = gpt.h[len(gpt.h) // 2 :], gpt.lnf, gpt.head

    def forward(self, x, targets):
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.lnf(x)).flatten(0, 1), targets.flatten())


def name(args):
    mode = {"free": "", "streamed": " streamed"}.get(args.mode, f" {args.mode} {args.cap:g} %")
    return "segue" + " 2 modules" * (args.modules == 2) + " sim" * bool(args.device) + mode + " in backward" * args.in_backward + " in forward" * args.in_forward + " bf16" * args.bf16 + " dropout" * bool(args.dropout)


def bits_of(losses, trainer):
    """A hash of all losses and all trained weights."""
    found = hashlib.sha256(struct.pack(f"<{len(losses)}d", *losses))
    trainer.sync()
    for module in trainer.modules.values():
        for parameter in module.parameters():
            found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def refuse(args, error, extra):
    """The cap cannot be kept: that is a result, too."""
    print(json.dumps({"peer": name(args), "refused": str(error).splitlines()[0], **extra}), flush=True)


def capped(memory, cap, mode, telemetry, weights=None):
    """The config of a run within `cap` bytes. Watermarks lie where a save that begins below still fits; the pool has a slab for
    each tensor that can leave. With `weights`, a telemetry file, those of blocks come by a ring of three blocks."""
    mib = cap / 2**20
    activation = {"enabled": True, "mode": mode, "telemetry_file": telemetry}
    if mode == "watermark":
        classes = [1, 4, 16, 64]
        slabs = [0] * len(classes)
        for tensor in memory.can_leave:
            fits = [i for i, size in enumerate(classes) if tensor["bytes"] <= size * 2**20]
            slabs[fits[0] if fits else -1] += 1
        activation |= {"vram_high_watermark_mb": 0.74 * mib, "vram_low_watermark_mb": 0.66 * mib,
                       "pinned_pool_classes_mb": classes, "slabs_per_class": slabs, "pool_growth": False}
    stagehand = {"conductor_config": {"enabled": True, "vram_hard_cap_mb": mib, "vram_soft_cap_mb": mib, "telemetry_enabled": False},
                 "activation_stagehand": activation}
    if weights:
        stagehand |= {"stagehand_enabled": True, "prefetch_window_blocks": 1, "pinned_pool_mb": 64, "pinned_slab_mb": 16,
                      "vram_high_watermark_mb": 0.74 * mib, "vram_low_watermark_mb": 0.66 * mib, "telemetry_file": weights}
    return {"memory": {"stagehand": stagehand}}


def streamed(telemetry):
    """The config of a run whose block weights lie on the host. Beside the optimizer's states (81 MiB of config S) there is room for three or
    four of the six blocks; window and watermarks leave that much."""
    return {"memory": {"stagehand": {"stagehand_enabled": True, "prefetch_window_blocks": 2, "pinned_pool_mb": 64, "pinned_slab_mb": 16,
                                     "vram_high_watermark_mb": 120, "vram_low_watermark_mb": 100,
                                     "telemetry_interval_steps": 1, "telemetry_file": telemetry}}}


def main():
    parser = g.arguments()
    parser.add_argument("--modules", type=int, choices=[1, 2], default=1)
    parser.add_argument("--device", help="default: cpu with --threads")
    parser.add_argument("--mode", choices=["free", "planned", "watermark", "watermark-streamed", "streamed", "disk"], default="free")
    parser.add_argument("--cap", type=float, default=100.0, help="percent of the unconstrained peak of device memory")
    parser.add_argument("--spill-dir", help="for --mode disk: a folder on a disk")
    parser.add_argument("--in-backward", action="store_true", help="parameters are updated in backward; caps stay percents of a step that does not")
    parser.add_argument("--in-forward", action="store_true", help="parameters are updated in the next forward; caps likewise")
    parser.add_argument("--profile", type=int, metavar="STEPS", help="on stderr, where so many more steps go: each command beside its limit")
    parser.add_argument("--bf16", action="store_true", help="products, convolutions and attention in bfloat16, as autocast has them")
    parser.add_argument("--dropout", type=float, default=0, help="the probability with which numbers are dropped")
    parser.add_argument("--clip", type=float, help="the most that the norm of the gradients may be")
    args = parser.parse_args()
    torch.set_num_threads(1)  # PyTorch only captures the model here; its pool would take processors from ours

    import segue

    cfg, before = dataclasses.replace(g.CONFIGS[args.config], dropout=args.dropout), g.rss_mb()
    weights, data = g.load(args.weights)
    model = GPT(cfg)
    model.load(weights)
    tokens, targets = (torch.from_numpy(a) for a in g.batch_at(data, cfg, 0))
    device, start = args.device or f"cpu:threads={args.threads}", time.perf_counter()
    precision = "bf16-mixed" if args.bf16 else None
    if args.modules == 1:
        modules = [segue.compile(model, (tokens, targets), device=device, precision=precision)]
    else:
        hidden = torch.zeros(cfg.batch, cfg.seq, cfg.dim)  # of f32 with autocast, too, which adds up what blocks give in it
        modules = [segue.compile(First(model), (tokens,), device=device, precision=precision),
                   segue.compile(Last(model), (hidden, targets), device=device, precision=precision)]
    optimizer = segue.AdamW(lr=g.LR, betas=(g.BETA1, g.BETA2), eps=g.EPS, weight_decay=g.DECAY)
    clip = {"clip_grad_norm": args.clip} if args.clip else {}
    trainer, extra, unconstrained = segue.Trainer(modules, optimizer=optimizer, **clip), {}, None
    if args.in_backward or args.in_forward:
        unconstrained = trainer.memory().unconstrained.peak_bytes
        optimizer = dataclasses.replace(optimizer, in_backward=args.in_backward, in_forward=args.in_forward)
        trainer = None
        trainer = segue.Trainer(modules, optimizer=optimizer, **clip)
    if args.mode == "streamed":
        telemetry = tempfile.NamedTemporaryFile(suffix=".jsonl", delete=False).name
        trainer = None
        trainer = segue.Trainer(modules, optimizer=optimizer, **clip, config=streamed(telemetry))
    elif args.mode == "disk":
        cap = int((unconstrained or trainer.memory().unconstrained.peak_bytes) * args.cap / 100)
        extra, trainer = {"cap_mb": round(cap / 2**20, 2)}, None
        try:
            trainer = segue.Trainer(modules, optimizer=optimizer, **clip, budget=cap, spill_dir=args.spill_dir)
        except segue.BudgetInfeasibleError as error:
            return refuse(args, error, extra)
    elif args.mode != "free":
        memory = trainer.memory()
        cap = int((unconstrained or memory.unconstrained.peak_bytes) * args.cap / 100)
        telemetry = tempfile.NamedTemporaryFile(suffix=".jsonl", delete=False).name
        extra = {"cap_mb": round(cap / 2**20, 2)}
        try:
            if args.mode == "planned":
                trainer.memory(cap)
            trainer = None  # it holds parameters and states on the device
            mode, _, weights = args.mode.partition("-")
            # A plan keeps to a device that has the cap and not a byte more.
            exact = re.sub(r"dram=[^,]*", f"dram={cap}", device) if mode == "planned" else None
            trainer = segue.Trainer(modules, optimizer=optimizer, **clip, device=exact,
                                    config=capped(memory, cap, mode, telemetry, weights and os.devnull))
        except (segue.BudgetInfeasibleError, segue.OutOfMemoryError) as error:
            return refuse(args, error, extra)
    elif args.device:
        extra = {"cap_mb": None, "peak_device_mb": round(trainer.memory().unconstrained.peak_bytes / 2**20, 2)}
    compile_s = time.perf_counter() - start

    losses, carried = [], {}

    def step(i):
        x, y = (torch.from_numpy(a) for a in g.batch_at(data, cfg, i))
        if i == g.WARMUP:
            carried.update(trainer.traffic())
        losses.append(trainer.step(tokens=x, targets=y))
        return losses[-1]

    try:
        run = g.run_steps(step, args.steps)
    except (segue.BudgetInfeasibleError, segue.OutOfMemoryError) as error:
        return refuse(args, error, extra)
    if args.mode == "disk":
        steps = args.steps - g.WARMUP
        for way, now in trainer.traffic().items():
            extra[f"{way}_mb"] = round((now["bytes"] - carried[way]["bytes"]) / steps / 2**20, 2)
            extra[f"{way}_ms"] = round((now["seconds"] - carried[way]["seconds"]) / steps * 1e3, 2)
        extra |= {"peak_device_mb": round(trainer.peak_bytes / 2**20, 2)}
    elif args.mode != "free":
        with open(telemetry) as file:
            lines = [json.loads(line) for line in file]
        os.unlink(telemetry)
    if args.mode == "streamed":
        extra = {"cap_mb": None, "peak_device_mb": None, "out_mb": None, "loads": lines[-1]["loads"],
                 "stall_ms": round(lines[-1]["stall_time_ms"], 3)}
    elif args.mode not in ("free", "disk"):
        extra |= {"peak_device_mb": round(max(line["vram_peak_mb"] for line in lines), 2),
                  "out_mb": round(lines[-1]["spill_bytes"] / 2**20, 2), "left": lines[-1]["activations_spilled"],
                  "recomputed": lines[-1]["activations_recomputed"], "stall_ms": round(lines[-1]["stall_time_ms"], 3)}
    if args.mode in ("free", "disk"):  # what training came to, to the bit
        extra["bits"] = bits_of(losses, trainer)
    g.result(name(args), args.config, args.threads, run, compile_s, before, version=segue.__version__, **extra)
    if args.profile:
        batches = (dict(zip(("tokens", "targets"), map(torch.from_numpy, g.batch_at(data, cfg, args.steps + i)))) for i in range(args.profile))
        print(trainer.profile(batches, steps=args.profile), file=sys.stderr)


if __name__ == "__main__":
    main()
