# ===- test_extremes.py - values and gradients at the ends of the floats --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Operators agree with PyTorch at zero, at subnormal, tiny, huge and infinite values, at NaN and at ties.

docs/guides/numerics.md says what is promised; its table of accuracies is read here. What is compared is in
extremes.py.
"""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from extremes import A, BINARY, B, DIFFERENT, ENDS, NOISE, ROWS, ROWWISE, UNARY, Group
from reached import Reached

import segue
from segue.frontend.ops import OPS, elementwise, losses, normalisation, reductions

#: Functions that become one module: few compilations, and few enough that a failure is soon found.
PER_MODULE = 16
RELATIVE = 5e-6
TINY = torch.finfo(torch.float32).tiny


_reached = Reached()


@pytest.fixture(scope="module", autouse=True)
def watched():
    with _reached:
        yield


def flushed(x):
    """What kernels see of a tensor: subnormal numbers are zero."""
    return torch.where(x.abs() < TINY, 0.0, x) if x.is_floating_point() else x


def run(functions, inputs, dtype=None):
    """Results and gradients of each function, by `compiled` on inputs of its own, or by PyTorch in `dtype`."""
    answers = []
    if dtype is None:
        copies = [x.clone().requires_grad_() for _ in functions for x in inputs]
        results = segue.compile(Group(functions, len(inputs)), tuple(copies))(*copies)
        smooth = [y.sum() for y in results if y.is_floating_point() and y.requires_grad]
        if smooth:
            sum(smooth).backward()
        given = [copies[i : i + len(inputs)] for i in range(0, len(copies), len(inputs))]
        answers = [[y.detach(), *(x.grad for x in xs)] for y, xs in zip(results, given, strict=True)]
    else:
        for function in functions:
            xs = [flushed(x).to(dtype).requires_grad_() for x in inputs]
            y = function(*xs)
            if y.is_floating_point() and y.requires_grad:
                y.sum().backward()
            answers.append([y.detach(), *(x.grad for x in xs)])
    return answers


def wrong(actual, single, double, slack):
    """Where `actual` is neither what PyTorch gives in f32 nor, rounded, what it gives in f64."""
    if not single.is_floating_point():
        return actual != single
    actual = flushed(actual)
    bad = torch.ones_like(actual, dtype=torch.bool)
    for expected in (single, double.float()):
        expected = flushed(expected)
        near = (actual - expected).abs() <= RELATIVE * expected.abs() + slack
        bad &= ~(near | (actual == expected) | (actual.isnan() & expected.isnan()))
    return bad


def compare(table, names, inputs):
    functions = [table[name] for name in names]
    reports = []
    every = zip(names, run(functions, inputs), run(functions, inputs, torch.float32), run(functions, inputs, torch.float64))
    for name, ours, single, double in every:
        for part, (a, s, d) in enumerate(zip(ours, single, double, strict=True)):
            what = "value" if part == 0 else f"gradient {part - 1}"
            if s is None:
                assert a is None or not a.any(), f"{name} has a gradient"
                continue
            a = torch.zeros_like(s) if a is None else a
            bad = wrong(a, s, d, NOISE.get((name, what), NOISE.get(name, 0.0)))
            for known in DIFFERENT.get((name, what), []):
                bad &= ~known(a, *inputs)
            for place in bad.nonzero().tolist()[:6]:
                at = [x[tuple(place[: x.dim()])].tolist() for x in inputs]
                reports.append(f"{name}, {what} at {place} for {at}: {a[tuple(place)]:.8g}, PyTorch {s[tuple(place)]:.8g}")
    assert not reports, "\n".join(reports)


def parts(table):
    names = list(table)
    return [names[i : i + PER_MODULE] for i in range(0, len(names), PER_MODULE)]


@pytest.mark.parametrize("names", parts(UNARY), ids=lambda n: n[0])
def test_functions_of_one_variable(names):
    # Three times over, so that most values pass through whole vectors and through what is left of one.
    compare(UNARY, names, [ENDS.repeat(3)])


@pytest.mark.parametrize("names", parts(BINARY), ids=lambda n: n[0])
def test_functions_of_two_variables(names):
    compare(BINARY, names, [A.reshape(-1), B.reshape(-1)])


@pytest.mark.parametrize("repeats", [1, 9], ids=["narrow", "wide"])
@pytest.mark.parametrize("names", parts(ROWWISE), ids=lambda n: n[0])
def test_functions_of_rows(names, repeats):
    compare(ROWWISE, names, [ROWS.repeat(1, repeats)])


def test_attention_with_large_scores():
    """Scores of many hundreds: without their maximum taken away all exponentials would be infinite."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 33, 8) for _ in range(3))
    q = q * 300
    ours, theirs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    actual, expected = segue.compile(Group([attention], 3), tuple(ours))(*ours)[0], attention(*theirs)
    actual.sum().backward()
    expected.sum().backward()
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    for a, e in zip(ours, theirs):
        torch.testing.assert_close(a.grad, e.grad, rtol=1e-3, atol=1e-3 * e.grad.abs().max().item())


