# ===- test_module.py - calling compiled modules ---------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Calling compiled modules: kinds of tensors, structure, autograd, variants, files, refusals."""

import copy
import json
import logging
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close
from op_cases import Apply

import segue

BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + self.shift


def test_numpy_in_numpy_out():
    net, x = Net(), torch.randn(5, 4)
    y = segue.compile(net, x)(x.numpy())
    assert isinstance(y, np.ndarray)
    assert_close(torch.from_numpy(y), net(x))


def test_read_only_and_strided_arrays():
    compiled = segue.compile(Apply(lambda x: x * 2 + 1), torch.zeros(3, 4))
    frozen = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen.setflags(write=False)
    for array in (frozen, np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2], frozen[::-1], np.asfortranarray(frozen)):
        np.testing.assert_allclose(compiled(array), array * 2 + 1)


def test_strided_torch_tensors_and_gradients():
    compiled = segue.compile(Apply(lambda x: x * x), torch.zeros(3, 4))
    x = torch.randn(4, 3, requires_grad=True)
    y = compiled(x.t())
    y.sum().backward()  # the gradient that arrives has strides 0
    assert_close(x.grad, 2 * x)


def test_dlpack_in_dlpack_out():

    class Foreign:

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    net, x = Net(), torch.randn(5, 4)
    y = segue.compile(net, x)(Foreign(x))
    assert isinstance(y, segue.Tensor)
    assert_close(torch.from_dlpack(y), net(x))


def test_several_inputs_and_outputs():

    class Many(nn.Module):

        def forward(self, batch, scale):
            return {"sum": batch["x"] + batch["y"] * scale, "pair": (batch["x"].mean(), batch["x"])}

    x, y = torch.randn(3, 2), torch.randn(3, 2)
    compiled = segue.compile(Many(), ({"x": x, "y": y}, 2.0))
    out = compiled({"x": x, "y": y}, scale=2.0)
    assert_close(out["sum"], x + 2 * y)
    assert_close(out["pair"][0], x.mean())
    assert_close(out["pair"][1], x)


def test_gradients_reach_parameters_and_inputs_and_accumulate():
    net = Net()
    x = torch.randn(5, 4, requires_grad=True)
    compiled = segue.compile(net, x.detach())
    (compiled(x) ** 2).sum().backward()
    ours = [x.grad.clone(), *(p.grad.clone() for p in net.parameters())]
    x.grad = None
    net.zero_grad()
    (net(x) ** 2).sum().backward()
    for actual, expected in zip(ours, [x.grad, *(p.grad for p in net.parameters())]):
        assert_close(actual, expected)
    (compiled(x) ** 2).sum().backward()
    for actual, p in zip(ours[1:], net.parameters()):
        assert_close(p.grad, 2 * actual)


def test_gradients_of_inputs_are_computed_for_those_that_require_them():
    class Weighed(nn.Module):

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, y, where):
            return self.inner(x * y)[where]

    net = Weighed()
    x, y, where = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 3, 3])
    compiled = segue.compile(net, (x, y, where))

    def gradients(module, *wanted):
        given = [t.clone().requires_grad_(name in wanted) for name, t in (("x", x), ("y", y))]
        module.zero_grad()
        module(*given, where).square().sum().backward()
        return [t.grad for t in (*given, *module.parameters())]

    programs = {}
    for wanted in ((), ("x",), ("x", "y"), ()):
        for ours, theirs in zip(gradients(compiled, *wanted), gradients(net, *wanted), strict=True):
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                assert_close(ours, theirs)
        given = {name: t.clone().requires_grad_(name in wanted) for name, t in (("x", x), ("y", y))}
        module = compiled._primary.module(compiled._device, None, compiled._primary.without_gradients({**given, "where": where}))
        assert [name for name in ("x", "y", "inner.weight") if module.gives_gradient_of(name)] == [*wanted, "inner.weight"]
        assert programs.setdefault(wanted, module) is module
    assert len(compiled._variants) == 1  # one graph, and what is made of it for each
    with torch.no_grad():
        assert_close(compiled(x, y, where), net(x, y, where))
    assert len(compiled._primary.made()) == 3

    # A file serves whoever loads it, and without anything to train nothing is differentiated.
    assert {v.of for p in compiled.binary.programs if p.name == "backward" for v in p.outputs} >= {"x", "y"}
    net.requires_grad_(False)
    assert_close(compiled(x, y, where), net(x, y, where))
    assert not compiled._variants[list(compiled._variants)[-1]].module(compiled._device, None, ("x", "y")).has_backward
    assert_close(gradients(compiled, "y")[1], gradients(net, "y")[1])


