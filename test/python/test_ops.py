# ===- test_ops.py - every operator agrees with PyTorch ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every case of op_cases.py through the whole chain: values and gradients agree with PyTorch. Of a sample every third: all of them go
through the frontend and the derivative in test_reference.py, and another third through kernels in test_backend_ops.py."""

import pytest
import torch
from compare import assert_close
from op_cases import CASES, Apply
from sample import drawn
from together import Together

import segue
from segue.frontend.decompositions import draws


SAMPLE = drawn(CASES, 3, "ops")
together = Together(SAMPLE, lambda function, inputs: segue.compile(Apply(function), tuple(x.detach() for x in inputs)), inference=True)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda c: c.name)
def test_values_and_gradients(case):
    together.check(case)


def test_another_input_gives_another_result():
    """Guards the test above against a result that was fixed when compiling."""
    compiled = segue.compile(Apply(lambda x, y: x @ y), (torch.zeros(3, 4), torch.zeros(4, 5)))
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(3, 4), torch.randn(4, 5)
        assert_close(compiled(x, y), x @ y)


def test_index_outside_of_the_table_is_an_error():
    compiled = segue.compile(Apply(torch.nn.functional.embedding), (torch.tensor([0, 1]), torch.randn(3, 2)))
    with pytest.raises(segue.IndexOutOfRangeError), torch.no_grad():
        compiled(torch.tensor([0, 3]), torch.randn(3, 2))


def test_whole_numbers_divided_by_0_are_an_error():
    """PyTorch raises one, too; a 0 that is known when compiling is refused."""
    for function in (torch.floor_divide, torch.remainder, torch.fmod):
        compiled = segue.compile(Apply(function), (torch.tensor([7, 8]), torch.tensor([2, 3])))
        assert torch.equal(compiled(torch.tensor([7, -8]), torch.tensor([-2, 3])), function(torch.tensor([7, -8]), torch.tensor([-2, 3])))
        with pytest.raises(segue.IndexOutOfRangeError, match="a 0 by which whole numbers are divided"):
            compiled(torch.tensor([7, 8]), torch.tensor([2, 0]))
    with pytest.raises(segue.UnsupportedOpError, match="integers divided by 0"):
        segue.compile(Apply(lambda x: x % 0), (torch.tensor([7, 8]),))


def test_dropout_keeps_the_mean_and_its_gradient_matches_the_mask():
    compiled = segue.compile(torch.nn.Dropout(0.25), (torch.ones(64, 512),))
    x = torch.ones(64, 512, requires_grad=True)
    y = compiled(x)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)
    torch.manual_seed(1)
    first = compiled(x)
    assert not torch.equal(first, compiled(x))
    torch.manual_seed(1)
    assert torch.equal(first, compiled(x))


def test_dropout_that_is_not_told_whether_it_trains():
    """It drops in PyTorch."""
    x, dropped = torch.ones(64, 512), Apply(lambda x: torch.native_dropout(x, 0.25, None)[0])
    for compiled in (segue.compile(dropped, (x,)), torch.compile(dropped, backend="segue", options={"fallback": "error"})):
        assert abs((compiled(x) != 0).float().mean().item() - 0.75) < 0.01


def test_a_result_that_a_lowering_does_not_give_is_refused():
    """It was None in silence."""
    with pytest.raises(segue.UnsupportedOpError, match="native_dropout.default .* its lowering does not give result 1, which is read"):
        segue.compile(Apply(lambda x: torch.native_dropout(x, 0.25, True)), (torch.ones(8),))


def _draws(x):
    """Many numbers of each distribution, as floats."""
    size = (4096,)
    return {
        "randn": torch.randn(size), "randn_like": torch.randn_like(x), "normal": torch.normal(x * 0 + 2, 0.5), "normal_of": torch.normal(2.0, 0.5, size),
        "normal_": x.clone().normal_(2, 0.5), "uniform_": x.clone().uniform_(-1, 3), "exponential_": x.clone().exponential_(2),
        "geometric_": x.clone().geometric_(0.25), "log_normal_": x.clone().log_normal_(0, 0.25), "cauchy_": x.clone().cauchy_(1, 2).atan(),
        "randint": torch.randint(-3, 5, size).float(), "randint_wide": torch.randint(0, 2**40, size).double() / 2**40,
        "bernoulli": torch.bernoulli(x * 0 + 0.25), "randint_like": torch.randint_like(x, 10),
        "multinomial": torch.multinomial(torch.tensor([1.0, 0.0, 3.0]), 4096, True).float(), "randperm": torch.randperm(512).sort().values.float(),
        "chosen": torch.multinomial(torch.tensor([1.0, 2.0, 0.0, 3.0]), 3).sort().values.float(),
    }


@pytest.mark.parametrize("how", ["export", "compile"])
def test_random_numbers_have_their_distributions(how):
    """Mean and deviation of 4096 numbers are those that PyTorch draws from; another call draws others, the same seed the same."""
    expected = {
        "randn": (0, 1), "randn_like": (0, 1), "normal": (2, 0.5), "normal_of": (2, 0.5), "normal_": (2, 0.5), "uniform_": (1, 4 / 12**0.5),
        "exponential_": (0.5, 0.5), "geometric_": (4, 12**0.5), "log_normal_": (1.0317, 0.2620), "randint": (0.5, (63 / 12) ** 0.5),
        "randint_wide": (0.5, 12**-0.5), "bernoulli": (0.25, 0.433), "randint_like": (4.5, (99 / 12) ** 0.5), "multinomial": (1.5, 0.866),
    }
    x = torch.ones(4096)
    compiled = (segue.compile(Apply(_draws), (x,)) if how == "export" else
                torch.compile(_draws, backend="segue", dynamic=False, options={"fallback": "error"}))
    torch.manual_seed(1)
    with torch.no_grad():
        found, others = compiled(x), compiled(x)
        torch.manual_seed(1)
        assert all(torch.equal(found[name], again) for name, again in compiled(x).items())
    for name, (mean, deviation) in expected.items():
        values = found[name].double()
        assert not torch.equal(found[name], others[name]), name
        assert abs(values.mean() - mean) < 5 * deviation / 64 and abs(values.std() - deviation) < 0.12 * deviation, (name, values.mean(), values.std())
    assert abs(found["cauchy_"].median().tan() - 1) < 0.3
    assert found["randint"].unique().tolist() == list(range(-3, 5)) and found["geometric_"].min() == 1
    assert found["randperm"].tolist() == list(range(512)) and found["chosen"].tolist() == [0, 1, 3]


@pytest.mark.parametrize("exponent", [-1, -3])
def test_negative_powers_of_integers_are_pytorchs_error(exponent):
    """Tracing accepts them; the frontend once looked for their last bit without an end."""
    x = torch.tensor([1, 2, 3])
    with pytest.raises(segue.UnsupportedOpError, match=f"exponent {exponent} of an integer tensor"):
        segue.compile(Apply(lambda x: x**exponent), (x,))
    with pytest.warns(segue.FallbackWarning, match="aten.pow"), pytest.raises(RuntimeError, match="negative integer powers"):
        torch.compile(lambda x: x**exponent, backend="segue")(x)


def test_a_uniform_number_that_is_zero(monkeypatch):
    """One in 2^24 is: PyTorch's exponential numbers are above 0, since their logarithms are taken (`gumbel_softmax`)."""
    monkeypatch.setattr(draws, "_uniform", lambda shape, device: torch.zeros(tuple(shape)))
    ones = torch.ones(4)
    assert (draws.exponential(ones) > 0).all() and (draws.geometric(ones, 0.25) == 1).all()
    assert all(draw.isfinite().all() for draw in (draws.cauchy(ones), draws.log_normal(ones), draws.randn_like(ones)))
    assert draws.multinomial(torch.tensor([0.0, 0.0, 2.0]), 1).tolist() == [2]
    assert draws.multinomial(torch.tensor([0.0, 0.0, 2.0]), 3, True).tolist() == [2, 2, 2]
