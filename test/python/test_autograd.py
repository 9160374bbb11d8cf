# ===- test_autograd.py - PyTorch's autograd around and inside of compiled modules ---------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Stopped gradients, hooks, derivatives of derivatives, transforms of `torch.func`: as PyTorch has them, or an error that says why not."""

import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import segue

pytestmark = pytest.mark.usefixtures("fresh_backend")


class Net(nn.Module):

    def __init__(self, drop=0.0):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(3, 5), nn.Linear(5, 2), nn.Dropout(drop)

    def forward(self, x):
        return self.b(self.drop(torch.tanh(self.a(x))))


def both_ways(module, *inputs):
    """The module called by `segue.compile`, and by `torch.compile`."""
    yield segue.compile(module, inputs)
    torch.compiler.reset()
    yield torch.compile(module, backend="segue")


def gradients_agree(module, compiled, *inputs, tolerance=1e-5):
    """Values, which of them need gradients, and gradients of parameters and inputs."""
    found = []
    for one in (module, compiled):
        given = [x.clone().requires_grad_() for x in inputs]
        results = one(*given)
        results = results if isinstance(results, tuple) else (results,)
        total = sum((r * torch.linspace(0.5, 2, r.numel()).view_as(r)).sum() for r in results if r.requires_grad)
        asked = [*module.parameters(), *given]
        grads = torch.autograd.grad(total, asked, allow_unused=True)
        grads = [torch.zeros_like(a) if g is None else g for a, g in zip(asked, grads)]
        found.append(([r.requires_grad for r in results], [*results, *grads]))
    assert found[0][0] == found[1][0]
    for e, a in zip(found[0][1], found[1][1], strict=True):
        assert_close(a, e, tolerance)


# --- stopped gradients ---------------------------------------------------------------------------------


