# ===- test_stitching.py - compiled in two processes, stitched in a third -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Two modules that know nothing of each other: compiled in two processes, stitched in this one."""

import os
import subprocess
import sys
import textwrap

import torch
import warm
from compare import assert_close, losses_close

import segue

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "examples"))

from models import GPT, GPTConfig  # noqa: E402

COMPILE = textwrap.dedent("""
    import sys
    sys.path.insert(0, sys.argv[1])
    import torch, segue
    from models import GPTConfig, GPTFirst, GPTLast
    cfg = GPTConfig(layers=2, dim=48, heads=6, seq=32)
    tokens = torch.zeros(2, 32, dtype=torch.long)
    optimizer = segue.AdamW(lr=1e-3, weight_decay=0.1)
    if sys.argv[2] == "first":
        module = segue.compile(GPTFirst(cfg, 1), tokens, optimizer=optimizer)
    else:
        module = segue.compile(GPTLast(cfg, 1), (torch.zeros(2, 32, 48), tokens), optimizer=optimizer)
    module.save(sys.argv[3])
""")


def test_compiled_apart_stitched_here(tmp_path):
    runs = [subprocess.Popen([warm.python(), "-c", COMPILE, os.path.join(ROOT, "examples"), half, tmp_path / f"{half}.segue"])
            for half in ("first", "last")]
    assert [run.wait(timeout=150) for run in runs] == [0, 0]

    cfg = GPTConfig(layers=2, dim=48, heads=6, seq=32)
    joined = GPT(cfg)
    state = {half: {k.removeprefix(f"{half}."): v.clone() for k, v in joined.state_dict().items() if k.startswith(half)}
             for half in ("first", "last")}
    first, last = (segue.load(tmp_path / f"{half}.segue", state[half]) for half in ("first", "last"))
    generator = torch.Generator().manual_seed(2)
    window = torch.randint(0, 256, (2, 33), generator=generator)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()

    # In PyTorch's graph: loss and every gradient equal those of the joined module, by PyTorch and by Segue.
    loss = last(first(tokens), targets)
    loss.backward()
    whole = segue.compile(joined, (tokens, targets))
    for reference in (joined, whole):
        joined.zero_grad()
        expected = reference(tokens, targets)
        expected.backward()
        assert_close(loss, expected, 1e-5)
        for name, parameter in joined.named_parameters():
            half, _, local = name.partition(".")
            assert_close({"first": first, "last": last}[half].get_parameter(local).grad, parameter.grad, what=name)

    # In the runtime: the losses of a training run.
    optimizer = segue.AdamW(lr=1e-3, weight_decay=0.1)
    stitched = segue.Trainer({"first": first, "last": last}, optimizer=optimizer)
    trainer = segue.Trainer([whole], optimizer=optimizer)
    losses_close([stitched.step(tokens=tokens, targets=targets) for _ in range(5)],
                 [trainer.step(tokens=tokens, targets=targets) for _ in range(5)], 1e-5)
