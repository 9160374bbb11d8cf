# ===- sweep_operators.py - PyTorch's own samples of its operators through torch.compile -----=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What becomes of each operator of PyTorch that is given to ``torch.compile(backend="segue")``.

    PYTHONPATH=build/python python test/python/sweep_operators.py [--only max,eye] [--samples 4] [--out sweep.jsonl [--on]]

Every sample of an operator (`op_db` of PyTorch's own tests, float32 and int64) runs as a function of its tensors, in
PyTorch and in Segue: values and gradients are compared. Each operator has a process of its own, which goes on behind
the sample that ends it. A sample ends in one of these ways:

    segue    the whole function ran in Segue, and the values are right
    part     a part of it ran in PyTorch, an operator is named, and the values are right
    pytorch  all of it ran in PyTorch, an operator is named, and the values are right
    uncompiled  TorchDynamo gave nothing to the backend
    wrong    a value or a gradient differs
    raised   an error where PyTorch raises none
    crashed  the process was ended by a signal
    hung     no answer after 20 seconds of the processor's time, or 3 minutes
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import re
import select
import signal
import sys
import time
import warnings

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import segue

ENDS = ("segue", "part", "pytorch", "uncompiled", "wrong", "raised", "crashed", "hung")
PATIENCE = 20.0  # seconds of the processor for one sample; other programs may run beside
LONGEST = 180.0  # seconds for one sample
#: Their values are other ones at each call, or are whatever memory holds.
UNCERTAIN = re.compile(r"dropout|rand|bernoulli|normal|uniform|multinomial|exponential|geometric|cauchy|empty|poisson|rrelu"
                       r"|gumbel|fractional_max_pool|multi_head_attention|resize|sparse_sampled|svd_lowrank|pca_lowrank")


#: Of equal elements PyTorch gives the place of any.
OF_EQUALS_ANY = re.compile(r"kthvalue|topk|median")


#: Operators that draw are wrapped in what TorchDynamo does not trace; seeds are set here.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples_of(op, dtype, limit: int) -> list:
    """At most `limit` samples, spread evenly over all that PyTorch has."""
    wants_grad = op.supports_autograd and dtype.is_floating_point
    found = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=wants_grad):
        found.append(sample)
        if len(found) >= 200:
            break
    if len(found) <= limit:
        return list(enumerate(found))
    chosen = sorted({round(i * (len(found) - 1) / (limit - 1)) for i in range(limit)} if limit > 1 else {0})
    return [(i, found[i]) for i in chosen]


def function_of(op, sample):
    """The sample as a function of its tensors, and these."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    if OF_EQUALS_ANY.search(name_of(op)) and leaves[0].dtype == torch.int64:
        leaves[0] = leaves[0] * leaves[0].numel() + torch.arange(leaves[0].numel()).reshape(leaves[0].shape)  # in the same order, and all differ
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    callee = op.op

    def function(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        given, args, kwargs = pytree.tree_unflatten(filled, spec)
        return callee(given, *args, **kwargs)

    return function, [leaves[i] for i in places]


def results_and_gradients(function, tensors):
    """The tensors that the function gives, and the gradients of its arguments for fixed gradients of these."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.manual_seed(0)
    outputs = [t for t in pytree.tree_leaves(function(*inputs)) if isinstance(t, torch.Tensor)]
    graded = [t for t in outputs if t.requires_grad and t.dtype.is_floating_point]
    gradients = []
    if graded:
        draw = torch.Generator().manual_seed(1)
        weights = [torch.randn(t.shape, generator=draw, dtype=t.dtype) for t in graded]
        asked = [t for t in inputs if t.requires_grad]
        gradients = torch.autograd.grad(graded, asked, weights, allow_unused=True)
        gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(asked, gradients)]
    return [t.detach() for t in outputs], gradients


def difference(actual, expected, certain: bool) -> str:
    if len(actual) != len(expected):
        return f"{len(actual)} tensors where PyTorch gives {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"result {i} is {a.dtype} {list(a.shape)}, in PyTorch {e.dtype} {list(e.shape)}"
        if certain:
            try:
                torch.testing.assert_close(a, e, rtol=1e-4, atol=max(1e-4, 1e-5 * _largest(e)), equal_nan=True)
            except AssertionError as error:
                return f"result {i} of shape {list(e.shape)}: " + " ".join(str(error).split())[:200]
    return ""


def _largest(x: torch.Tensor) -> float:
    """The largest magnitude of floats that is a number; 0 for all else."""
    return x.abs().nan_to_num(0.0, 0.0).max().item() if x.is_floating_point() and x.numel() else 0.0


