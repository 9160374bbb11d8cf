#!/usr/bin/env python3
"""Runs the kernels that build.py compiled: correct against float64, and as a fraction of the memory's speed.

    python run_kernels.py FOLDER --json out/kernels.json [--only softmax] [--ptx]

Needs a GPU and PyTorch, which gives memory, events and the reference; kernels are loaded and launched through the driver. The
memory's speed is that of a device-to-device copy of 4 GiB in the same run, bytes read and written.
"""
import argparse
import ctypes
import json
import statistics
import time
from pathlib import Path

import torch

cuda = ctypes.CDLL("libcuda.so.1")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def must(result, what):
    if result:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(result, ctypes.byref(name))
        raise RuntimeError(f"{what}: {name.value}")


def function(image, name):
    module, found = ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
    must(cuda.cuModuleGetFunction(ctypes.byref(found), module, name.encode()), "cuModuleGetFunction")
    return found


class Launch:
    def __init__(self, found, grid, block, tensors, shared=0):
        self.values = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        self.pointers = (ctypes.c_void_p * len(self.values))(*[ctypes.addressof(v) for v in self.values])
        self.found, self.grid, self.block, self.shared = found, grid, block, shared
        if shared > 48 << 10:
            must(cuda.cuFuncSetAttribute(found, 8, shared), "cuFuncSetAttribute")

    def __call__(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        must(cuda.cuLaunchKernel(self.found, self.grid[0], self.grid[1], 1, self.block, 1, 1, self.shared, stream, self.pointers, None), "cuLaunchKernel")


def seconds(run, rounds=15):
    """The median by events; half a millisecond of work beforehand hides the launch."""
    run()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1000000)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def reference(made, tensors):
    """What each output should hold, in float64."""
    wide = [t.double() for t in tensors]
    op, shape = made["op"], made["shape"]
    if op == "gelu":
        return {1: torch.nn.functional.gelu(wide[0], approximate="tanh")}
    if op == "adamw":
        p, g, m, v = wide
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return {0: (1 - 3e-5) * p - 3e-4 / 0.19 * m / ((v / 0.0975).sqrt() + 1e-8), 2: m, 3: v}
    if op == "softmax":
        return {1: torch.softmax(wide[0].view(shape), -1).flatten()}
    if op == "norm":
        x = wide[0].view(shape)
        mean, spread = x.mean(-1), x.var(-1, unbiased=False)
        rstd = (spread + 1e-5).rsqrt()
        return {3: ((x - mean[:, None]) * rstd[:, None] * wide[1] + wide[2]).flatten(), 4: mean, 5: rstd}
    if op == "normgrad":
        x, dy = wide[0].view(shape), wide[1].view(shape)
        hat = (x - wide[3][:, None]) * wide[4][:, None]
        w = dy * wide[2]
        return {5: ((w - w.mean(-1, keepdim=True) - hat * (w * hat).mean(-1, keepdim=True)) * wide[4][:, None]).flatten()}
    if op == "colsum":
        return {len(tensors) - 1: wide[0].view(shape).sum(0)}
    if op == "transpose":
        return {1: wide[0].view(shape).T.flatten()}
    if op == "attention":
        # Eight heads of float64 scores fit.
        q, k, v = (t.view(shape)[: 1 if shape[1] > 4096 else 8] for t in wide[:3])
        scores = (q @ k.transpose(1, 2)) / shape[2] ** 0.5
        scores.masked_fill_(torch.ones(shape[1], shape[1], dtype=torch.bool, device="cuda").triu(1), float("-inf"))
        return {3: (torch.softmax(scores, -1) @ v).flatten(), 4: torch.logsumexp(scores, -1).flatten()}
    raise ValueError(op)


