# ===- test_backend_ops.py - every operator through torch.compile --------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every case of op_cases.py through AOTAutograd: ATen's own backward graph, lowered, gives PyTorch's gradients. Of a sample every third,
which are others than those of test_ops.py, and whatever a lowering of autograd's operators needs to be reached."""

import copy

import pytest
import torch
import torch.nn.functional as F
from op_cases import CASES, Case, integers, normal
from reached import Reached
from sample import drawn
from together import Together

import segue
from segue.frontend.ops import OPS

# Operators that only graphs of autograd have.
MORE = [
    Case("part_assigned", lambda x: _assigned(x * 2) * x, (normal(4, 5, 6),)),
    Case("slice_assigned", lambda x: _slice_assigned(x * 2) * x, (normal(4, 5, 6),)),
    Case("parts", lambda x: (x * x)[1] * (x * 2)[..., -2, :] + (x * 3)[1:3, ::2, -4:].sum(), (normal(5, 5, 5),)),
    Case("scatter_number", lambda x, i: x.exp().scatter(1, i, 0.5) * x, (normal(3, 5), integers(0, 5, 3, 2))),
    Case("scatter_add", lambda x, i, s: (x * 2).scatter_add(1, i, s * s), (normal(3, 5), integers(0, 5, 3, 4), normal(3, 4))),
    Case("scatter_several", lambda x, i, s: (x * 2).scatter(1, i.argsort(1)[:, :3], s * s) * x,
         (normal(3, 5), normal(3, 5), normal(3, 3))),
    Case("scatter_first", lambda x, i, s: x.exp().scatter(0, i.argsort(0), s), (normal(4, 2, 3), normal(4, 2, 3), normal(4, 2, 3))),
    Case("written_by_index", lambda x, i, v: _written_by_index(x * 2, i.argsort(), v * v) * x, (normal(6, 4), normal(6), normal(6, 4))),
    Case("written_by_two", lambda x, i, v: _written_by_two(x * 2, i.argsort()[:3], v * v) * x, (normal(3, 6, 4), normal(4), normal(3, 3))),
    Case("written_around", lambda x, i, v: _written_around(x * 2, i.argsort()[:3], v * v) * x, (normal(6, 3, 4), normal(4), normal(3, 3))),
    Case("no_diagonal", lambda x: x * x + x.diagonal(5).sum() + torch.diagonal_scatter(x, x.diagonal(-4), -4), (normal(4, 5),)),
    # PyTorch's derivative of this is not that of the values (gradcheck), and it is what its graphs have.
    Case("strided_put_trained", lambda x: torch.as_strided_scatter(x * 2, x[0, :, :4], (5, 4), (20, 4), 1) * x, (normal(4, 5, 6),)),
    Case("largest_none", lambda x: x * x + x.topk(0)[0].sum(), (normal(4, 5),)),
    Case("nothing_written", lambda x, i, v: _written_by_index(x * 2, i[:0], v[:0]) * x, (normal(6, 4), integers(0, 6, 3), normal(3, 4))),
    Case("arguments", lambda x: (x.argmax(1), x.argmin(), x.argmax(0, keepdim=True)), (normal(5, 7),)),
    Case("argument_of_nan", lambda x: torch.where(x > 0, x, torch.nan).argmax(1), (normal(5, 7),)),
    Case("largest_and_its_place", lambda x: torch.max(x, 1), (integers(0, 4, 5, 7),)),
    Case("embedding_padded", lambda i, w: F.embedding(i, w * 1, padding_idx=2), (integers(0, 5, 3, 5), normal(5, 7))),
    Case("gradient_that_was_saved", lambda x, y: _Saved.apply(x, y), (normal(4, 4), normal(4, 4))),
    Case("gradient_that_depends_on_nothing", lambda x: torch.angle(x) + torch.sign(x), (normal(4, 5),)),
    Case("cross_entropy_of_one", lambda x, t: F.cross_entropy(x, t), (normal(9), integers(0, 9))),
]


