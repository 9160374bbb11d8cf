# ===- test_torch_cuda.py - PyTorch's CUDA tensors, without a GPU -------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Models of PyTorch that lie on a GPU: `torch.compile(backend="segue")`, `segue.compile` and `Trainer` use their tensors there.

The tensors are PyTorch's own, on the fake driver (torch_with_cuda.py), which ends a script where one stream should have waited for another.
"""

import os
import subprocess

import pytest
import torch
from interpreted import ROOT
from test_cuda import on_fake_gpus

SETUP = """
import ctypes

ctypes.CDLL(sys.argv[5])
sys.path.insert(0, sys.argv[4])
"""

THERE = """
import torch_with_cuda
from segue import _runtime
from segue.tensors import Order, wrap

x, y = tokens.cuda(), targets.cuda()
there = segue.tensors.device("cuda:0")  # what is taken where nothing is said


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig(layers=1, dim=48, heads=3, seq=16, vocab=40))


def refused(words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(words)


def nothing_is_left():
    '''PyTorch has given all memory back, and nobody holds any of it.'''
    gc.collect()
    torch.compiler.reset()
    gc.collect()
    assert _runtime.outside_bytes(there) == 0
    mine = {kind: count for kind, count in there.held()["device_dram"].items() if count}
    assert set(mine) <= {"other", "temporaries"}, mine  # code, and what products work in


def loop(model, call, batch, steps=4, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-1, foreach=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
"""

COMPILED = """
reference = gpt()
in_torch = loop(reference, reference, (tokens, targets))
host = gpt()
wanted = loop(host, torch.compile(host, backend="segue", options={"device": GPU}), (tokens, targets))
torch.compiler.reset()
torch.testing.assert_close(torch.tensor(wanted), torch.tensor(in_torch), rtol=1e-5, atol=0)

# Where the model lies it runs, and nothing crosses the link.
model = gpt().cuda()
addresses = [p.data_ptr() for p in model.parameters()]
found = loop(model, torch.compile(model, backend="segue", options={"fallback": "error"}), (x, y))
assert found == wanted, (found, wanted)
assert there.traffic()["in"]["bytes"] == there.traffic()["out"]["bytes"] == 0, there.traffic()
assert [p.data_ptr() for p in model.parameters()] == addresses
for p, q in zip(model.parameters(), host.parameters()):
    assert p.is_cuda and p.grad.is_cuda and torch.equal(p.cpu(), q.detach()) and torch.equal(p.grad.cpu(), q.grad)
assert _runtime.outside_bytes(there) >= sum(p.numel() * 4 for p in model.parameters())
segment = segue.backend_report().segments[0]
assert segment.compiled and segment.forward_calls == segment.backward_calls == 4, segment
del model, p, q
nothing_is_left()

# Within a budget: what PyTorch holds is told, and in none of it.
model = gpt().cuda()
found = loop(model, torch.compile(model, backend="segue", options={"device": "cuda:0,pinned=64MiB", "budget": "448KiB"}), (x, y))
assert found == wanted, (found, wanted)
budget = segue.backend_report().budgets[0]
held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
assert budget.torch_bytes == held and budget.peak_bytes <= 448 * 2**10 and budget.spilled_bytes > 0, (budget, held)
assert budget.planned_steps >= 2 and not budget.why_no_plan, budget
assert f"held by PyTorch: {held / 2**20:.1f} MiB" in str(budget)
assert all(p.grad.is_cuda for p in model.parameters())
del model, budget
nothing_is_left()


class Odd(torch.nn.Module):
    '''Buffers that a call changes, a scalar of the CPU, a result that is a view, one without elements, and one of the CPU.'''

    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 6)

    def forward(self, x, scale, table):
        h = self.out(torch.relu(self.norm(x)) * scale)
        return h.t(), h[:0], table * 2, h.sum()


torch.manual_seed(0)
results = {}
for device in ("cpu", "cuda:0"):
    torch.manual_seed(0)
    odd = Odd().to(device)
    given, scale, table = torch.randn(8, 12).to(device).requires_grad_(), torch.tensor(1.5), torch.arange(3.0)
    compiled = torch.compile(odd, backend="segue", options={"device": GPU if device == "cpu" else "cuda:0", "fallback": "error"})
    for hooks in (False, True):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if hooks else torch.enable_grad():
            turned, empty, doubled, total = compiled(given, scale, table)
        assert turned.device == empty.device == total.device == torch.device(device) and doubled.device == torch.device("cpu")
        assert empty.shape == (0, 6) and turned.stride() == (1, 6) and torch.equal(doubled, table * 2)
        total.backward()
    assert given.grad.device == torch.device(device)
    results[device] = [t.detach().cpu() for t in (turned, total, given.grad, *(p.grad for p in odd.parameters()), *odd.buffers())]
    torch.compiler.reset()
assert all(map(torch.equal, *results.values()))

# What is traced goes on to no operator of cuDNN.
looked = []


@torch._dynamo.allow_in_graph
def double(x):
    looked.append(torch.backends.cudnn.enabled)
    return x * 2


class Doubled(torch.nn.Module):
    def forward(self, x):
        return double(x)


torch.compile(Doubled(), backend="segue", options={"fallback": "error"})(given)
assert looked[-1] is False and torch.backends.cudnn.enabled
looked.append(True)
segue.compile(Doubled(), given)
assert looked[-1] is False and torch.backends.cudnn.enabled
torch.compiler.reset()

# Each place that does not fit is named, with what to do.
model = gpt().cuda()
compiled = lambda device=None: torch.compile(model, backend="segue", options={"device": device} if device else {})  # noqa: E731
refused(["'first.wte.weight' lies on cuda:0, and the device is 'cpu'", 'device="cuda:0"'], compiled("cpu"), x, y)
torch.compiler.reset()
refused(["'first.wte.weight' lies on cuda:0, and the device is 'cuda:1'"], compiled("cuda:1"), x, y)
torch.compiler.reset()
refused(["cuda:0 and cpu"], compiled(), tokens, targets)  # PyTorch says it
torch.compiler.reset()
refused(["it lies on cuda:1", "'cuda:0'"], torch.compile(lambda x: (x * 2).to("cuda:1") + 1, backend="segue", options={"fallback": "error"}), x)
del model, compiled, odd, given, turned, empty, total
nothing_is_left()
print("all of it")
"""

CALLED = """
# A compiled module runs where its tensors lie, as one that is given tensors of the host.
host = gpt()
on_host = segue.compile(host, (tokens, targets), device=GPU)
wanted = loop(host, on_host, (tokens, targets))
model = gpt().cuda()
compiled = segue.compile(model, (x, y))
assert compiled._device is there
found = loop(model, compiled, (x, y))
assert found == wanted, (found, wanted)
assert there.traffic()["in"]["bytes"] == there.traffic()["out"]["bytes"] == 0, there.traffic()
for p, q in zip(model.parameters(), host.parameters()):
    assert p.grad.is_cuda and torch.equal(p.grad.cpu(), q.grad) and torch.equal(p.cpu(), q.detach())

# Other sizes, without gradients, in a file, and beside arrays of numpy, whose results are the host's.
with torch.no_grad():
    short = compiled(x[:2], y[:2])
    assert short.is_cuda and torch.equal(short.cpu(), on_host(tokens[:2], targets[:2]))
    assert compiled(tokens.numpy(), targets.numpy()) == on_host(tokens, targets).numpy()
compiled.save(sys.argv[2] + "/there.segue", weights=True)
loaded = segue.load(sys.argv[2] + "/there.segue", weights=sys.argv[2] + "/there.safetensors", device=GPU, allow_native_kernels=True)
assert torch.equal(loaded(tokens, targets).detach(), on_host(tokens, targets).detach())


class Late(torch.nn.Module):
    '''Its last product of backward reads `b`, when the gradient of `b` is there.'''

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.a, self.b = (torch.nn.Parameter(torch.randn(64, 64, generator=generator)) for _ in range(2))

    def forward(self, x, scale):
        return ((torch.relu(self.a) @ self.b) * x * scale).sum()


# PyTorch may write a parameter as soon as a call is over, and a scalar may lie on the CPU.
late, given, half, scale = Late().cuda(), torch.ones(64).cuda(), torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)
called = segue.compile(late, (given, half))
before = late.b.detach().cpu()
for _ in range(3):
    gradient, = torch.autograd.grad(called(given, half), [late.b])
    with torch.no_grad():
        late.b.sub_(gradient)