def inputs(made):
    """Fresh random tensors; outputs are poisoned. AdamW's second moment is positive."""
    tensors = []
    for i, (dtype, count, role) in enumerate(made["args"]):
        if role in ("out", "scratch"):
            tensors.append(torch.full((count,), float("nan"), dtype=TYPES[dtype], device="cuda"))
        else:
            t = torch.randn(count, device="cuda")
            if made["op"] == "adamw" and i == 3:
                t = t.square()
            if made["op"] == "normgrad" and i == 4:
                t = t.square() + 0.5
            tensors.append(t.to(TYPES[dtype]))
    return tensors


def launches(made, image, tensors):
    first = Launch(function(image, made["name"]), made["grid"], made["block"], [tensors[i] for i in made.get("first_args", range(len(tensors)))],
                   made.get("dynamic_shared", 0))
    if "then" not in made:
        return first
    then = made["then"]
    second = Launch(function(image, then["name"]), then["grid"], then["block"], [tensors[i] for i in then["args"]])

    def both():
        first()
        second()
    return both


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true", help="no times: for compute-sanitizer over kernels of `build.py --small`")
    parser.add_argument("--ptx", action="store_true", help="let the driver compile the PTX too, and time that")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    torch.zeros(1, device="cuda")
    torch.manual_seed(0)
    peak = float("nan")
    if not args.check:
        a, b = (torch.randn(1 << 30, device="cuda") for _ in range(2))
        peak = 2 * 4 * 2**30 / seconds(lambda: b.copy_(a))
        del a, b
    print(f"{torch.cuda.get_device_name()}: copy of 4 GiB {peak / 1e9:.0f} GB/s")
    rows, failed = [], False
    for made in json.loads((args.folder / "manifest.json").read_text()):
        if args.only not in made["name"] or time.monotonic() - began > args.seconds:
            continue
        tensors = inputs(made)
        # A scratch is written once and read once.
        moved = made["bytes"]
        wanted = reference(made, tensors)
        image = (args.folder / f"{made['name']}.cubin").read_bytes()
        row = {key: made[key] for key in ("name", "op", "variant", "dtype", "shape")} | {"resources": made["resources"][made["name"]]}
        try:
            run = launches(made, image, tensors)
            run()
            torch.cuda.synchronize()
            error = max(((tensors[i][: want.numel()].double() - want).norm() / want.norm()).item() for i, want in wanted.items())
            before = [tensors[i].clone() for i in wanted]
            if not any(role == "inout" for _, _, role in made["args"]):
                run()
                row["same_bits_again"] = all(torch.equal(x, tensors[i]) for x, i in zip(before, wanted))
            del before
            took = float("nan") if args.check else seconds(run)
            row |= {"error": error, "us": round(took * 1e6, 2), "gb_s": round(moved / took / 1e9, 1), "of_memory": round(moved / took / peak, 3)}
            if "flops" in made:
                row["tflops"] = round(made["flops"] / took / 1e12, 1)
            if any(role == "out" and tensors[i].isnan().any() for i, (_, _, role) in enumerate(made["args"])):
                error = float("nan")
            bound = 2e-2 if made["dtype"] == "bf16" else 1e-4
            row["ok"] = error <= bound
            if args.ptx:
                text = (args.folder / f"{made['name']}.ptx").read_bytes() + b"\0"
                started = time.perf_counter()
                run = launches(made, text, tensors)
                row["jit_ms"] = round((time.perf_counter() - started) * 1e3, 1)
                row["jit_us"] = round(seconds(run) * 1e6, 2)
        except RuntimeError as problem:
            row |= {"ok": False, "failed": str(problem)[:300]}
        failed |= not row["ok"]
        rows.append(row)
        print(f"{row['name']:44} {row.get('us', 0):9.1f} us {row.get('gb_s', 0):7.0f} GB/s {row.get('of_memory', 0):6.2f} of memory, error "
              f"{row.get('error', -1):.1e}{'' if row['ok'] else ' WRONG ' + row.get('failed', '')}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "copy_gb_s": peak / 1e9, "kernels": rows}, indent=1))
        del tensors, wanted
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