class _Saved(torch.autograd.Function):
    """Its gradients are tensors that forward saved: a value of its own, and a view of an input."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x.exp(), y.t())
        return x + y

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors


def _assigned(x):
    x[:, 1] = 0.5
    x[2] = x[3]
    return x


def _written_by_index(x, i, values):
    x[i] = values
    return x


def _written_by_two(x, i, values):
    x[:, i, i] = values
    return x


def _written_around(x, i, values):
    x[i, :, i] = values
    return x


def _slice_assigned(x):
    x[1:4:2, :3] = x[:2, 2:].clone()
    return x


_reached = Reached()


@pytest.fixture(scope="module", autouse=True)
def watched():
    with _reached:
        yield


def compiled(function, inputs):
    torch.compiler.reset()
    made = torch.compile(function, backend="segue", dynamic=False, options={"fallback": "error"})

    def run(*tensors):
        results = made(*tensors)
        assert segue.backend_report().compiled == 1
        return results

    return run


# With MORE, these reach each lowering of autograd's operators and set each option, whatever is drawn.
REACHING = {"attention_bool_mask", "attention_causal-1x1x1x1", "attention_scale", "cross_entropy-8x16", "embedding", "grouped_mm_of_experts",
            "index_reduced_False", "layer_norm_eps", "masked_scatter", "shape_pad_replicated", "weight_norm"}
DRAWN = {case.name for case in drawn(CASES, 3, "autograd")} | REACHING
SAMPLE = [case for case in CASES if case.name in DRAWN] + MORE
together = Together(SAMPLE, compiled)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda c: c.name)
def test_values_and_gradients(case):
    together.check(case)


def test_every_lowering_of_autograds_operators_was_reached_and_every_option_set(request):
    """A lowering that no case reaches would be wrong in silence; so would an option that none sets."""
    ran = {item.callspec.params["case"].name for item in request.session.items
           if item.module is request.module and hasattr(item, "callspec") and "case" in item.callspec.params}
    if len(ran) < len(SAMPLE):
        pytest.skip("only some cases were chosen")
    from segue.frontend.ops import training

    own = {f.watched for f in OPS.values() if f.watched.__module__ == training.__name__}
    assert own
    assert not own - _reached.functions
    # This one is refused.
    assert _reached.options_left_alone(own.__contains__) == {"flash_attention.dropout_p"}


def test_a_target_outside_of_the_classes_is_an_error():
    """PyTorch refuses it; so must the graph that looks it up."""
    compiled = torch.compile(F.cross_entropy, backend="segue", options={"fallback": "error"})
    logits = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(segue.IndexOutOfRangeError):
        compiled(logits, torch.tensor([0, 1, 3, 2]))


@pytest.mark.parametrize("norm_type, max_norm", [(2.0, 0.5), (1.0, 2.0), (float("inf"), 0.7)])
def test_rows_that_are_looked_up_have_a_norm_at_most(norm_type, max_norm):
    """A step of training changes the table first, by rows that are looked up, then by its gradient."""
    ours = torch.nn.Embedding(10, 4, max_norm=max_norm, norm_type=norm_type, padding_idx=2)
    theirs, run = copy.deepcopy(ours), compiled(ours, ())
    optimizers = [torch.optim.SGD(table.parameters(), 0.5) for table in (ours, theirs)]
    for indices in (torch.tensor([[1, 2, 2], [5, 9, 1]]), torch.tensor([[3, 2, 2], [5, 0, 1]])):
        for call, optimizer in zip((run, theirs), optimizers):
            optimizer.zero_grad()
            rows = call(indices)
            rows.square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
        torch.testing.assert_close(run(indices), theirs(indices))


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_greatest_and_equals_keep_their_order(descending):
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[nan, 1, -inf, 1, inf, nan, -0.0, 0.0], [2, 2, nan, 2, -inf, -inf, inf, 1e-40]])
    def ordered(x):
        return *torch.sort(x, stable=True, descending=descending), x.topk(3, largest=descending).values
    found, wanted = compiled(ordered, (rows,))(rows), ordered(rows)
    assert all(torch.equal(a.view(torch.int32) if a.is_floating_point() else a, b.view(torch.int32) if b.is_floating_point() else b)
               for a, b in zip(found, wanted))


def test_padding_is_never_the_place_of_a_maximum():
    """Nor of minus infinities; several NaN have the place of the last."""
    image = torch.full((1, 4, 4), -float("inf"))
    image[0, 2, 1] = image[0, 3, 2] = float("nan")
    def pooled(x):
        return torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    (values, places), (wanted, at) = compiled(pooled, (image,))(image), pooled(image)
    assert torch.equal(places, at) and torch.allclose(values, wanted, equal_nan=True)