@pytest.mark.parametrize("slices", [19, 23])
def test_gradients_of_slices_written_one_by_one(slices):
    """Backward makes one kernel with a result per slice; each is zero but for its own, and may lie over an operand."""

    class Recurrent(nn.Module):

        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8)

        def forward(self, x, a):
            out = torch.zeros_like(x)
            for i in range(x.shape[1]):
                out[:, i] = x[:, i].exp()
            return (torch.tanh(a) * out) @ self.w

    net, generator = Recurrent(), torch.Generator().manual_seed(1)
    given = [torch.randn(2, slices, 64, generator=generator) for _ in range(2)]
    weight = torch.randn(2, slices, 64, generator=generator)
    gradients = []
    for module in (net, segue.compile(net, tuple(given))):
        leaves = [x.clone().requires_grad_() for x in given]
        (module(*leaves) * weight).sum().backward()
        gradients.append([*(x.grad for x in leaves), net.w.grad.clone()])
        net.w.grad = None
    for expected, actual, what in zip(*gradients, ("x", "a", "w")):
        assert_close(actual, expected, what=f"gradient of {what}")


def test_parameters_are_shared_not_copied():
    net, x = Net(), torch.randn(5, 4)
    compiled = segue.compile(net, x)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    with torch.no_grad():
        before = compiled(x)
        net.a.weight.mul_(2)
        assert_close(compiled(x), net(x))
        assert not torch.equal(before, compiled(x))
        net.a.weight = nn.Parameter(torch.randn(8, 4))  # another tensor altogether
        assert_close(compiled(x), net(x))
    state = {k: torch.randn_like(v) for k, v in compiled.state_dict().items()}
    compiled.load_state_dict(state)
    assert_close(net.b.bias, state["b.bias"])


def test_no_grad_keeps_nothing():
    net, x = Net(), torch.randn(5, 4)
    compiled = segue.compile(net, x)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad


def test_backward_twice():
    net, x = Net(), torch.randn(5, 4)
    compiled = segue.compile(net, x)
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    once = net.a.weight.grad.clone()
    loss.backward()
    assert_close(net.a.weight.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_change_in_place_before_backward_is_noticed():
    net, x = Net(), torch.randn(5, 4)
    loss = segue.compile(net, x)(x).sum()
    with torch.no_grad():
        net.b.weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_tied_parameters():

    class Tied(nn.Module):

        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids, targets):
            return F.cross_entropy(self.head(self.embedding(ids)), targets)

    net = Tied()
    ids, targets = torch.tensor([1, 2, 6]), torch.tensor([2, 6, 0])
    segue.compile(net, (ids, targets))(ids, targets).backward()
    ours = net.embedding.weight.grad.clone()
    net.zero_grad()
    net(ids, targets).backward()
    assert_close(ours, net.embedding.weight.grad)


def test_frozen_parameters_get_no_gradient():
    net, x = Net(), torch.randn(5, 4)
    net.a.requires_grad_(False)
    compiled = segue.compile(net, x)
    compiled(x).sum().backward()
    assert net.a.weight.grad is None and net.b.weight.grad is not None
    net.a.requires_grad_(True)  # another variant
    compiled(x).sum().backward()
    assert net.a.weight.grad is not None


def test_new_shape_compiles_once_and_says_so(caplog):
    net = Net()
    compiled = segue.compile(net, torch.randn(5, 4), max_variants=2)
    with caplog.at_level(logging.WARNING, logger="segue"), torch.no_grad():
        for rows in (5, 6, 6, 5, 6):
            x = torch.randn(rows, 4)
            assert_close(compiled(x), net(x))
        assert len([record for record in caplog.records if record.name == "segue"]) == 1
        assert "[6, 4]" in caplog.text and "Net" in caplog.text
        for rows in (7, 8):
            x = torch.randn(rows, 4)
            assert_close(compiled(x), net(x))
    assert len(compiled._variants) == 2


