# ===- test_reference.py - frontend and derivatives in the reference interpreter === #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every case of op_cases.py is valid IR, all lowerings are reached, and in the reference interpreter values and derived gradients are
PyTorch's.

When test_ops.py fails and this passes, look at lowerings, kernels and runtime;
when both fail, at the frontend or the derivative.
"""

import inspect
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from op_cases import CASES, Apply
from reached import Reached
from reference import Reference, differentiate, interpret, segue_opt
from together import dozens, joined

from segue.frontend import capture
from segue.frontend.decompositions import DECOMPOSITIONS, draws
from segue.frontend.ops import OPS, training


def groups():
    """The cases, a dozen in one: with one tolerance, and all with inputs that have gradients or all with none.

    Images that are larger than a block of the engine show nothing to an interpreter without blocks: they take it seconds.
    """
    kinds = {}
    for case in CASES:
        if not case.name.startswith("conv2d_blocks"):
            kinds.setdefault((case.tolerance, any(x.is_floating_point() for x in case.make())), []).append(case)
    return [joined(group) for cases in kinds.values() for group in dozens(cases)]


@pytest.fixture(scope="module")
def captured_cases():
    """The cases, captured once for all tests, and the lowerings and options that this has reached."""
    compared, references = Reached(), []
    with compared:
        for case in groups():
            torch.manual_seed(0)
            references.append(Reference(case, Apply(case.function)))
    return references, compared


def test_every_case_is_valid_ir(captured_cases):
    references, _ = captured_cases
    run = segue_opt("\n// -----\n".join(f"// {r.case.name}\n{r.captured.text}" for r in references), "--split-input-file", "--verify-roundtrip")
    assert run.returncode == 0, run.stderr[:4000]


def test_every_lowering_has_a_case_and_every_option_another_value(captured_cases):
    """A lowering that no case reaches would be wrong in silence; so would an option that none sets."""
    reached, (_, compared) = Reached(), captured_cases
    with reached:
        for module, inputs in EXTRA:
            capture(module, inputs)
    # Ops of autograd's graphs are covered by test_backend_ops.py, and operators of ours by test_attention_dropout.py.
    missed = {name for name, f in OPS.items() if f not in reached.functions and f not in compared.functions
              and f.__module__ != training.__name__ and not name.startswith("segue.")}
    # This one refuses (test_a_changed_buffer_is_refused).
    assert missed == {"aten._native_batch_norm_legit_functional.default"}
    # A capture alone shows nothing of what an option does: only the cases that are compared with PyTorch count.
    assert compared.options_left_alone(lambda f: f.__module__ != training.__name__) == set(WITHOUT_EFFECT)


def test_what_is_written_in_terms_of_others_has_a_case(captured_cases):
    """A function that no case calls would be wrong in silence; PyTorch's own, which we list alone, are PyTorch's to test."""
    _, compared = captured_cases
    own = {str(operator): inspect.unwrap(function).__module__ for operator, function in DECOMPOSITIONS.items()}
    missed = {name for name, module in own.items() if module.startswith("segue.") and name not in compared.operators}
    missed -= {name for name in missed if own[name] == draws.__name__}  # random: test_autodiff.py and test_ops.py look at what is drawn
    assert missed - set(OF_AUTOGRAD) == set(), "add a case to op_cases.py"
    assert set(OF_AUTOGRAD) <= missed, "these have a case by now"


#: What AOTAutograd puts into graphs, which test_backend_ops.py compares, and no module that is exported.
OF_AUTOGRAD = (
    "aten._embedding_bag.default", "aten._embedding_bag_backward.default", "aten._embedding_bag_per_sample_weights_backward.default",
    "aten.embedding_renorm.default", "aten._cdist_backward.default", "aten._pdist_backward.default", "aten._trilinear.default",
    "aten._upsample_bilinear2d_aa_backward.default", "aten._upsample_bicubic2d_aa_backward.default", "aten._upsample_lanczos2d_aa_backward.default",
)


#: Options that change no result, or are refused, or make it random, and where that is tested.
WITHOUT_EFFECT = {
    "grouped_mm.bias": "refused", "grouped_mm.out_dtype": "refused",
    "einsum.path": "an order of products", "gather.sparse_grad": "a storage of gradients",
    "embedding.sparse": "a storage of gradients", "embedding.scale_grad_by_freq": "refused",
    "repeat_interleave.output_size": "the size, which is known anyway",
    "bernoulli_p.p": "random: test_dropout_keeps_the_mean_and_its_gradient_matches_the_mask",
    "attention.dropout_p": "random",
}


EXTRA = [
    # In a program that writes to a tensor, dropout is another operator (test_fit.py has its values).
    (Apply(lambda x: F.dropout(x, 0.5, True).mul_(2.0)), (torch.randn(4, 3),)),
    (Apply(lambda x: F.dropout(x, 0.5, True) + torch.rand(3) + torch.rand_like(x)), (torch.randn(4, 3),)),
    (Apply(lambda x: torch.bernoulli(x, 0.3) + torch.bernoulli(x)), (torch.rand(4, 3),)),
    (nn.BatchNorm1d(3).eval(), (torch.randn(4, 3),)),
    (Apply(lambda x: torch.eye(3) + x), (torch.randn(3, 3),)),
    (Apply(lambda x: x * torch.arange(3.0).detach()), (torch.randn(3, 3),)),
    (Apply(lambda x: x.isinf() | x.isnan() | (x.min() > 0)), (torch.randn(3, 3),)),
    (Apply(lambda x: (x.argmax(1), x.argmin())), (torch.randn(3, 3),)),
]


def test_values_and_gradients(captured_cases):
    references, _ = captured_cases
    differentiate(references)
    if interpret(r.with_main() for r in references).returncode != 0:
        alone = [Reference(case, Apply(case.function)) for case in CASES]
        differentiate(alone)
        failed = {r.case.name: interpret([r.with_main()]) for r in alone}
        failed = {name: run.stderr.splitlines()[0] for name, run in failed.items() if run.returncode != 0}
        assert not failed, failed
        raise AssertionError("some cases together are not as PyTorch has them, and each alone is")


def test_a_wrong_value_is_noticed():
    case, = (c for c in CASES if c.name == "mm-5x7x3")
    reference = Reference(case, Apply(case.function))
    differentiate([reference])
    text = reference.with_main()
    assert interpret([text]).returncode == 0
    last = list(re.finditer("dense<\"0x[0-9A-F]{8}", text))[-1]
    run = interpret([text[: last.end() - 8] + "0000803F" + text[last.end() :]])
    assert run.returncode != 0 and "does not hold at [0, 0]" in run.stderr