def test_sums_of_very_many_elements_keep_their_digits():
    """One sum that takes a million values near a thousand is off by more than they differ: their variance was 1.6 times itself. Numbers of elements
    with and without a divisor, whole, along rows, in rows of several dimensions and over rows; equal elements are all rounded to the same side."""
    large, equal = torch.rand(1_000_003) + 1000, torch.full((1 << 23,), 0.1)
    rows, tall = torch.rand(3, 300_007) + 1000, torch.rand(1 << 20, 2) + 1000

    def sums(large, equal, rows, tall):
        turned = rows[:, :300_000].reshape(3, 600, 500).transpose(1, 2)
        return (large.mean(), large.var(), equal.mean(), equal.norm(), rows.mean(1), rows.var(1), turned.mean((1, 2)), tall.mean(0), tall.var(0),
                large.amax(), rows.softmax(1).sum(1))

    given = (large, equal, rows, tall)
    found, expected = segue.compile(Group([sums], 4), given)(*given)[0], sums(*(x.double() for x in given))
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=3e-6, atol=0)


#: Lowerings that are in none of the tables, and why.
ELSEWHERE = {
    "batch_norm_training": "refused", "detach": "moves what it is given",
    "batch_norm_by_statistics": "calls batch_norm; test_ops.py has it",
}


def test_every_operator_that_computes_was_tried(request):
    """An operator that is in no table could lose NaN or infinities unnoticed."""
    ran = sum(item.module is request.module and hasattr(item, "callspec") for item in request.session.items)
    if ran < len(parts(UNARY) + parts(BINARY) + 2 * parts(ROWWISE)):
        pytest.skip("only some groups were chosen")
    computing = {module.__name__ for module in (elementwise, losses, normalisation, reductions)}
    every = {f.watched for f in OPS.values() if f.watched.__module__ in computing}
    assert {f.__name__ for f in every - _reached.functions} <= set(ELSEWHERE)


# --- accuracies ------------------------------------------------------------------------------------

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "numerics.md"
MEASURED = {
    **{name: getattr(torch, name) for name in
       ("exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "erf", "sigmoid")},
    "silu": F.silu, "softplus": F.softplus, "log_sigmoid": F.logsigmoid, "pow": lambda x: x ** 1.75,
}


def promised():
    """name -> (least, largest argument, units in the last place) of the table in the guide."""
    rows = re.findall(r"^\| `(\w+)` \| ([-\d.e]+) \| ([-\d.e]+) \| (\d+) \|$", GUIDE.read_text(), re.M)
    return {name: (float(low), float(high), int(ulp)) for name, low, high, ulp in rows}


def sample(low, high, count=20000):
    """Floats of a range: evenly over their exponents on either side of zero, and evenly near one."""
    spread = []
    for end in (low, high):
        least = min(abs(low), abs(high)) if low * high > 0 else 2 * TINY
        if end:
            exponents = torch.linspace(math.log2(least), math.log2(abs(end)), count, dtype=torch.float64)
            spread.append(math.copysign(1, end) * torch.exp2(exponents))
    spread.append(torch.linspace(max(low, -12), min(high, 12), count, dtype=torch.float64))
    x = torch.cat(spread).float()
    return x[(x >= low) & (x <= high)]


def test_accuracies_are_those_of_the_guide():
    table = promised()
    assert set(table) == set(MEASURED)
    inputs = [sample(low, high) for low, high, _ in table.values()]
    functions = [MEASURED[name] for name in table]
    with torch.no_grad():
        results = segue.compile(Group(functions, 1), tuple(inputs))(*inputs)
    off = {}
    for (name, (_, _, ulp)), function, x, y in zip(table.items(), functions, inputs, results):
        exact = function(x.double())
        unit = torch.exp2(exact.abs().clamp(min=TINY).log2().floor() - 23)
        errors = torch.where((exact.abs() < 2 * TINY) & (y.abs() < 2 * TINY), 0.0, (y.double() - exact).abs() / unit)
        worst = errors.nan_to_num(math.inf).argmax()
        off[name] = (round(errors[worst].item(), 2), ulp, x[worst].item())
    assert not {name: error for name, error in off.items() if error[0] > error[1]}, off
