# ===- test_autodiff.py - gradients of whole models against PyTorch ---------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What `segue-autodiff` and `segue-plan-saved` make of real models, run by the
reference interpreter: no kernel and no runtime takes part, so a difference is a
difference of derivatives."""

import os
import sys

import pytest
import torch
from interpreted import ROOT, constant, run_main, segue_opt, signature

from segue.frontend import capture

sys.path.insert(0, os.path.join(ROOT, "examples"))

from models.gpt import GPT, GPTConfig, GPTFirst, GPTLast  # noqa: E402
from models.llama import Llama, LlamaConfig  # noqa: E402
from models.lora import add_lora  # noqa: E402

GPT_SMALL = GPTConfig(layers=2, dim=12, heads=3, seq=7, vocab=19)
LLAMA_SMALL = LlamaConfig(layers=2, dim=16, heads=4, kv_heads=2, hidden=24, seq=6, vocab=17)


def relative_errors(text: str, values: dict, expected: dict) -> dict:
    """Runs forward and backward on `values`; |gradient - expected| / |expected| by name.

    Differences and norms are computed in the graph: the interpreter prints only the scalars.
    """
    lines, known = [], {}

    def define(name, type_, tensor):
        known[name] = (f"%c{len(known)}", type_)
        lines.append(f"    {known[name][0]} = segue.constant {constant(tensor)} : {type_}")

    def call(function):
        arguments, results = signature(text, function)
        for name, type_ in arguments:
            if name not in known:
                define(name, type_, values[name])
        names = ", ".join(known[name][0] for name, _ in arguments)
        group = f"%{function}"
        types = ", ".join(t for _, t in arguments), ", ".join(t for _, t in results)
        lines.append(f"    {group}:{len(results)} = func.call @{function}({names}) : ({types[0]}) -> ({types[1]})")
        for k, (name, type_) in enumerate(results):
            known[name] = (f"{group}#{k}", type_)

    call("forward")
    call("backward")
    norms = []
    for index, (name, reference) in enumerate(expected.items()):
        gradient, type_ = known[f"grad.{name}"]
        shape = "x".join(map(str, reference.shape))
        f32 = f"tensor<{shape}{'x' if shape else ''}f32>"
        dims = list(range(reference.dim()))
        lines.append(f"    %t{index} = segue.constant {constant(reference.float())} : {f32}")
        if type_ != f32:
            lines.append(f"    %w{index} = segue.cast {gradient} : {type_} -> {f32}")
            gradient = f"%w{index}"
        lines.append(f"    %d{index} = segue.sub {gradient}, %t{index} : {f32}")
        for what in "dt":
            value = f"%{what}{index}"
            lines.append(f"    {value}q = segue.mul {value}, {value} : {f32}")
            lines.append(f"    {value}s = segue.reduce sum {value}q dims {dims} : {f32} -> tensor<f32>")
            norms.append(f"{value}s")
    squares = [numbers[0] for numbers in run_main(text, lines, [(norm, "tensor<f32>") for norm in norms])]
    errors = {}
    for index, name in enumerate(expected):
        error, norm = squares[2 * index] ** 0.5, squares[2 * index + 1] ** 0.5
        assert norm > 0, f"the gradient of {name} is zero: nothing is shown"
        errors[name] = error / norm
    return errors


def check(module, inputs: dict, limit: float, plan: str):
    captured = capture(module, (), inputs)
    values = {**dict(module.named_buffers()), **dict(module.named_parameters(remove_duplicate=False)), **inputs}
    floats = {name: x.requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    out = module(**inputs)
    seed = torch.randn_like(out) if out.dim() else torch.ones_like(out)
    out.backward(seed)

    trained = {a.name: values[a.name].grad for a in captured.named("parameter")}
    assert set(trained) == {n for n, p in module.named_parameters() if p.requires_grad}
    expected = {**trained, **{name: x.grad for name, x in floats.items()}}
    text = segue_opt(captured.text, "--segue-autodiff", *([f"--segue-plan-saved=recompute={plan}"] if plan else []))
    results = [name for name, _ in signature(text, "backward")[1]]
    assert results == [f"grad.{name}" for name in expected], "frozen values get no gradient"
    errors = relative_errors(text, {**values, f"grad.{captured.results[0].name}": seed}, expected)
    worst = max(errors, key=errors.get)
    assert errors[worst] < limit, f"gradient of {worst} is off by {errors[worst]:.2e} (relative, norm-wise)"


def tokens(batch, seq, vocab):
    return torch.randint(vocab, (batch, seq))


PLANS = ["", "cheap", "all"]


@pytest.mark.parametrize("plan", PLANS)
def test_gpt(plan):
    model = GPT(GPT_SMALL)
    check(model, {"tokens": tokens(2, 7, 19), "targets": tokens(2, 7, 19)}, 1e-5, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_both_halves_of_gpt(plan):
    """The first half from a random gradient, the last with a gradient for its input: what stitching passes on."""
    check(GPTFirst(GPT_SMALL, 1), {"tokens": tokens(2, 7, 19)}, 1e-5, plan)
    check(GPTLast(GPT_SMALL, 1), {"x": torch.randn(2, 7, 12), "targets": tokens(2, 7, 19)}, 1e-5, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_llama(plan):
    check(Llama(LLAMA_SMALL), {"tokens": tokens(2, 6, 17), "targets": tokens(2, 6, 17)}, 1e-5, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_lora_trains_adapters_alone(plan):
    model = GPT(GPT_SMALL)
    linears = {name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    add_lora(model, 2, tuple(linears - {"head"}))
    for name, parameter in model.named_parameters():
        if name.endswith(".b.weight"):  # starts at zero, which would leave nothing for `a`
            torch.nn.init.normal_(parameter, std=0.1)
    check(model, {"tokens": tokens(2, 7, 19), "targets": tokens(2, 7, 19)}, 1e-5, plan)
