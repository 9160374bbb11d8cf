#!/usr/bin/env python3
"""Compiles the kernels by MLIR: PTX, a cubin by ptxas, what ptxas says of each, and a manifest.

    python build.py --cuda CUDA_HOME --out out/cuda-kernels [--small] [--only gelu]
    python build.py --out out/cuda-kernels --only softmax        # NVVM alone: no toolkit

CUDA_HOME: a folder with bin/ptxas and nvvm/libdevice, as the wheels nvidia-cuda-nvcc and nvidia-nvvm unpack it.
"""
import argparse
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attention import attentions
from kernels import everything

LOWER = ("builtin.module(gpu.module(convert-vector-to-scf,convert-scf-to-cf,"
         "convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1}),convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
         "convert-cf-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,reconcile-unrealized-casts,"
         "gpu.module(canonicalize,cse)")
TO_BINARY = ",gpu-module-to-binary{format=FORMAT toolkit=CUDA})"
CHIP = "sm_90"


def module(functions):
    return ("module attributes {gpu.container_module} {\n  gpu.module @m [#nvvm.target<chip = \"" + CHIP + "\", features = \"+ptx83\", O = 3>] {\n"
            + "".join(functions) + "  }\n}\n")


def unescape(text):
    """The bytes of an MLIR string attribute."""
    out, i = bytearray(), 0
    while i < len(text):
        if text[i] == 0x5C:
            if text[i + 1] == 0x5C:
                out.append(0x5C)
                i += 2
            else:
                out.append(int(text[i + 1:i + 3], 16))
                i += 3
        else:
            out.append(text[i])
            i += 1
    return bytes(out)


def lowered(source, last):
    done = subprocess.run(["mlir-opt-22", str(source), f"--pass-pipeline={LOWER}{last}"], capture_output=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{source}: " + done.stderr.decode()[-2000:])
    return done


def binary(source, form, cuda):
    """The bytes that gpu-module-to-binary writes: `isa` is PTX, `llvm` bitcode."""
    done = lowered(source, TO_BINARY.replace("FORMAT", form).replace("CUDA", str(cuda)))
    found = re.search(rb'(?:assembly|offload|bin) = "((?:[^"\\]|\\.)*)"', done.stdout, re.S)
    if not found:
        raise RuntimeError(f"{source}: no binary in " + done.stdout.decode(errors="replace")[-2000:])
    return unescape(found[1])


def resources(ptx, cubin, cuda):
    """Per kernel: registers, bytes of stack, spills and shared memory, as ptxas says."""
    done = subprocess.run([f"{cuda}/bin/ptxas", "-v", f"-arch={CHIP}", "-O3", str(ptx), "-o", str(cubin)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{ptx}: {done.stderr}")
    out, name = {}, None
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
            out[name] = {"registers": 0, "stack": 0, "spills": 0, "shared": 0}
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            out[name] |= {"stack": int(found[1]), "spills": int(found[2]) + int(found[3])}
        elif found := re.search(r"Used (\d+) registers", line):
            out[name]["registers"] = int(found[1])
            if smem := re.search(r"(\d+) bytes smem", line):
                out[name]["shared"] = int(smem[1])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--small", action="store_true", help="shapes for the twins")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    def build(made):
        name = made["name"]
        functions = [made.pop("mlir")] + ([made["then"].pop("mlir")] if "then" in made else [])
        source = args.out / f"{name}.mlir"
        source.write_text(module(functions))
        if not args.cuda:
            (args.out / f"{name}.nvvm.mlir").write_bytes(lowered(source, ")").stdout)
            return made
        ptx, cubin = args.out / f"{name}.ptx", args.out / f"{name}.cubin"
        ptx.write_bytes(binary(source, "isa", args.cuda).rstrip(b"\0"))
        made["resources"] = resources(ptx, cubin, args.cuda)
        text = ptx.read_text()
        made["widest_load"] = max((int(w or 1) * int(b) // 8 for w, b in re.findall(r"ld\.(?:param\.)?global(?:\.nc)?(?:\.L1::\w+)?(?:\.v(\d))?\.[bfu](\d+)", text)), default=0)
        return made
    chosen = [made for made in everything(args.small) + attentions(args.small) if args.only in made["name"]]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(build, chosen))
    (args.out / "manifest.json").write_text(json.dumps(results, indent=1))
    for made in results:
        if not args.cuda:
            print(made["name"])
            continue
        used = made["resources"][made["name"]]
        print(f"{made['name']:44} {used['registers']:4} registers {used['stack']:5} stack {used['spills']:4} spills {used['shared']:6} shared"
              f" {made['widest_load']:3} B loads")


if __name__ == "__main__":
    main()