expected = torch.relu(late.a.detach().cpu()).sum(0)[:, None].expand(64, 64) * 0.5
torch.testing.assert_close(gradient.cpu(), expected, rtol=1e-5, atol=1e-5)
torch.testing.assert_close(late.b.detach().cpu(), before - 3 * expected, rtol=1e-5, atol=1e-4)
called(given, scale).backward()
assert scale.grad.device.type == "cpu" and late.a.grad.is_cuda

# The host waits for none of this, however far behind PyTorch's stream is.
torch_with_cuda.driver.fakeCudaCallCount.restype = ctypes.c_uint64
one, scale = torch.ones(()).cuda(), half.cuda()
late.a.grad = late.b.grad = None
waits = torch_with_cuda.driver.fakeCudaCallCount(b"cuEventSynchronize")
for _ in range(3):
    torch_with_cuda.gpu_of("cuda:0").be_slow()
    called(given, scale).backward(one)
    late.a.grad = late.b.grad = None
assert torch_with_cuda.driver.fakeCudaCallCount(b"cuEventSynchronize") == waits

# What is kept from call to call, as parameters are, PyTorch may write once the call is over.
with Order(there) as order:
    kept = wrap(given, there, order)
    copy = kept.copy()
given.fill_(3.0)
assert torch.equal(torch.from_dlpack(copy), torch.ones(64)) and torch.equal(given.cpu(), torch.full((64,), 3.0))
del kept, copy

