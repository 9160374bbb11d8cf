# ===- test_sorting.py - rows of any length in their order ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Sorts and what is made of them, beside PyTorch: values to the bit, places as its stable sort has them, gradients."""

import math

import pytest
import torch
from compare import assert_close
from op_cases import Apply

import segue

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.bool)


def elements(dtype, *shape):
    """Few values at both ends of the type and about zero, so that many are equal, and many that are not."""
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        kinds, info = torch.randn(shape, generator=generator).to(dtype), torch.finfo(dtype)
        least = torch.tensor(1).to(dtype) * info.smallest_normal / 8  # a denormal
        ends = torch.stack([torch.as_tensor(v).to(dtype) for v in (
            0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, info.max, info.min, least, -least, 2 * least, 1.0)])
    else:
        kinds, info = torch.randint(-100, 100, shape, generator=generator, dtype=dtype), torch.iinfo(dtype)
        ends = torch.tensor([0, 1, -1, info.max, info.min, info.max - 1, info.min + 1], dtype=dtype)
    chosen = torch.randint(0, 2 * len(ends), shape, generator=generator)
    return torch.where(chosen < len(ends), ends[chosen.clamp(max=len(ends) - 1)], kinds)


def bits(x):
    return x.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]) if x.is_floating_point() else x


def sorts(x):
    """In both directions, along the last dimension and along the first."""
    return (*torch.sort(x, stable=True), *torch.sort(x, stable=True, descending=True),
            *torch.sort(x, stable=True, dim=0, descending=x.dtype.is_floating_point), torch.argsort(x, stable=True))




@pytest.mark.parametrize("lengths", [(1, 1023, 1024, 1025, 4096), (50257,), (1_000_003,)], ids=str)
def test_every_type_is_sorted_as_by_pytorch(lengths):
    dtypes = (torch.float32, torch.int64) if lengths[0] > 100_000 else FLOATS + INTEGERS
    rows = [elements(dtype, *((length,) if length > 5000 else (3, length))) for dtype in dtypes for length in lengths]
    compiled = segue.compile(Apply(lambda *xs: [y for x in xs for y in sorts(x)]), tuple(rows))
    with torch.no_grad():
        found = compiled(*rows)
    wanted = [y for x in rows for y in sorts(x)]
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        x = rows[i // 7]
        assert torch.equal(bits(a), bits(b)), f"result {i % 7} of {x.dtype} {tuple(x.shape)}"


def test_parts_of_the_order_have_its_elements():
    """Which of equal elements PyTorch's topk takes is left open there; here it is those that a stable sort has."""
    counts = (1, 16, 17, 50, 1200, 2600, 4999)
    rows = [elements(dtype, 2, 5000) for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.int8)]
    function = lambda *xs: [y for x in xs for k in counts for largest in (True, False) for y in x.topk(k, largest=largest)]  # noqa: E731
    with torch.no_grad():
        found = iter(segue.compile(Apply(function), tuple(rows))(*rows))
    for x in rows:
        for k in counts:
            for largest in (True, False):
                values, places = torch.sort(x, stable=True, descending=largest)
                assert torch.equal(bits(next(found)), bits(values[:, :k])), (x.dtype, k, largest)
                assert torch.equal(next(found), places[:, :k]), (x.dtype, k, largest)


def test_medians_modes_and_quantiles_of_long_rows():
    torch.manual_seed(0)
    x, few = torch.randn(3, 4001), torch.randint(0, 40, (3, 4001))
    holes = torch.where(torch.rand(3, 4001) < 0.01, math.nan, x)
    holes[1] = x[1]
    def function(x, few, holes):
        return (*x.median(1), x.median(), *holes.median(1), *holes.nanmedian(1), holes.nanmedian(), *x.kthvalue(77), *few.mode(1),
                few.mode(0).values, x.quantile(0.3, 1), holes.nanquantile(0.7, 1), torch.searchsorted(x.sort().values, holes[:, :9].nan_to_num()))
    with torch.no_grad():
        found = segue.compile(Apply(function), (x, few, holes))(x, few, holes)
    for i, (a, b) in enumerate(zip(found, function(x, few, holes), strict=True)):
        if i == 11:  # the place of a mode: PyTorch gives that of any of them, here it is the last
            wanted = torch.where(few == found[10][:, None], torch.arange(4001), -1).amax(1)
            assert torch.equal(a, wanted) and torch.equal(few.gather(1, b[:, None]), few.gather(1, a[:, None]))
            continue
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda text, i=i: f"result {i}: {text}")