def test_arguments_of_another_type_or_sign_are_others():
    """1, 1.0 and True are equal keys of a dictionary, 0.0 and -0.0 too, and NaN is equal to nothing."""

    class Scaled(nn.Module):
        def forward(self, x, by):
            return x * by

    module, x = Scaled(), torch.arange(4)
    compiled = segue.compile(module, (x, 1), max_variants=10)
    for by in (1, 1.0, True, 0.0, -0.0, math.nan, math.nan):
        torch.testing.assert_close(compiled(x, by), module(x, by), rtol=0, atol=0, equal_nan=True)
    assert len(compiled._variants) == 6
    with pytest.raises(segue.InvalidArgumentError, match="a set is among the arguments"):
        compiled(x, {1})


def test_element_types_are_arguments_as_numbers_are():
    """By position, by name and within a dictionary; forward is what it was afterwards."""

    class Cast(nn.Module):
        def forward(self, x, dtype=None, *, options=None):
            y = (x * 1.3).to(dtype) if dtype else x
            return y.to(options["to"], memory_format=options["order"]) if options else y

    module, x = Cast(), torch.linspace(-3, 3, 24).view(1, 2, 3, 4)
    compiled = segue.compile(module, (x, torch.bfloat16))
    for args, kwargs in (((torch.bfloat16,), {}), ((torch.float64,), {}), ((), {"dtype": torch.int32}), ((), {}),
                         ((torch.float16,), {"options": {"to": torch.float32, "order": torch.channels_last}})):
        found, wanted = compiled(x, *args, **kwargs), module(x, *args, **kwargs)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    assert len(compiled._variants) == 5 and "forward" not in vars(module)
    with pytest.raises(segue.UnsupportedOpError, match="complex numbers"):
        compiled(x, torch.complex64)


class Tied(nn.Module):

    def __init__(self):
        super().__init__()
        self.inner, self.act, self.scale, self.modes = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Dropout(0.5)), torch.tanh, 1.0, ["plain"]
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.inner[0].weight

    def forward(self, x):
        y = self.head(self.act(self.inner(x))) * self.scale
        return y + 1 if "shifted" in self.modes else y


class Adapted(nn.Module):

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_a_module_that_was_changed_is_compiled_again():
    """Each change is one that PyTorch's own call would follow; nothing else is compiled anew, and a state that comes back is known."""
    net, x = Tied(), torch.randn(3, 4)
    compiled = segue.compile(net, x, max_variants=20)
    net.inner[1].eval()

    def agree(variants):
        assert_close(compiled(x), net(x))
        for of in (compiled, net):
            of.zero_grad()
            of(x).square().sum().backward()
            assert all(p.grad is not None for p in net.parameters())
        assert len(compiled._variants) == variants

    def untie():
        net.head.weight = nn.Parameter(torch.randn(4, 4))

    def adapt():
        net.inner[0] = Adapted(net.inner[0])

    agree(2)
    changes = [untie, adapt, lambda: setattr(net, "act", torch.sigmoid), lambda: setattr(net, "scale", 3.0), lambda: net.modes.append("shifted"),
               lambda: net.inner.append(nn.Tanh()), lambda: net.head.register_forward_hook(lambda module, given, result: result * 2),
               lambda: net.load_state_dict({n: torch.randn_like(p) for n, p in net.state_dict().items()}, assign=True)]
    for count, change in enumerate(changes, start=3):
        change()
        agree(min(count, 9))  # other values of parameters are no other module
    net.scale = 1.0
    agree(10)
    net.scale = 3.0
    agree(10)
    twin = copy.deepcopy(compiled)
    for scale in (3.0, 5.0, 7.0):
        twin._source.scale = scale
        assert_close(twin(x), twin._source(x))
    assert_close(compiled(x), net(x))


def test_train_and_eval():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.randn(8, 4)
    compiled = segue.compile(net, x)
    assert (compiled(x) == 0).any()
    compiled.eval()
    assert not net[1].training
    assert_close(compiled(x), net(x))


def test_inside_of_a_torch_module():
    inner, outer = Net(), None
    x = torch.randn(5, 4)
    outer = nn.Sequential(segue.compile(inner, x), nn.Linear(3, 1))
    assert {n for n, _ in outer.named_parameters()} == {f"0.{n}" for n, _ in inner.named_parameters()} | {"1.weight", "1.bias"}
    outer(x).sum().backward()
    assert inner.a.weight.grad is not None


