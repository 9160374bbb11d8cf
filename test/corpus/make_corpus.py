#!/usr/bin/env python3
#===- make_corpus.py - files of one released version ----------------------===#
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
#===------------------------------------------------------------------------===#
"""Compiles the modules of a folder and writes what their programs take and give.

Run once per released version, with the tools of that version; the files are
then kept as they are, for ever (README.md).

    make_corpus.py test/corpus/0.2 --tools build/bin
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import save_file

OPTIMIZERS = {"mlp": "adamw", "attention": "sgd:momentum=0.9", "gather": "none"}
FLAGS = {"packed": ["--gradient-statistics"]}
LIMITS = {"targets": 4, "ids": 7}  # of the indices in integer inputs
SCALARS = {"lr": np.float32(0.01), "step": np.int64(3), "clip": np.float32(0.5)}
DTYPES = {"f32": np.float32, "i64": np.int64}


def make_input(name, shape, element, rng):
    """What a session or a caller would give for the value called `name`."""
    if name in SCALARS:
        return np.array(SCALARS[name])
    if element == "i64":
        return rng.integers(0, LIMITS[name], shape)
    value = rng.standard_normal(shape).astype(np.float32)
    return np.abs(value) if name.startswith("v.") else value  # second moments


def run(tools, file, program, values):
    """The outputs of one program on `values`, by name."""
    with tempfile.TemporaryDirectory() as folder:
        weights = f"{folder}/in.safetensors"
        save_file({v["name"]: values[v["name"]] for v in program["inputs"]}, weights)
        arguments = [f"--output={v['name']}=@{folder}/{i}.npy" for i, v in enumerate(program["outputs"])]
        subprocess.run([f"{tools}/segue-run", "run", file, f"--program={program['name']}", f"--weights={weights}",
                        *arguments], check=True, timeout=60)
        return {v["name"]: np.load(f"{folder}/{i}.npy") for i, v in enumerate(program["outputs"])}


def make(tools, source):
    file = source.with_suffix(".segue")
    subprocess.run([f"{tools}/segue-compile", source.name, f"--optimizer={OPTIMIZERS.get(source.stem, 'adamw')}",
                    *FLAGS.get(source.stem, []), "-o", file.name], cwd=source.parent, check=True, timeout=60)
    text = subprocess.run([f"{tools}/segue-run", "inspect", file, "--json"], check=True, timeout=60,
                          capture_output=True, text=True).stdout
    programs = json.loads(text)[0]["programs"]
    rng = np.random.default_rng(2026)
    values, expected = {}, {}
    # What forward saves and backward makes goes on to the programs after it.
    for program in sorted(programs, key=lambda p: ["forward", "backward", "inference", "grad_norm", "optimizer"].index(p["name"])):
        for value in program["inputs"]:
            if value["name"] not in values:
                values[value["name"]] = make_input(value["name"], value["shape"], value["element"], rng)
        outputs = run(tools, file, program, values)
        for name, value in outputs.items():
            expected[f"{program['name']}/{name}"] = value
            values.setdefault(name, value)
    needed = {v["name"] for p in programs for v in p["inputs"]}
    save_file({name: values[name] for name in sorted(needed)}, source.with_suffix(".inputs.safetensors"))
    save_file({name: expected[name] for name in sorted(expected)}, source.with_suffix(".outputs.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tools", type=lambda p: pathlib.Path(p).resolve(), required=True)
    arguments = parser.parse_args()
    for source in sorted(arguments.folder.glob("*.mlir")):
        make(arguments.tools, source.resolve())


if __name__ == "__main__":
    main()