# In another order of calls: two that are under way at once, and one that is gone through twice.
one, two = compiled(x, y), compiled(x.flip(0), y.flip(0))
model.zero_grad()
two.backward(), one.backward(retain_graph=True)
model.zero_grad()
one.backward()
host.zero_grad()
on_host(tokens, targets).backward()
assert all(torch.equal(p.grad.cpu(), q.grad) for p, q in zip(model.parameters(), host.parameters()))

refused(["'tokens' lies on the CPU, and 'first.wte.weight' on cuda:0", 'x.to("cuda:0")'], segue.compile, model, (tokens, targets))
refused(["'first.wte.weight' lies on cuda:0, and the device is 'cpu'"], segue.compile, model, (x, y), device="cpu")
refused(["'first.wte.weight' lies on cuda:0, and the device is 'cuda:1'", 'device="cuda:0"'], segue.compile, model, (x, y), device="cuda:1")
refused(["'tokens' lies on the CPU, and 'first.wte.weight' on cuda:0"], compiled, tokens, targets)
refused(["'tokens' lies on cuda:1, and the device is 'cuda:0'"], compiled, tokens.to("cuda:1"), targets.to("cuda:1"))
refused(["'first.wte.weight' lies on the CPU, and 'tokens' on cuda:0", 'model.to("cuda:0")'], on_host, x, y)
del model, compiled, short, p, q, late, called, gradient, given, one, two, order
nothing_is_left()
print("all of it")
"""

TRAINED = """
def fit(model, batch, **options):
    trainer = segue.Trainer(segue.compile(model, batch), optimizer=segue.AdamW(lr=1e-2), clip_grad_norm=1.0, **options)
    losses = [trainer.step(*batch) for _ in range(2)]
    trainer.freeze("first.wte.weight")
    losses.append(trainer.step(*[t[:2] for t in batch]))
    trainer.unfreeze("first.wte.weight")
    losses.append(trainer.step(*batch))
    trainer.sync()
    return losses, trainer


host = gpt()
wanted, on_host = fit(host, (tokens, targets), device=GPU)
loss, gradients = on_host.gradients(tokens, targets)
state = on_host.state_dict()