def test_save_and_load(tmp_path):
    net, x = Net(), torch.randn(5, 4)
    compiled = segue.compile(net, x)
    path = tmp_path / "net.segue"
    compiled.save(path, weights=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.safetensors", "net.segue"]
    loaded = segue.load(path, tmp_path / "net.safetensors")
    assert_close(loaded(x), net(x))
    loaded(x=x).sum().backward()
    net(x).sum().backward()
    for (name, ours), (_, theirs) in zip(sorted(loaded.named_parameters()), sorted(net.named_parameters())):
        assert_close(ours.grad, theirs.grad, what=name)
    with pytest.raises(segue.InvalidArgumentError, match="takes 'x'"):
        loaded(x, x)
    with pytest.raises(segue.LayoutMismatchError, match=r"\[6, 4\] given, \[5, 4\] declared"):
        loaded(torch.randn(6, 4))


def test_missing_weights_are_named(tmp_path):
    net, x = Net(), torch.randn(5, 4)
    segue.compile(net, x).save(tmp_path / "net.segue")
    state = dict(net.state_dict())
    del state["b.bias"]
    with pytest.raises(segue.MissingWeightError, match="'b.bias'") as caught:
        segue.load(tmp_path / "net.segue", state)
    assert caught.value.report["names"] == ["b.bias"]
    with pytest.raises(segue.MissingWeightError, match="load_state_dict"):
        segue.load(tmp_path / "net.segue")(x)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "net.segue"
    segue.compile(Net(), torch.randn(5, 4)).save(path)
    data = path.read_bytes()
    damaged = tmp_path / "damaged.segue"
    for size in (0, 7, len(data) // 2, len(data) - 1):
        damaged.write_bytes(data[:size])
        with pytest.raises(segue.CorruptFileError, match="damaged.segue"):
            segue.load(damaged)
    for place in range(0, len(data), max(1, len(data) // 40)):
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises((segue.CorruptFileError, segue.VersionError)):
            segue.load(damaged)
    with pytest.raises(segue.FileError, match="nowhere.segue"):
        segue.load(tmp_path / "nowhere.segue")


def test_nothing_is_left_behind_by_a_failed_save(tmp_path):
    compiled = segue.compile(Net(), torch.randn(5, 4))
    with pytest.raises(segue.FileError, match="net.segue: cannot be opened for writing: No such file"):
        compiled.save(tmp_path / "missing" / "net.segue")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given, error, words", [
    (torch.randn(5, 3), segue.ExportError, "could not capture"),
    (torch.randn(5, 4, dtype=torch.float64), segue.UnsupportedOpError, "linear.*segue.dot_general of torch.float64 and torch.float32"),
    (torch.zeros(5, 4, dtype=torch.uint8), segue.InvalidArgumentError, "uint8"),
    (np.zeros((5, 4), np.uint8), segue.InvalidArgumentError, "uint8"),
    ([[1.0] * 4] * 5, segue.ExportError, "could not capture"),
])
def test_bad_inputs(given, error, words):
    compiled = segue.compile(Net(), torch.randn(5, 4))
    with pytest.raises(error, match=words):
        compiled(given)


def test_bad_arguments_of_compile():
    with pytest.raises(segue.InvalidArgumentError, match="torch.nn.Module is wanted"):
        segue.compile(lambda x: x, torch.randn(2))
    with pytest.raises(segue.InvalidArgumentError, match="example_inputs"):
        segue.compile(Net(), 3)
    with pytest.raises(segue.InvalidArgumentError, match="compiled already"):
        segue.compile(segue.compile(Net(), torch.randn(5, 4)), torch.randn(5, 4))


def test_inspect_says_what_is_inside():
    text = segue.compile(Net(), torch.randn(5, 4), optimizer=segue.AdamW()).inspect()
    for word in ("forward", "backward", "inference", "optimizer", "4 parameter", "arena"):
        assert word in text


def hint_for(program, value, strides, signature=None):
    """A stitch hint by which the output `value` of `program` should have `strides`."""
    def layout(strides):
        return {"space": "device_dram", "strides": strides, "tile": [], "storage": "element", "zero_points": False,
                "alignment": 64}
    return {"producer": {"signature": signature or f"{program.interface_hash:016x}", "program": program.name,
                         "output": value},
            "consumer": {"signature": "0" * 16, "program": "forward", "input": "h"},
            "change": "producer", "bytes_per_step": 96, "from": layout([6, 1]), "to": layout(strides)}


def test_stitch_hints_change_the_layout_and_no_value(tmp_path, caplog):
    net, x = nn.Linear(3, 6, bias=False), torch.randn(4, 3)
    plain = segue.compile(net, x)
    forward = next(p for p in plain._primary.binary(None).programs if p.name == "forward")
    output = next(v for v in forward.outputs if v.role == "output")
    assert "strides" not in repr(output)
    hints = tmp_path / "stitch_hints.json"
    hints.write_text(json.dumps({"version": 1, "edges": [hint_for(forward, output.name, [1, 4])]}))
    told = segue.compile(net, x, stitch_hints=hints)
    changed = next(p for p in told._primary.binary(None).programs if p.name == "forward")
    assert changed.interface_hash == forward.interface_hash
    assert "[1,4]" in repr(next(v for v in changed.outputs if v.role == "output")).replace(" ", "")
    y, z = plain(x), told(x)
    assert torch.equal(y, z)
    z.sum().backward()
    assert torch.allclose(net.weight.grad, x.sum(0).expand(6, 3), atol=1e-6)

    hints.write_text(json.dumps({"version": 1, "edges": [hint_for(forward, output.name, [1, 4], "f" * 16)]}))
    with caplog.at_level("INFO", logger="segue"):
        assert torch.equal(segue.compile(net, x, stitch_hints=hints)(x), y)
    assert "1 of 1 stitch hints" in caplog.text

    hints.write_text('{"version": 1, "edges": [{"change": "all"}]}')
    with pytest.raises(segue.CompileError, match=r'"edges\[0\].change" must be producer or consumer'):
        segue.compile(net, x, stitch_hints=hints).build()


def test_temporaries_in_l1_change_no_value(tmp_path):
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(6, 8)
    plain = segue.compile(net, x)
    expected = plain(x)
    expected.sum().backward()
    gradient, net[0].weight.grad = net[0].weight.grad, None
    for device in ("sim:threads=1,latency=0s,l1=64KiB", "sim:threads=1,latency=0s,l1=0", "cpu"):
        fast = segue.compile(net, x, l1_bytes=1 << 14, device=device)
        y = fast(x)
        y.sum().backward()
        assert torch.equal(y, expected) and torch.equal(net[0].weight.grad, gradient)
        net[0].weight.grad = None
    for compiled, has_arena in (plain, False), (fast, True):
        compiled.save(tmp_path / "net.segue")
        program = subprocess.run([BUILD / "bin" / "segue-translate", "--flatbuffer-to-prog", tmp_path / "net.segue"],
                                 capture_output=True, text=True, check=True).stdout
        assert ("#prog.arena<device_l1" in program) == has_arena
    for wrong in (-1, 1.5, True, "1MiB", 1 << 63):
        with pytest.raises(segue.InvalidArgumentError, match="l1_bytes is .*; give a number of bytes"):
            segue.compile(net, x, l1_bytes=wrong)


def test_values_are_verified_where_the_environment_asks(monkeypatch, caplog):
    net, x = Net(), torch.randn(5, 4)
    compiled = segue.compile(net, x)
    monkeypatch.setenv("SEGUE_VERIFY", "values")
    with caplog.at_level(logging.WARNING, logger="segue"):
        for _ in range(2):
            assert_close(compiled(x), net(x))
    said = [r.getMessage() for r in caplog.records if "agree with the reference interpreter" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("Net: "), said  # once per variant

    # A kernel that differs ends the call; here the compiler only says so (SegueVerifyTests has one that does).
    monkeypatch.setattr("segue._compiler.verify_values", lambda *_, **__: ("kernel k1_tanh differs", 1, 1, 1))
    other = segue.compile(net, x)
    with pytest.raises(segue.ValuesDifferError, match="Net: kernel k1_tanh differs") as raised:
        other(x)
    assert raised.value.report["difference"] == "kernel k1_tanh differs"

    monkeypatch.setenv("SEGUE_VERIFY", "everything")
    with pytest.raises(segue.InvalidArgumentError, match="SEGUE_VERIFY is 'everything'"):
        other(x)
