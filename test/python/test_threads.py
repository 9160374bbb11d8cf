# ===- test_threads.py - the threads of a process that Python forks -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What loads data in the background forks the process that trains: both go on, each with threads of its own."""

import subprocess
import sys

PROGRAM = """
import multiprocessing, sys
import torch
import segue

torch.set_num_threads(1)  # PyTorch's own threads do not outlive a fork
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
x = torch.randn(512, 256)
compiled = segue.compile(model, (x,), device="cpu:threads=2")
with torch.no_grad():
    want = compiled(x)

def child(queue):
    with torch.no_grad():
        queue.put([bool(torch.equal(compiled(x), want)) for _ in range(20)])

fork = multiprocessing.get_context("fork")
for _ in range(3):
    queue = fork.SimpleQueue()
    process = fork.Process(target=child, args=(queue,))
    process.start()
    with torch.no_grad():
        here = [bool(torch.equal(compiled(x), want)) for _ in range(20)]
    there = queue.get()
    process.join()
    assert process.exitcode == 0 and all(here) and all(there), (process.exitcode, here, there)
print("equal")
"""


def test_a_forked_process_computes_the_same():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout == "equal\n", done.stdout + done.stderr