model = gpt().cuda()
addresses = [p.data_ptr() for p in model.parameters()]
found, trainer = fit(model, (x, y))
assert found == wanted, (found, wanted)
assert trainer._device is there and there.traffic()["out"]["bytes"] < 1000, there.traffic()  # losses
assert [p.data_ptr() for p in model.parameters()] == addresses
assert all(torch.equal(p.cpu(), q.detach()) for p, q in zip(model.parameters(), host.parameters()))
outputs = trainer.evaluate(x, y)
assert outputs["loss"].is_cuda and trainer.evaluate(tokens, targets)["loss"].device.type == "cpu"
assert outputs["loss"].item() == on_host.evaluate(tokens, targets)["loss"].item()
same, those = trainer.gradients(x, y)
assert same == loss and all(those[n].is_cuda and torch.equal(those[n].cpu(), g) for n, g in gradients.items())

# What is given back comes from either side, and goes to the module in place.
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
refused(["was changed in PyTorch"], trainer.step, x, y)
trainer.load_state_dict({**state, "parameters": {n: t.cuda() for n, t in state["parameters"].items()}})
assert all(torch.equal(p.cpu(), q.detach()) for p, q in zip(model.parameters(), host.parameters()))
assert [p.data_ptr() for p in model.parameters()] == addresses
history = trainer.fit([(x, y), (tokens, targets)], evaluate_on=[(x, y)])
assert list(history) == list(on_host.fit([(tokens, targets)] * 2)), history
trainer.save(sys.argv[2] + "/run.safetensors")
resumed = segue.Trainer(segue.compile(gpt().cuda(), (x, y)), optimizer=segue.AdamW(lr=1e-2), clip_grad_norm=1.0)
resumed.resume(sys.argv[2] + "/run.safetensors")
assert resumed.step(x, y) == trainer.step(x, y)

# Within four fifths of its peak, by a plan, with micro-batches.
config = lambda mib: {"memory": {"stagehand": {"activation_stagehand": {"enabled": True, "mode": "planned"}, "conductor_config": {  # noqa: E731
    "enabled": True, "vram_hard_cap_mb": mib, "vram_soft_cap_mb": mib}}}}
make = lambda **options: segue.Trainer(segue.compile(gpt().cuda(), (x[:2], y[:2])), optimizer=segue.SGD(lr=1e-1), grad_accumulation=2, **options)  # noqa: E731
free = make(device="cuda:0,dram=48MiB,pinned=32MiB")
unbounded = [free.step(x, y) for _ in range(3)]
cap = 0.8 * free.peak_bytes
capped = make(device="cuda:0,dram=32MiB,pinned=32MiB", config=config(cap / 2**20))
assert [capped.step(x, y) for _ in range(3)] == unbounded
assert capped.peak_bytes <= cap, (capped.peak_bytes, cap)

compiled = segue.compile(model, (x, y))
make = lambda **options: segue.Trainer(compiled, optimizer=segue.SGD(lr=1.0), **options)  # noqa: E731
refused(["module '0' of the trainer: 'first.wte.weight' lies on cuda:0, and the device is 'cpu'"], make, device="cpu")
refused(["'first.wte.weight' lies on cuda:0, and the device is 'cuda:1'", 'device="cuda:0"'], make, device="cuda:1")
refused(["a batch: 'targets' lies on cuda:1, and the device is 'cuda:0'"], make().step, x, targets.to("cuda:1"))
del model, trainer, compiled, outputs, those, resumed, free, capped, p
nothing_is_left()
print("all of it")
"""

MIXED = """
import copy
import warnings

from torch.nn import functional as F


class Casting(torch.nn.Module):
    '''Operators that casts are made for on a GPU, where normalisations, sums and softmax are in f32, and regions with another autocast.'''

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x, y):
        h = self.norm(self.a(x))  # f32
        h = torch.softmax(self.b(torch.tanh(self.a(h))), -1) + F.hardswish(self.a(h))
        heads = self.b(h).view(4, 2, 2, 8)
        h = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).reshape(8, 16)
        with torch.autocast("cuda", enabled=False):
            h = self.b(h.float())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = self.a(h)
        return F.mse_loss(h, y) + torch.logsumexp(self.b(x), -1).mean() + h.sum(), h