def test_gradients_go_to_where_elements_were():
    torch.manual_seed(0)
    x, weight = torch.randn(3000, 5).round(decimals=2), torch.randn(3000, 5)  # many are equal
    def function(x, weight):
        values = torch.sort(x, stable=True, dim=0, descending=True).values * weight
        return values, x.T.topk(40).values.square(), x.kthvalue(1500, 0).values, x.median(0).values, x.T.quantile(0.4, 1)
    (ours, theirs) = ([t.clone().requires_grad_() for t in (x, weight)] for _ in range(2))
    compiled = segue.compile(Apply(function), tuple(ours))
    for y, wanted in zip(compiled(*ours), function(*theirs), strict=True):
        assert_close(y, wanted, 1e-6)
        (y.sum() + y.sin().sum()).backward(retain_graph=True)
        (wanted.sum() + wanted.sin().sum()).backward(retain_graph=True)
    assert_close(ours[1].grad, theirs[1].grad, 1e-6)
    # Of equal elements topk and kthvalue take others here, so their gradients lie elsewhere within each value.
    for column in range(5):
        values, place = x[:, column].unique(return_inverse=True)
        summed = [torch.zeros(len(values)).index_add_(0, place, t[0].grad[:, column]) for t in (ours, theirs)]
        assert_close(*summed, 1e-5)


def test_a_model_that_samples_from_a_vocabulary_stays_in_one_program():
    def top_k(logits):
        values, places = logits.topk(50)
        return torch.where(logits < values[..., -1:], -math.inf, logits).softmax(-1), places
    def top_p(logits):
        ordered, places = torch.sort(logits, descending=True)
        outside = (ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)) > 0.9
        return logits.masked_fill(torch.zeros_like(outside).scatter(-1, places, outside), -math.inf).softmax(-1)
    logits = torch.randn(2, 50257)
    for function in (top_k, top_p):
        torch.compiler.reset()
        with torch.no_grad():
            found, wanted = torch.compile(function, backend="segue", options={"fallback": "error"})(logits), function(logits)
        # One element may be on the other side of where the sum reaches 0.9.
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_many_elements_are_written_by_index():
    """Where several name one place, the last of them is there, and has the gradient."""
    torch.manual_seed(0)
    x, source, index = torch.randn(2, 3000), torch.randn(2, 2000), torch.randint(0, 3000, (2, 2000))
    def function(x, source, index):
        return x.scatter(1, index, source), torch.index_put(x.flatten(), (index.flatten() - 3000,), source.flatten())
    ours = [t.clone().requires_grad_() for t in (x, source)]
    found = segue.compile(Apply(function), (*ours, index))(*ours, index)
    # Rows and elements one by one, in their order.
    written, flat = x.clone(), x.flatten().clone()
    for row in range(2):
        for i, place in enumerate(index[row].tolist()):
            written[row, place] = source[row, i]
            flat[place + 3000] = source[row, i]  # all of them lie in the second half
    assert torch.equal(found[0], written) and torch.equal(found[1], flat)
    kept = torch.full((2, 3000), -1).scatter_reduce(1, index, torch.arange(2000).expand(2, 2000), "amax")
    found[0].sum().backward()
    assert torch.equal(ours[0].grad, (kept < 0).float())
    assert torch.equal(ours[1].grad, torch.zeros(2, 2000).scatter_add(1, kept.clamp(min=0), (kept >= 0).float()))
