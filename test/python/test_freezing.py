# ===- test_freezing.py - parameters that are frozen in mid-run, and gradients by name -----=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`Trainer.freeze` and `unfreeze` do what `requires_grad_` does in PyTorch on the same steps; `on_gradient` sees gradients and may change them."""

import copy
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from compare import assert_close, losses_close
from known_optimizers import ours, theirs
from nets import Net
from service_configs import services
from test_trainer import Back, Front, Regression, data, trainer_of

import segue

#: Before which step which parameters are trained no more, or again.
CHANGES = {2: ("freeze", "net.0.*"), 4: ("unfreeze", "net.0.weight"), 6: ("freeze", "*.weight"), 7: ("unfreeze", "*")}


def in_torch(twin, optimizer, batches, norm=None):
    losses = []
    for step, (x, y) in enumerate(batches):
        what, pattern = CHANGES.get(step, ("freeze", None))
        for name, parameter in twin.named_parameters():
            if pattern and re.fullmatch(pattern.replace(".", r"\.").replace("*", ".*"), name):
                parameter.requires_grad_(what == "unfreeze")
        optimizer.zero_grad()
        loss = twin(x, y)
        loss.backward()
        if norm is not None:
            nn.utils.clip_grad_norm_(twin.parameters(), norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def in_segue(trainer, batches, begin=0):
    losses = []
    for step, (x, y) in enumerate(batches, start=begin):
        if step in CHANGES:
            what, pattern = CHANGES[step]
            getattr(trainer, what)(pattern)
        losses.append(trainer.step(x=x, y=y))
    return losses


@pytest.mark.parametrize("name", ["adamw", "nadam", "momentum", "adafactor-default"])
def test_what_is_frozen_is_as_in_torch(name):
    """The steps of bias corrections and of first momenta are those that a parameter took part in."""
    model = Regression()
    twin = copy.deepcopy(model)
    trainer = trainer_of(model, optimizer=ours(name), clip_grad_norm=0.3)
    batches = [data(1, 5 if step == 3 else 8, step)[0] for step in range(10)]  # one of other extents, which is compiled for that part
    losses_close(in_segue(trainer, batches), in_torch(twin, theirs(name, twin.parameters()), batches, 0.3))
    for (key, a), (_, b) in zip(model.named_parameters(), twin.named_parameters()):
        assert_close(a, b, 1e-4, key)


@pytest.mark.parametrize("device", ["cpu", "sim:dram=16MiB"])
def test_a_run_goes_on_with_what_was_frozen(tmp_path, device):
    """From checkpoints taken while parameters are frozen and after, in a trainer that was made anew; to the bit."""
    options = dict(optimizer=segue.AdamW(lr=1e-2, groups=[segue.Group("*.bias", lr=3e-2)], ema_decay=0.9), device=device)
    model, batches = Regression(), data(10)
    whole = trainer_of(model, **options)
    straight, kept = [], {}
    for step, batch in enumerate(batches):
        straight += in_segue(whole, [batch], step)
        if step in (3, 8):
            whole.save(tmp_path / str(step), notes={"at": step})
            kept[step] = whole.state_dict()
    assert whole.held()["device_dram"]["optimizer"] >= 3 * 4 * sum(p.numel() for p in model.parameters())
    for step in kept:
        for way in ("file", "state"):
            other = trainer_of(Regression(), **options)
            if way == "file":
                assert other.resume(tmp_path / str(step)) == {"at": step}
            else:
                other.load_state_dict(kept[step])
            assert in_segue(other, batches[step + 1:], step + 1) == straight[step + 1:]
    assert all(torch.equal(a, b) for a, b in zip(whole.averages().values(), other.averages().values()))


def test_what_was_never_trained_begins_at_its_first_step():
    """As adapters first, then all: states begin at zero then."""
    front, back = Front(), Back()
    front.h.weight.requires_grad_(False)
    twins = copy.deepcopy((front, back))
    parameters = {f"{module}.{name}": p for module, twin in zip(("front", "back"), twins) for name, p in twin.named_parameters()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2)
    (x, y), = data(1)
    trainer = segue.Trainer({"front": segue.compile(front, x), "back": segue.compile(back, (torch.zeros(8, 6), y))},
                            optimizer=segue.AdamW(lr=1e-2))
    assert "m.front.h.weight" not in trainer.state_dict()["state"]
    losses, expected = [], []
    for step, (x, y) in enumerate(data(6)):
        if step == 3:
            trainer.unfreeze("front.h.*")
            trainer.freeze("back.h.bias")
            parameters["front.h.weight"].requires_grad_(True)
            parameters["back.h.bias"].requires_grad_(False)
        losses.append(trainer.step(x=x, y=y))
        optimizer.zero_grad()
        loss = twins[1](twins[0](x), y)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    losses_close(losses, expected)
    for key, value in trainer.parameters().items():
        assert_close(value, parameters[key], 1e-5, key)
    compiled = trainer.modules["back"]  # whose calls give all gradients, whatever a trainer freezes
    compiled(torch.zeros(8, 6), y).backward()
    assert back.h.bias.grad is not None
    assert "m.front.h.weight" in trainer.state_dict()["state"] and set(trainer.gradients(x=x, y=y)[1]) == set(parameters) - {"back.h.bias"}


def test_frozen_layers_save_nothing():
    """What only the gradients of frozen parameters need is not saved, and states are where they were."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            layers = (layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU()))
            self.body, self.head = nn.Sequential(nn.Embedding(9, 16), *layers), nn.Linear(16, 1)

        def forward(self, x):
            return self.head(self.body(x)).square().mean()

    x = torch.randint(0, 9, (32,))
    trainer = segue.Trainer([segue.compile(Deep(), x)], optimizer=segue.AdamW(lr=1e-2))
    trainer.step(x=x)

    def saved():
        (forward,) = (p for p in trainer._binaries()[0][1].programs if p.name == "forward")
        return sum(v.bytes for v in forward.outputs if v.role == "saved")

    states = {name: value.data_ptr() for name, value in ((n, torch.from_dlpack(t)) for n, t in trainer._session.state().items())}
    before, held = saved(), trainer.held()["device_dram"]["optimizer"]
    trainer.freeze("body.*")
    trainer.step(x=x)
    assert saved() < before / 3 and trainer.held()["device_dram"]["optimizer"] == held
    assert {name: torch.from_dlpack(t).data_ptr() for name, t in trainer._session.state().items()} == states


@pytest.fixture(scope="module")
def wide_net():
    """A net compiled once, its weights, batches of two sizes, and what a run without services makes of them."""
    torch.manual_seed(3)
    batches = [(torch.randn(rows, 64), torch.randn(rows, 64)) for rows in (48, 48, 20, 48, 48, 20, 48, 48, 20, 48)]
    module = segue.compile(Net(), batches[0])
    first = {name: value.clone() for name, value in module.state_dict().items()}
    return module, first, batches, frozen_and_back(module, first, batches, device="sim:dram=32MiB,link=2GB/s")


def frozen_and_back(module, first, batches, **options):
    """Losses, weights, states and the highest peak of a run in which parameters are frozen and trained again."""
    module.load_state_dict(first)
    trainer = segue.Trainer([module], optimizer=segue.AdamW(lr=1e-2, weight_decay=0.1), clip_grad_norm=0.5, **options)
    losses = []
    for step, (x, y) in enumerate(batches):
        if step in (2, 7):
            trainer.freeze("layers.0.*", "layers.1.*", "layers.3.weight")
        if step == 5:
            trainer.unfreeze("*")
        losses.append(trainer.step(x=x, y=y))
    trainer.sync()
    states = {key: value.clone() for key, value in trainer.state_dict()["state"].items()}
    return losses, {name: value.clone() for name, value in module.state_dict().items()}, states, trainer.peak_bytes


@pytest.mark.parametrize("share, modes", [(0.45, ("planned",)), (0.6, ("watermark",)), (0.5, ("watermark", "states"))],
                         ids=lambda given: " and ".join(given) if isinstance(given, tuple) else str(given))
def test_a_cap_changes_no_bit(wide_net, share, modes):
    """With a batch of other extents after each change, on a device as large as the cap."""
    module, first, batches, free = wide_net
    cap = int(share * free[3])
    found = frozen_and_back(module, first, batches, device=f"sim:streams,dram={cap},link=1GB/s,adversarial={len(modes)}", config=services(modes, cap))
    assert found[0] == free[0]
    assert all(torch.equal(now[name], want[name]) for now, want in zip(found[1:3], free[1:3]) for name in want)
    assert found[3] <= cap


def test_a_budget_with_a_disk_changes_no_bit(wide_net, tmp_path):
    module, first, batches, free = wide_net
    found = frozen_and_back(module, first, batches, device="cpu", budget=int(0.5 * free[3]), spill_dir=tmp_path)
    assert found[0] == free[0]
    assert all(torch.equal(now[name], want[name]) for now, want in zip(found[1:3], free[1:3]) for name in want)


@pytest.mark.parametrize("budget", ["1300KiB", "1500KiB", "1700KiB"])
def test_what_was_captured_frozen_is_trained_within_a_budget(tmp_path, capfd, budget):
    """Its memory is planned for what it is now: under the name that it had while frozen, no room was kept for it."""

    class Loss(nn.Module):

        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))
            self.model[2].requires_grad_(False)

        def forward(self, x, y):
            return F.mse_loss(self.model(x), y)

    def losses(**options):
        torch.manual_seed(0)
        batch = {"x": torch.randn(32, 64), "y": torch.randn(32, 64)}
        trainer = segue.Trainer(segue.compile(Loss(), tuple(batch.values())), optimizer=segue.AdamW(lr=1e-2), **options)
        found = [trainer.step(**batch) for _ in range(2)]
        trainer.unfreeze("model.2.*")
        return found + [trainer.step(**batch) for _ in range(3)]

    assert losses(budget=budget, spill_dir=tmp_path) == losses()
    assert "departed" not in capfd.readouterr().err


def test_an_evaluation_while_something_is_frozen():
    """Its programs, without dropout, were captured before anything was frozen."""

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x, y):
            return F.mse_loss(self.last(F.dropout(self.first(x), 0.5, self.training)), y)

    (x, y), model = data(1)[0], Dropped()
    trainer = segue.Trainer([segue.compile(model, (x, y))], optimizer=segue.AdamW(lr=1e-2))
    for what in (trainer.freeze, trainer.unfreeze):
        what("first.*")
        trainer.step(x=x, y=y)
        assert_close(trainer.evaluate(x=x, y=y)["loss"], copy.deepcopy(model).eval()(x, y))


def test_what_cannot_be_frozen(tmp_path):
    trainer = trainer_of(Regression())
    with pytest.raises(segue.InvalidArgumentError, match=r"'net.0.weigt' is for no parameter of the trainer; near it are 'net.0.weight'"):
        trainer.freeze("net.0.bias", "net.0.weigt")
    with pytest.raises(segue.InvalidArgumentError, match="all parameters would be frozen"):
        trainer.freeze("*")
    (x, y), = data(1)
    assert set(trainer.gradients(x=x, y=y)[1]) == {"net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias"}
    adamw = segue.AdamW()
    segue.compile(Regression(), (x, y), optimizer=adamw).save(tmp_path / "m.segue", weights=True)
    loaded = segue.load(tmp_path / "m.segue", tmp_path / "m.safetensors", allow_native_kernels=True)
    with pytest.raises(segue.InvalidArgumentError, match="came from a file, which was compiled for the parameters that it trains"):
        segue.Trainer([loaded], optimizer=adamw).freeze("net.0.*")
    config = {"memory": {"stagehand": {"telemetry_enabled": False, "vram_high_watermark_mb": 2, "vram_low_watermark_mb": 1}}}
    trainer = trainer_of(Regression(), device="sim:dram=8MiB,pinned=8MiB,link=4GB/s,latency=2us", config=config)
    with pytest.raises(segue.UnsupportedError, match="a ring of weights has blocks with one set of trained parameters"):
        trainer.freeze("net.0.*")
    trainer.step(x=x, y=y)


# --- gradients by name --------------------------------------------------------------------


class Wide(nn.Module):

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))

    def forward(self, x, y):
        return F.mse_loss(self.net(x), y)


def hooked(in_torch, micro_batches=1, **options):
    """Losses, norms and weights of steps on which functions change gradients, and what these saw."""
    torch.manual_seed(3)
    model = Wide()
    batches = [(torch.randn(32 * micro_batches, 64), torch.randn(32 * micro_batches, 8)) for _ in range(4)]
    seen, losses, norms = [], [], []

    def halve(gradient):  # in its place
        seen.append(gradient.norm().item())
        gradient *= 0.5

    def instead(gradient):
        return torch.sign(gradient) * 1e-3

    if in_torch:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for x, y in batches:
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            halve(model.net[2].weight.grad)
            for parameter in (model.net[0].bias, model.net[2].bias, model.net[4].bias):
                parameter.grad = instead(parameter.grad)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
            optimizer.step()
            losses.append(loss.item())
    else:
        compiled = segue.compile(model, (batches[0][0][:32], batches[0][1][:32]), device=options.pop("on", "cpu:threads=2"))
        trainer = segue.Trainer([compiled], optimizer=segue.AdamW(lr=1e-2), clip_grad_norm=0.05, grad_accumulation=micro_batches, **options)
        trainer.on_gradient("net.2.weight", halve)
        trainer.on_gradient("*.bias", instead)
        for x, y in batches:
            losses.append(trainer.step(x=x, y=y))
            norms.append(trainer.last.grad_norm)
        trainer.sync()
    return losses, norms, seen, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_are_seen_and_changed_as_in_torch(micro_batches):
    expected, found = hooked(True, micro_batches), hooked(False, micro_batches)
    losses_close(found[0], expected[0])
    assert found[1] == pytest.approx(expected[1], rel=1e-4) and found[2] == pytest.approx(expected[2], rel=1e-4)
    for a, b in zip(found[3], expected[3]):
        assert_close(a, b, 1e-4)


@pytest.mark.parametrize("where", ["sim", "streams", "planned", "disk"])
def test_a_budget_changes_nothing_of_hooks(tmp_path, where):
    options = {
        "sim": dict(on="sim:dram=16MiB"), "streams": dict(on="sim:streams,dram=16MiB,adversarial=5"),
        "planned": dict(on="sim:dram=64MiB,link=8GB/s", config=services(("planned",), 1200 * 1024)),
        "disk": dict(budget="1500KiB", spill_dir=tmp_path)}[where]
    losses, norms, seen, weights = hooked(False, **options)
    expected = hooked(False)
    assert (losses, norms, seen) == expected[:3] and all(torch.equal(a, b) for a, b in zip(weights, expected[3]))


def test_hooks_end_and_fail():
    trainer = trainer_of(Regression())
    (x, y), = data(1)
    calls = []
    with trainer.on_gradient("net.3.*", lambda gradient: calls.append(gradient.shape)) as hook:
        assert hook.keys == ["net.3.weight", "net.3.bias"]
        trainer.step(x=x, y=y)
        trainer.freeze("net.3.bias")  # which has no gradient now
        trainer.step(x=x, y=y)
    trainer.step(x=x, y=y)
    assert calls == [(2, 16), (2,), (2, 16)]

    def fails(gradient):
        raise KeyError("mine")

    before = trainer.state_dict()
    hook = trainer.on_gradient("net.0.bias", fails)
    with pytest.raises(KeyError, match="mine"):
        trainer.step(x=x, y=y)
    hook.remove()
    with trainer.on_gradient("net.0.bias", lambda gradient: gradient.sum()), pytest.raises(
            segue.LayoutMismatchError, match=r"the gradient of 'net.0.bias' returned \[\]; it returns None, or a tensor of shape \[16\]"):
        trainer.step(x=x, y=y)
    after = trainer.state_dict()
    assert after["step"] == before["step"] and all(torch.equal(after["state"][n], t) for n, t in before["state"].items())
    with trainer.on_gradient("net.0.bias", lambda gradient: gradient * float("nan")), pytest.raises(segue.NanLossError):
        trainer.step(x=x, y=y)
    trainer.step(x=x, y=y)
    with pytest.raises(segue.InvalidArgumentError, match="'net.3.bias' is for no parameter of the trainer"):
        trainer.on_gradient("net.3.bias", print)
    with pytest.raises(segue.InvalidArgumentError, match="in_backward=True, which uses gradients up"):
        trainer_of(Regression(), optimizer=segue.SGD(lr=0.1, in_backward=True)).on_gradient("net.0.bias", print)