torch.manual_seed(0)
casting, given, wanted = Casting().cuda(), torch.randn(8, 16).cuda(), torch.randn(8, 16).cuda()
reference = copy.deepcopy(casting)
with torch.autocast("cuda", dtype=torch.bfloat16):
    expected, result = reference(given, wanted)
expected.backward()


def compare(model, loss, h):
    loss.backward()
    assert h.dtype == result.dtype == torch.bfloat16 and loss.dtype == expected.dtype == torch.float32 and loss.is_cuda and h.is_cuda
    assert (h.cpu().float() - result.cpu().float()).norm() < 1e-2 * result.cpu().float().norm()
    for p, q in zip(model.parameters(), reference.parameters()):
        assert p.grad.dtype == torch.float32 and (p.grad.cpu() - q.grad.cpu()).norm() < 3e-2 * q.grad.cpu().norm()


model = copy.deepcopy(casting)
compare(model, *segue.compile(model, (given, wanted), precision="bf16-mixed")(given, wanted))
model = copy.deepcopy(casting)
with torch.autocast("cuda", dtype=torch.bfloat16):
    results = torch.compile(model, backend="segue", options={"fallback": "error"})(given, wanted)
compare(model, *results)
torch.compiler.reset()
with torch.autocast("cuda", dtype=torch.bfloat16):
    model = copy.deepcopy(casting)
    compare(model, *segue.compile(model, (given, wanted))(given, wanted))

# What Segue lacks runs in PyTorch between two pieces, under the same autocast.
torch.compiler.reset()
halves = torch.nn.ModuleList([torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(5))) for _ in range(2)]).cuda()


def lacking(x):
    return halves[1](torch.view_as_real(torch.fft.fft(halves[0](x).float()))[..., 0])


with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pieces = torch.compile(lacking, backend="segue")(given)
    alone = lacking(given)
segments = segue.backend_report().segments
assert pieces.is_cuda and pieces.dtype == alone.dtype == torch.bfloat16 and [s.compiled for s in segments].count(True) == 2, segments
assert (pieces.cpu().float() - alone.cpu().float()).norm() < 2e-2 * alone.cpu().float().norm()
torch.compiler.reset()

# A gradient of a gradient is PyTorch's, under the autocast of the call.
model = torch.nn.Linear(16, 1).cuda()
compiled = torch.compile(lambda x: torch.tanh(model(x)).sum(), backend="segue", options={"fallback": "error"})
point = given.detach().requires_grad_()
with torch.autocast("cuda", dtype=torch.bfloat16), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    slope, = torch.autograd.grad(compiled(point), point, create_graph=True)
slope.square().sum().backward()
assert model.weight.grad.is_cuda and model.weight.grad.abs().sum() > 0
print("all of it")
"""



@pytest.fixture(scope="module")
def torch_cuda(tmp_path_factory):
    """The library that stands in for CUDA's part in PyTorch."""
    output = str(tmp_path_factory.mktemp("torch") / "libTorchWithCuda.so")
    home = os.path.dirname(torch.__file__)
    subprocess.run(["c++", "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{home}/include", os.path.join(ROOT, "test", "python", "torch_with_cuda.cpp"),
                    "-o", output, f"-L{home}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home}/lib"], check=True, timeout=120)
    return output


def run(script, folder, library):
    on_fake_gpus(THERE + script, folder, before=SETUP, given=[library], cache=str(folder / "cache"))


def test_loops_of_torch_compile(tmp_path, torch_cuda):
    run(COMPILED, tmp_path, torch_cuda)


def test_compiled_modules(tmp_path, torch_cuda):
    run(CALLED, tmp_path, torch_cuda)


def test_trainers(tmp_path, torch_cuda):
    run(TRAINED, tmp_path, torch_cuda)


def test_mixed_precision(tmp_path, torch_cuda):
    run(MIXED, tmp_path, torch_cuda)