class Stopped(nn.Module):
    """A target that is not trained, a region without gradients, and a result that is detached."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        h, t = self.a(x), self.b(x)
        with torch.no_grad():
            scale = (t * t).mean(-1, keepdim=True).sqrt()
        straight = h + (h.round() - h).detach()  # the estimator through rounding
        return F.smooth_l1_loss(h, t.detach()), straight * scale + t.detach() * self.b.weight.detach().sum(), t.detach()


def test_gradients_are_stopped():
    module, x = Stopped(), torch.randn(4, 3)
    for compiled in both_ways(module, x):
        gradients_agree(module, compiled, x)


class Taught(Net):
    """A teacher that runs in inference mode, whose results are used outside of it."""

    @torch.inference_mode()
    def teach(self, x):
        return self.a(x)

    def forward(self, x):
        with torch.inference_mode():
            wide = self.b(self.teach(x))
        return self.b(torch.tanh(self.a(x))) * wide.clone() + self.teach(x).clone()[:, :2]


def test_no_gradients_flow_through_inference_mode():
    module, x = Taught(), torch.randn(4, 3)
    for compiled in both_ways(module, x):
        gradients_agree(module, compiled, x)
    with torch.inference_mode():
        assert torch.ones(1).is_inference()  # as before the capture


@pytest.mark.parametrize("forward, error, words", [
    (lambda self, x: self.b(torch.tanh(self.a(x)).data), segue.ExportError, "use detach"),
    (lambda self, x: torch.cond(x.sum() > 0, self.a, lambda x: self.a(-x), (x,)), segue.UnsupportedOpError, "operator cond .* calls graphs of its own"),
], ids=["data", "cond"])
def test_what_no_program_can_be_of_says_what_to_do(forward, error, words):
    module = Net()
    module.forward = types.MethodType(forward, module)
    with pytest.raises(error, match=words):
        segue.compile(module, torch.randn(4, 3))


def test_stopped_values_train_in_the_runtime():
    """Twins of which one follows the other's values and gives it no gradient."""
    import copy

    class Twins(nn.Module):

        def __init__(self):
            super().__init__()
            self.net = Stopped()

        def forward(self, x):
            loss, straight, _ = self.net(x)
            return loss + straight.square().mean()

    model, x = Twins(), torch.randn(4, 3)
    reference = copy.deepcopy(model)
    trainer = segue.Trainer([segue.compile(model, x)], optimizer=segue.SGD(lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        loss = reference(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert trainer.step(x=x) == pytest.approx(loss.item(), rel=1e-5)


# --- hooks ---------------------------------------------------------------------------------------------


class Hooked(Net):

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if h.requires_grad:
            h.register_hook(lambda g: g * 2 + 1)
        return self.b(h)


def test_hooks_on_tensors_inside():
    """TorchDynamo cuts the program there; `segue.compile` has no place for them and would lose them."""
    module, x = Hooked(), torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients_agree(module, torch.compile(module, backend="segue"), x)
    line = Hooked.forward.__code__.co_firstlineno + 3
    with pytest.raises(segue.UnsupportedOpError, match=rf"a tensor of shape \[4, 5\] is given a gradient hook at .*test_autograd.py:{line}, which a program"):
        segue.compile(module, x)
    module = Net()
    module.a.register_full_backward_hook(lambda m, given, found: None)
    with pytest.raises(segue.UnsupportedOpError, match="module 'a' has a backward hook"):
        segue.compile(module, x)
    segue.compile(Net(), x)  # the refusal is gone with the capture
    h = torch.randn(2, requires_grad=True)
    h.register_hook(lambda g: g)


class Reversed(torch.autograd.Function):
    """The identity, with the gradient of another function."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -3 * gradient


def test_functions_with_a_backward_of_their_own():
    """`torch.compile` takes both halves; `segue.compile` would train by the derivative of the first, and refuses."""

    class Turned(Net):

        def forward(self, x):
            return self.b(Reversed.apply(torch.tanh(self.a(x))))

    module, x = Turned(), torch.randn(4, 3)
    gradients_agree(module, torch.compile(module, backend="segue"), x)
    line = Turned.forward.__code__.co_firstlineno + 1
    with pytest.raises(segue.UnsupportedOpError, match=rf"Reversed, a torch.autograd.Function, is applied at .*test_autograd.py:{line}: a program has"):
        segue.compile(module, x)
    with torch.no_grad():
        assert torch.equal(Reversed.apply(x), x)  # the refusal is gone with the capture


def test_regions_under_the_reentrant_checkpoint_have_gradients():
    """The form that PyTorch had first is a function with a backward of its own, which runs forward again."""

    class Region(Net):

        def forward(self, x):
            return self.b(torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(self.a(x)), x, use_reentrant=True))

    module, plain, x = Region(), Net(), torch.randn(4, 3)
    plain.a, plain.b = module.a, module.b  # PyTorch's own region refuses torch.autograd.grad
    gradients_agree(plain, segue.compile(module, x), x)


def test_hooks_on_parameters_and_at_the_seams():
    module, x = Net(), torch.randn(4, 3)
    for compiled in both_ways(module, x):
        seen = []
        handles = [module.a.weight.register_hook(lambda g: seen.append("weight") or g * 3)]
        y = compiled(x)
        y.register_hook(lambda g: seen.append("result") or g * 2)
        (found,) = torch.autograd.grad(y.sum(), module.a.weight)
        handles[0].remove()
        (expected,) = torch.autograd.grad(module(x).sum(), module.a.weight)
        assert_close(found, expected * 6)
        assert seen == ["result", "weight"]


# --- derivatives of derivatives ----------------------------------------------------------------------------


def penalty(module, x):
    """Of a gradient's norm, as it is trained; with the gradients of parameters and of the input."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    return x.grad


def test_double_backward():
    """Backward that is to be differentiated is PyTorch's, and says so; others stay in Segue."""
    module, x = Net(), torch.randn(4, 3)
    wanted = [penalty(module, x), *(p.grad.clone() for p in module.parameters())]
    for compiled in both_ways(module, x):
        module.zero_grad()
        with pytest.warns(segue.FallbackWarning, match="gradients that are to be differentiated .create_graph=True. are computed by PyTorch"):
            found = [penalty(compiled, x), *(p.grad for p in module.parameters())]
        for a, e in zip(found, wanted, strict=True):
            assert_close(a, e, 1e-5)
        gradients_agree(module, compiled, x)
    (segment,) = segue.backend_report().segments
    assert segment.compiled and segment.backward_calls >= 1


def test_gradients_in_batches():
    """PyTorch then calls backward once, with batches for gradients: of `jacobian(vectorize=True)`, and `is_grads_batched`."""
    module, x = Net(), torch.randn(4, 3)
    wanted = torch.autograd.functional.jacobian(module, x)
    for compiled in both_ways(module, x):
        assert_close(torch.autograd.functional.jacobian(compiled, x, vectorize=True), wanted, 1e-5)
        given = x.clone().requires_grad_()
        rows = torch.eye(8).view(8, 4, 2)
        for keep in (True, False):
            if keep:
                result = compiled(given)
            found, = torch.autograd.grad(result, given, rows, is_grads_batched=True, retain_graph=keep)
            assert_close(found.view(4, 2, 4, 3), wanted, 1e-5)


def test_a_hessian_across_stitched_modules():
    first, second, x = Net(), nn.Sequential(nn.Linear(2, 4), nn.Sigmoid()), torch.randn(2, 3)
    ours = segue.compile(first, x), segue.compile(second, torch.zeros(2, 2))
    with pytest.warns(segue.FallbackWarning):
        found = torch.autograd.functional.hessian(lambda x: ours[1](ours[0](x)).square().sum(), x)
    assert_close(found, torch.autograd.functional.hessian(lambda x: second(first(x)).square().sum(), x), 1e-5)


def test_what_cannot_be_differentiated_twice():
    x = torch.randn(4, 3)
    for compiled in both_ways(Net(drop=0.5), x):
        with pytest.raises(segue.InvalidArgumentError, match="random numbers"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            penalty(compiled, x)
        penalized = compiled(x).sum()
        penalized.backward()
    torch.compiler.reset()
    with pytest.raises(segue.InvalidArgumentError, match="was changed in place by the call or since"):
        penalty(torch.compile(nn.BatchNorm1d(3), backend="segue"), x)


# --- torch.func --------------------------------------------------------------------------------------------


def quiet(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", segue.FallbackWarning)
        return function(*args)


def test_functional_call_runs_in_segue():
    module, x = Net(), torch.randn(4, 3)
    others = {name: torch.randn_like(p).requires_grad_() for name, p in module.named_parameters()}
    for compiled in both_ways(module, x):
        names = {n: f"_orig_mod.{n}" if any(k.startswith("_orig_mod") for k, _ in compiled.named_parameters()) else n for n in others}
        found = functional_call(compiled, {names[n]: p for n, p in others.items()}, (x,))
        expected = functional_call(module, others, (x,))
        assert_close(found, expected, 1e-5)
        for a, e in zip(*(torch.autograd.grad(y.sin().sum(), list(others.values())) for y in (found, expected))):
            assert_close(a, e, 1e-5)
    assert all(s.compiled for s in segue.backend_report().segments)


@pytest.mark.parametrize("name, transform", [
    ("grad", lambda f: grad(lambda x: f(x).square().sum())), ("vmap", vmap), ("jvp", lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1])])
def test_transforms_of_a_compiled_module_run_in_pytorch(name, transform):
    module, x = Net(), torch.randn(4, 3)
    compiled = segue.compile(module, x)
    with pytest.warns(segue.FallbackWarning, match=f"Net: a call under torch.func.{name} runs in PyTorch"):
        found = transform(compiled)(x)
    assert_close(found, transform(module)(x), 1e-5)
    gradients_agree(module, compiled, x)


def test_tangents_of_forward_mode_run_in_pytorch():
    module, x = Net(), torch.randn(4, 3)
    compiled = segue.compile(module, x)
    with torch.autograd.forward_ad.dual_level(), pytest.warns(segue.FallbackWarning, match="torch.autograd.forward_ad"):
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [torch.autograd.forward_ad.unpack_dual(m(dual)).tangent for m in (compiled, module)]
    assert_close(*tangents, 1e-5)


@pytest.mark.parametrize("name, transform", [
    ("grad", lambda f: grad(lambda x: f(x).square().sum())), ("jvp", lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]), ("vmap", vmap),
    ("rows", lambda f: vmap(grad(lambda x: f(x).square().sum())))])
def test_transforms_under_torch_compile(name, transform):
    """The whole is compiled: gradients and tangents are ordinary operators by then."""
    module, x = Net(), torch.randn(4, 3)
    function = transform(module)
    found = quiet(torch.compile(function, backend="segue"), x)
    assert_close(found, function(x), 1e-5)
    (segment,) = segue.backend_report().segments
    assert segment.compiled, segment.reasons
