#===- check_statistics.py - gradient statistics beside numpy ---------------===#
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
#===------------------------------------------------------------------------===#
"""Runs forward and backward of a file on random values and compares each output
`statistics.<block>` with what numpy makes of the gradients in float64.

Which parameters a block has is read from the MLIR text, not from the compiler:
the block of the first op that names the argument.

    check_statistics.py segue-run model.segue model.mlir
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import save_file

TOOL, FILE, TEXT = sys.argv[1:]


def run(program, values):
    with tempfile.TemporaryDirectory() as folder:
        save_file({v["name"]: values[v["name"]] for v in program["inputs"]}, f"{folder}/in.safetensors")
        outputs = [f"--output={v['name']}=@{folder}/{i}.npy" for i, v in enumerate(program["outputs"])]
        subprocess.run([TOOL, "run", FILE, f"--program={program['name']}", f"--weights={folder}/in.safetensors", *outputs],
                       check=True, timeout=60)
        return {v["name"]: np.load(f"{folder}/{i}.npy") for i, v in enumerate(program["outputs"])}


def blocks_of_parameters(text):
    """Block by name of parameter."""
    head, body = text.split("-> (", 1)
    names = dict(re.findall(r'(%\w+): tensor<[^>]*> \{segue.name = "([^"]+)"', head))
    blocks = {}
    for line in body.splitlines():
        block = re.search(r'segue.block = "([^"]+)"', line)
        for argument in re.findall(r"%arg\d+\b", line):
            blocks.setdefault(names[argument], block and block.group(1))
    return blocks


inspected = subprocess.run([TOOL, "inspect", "--json", FILE], check=True, timeout=60, capture_output=True, text=True).stdout
programs = {p["name"]: p for p in json.loads(inspected)[0]["programs"]}
rng = np.random.default_rng(7)
values = {}
for value in programs["forward"]["inputs"]:
    if value["element"] == "i64":
        values[value["name"]] = rng.integers(0, 8, value["shape"])
    else:
        values[value["name"]] = (rng.standard_normal(value["shape"]) * 0.1).astype(np.float32)
values |= run(programs["forward"], values)
for value in programs["backward"]["inputs"]:
    if value["name"] not in values:
        values[value["name"]] = np.ones(value["shape"], np.float32)
results = run(programs["backward"], values)

blocks = blocks_of_parameters(pathlib.Path(TEXT).read_text())
compared = 0
for output in programs["backward"]["outputs"]:
    if output["role"] != "statistics":
        continue
    gradients = [results[v["name"]].astype(np.float64).ravel() for v in programs["backward"]["outputs"]
                 if v["role"] == "gradient" and blocks.get(v["of"]) == output["of"]]
    everything = np.concatenate(gradients)
    wanted = np.array([np.sum(everything**2), np.abs(everything).max(), everything.sum(), everything.size])
    scale = np.array([wanted[0], wanted[1], np.abs(everything).sum(), wanted[3]])
    error = np.abs(results[output["name"]] - wanted) / scale
    assert wanted[0] > 0 and (error < 1e-5).all(), (output["of"], wanted, results[output["name"]], error)
    print(f"{output['of']}: {len(gradients)} tensors, l2 {wanted[0] ** 0.5:.6g}")
    compared += 1
print(f"{compared} blocks agree")
