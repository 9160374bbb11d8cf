# ===- reference.py - runs captured graphs in the reference interpreter --------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Runs captured graphs, and the backward that the compiler derives from them, in the reference interpreter.

A case becomes a module whose `@main` calls `@forward` and `@backward` on
constants and states with `check` ops what PyTorch computed. The interpreter is
slow and obvious: where it agrees, frontend and derivatives are right, whatever
kernels do.
"""

import os
import re
import shutil
import subprocess

import torch

from segue.frontend import capture
from segue.frontend.writer import GraphWriter, tensor_type

SEGUE_OPT = os.environ.get("SEGUE_OPT") or shutil.which("segue-opt") or os.path.join(
    os.path.dirname(__file__), "../../build/bin/segue-opt")

_SPLIT = "\n// -----\n"
_VALUE = re.compile(r"(tensor<[^>]*>) \{([^}]*)\}")


def segue_opt(text, *flags):
    return subprocess.run([SEGUE_OPT, "-", *flags], input=text, capture_output=True, text=True, timeout=250)


def _signature(text, function):
    """Arguments and results of a function as [(type, name, role)]."""
    head = re.search(rf"func\.func @{function}\((.*?)\) -> (.*?) \{{\n", text, re.S)
    read = lambda part: [  # noqa: E731
        (t, re.search(r'segue.name = "([^"]*)"', a).group(1), re.search(r"role<(\w+)>", a).group(1))
        for t, a in _VALUE.findall(part)]
    return read(head.group(1)), read(head.group(2))


def _constant(name, tensor):
    writer = GraphWriter()
    writer.constant_tensor(tensor)
    return writer.body().replace("%0 =", f"%{name} =")


def _expect(value, expected, tolerance):
    """An absolute bound in proportion to the largest element: tests judge norm-wise."""
    writer = GraphWriter()
    writer.constant_tensor(expected)
    dense = writer.body().split("segue.constant ")[1].split(" : ")[0]
    shape = tensor_type(tuple(expected.shape), expected.dtype)
    scale = expected.float().abs()
    scale = scale[torch.isfinite(scale)].max().item() if torch.isfinite(scale).any() else 1.0
    bounds = f"{{atol = {tolerance * max(scale, 1e-2):e}, rtol = {tolerance:e}}}"
    return f"    check.expect_close_const {value}, {dense} : {shape} {bounds}"


class Reference:
    """A case on its way to the interpreter."""

    def __init__(self, case, apply):
        self.case = case
        self.inputs = [x.requires_grad_(x.is_floating_point()) for x in case.make()]
        results = apply(*self.inputs)
        self.expected = list(results) if isinstance(results, (tuple, list)) else [results]
        self.captured = capture(apply, tuple(self.inputs))
        self.text = self.captured.text

    def with_main(self):
        """The module with a `@main` that fails unless values, and gradients, are PyTorch's."""
        arguments, results = _signature(self.text, "forward")
        lines = [_constant(f"x{i}", x.detach()) for i, x in enumerate(self.inputs)]
        names = {a.name: f"%x{i}" for i, a in enumerate(self.captured.named("input"))}
        lines.append(f"    %f:{len(results)} = func.call @forward({', '.join(names[n] for _, n, _ in arguments)}) : "
                     f"({', '.join(t for t, _, _ in arguments)}) -> ({', '.join(t for t, _, _ in results)})")
        outputs = [i for i, (_, _, role) in enumerate(results) if role == "output"]
        for i, value in zip(outputs, self.expected, strict=True):
            lines.append(_expect(f"%f#{i}", value.detach(), self.case.tolerance))
        if self.captured.differentiable:
            lines += _backward(self.case, self.text, self.inputs, self.expected, results, names)
        return _with_main(self.text, "\n".join(lines))


def differentiate(references):
    """Runs `segue-autodiff` on those that can be differentiated, all in one process."""
    chosen = [r for r in references if r.captured.differentiable]
    run = segue_opt(_SPLIT.join(r.text for r in chosen), "--split-input-file", "--segue-autodiff")
    assert run.returncode == 0, run.stderr[:4000]
    for reference, text in zip(chosen, run.stdout.split(_SPLIT.strip()), strict=True):
        reference.text = text


def interpret(modules):
    """Runs the `@main` of each module, many in one process; what the first of these that fails, or the last, has said.

    For every module of its input, segue-opt counts the lines of all of it: a long one takes longer than its parts.
    """
    modules = list(modules)
    for first in range(0, len(modules), 6):
        run = segue_opt(_SPLIT.join(modules[first:first + 6]), "--split-input-file", "--segue-interpret")
        if run.returncode != 0:
            break
    return run


def _backward(case, text, inputs, expected, results, names):
    generator = torch.Generator().manual_seed(1)
    weights, total = {}, 0
    for (_, name, _), value in zip([r for r in results if r[2] == "output"], expected):
        if value.is_floating_point():
            weights[f"grad.{name}"] = torch.randn(value.shape, generator=generator).to(value.dtype)
            if value.requires_grad:
                total = total + (value * weights[f"grad.{name}"]).sum()
    total.backward()
    arguments, gradients = _signature(text, "backward")
    saved = {name: f"%f#{i}" for i, (_, name, role) in enumerate(results) if role == "saved"}
    lines, given = [], []
    for kind, name, role in arguments:
        if role == "gradient":
            lines.append(_constant(f"g{len(lines)}", weights[name]))
            given.append(f"%g{len(lines) - 1}")
        else:
            given.append(saved[name] if role == "saved" else names[name])
    lines.append(f"    %b:{len(gradients)} = func.call @backward({', '.join(given)}) : "
                 f"({', '.join(t for t, _, _ in arguments)}) -> ({', '.join(t for t, _, _ in gradients)})")
    by_name = dict(zip(names, inputs))
    for i, (_, name, _) in enumerate(gradients):
        x = by_name[name.removeprefix("grad.")]
        lines.append(_expect(f"%b#{i}", x.grad if x.grad is not None else torch.zeros_like(x), case.tolerance))
    return lines


def _with_main(text, body):
    """`@main` goes before the last brace of the module; location lines may follow it."""
    end = text.rindex("\n}")
    return f"{text[:end]}\n  func.func @main() {{\n{body}\n    return\n  }}{text[end:]}"