def judge(op, sample) -> tuple[str, str]:
    """How a sample ends, and more about it."""
    function, tensors = function_of(op, sample)
    try:
        expected = results_and_gradients(function, tensors)
    except Exception:
        return "", ""  # PyTorch refuses it as well
    torch.compiler.reset()
    gc.collect()  # segments of the sample before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            actual = results_and_gradients(torch.compile(function, backend="segue", dynamic=False), tensors)
        except Exception as error:
            inner = getattr(error, "inner_exception", None) or error
            return "raised", f"{type(inner).__name__}: {' '.join(str(inner).split())[:300]}"
    reasons = [str(w.message) for w in caught if issubclass(w.category, segue.FallbackWarning)]
    certain = not UNCERTAIN.search(name_of(op)) and not sample.kwargs.get("dropout_p")
    for what, a, e in zip(("", "gradients: "), actual, expected):
        if found := difference(a, e, certain):
            return "wrong", what + found
    report = segue.backend_report()
    if not report.segments and not reasons:
        return "uncompiled", ""
    if reasons or report.fallen_back:
        return ("part" if report.compiled else "pytorch"), " | ".join(reasons)[:300]
    return "segue", ""


def run_in_child(op, dtype, limit: int, first: int, pipe: int) -> None:
    out = os.fdopen(pipe, "w", buffering=1)
    torch.set_num_threads(1)
    try:
        samples = samples_of(op, dtype, limit)
    except Exception:
        samples = []
    for number, sample in samples:
        if number < first:
            continue
        out.write(json.dumps({"begins": number}) + "\n")
        end, detail = judge(op, sample)
        out.write(json.dumps({"ends": end, "sample": number, "detail": detail}) + "\n")


def _processor_time(process: int) -> float:
    """Seconds that a process has computed."""
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sweep(op, dtype, limit: int):
    """Yields (sample, end, detail) for the samples of one operator."""
    first = 0
    while first is not None:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                run_in_child(op, dtype, limit, first, writer)
            finally:
                os._exit(0)
        os.close(writer)
        first, running, hung, buffer = None, None, False, b""
        began, used = time.monotonic(), 0.0
        while True:
            if not select.select([reader], [], [], 1.0)[0]:
                hung = time.monotonic() - began > LONGEST or _processor_time(child) - used > PATIENCE
                if not hung:
                    continue
                os.kill(child, signal.SIGKILL)
                break
            chunk = os.read(reader, 65536)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in map(json.loads, lines):
                began, used = time.monotonic(), _processor_time(child)
                running = line.get("begins")
                if line.get("ends"):
                    yield line["sample"], line["ends"], line["detail"]
        os.close(reader)
        _, status = os.waitpid(child, 0)
        if running is not None:
            ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "it left"
            yield running, "hung" if hung else "crashed", "" if hung else ended
            first = running + 1


def _short(dtype) -> str:
    return str(dtype).split(".")[1]


def _read(path: str) -> dict:
    """The (sample, end, detail) that a sweep wrote, by operator and element type; what it was at when it was ended is not there."""
    found = collections.defaultdict(list)
    if os.path.exists(path):
        with open(path) as lines:
            for row in map(json.loads, lines):
                found[row["op"], row["dtype"]].append((row["sample"], row["end"], row["detail"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of operators, by commas")
    parser.add_argument("--samples", type=int, default=4, help="of each operator and element type, at most")
    parser.add_argument("--dtypes", default="float32,int64")
    parser.add_argument("--share", default="0/1", help="'1/2' runs the second half of two")
    parser.add_argument("--out", help="a file for one JSON object per sample")
    parser.add_argument("--on", action="store_true", help="go on where the sweep that wrote --out stopped")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    part, parts = map(int, options.share.split("/"))
    known = _read(options.out) if options.out and options.on else {}
    out = open(options.out, "a" if options.on else "w", buffering=1) if options.out else None
    totals, whole, ends = collections.Counter(), set(), collections.defaultdict(set)
    for index, op in enumerate(op_db):
        if index % parts != part or only and op.name not in only and name_of(op) not in only:
            continue
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            rows, written = known.get((name_of(op), _short(dtype))), []
            for sample, end, detail in rows or list(sweep(op, dtype, options.samples)):
                totals[end] += 1
                ends[name_of(op)].add(end)
                row = {"op": name_of(op), "dtype": _short(dtype), "sample": sample, "end": end, "detail": detail}
                if out and not rows:
                    written.append(json.dumps(row) + "\n")
                if only or end in ("wrong", "raised", "crashed", "hung"):
                    print(f"{row['op']:40} {row['dtype']:8} {sample:3} {end:10} {detail[:160]}", flush=True)
            if written:
                out.write("".join(written))  # whole operators, so that a sweep that goes on misses no sample
    count = sum(totals.values())
    print(f"\n{count} samples of {len(ends)} operators: " + ", ".join(f"{totals[e]} {e}" for e in ENDS))
    wholly = sum(found == {"segue"} for found in ends.values())
    print(f"operators of which every sample ran wholly in Segue: {wholly} of {len(ends)}")
    sys.exit(any(totals[e] for e in ("wrong", "raised", "crashed", "hung")))


if __name__ == "__main__":
    main()
