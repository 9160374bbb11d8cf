# ===- test_frontend.py - capture: text, names, roles, places, refusals ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Capture alone: no code is made here. What programs compute is tested in test_ops.py, and that each operator gives valid IR in
test_reference.py."""

import os
import re
import shutil
import subprocess

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from op_cases import Apply

import segue
from segue.frontend import capture, parts

SEGUE_OPT = os.environ.get("SEGUE_OPT") or shutil.which("segue-opt") or os.path.join(
    os.path.dirname(__file__), "../../build/bin/segue-opt")


def verify(*texts):
    """Parse and verify modules in one run of segue-opt."""
    run = subprocess.run([SEGUE_OPT, "--split-input-file", "--verify-roundtrip", "-"],
                         input="\n// -----\n".join(texts), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[:4000]


class Mlp(nn.Module):

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x, options=None):
        for layer in self.layers:
            x = x + layer(x)
        return x * self.scale + self.shift * self.frozen


def test_names_and_roles():
    captured = capture(Mlp(), (torch.randn(3, 4),))
    roles = {a.name: a.role for a in captured.arguments}
    assert roles == {
        **{f"layers.{i}.{j}.{w}": "parameter" for i in range(2) for j in (0, 2) for w in ("weight", "bias")},
        "scale": "frozen", "shift": "frozen", "frozen": "frozen", "x": "input",
    }
    assert [r.name for r in captured.results] == ["out0"]
    verify(captured.text)


def test_blocks_and_places():
    text = capture(Mlp(), (torch.randn(3, 4),)).text
    # A numbered module inside of a block belongs to the block.
    assert set(re.findall(r'segue.block = "([^"]+)"', text)) == {"layers.0", "layers.1"}
    line = Mlp.forward.__code__.co_firstlineno + 2
    assert re.search(rf'loc\("layers\.0[^"]*"\("{re.escape(__file__)}":{line}:1\)\)', text)


def test_an_operator_that_is_taken_apart_keeps_its_place():
    """In the text and in errors: what it is made of has none of its own."""

    class Layer(nn.Module):

        def forward(self, x):
            return F.hardswish(x), torch.linalg.cond(x)

    class Outer(nn.Module):

        def __init__(self, layer):
            super().__init__()
            self.layers = nn.ModuleList([layer])

        def forward(self, x):
            return self.layers[0](x)

    line = Layer.forward.__code__.co_firstlineno + 1
    text = capture(Outer(nn.Hardswish()), (torch.randn(3, 4),)).text
    assert text.count("segue.block = \"layers.0\"") > 3 and "<unknown>" not in text
    with pytest.raises(segue.UnsupportedOpError, match=r"operator aten\.\w+.* in module 'layers\.0' at .*it has no lowering: linear algebra") as caught:
        capture(Outer(Layer()), (torch.randn(3, 3),))
    assert caught.value.report["module"] == "layers.0" and caught.value.report["source"] == f"{__file__}:{line}"


def test_equal_calls_are_taken_apart_once():
    """By shapes, types, and numbers with their types; calls that differ in one of them are others."""
    traced = parts._traced.cache_info

    def misses(function, *inputs):
        before = traced().misses
        capture(Apply(function), inputs)
        return traced().misses - before

    x = torch.randn(3, 11)
    assert misses(lambda x: F.hardswish(x) + F.hardswish(x * 2), x) == 1
    assert misses(F.hardswish, x) == 0
    assert misses(F.hardswish, x.double()) == misses(F.hardswish, x[:, 1:]) == 1
    assert misses(lambda x: torch.celu(x, 2), x) == misses(lambda x: torch.celu(x, 2.0), x) == 1


def test_tied_parameters_are_one_argument():

    class Tied(nn.Module):

        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    captured = capture(Tied(), (torch.tensor([1, 2]),))
    (parameter,) = captured.named("parameter")
    assert parameter.names == ("embedding.weight", "head.weight")
    verify(captured.text)


def test_one_tensor_given_twice_is_two_inputs():
    x = torch.randn(3)
    captured = capture(Apply(lambda a, b: a - 2 * b), (x, x))
    assert len(captured.named("input")) == 2
    sub = re.search(r"segue.sub %arg0, ", captured.text)
    assert sub, captured.text


def test_structure_of_calls():

    class Nested(nn.Module):

        def forward(self, batch, *more, scale=1.0, **named):
            return {"sum": batch["a"] + more[0], "list": [batch["b"][0] * scale, named["z"]], "none": None}

    a, b, c, z = (torch.randn(2) for _ in range(4))
    captured = capture(Nested(), ({"a": a, "b": [b]}, c), {"scale": 2.0, "z": z})
    assert captured.structure.input_names() == ["batch.a", "batch.b.0", "more.0", "z"]
    assert [r.name for r in captured.results] == ["sum", "list.0", "list.1"]
    flat = captured.structure.flatten(({"a": a, "b": [b]}, c), {"z": z, "scale": 2.0})
    assert flat["more.0"] is c
    with pytest.raises(segue.InvalidArgumentError, match="scale.*2.0"):
        captured.structure.flatten(({"a": a, "b": [b]}, c), {"z": z, "scale": 3.0})
    assert captured.structure.unflatten([a, b, z]) == {"sum": a, "list": [b, z], "none": None}
    verify(captured.text)


def test_the_only_scalar_is_the_loss():
    captured = capture(Apply(lambda x, t: (F.mse_loss(x, t), x * 2)), (torch.randn(3), torch.randn(3)))
    assert [r.name for r in captured.results] == ["loss", "out1"]


def test_dropout_draws_by_counter():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.1))
    captured = capture(module, (torch.randn(2, 4),))
    assert re.findall(r"segue.random %seed, %step id (\d)", captured.text) == ["0", "1"]
    assert {a.name for a in captured.named("hyper")} == {"seed", "step"}
    verify(captured.text)
    assert "segue.random" not in capture(module.eval(), (torch.randn(2, 4),)).text


def test_settings_by_parameter():
    text = capture(nn.Linear(3, 2), (torch.randn(1, 3),)).text_with({"bias": (2, 0.0, ""), "weight": (0, None, "")})
    assert re.findall(r'segue.name = "(\w+)"[^}]*segue.rate_group = 2 : i64, segue.weight_decay = 0.0 : f64', text) == ["bias"]
    verify(text)


def test_no_grad_region_is_imported():

    class Rotary(nn.Module):

        def __init__(self):
            super().__init__()
            self.register_buffer("frequencies", torch.rand(4))

        def forward(self, x):
            with torch.no_grad():
                angles = torch.arange(3).float()[:, None] * self.frequencies
                cos = angles.cos()
            return x * cos

    verify(capture(Rotary(), (torch.randn(2, 3, 4),)).text)


def test_unsupported_operator_names_op_module_and_line():

    class Inner(nn.Module):

        def forward(self, x):
            return torch.fft.fft(x).real

    outer = nn.Sequential(nn.Linear(4, 4), Inner())
    with pytest.raises(segue.UnsupportedOpError) as caught:
        capture(outer, (torch.randn(2, 4),))
    line = Inner.forward.__code__.co_firstlineno + 1
    assert caught.value.report["op"].startswith("aten.fft_fft") or "fft" in caught.value.report["op"]
    assert caught.value.report["module"] == "1"
    assert caught.value.report["source"] == f"{__file__}:{line}"
    assert f"{__file__}:{line}" in str(caught.value) and "'1'" in str(caught.value)


@pytest.mark.parametrize("inputs, words", [
    ((torch.zeros(2, 4, dtype=torch.uint8),), "element type torch.uint8 is not supported"),
    ((torch.randn(2, 5),), "torch.export could not capture Mlp"),
    ((), "missing a required argument: 'x'"),
])
def test_refusals_say_why(inputs, words):
    with pytest.raises(segue.Error, match=words):
        capture(Mlp(), inputs)


class Number(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Size(nn.Module):
    def forward(self, x):
        return x[: int(x.max())]


@pytest.mark.parametrize("net, words", [(Number, r"aten.item.*it makes a Python number of what a tensor holds"),
                                        (Branch, "depends on what a tensor holds"), (Size, "depends on what a tensor holds")])
def test_what_depends_on_values_names_the_line(net, words):
    line = f"{__file__}:{net.forward.__code__.co_firstlineno + 1}"
    with pytest.raises(segue.Error, match=words) as caught:
        capture(net(), (torch.ones(3),))
    assert line in str(caught.value) and caught.value.report["source"] == line


def test_an_output_padding_beyond_the_stride_is_refused():
    with pytest.raises(segue.UnsupportedOpError, match="conv_transpose2d.*output_padding=\\[1, 1\\], which is not below the stride"):
        capture(nn.ConvTranspose2d(2, 3, 3, output_padding=1, dilation=2), (torch.randn(1, 2, 4, 4),))


def test_no_gradient_flows_through_what_is_detached_or_computed_without_gradients():
    class Net(nn.Module):

        def forward(self, x):
            with torch.no_grad():
                scale = x.square().sum()
            return (x * 1.0).add_(1).detach() * x + scale * x

    x = torch.randn(3, requires_grad=True)
    ours, = torch.autograd.grad(segue.compile(Net(), (x,))(x).sum(), x)
    theirs, = torch.autograd.grad(Net()(x).sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function, stops", [
    (lambda x: x * x.detach(), 1), (lambda x: (x * 1.0).add_(1).detach() * x, 1), (lambda x: x * torch.ones(3).detach(), 0)])
def test_gradients_are_stopped_where_there_are_any(function, stops):
    assert capture(Apply(function), (torch.randn(3),)).text.count("segue.detach") == stops


def test_a_changed_buffer_is_refused():
    with pytest.raises(segue.Error, match="running_mean|batch norm in training mode"):
        capture(nn.BatchNorm1d(3), (torch.randn(4, 3),))
