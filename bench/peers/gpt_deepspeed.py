#!/usr/bin/env python3
"""The GPT training step of gpt_torch.py under DeepSpeed's ZeRO-Infinity on the CPU: parameters, gradients and moments on a disk.

    gpt_deepspeed.py gpt_s.npz --config S --spill-dir /mnt/ssd

The model is the class of gpt_torch.py, the optimizer DeepSpeed's own AdamW for the CPU. DeepSpeed has no budget: buffers and
buckets are made as small as the largest parameter allows, and every parameter that may leave does. What a step saves for its
backward pass stays in memory: with blocks recomputed by torch.utils.checkpoint, DeepSpeed 0.19.8 trains to other losses.

DeepSpeed compiles its operators at their first use (`libaio-dev`, a C++ compiler and ninja, ten minutes on two busy
processors), into TORCH_EXTENSIONS_DIR. Without DeepSpeed, or without what it needs, the result says why there is none.
"""
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import gpt_common as g
from gpt_torch import GPT, limited

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

ALIGNED = 1024  # elements to which DeepSpeed rounds what it writes up


def configuration(model, batch, folder):
    """ZeRO-3 with parameters and optimizer on a disk, and as little beside them as the largest parameter allows."""
    largest = -(-max(p.numel() for p in model.parameters()) // ALIGNED) * ALIGNED
    place = {"device": "nvme", "nvme_path": str(folder), "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 0.0,  # the norm is clipped to 1 otherwise
        "optimizer": {"type": "AdamW", "params": {"lr": g.LR, "betas": [g.BETA1, g.BETA2], "eps": g.EPS, "weight_decay": g.DECAY}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**place, "buffer_count": 5, "buffer_size": largest, "max_in_cpu": 0},
            "offload_optimizer": {**place, "buffer_count": 16, "pipeline_read": True, "pipeline_write": True},
            "sub_group_size": largest, "reduce_bucket_size": largest, "stage3_prefetch_bucket_size": largest,
            "stage3_max_live_parameters": 2 * largest, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
    }


def missing():
    """Why DeepSpeed cannot run here, or None: its operators are compiled, where no one did yet."""
    try:
        from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder

        if not AsyncIOBuilder().is_compatible():
            return "DeepSpeed's async_io needs libaio-dev"
        for builder in (AsyncIOBuilder(), CPUAdamBuilder(), ShareMemCommBuilder()):
            builder.load()
    except Exception as error:  # whatever a package that is none of ours raises
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None


def disk_bytes():
    """What this process has read from disks and written to them."""
    with open("/proc/self/io") as file:
        counts = dict(line.split(": ") for line in file)
    return {way: int(counts[f"{verb}_bytes"]) for way, verb in (("in", "read"), ("out", "write"))}


def main():
    parser = g.arguments()
    parser.add_argument("--spill-dir", type=Path, required=True, help="a folder on a disk")
    parser.add_argument("--limit-mib", type=float, help="as of gpt_torch.py")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    peer = "deepspeed nvme"
    with contextlib.redirect_stdout(sys.stderr):  # results alone go to stdout
        why = missing()
    if why:
        print(json.dumps({"peer": peer, "skipped": why}), flush=True)
        return
    import deepspeed

    before = g.rss_mb()
    cfg = g.CONFIGS[args.config]
    weights, data = g.load(args.weights)
    model = GPT(cfg)
    model.load(weights)
    del weights
    with tempfile.TemporaryDirectory(dir=args.spill_dir) as folder:

        engine, carried = None, {}

        def start():
            with contextlib.redirect_stdout(sys.stderr):
                deepspeed.init_distributed("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
                                           auto_mpi_discovery=False)
                settings = configuration(model, cfg.batch, folder)
                # initialize() by itself would keep parameters in bfloat16 on a processor without float16 (DeepSpeed 0.19.8).
                deepspeed.zero.Init(module=model, config_dict_or_path=settings)
                return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]

        def step(i):
            nonlocal engine
            engine = engine or start()  # in the first step, so that a limit holds for it too
            if i == g.WARMUP:
                carried.update(disk_bytes())
            x, y = (torch.from_numpy(a) for a in g.batch_at(data, cfg, i))
            loss = engine(x, y)
            engine.backward(loss)
            engine.step()
            return loss.item()

        if args.limit_mib:
            return limited(peer, args, step)
        run = g.run_steps(step, args.steps)
        moved = {f"{way}_mb": round((now - carried[way]) / (args.steps - g.WARMUP) / 2**20, 2) for way, now in disk_bytes().items()}
        kept = sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file())
        g.result(peer, args.config, args.threads, run, None, before, version=deepspeed.__version__, disk_mb=round(kept / 2**20, 2), **moved)


if __name__ == "__main__":
    main()
