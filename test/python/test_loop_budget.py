# ===- test_loop_budget.py - budgets in plain training loops ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`torch.compile(options={"budget": ...})` and `segue.compile(budget=)`: a plain loop with `torch.optim` in a part of the memory it takes
freely has the same losses and gradients, to the bit, whatever the order of its calls, by a plan and without one."""

import copy
import functools
import gc
import os
import re
import sys
from random import Random

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from sample import drawn as sampled
from torch.utils.checkpoint import checkpoint

import segue
from segue import budgets

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))

from models import GPT, GPTConfig, Llama, LlamaConfig  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_backend")

SIM = "sim:dram=64MiB,link=16GB/s"


@pytest.fixture(autouse=True)
def nothing_in_force():
    yield
    torch.compiler.reset()
    gc.collect()
    assert not budgets.reports()


def tokens(batch=4):
    window = torch.randint(0, 256, (batch, 33), generator=torch.Generator().manual_seed(7))
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def gpt():
    return GPT(GPTConfig(layers=2, dim=96, heads=6, seq=32))


def llama():
    return Llama(LlamaConfig(layers=2, dim=96, hidden=256))


def spill_folder():
    """Beside the build: a temporary folder may lie in memory, which is refused."""
    folder = os.path.join(os.environ.get("SEGUE_BUILD", os.path.join(os.path.dirname(__file__), "../../build")), "check", "loop-budget")
    os.makedirs(folder, exist_ok=True)
    return folder


def compiled(how, model, batch, device, **options):
    if how == "segue":
        return segue.compile(model, batch, device=device, **options)
    return torch.compile(model, backend="segue", options={"device": device, "fallback": "error", **options})


def train(how, make, device, steps=4, **options):
    """The results of a plain loop: losses and all gradients; and the reports on its budget, one after each step."""
    torch.manual_seed(0)
    model, batch = make(), tokens()
    ours = compiled(how, model, batch, device, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen, reports = [], []
    for _ in range(steps):
        loss = ours(*batch)
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        reports += segue.backend_report().budgets
    del ours, loss
    torch.compiler.reset()
    gc.collect()
    return seen, reports


@functools.lru_cache(maxsize=None)
def freely(how, make):
    """The results of the loop without a budget, and the most that it holds then. The device is nobody else's, since its books have the
    highest mark."""
    device = f"sim:dram=32MiB,link=16GB/s,latency={1 + freely.cache_info().misses}us"
    seen, none = train(how, make, device)
    assert not none
    return seen, segue.tensors.device(device).peak_bytes


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


@pytest.mark.parametrize("how, make, more", sampled([
    ("torch", gpt, ""), ("torch", llama, ",pinned=1MiB,adversarial=3"), ("segue", llama, ""), ("segue", gpt, ",pinned=1MiB")], 2, "plain"))
def test_a_plain_loop_at_60_percent_of_its_peak(how, make, more):
    wanted, peak = freely(how, make)
    budget = peak * 6 // 10
    found, (*_, report) = train(how, make, SIM + more, budget=budget)
    assert_equal(found, wanted)
    assert report.budget_bytes == budget and max(report.peak_bytes, report.certified_bytes) <= budget
    assert report.spilled_bytes >= report.restored_bytes > 0 and report.stalls > 0
    assert (report.steps, report.planned_steps, report.departed_steps, report.aborted_steps) == (4, 3, 0, 0), str(report)
    assert 0 < report.certified_bytes and 0 < report.planned_seconds and not report.why_no_plan
    assert report.torch_bytes >= sum(p.numel() * 4 for p in make().parameters())
    assert re.search(r"MiB of [0-9.]+ MiB at most.* spilled, .* 4 steps, 3 by plan; .*held by PyTorch: [0-9.]+ MiB", str(report))
    assert segue.tensors.device(SIM + more).held()["device_dram"].get("saved", 0) == 0


def test_without_a_budget_nothing_makes_room():
    with pytest.raises(segue.OutOfMemoryError, match="nobody could make room|asked to make room"):
        train("segue", gpt, f"sim:dram={freely('segue', gpt)[1] * 6 // 10}")


def test_what_a_budget_has_to_spare_stays():
    wanted, peak = freely("segue", gpt)
    found, reports = train("segue", gpt, SIM, budget=2 * peak)
    assert_equal(found, wanted)
    spilled = [report.spilled_bytes for report in reports]
    assert 0 < spilled[0] == spilled[1] == spilled[2] == spilled[3], "once the order is known nothing leaves"
    # Where there is less to spare than the step took in which everything left, less of it stays.
    found, reports = train("segue", gpt, SIM, budget=reports[0].peak_bytes * 21 // 20)
    assert_equal(found, wanted)
    moved = [report.spilled_bytes + report.computed_again for report in reports]
    assert reports[3].planned_steps == 3 and 0 < moved[3] - moved[2] < moved[0], moved


def test_without_plans_watermarks_do_the_same(monkeypatch):
    monkeypatch.setattr(budgets.DeviceBudget, "is_planned", False)
    wanted, peak = freely("segue", gpt)
    found, reports = train("segue", gpt, SIM, budget=2 * peak)
    assert_equal(found, wanted)
    spilled = [report.spilled_bytes for report in reports]
    assert 0 < spilled[0] < spilled[1] == spilled[2] == spilled[3], "once the order has come twice nothing leaves"
    assert {report.plans for report in reports} == {0} and "by plan" in str(reports[-1])


def test_a_cpu_with_a_disk():
    folder = spill_folder()
    with pytest.raises(segue.InvalidArgumentError, match="give the spill folder"):
        segue.compile(Net(), BATCH, budget="4MiB")
    for how in ("torch", "segue"):
        wanted, peak = freely(how, gpt)
        found, (*_, report) = train(how, gpt, "cpu", budget=peak * 6 // 10, spill_dir=folder, spill_capacity="64MiB")
        assert_equal(found, wanted)
        assert report.peak_bytes <= peak * 6 // 10 and report.spilled_bytes > 0
    assert os.listdir(folder) == []


# --- one budget for all -----------------------------------------------------------------------


class Net(nn.Module):

    def __init__(self, layers=4, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.square().mean()


BATCH = (torch.arange(256 * 64, dtype=torch.float32).reshape(256, 64) % 17) / 17
#: Less than half of what two forwards of a Net save.
SMALL = "640KiB"
ON = "sim:dram=16MiB,latency=4us"
#: Plans have much computed again there.
SLOW = "sim:dram=16MiB,link=300MB/s,latency=20us"


def grown(*tensors):
    return [t.detach().clone() for t in tensors]


def gradients(*models):
    found = [p.grad.clone() for m in models for p in m.parameters() if p.grad is not None]
    for model in models:
        model.zero_grad()
    return found


def schedule(calls, device=ON, times=3, **options):
    """The results of `calls` with two models, `times` after each other, with or without a budget."""
    torch.manual_seed(1)
    a, b = Net(), Net(3)
    ours = compiled("segue", a, BATCH, device, **options), compiled("torch", b, (BATCH,), device, **options)
    found = sum((calls(a, b, *ours) for _ in range(times)), [])
    if options:
        report, = segue.backend_report().budgets
        assert report.peak_bytes <= report.budget_bytes and report.spilled_bytes > 0, str(report)
        schedule.report = report
        assert sum(kinds.get("saved", 0) for kinds in ours[0]._device.held().values()) == 0
    del ours
    torch.compiler.reset()
    gc.collect()
    return found


def in_order(a, b, fa, fb):
    losses = [fa(BATCH), fb(BATCH)]
    for loss in reversed(losses):
        loss.backward()
    return grown(*losses) + gradients(a, b)


def out_of_order(a, b, fa, fb):
    losses = [fa(BATCH), fb(BATCH), fa(2 * BATCH), fb(3 * BATCH)]
    for index in (1, 0, 3, 2):
        losses[index].backward()
    return grown(*losses) + gradients(a, b)


def accumulated(a, b, fa, fb):
    found = []
    for _ in range(3):
        losses = [fa(BATCH), fa(2 * BATCH)]
        (losses[0] + losses[1]).backward()
        found += grown(*losses) + gradients(a)
    return found


def kept_graphs(a, b, fa, fb):
    losses = [fa(BATCH), fb(BATCH)]
    for loss in losses:
        loss.backward(retain_graph=True)
    first = gradients(a, b)
    for loss in losses:
        loss.backward()
    return first + gradients(a, b)


def dropped(a, b, fa, fb):
    found = []
    for _ in range(5):
        found += grown(fa(BATCH), fb(BATCH))
    kept = fa(BATCH)
    for _ in range(3):
        fb(BATCH)
    kept.backward()
    fb(BATCH).backward()
    return found + gradients(a, b)


def between_calls_without_gradients(a, b, fa, fb):
    losses = [fa(BATCH)]
    with torch.no_grad():
        found = grown(fa(2 * BATCH), fb(2 * BATCH))
    losses.append(fb(BATCH))
    with torch.no_grad():
        found += grown(fa(BATCH), fb(BATCH))
    for loss in losses:
        loss.backward()
        with torch.no_grad():
            found += grown(fb(3 * BATCH))
    return found + gradients(a, b)


def beside_exceptions(a, b, fa, fb):
    kept = fa(BATCH)

    def failing():
        loss = fb(BATCH) + fa(2 * BATCH)
        if loss.item() == loss.item():
            raise KeyError("of the user")

    with pytest.raises(KeyError):
        failing()
    with pytest.raises(segue.LayoutMismatchError):
        fa._primary.module(fa._device, None).forward(
            {v.name: segue.tensors.wrap(BATCH[:7], fa._device) for v in (*fa._primary.module(fa._device, None).inputs,
                                                                         *fa._primary.module(fa._device, None).parameters)},
            budgets.loop_of(fa._device))
    kept.backward()
    losses = [fb(BATCH), fa(BATCH)]
    for loss in losses:
        loss.backward()
    return grown(kept, *losses) + gradients(a, b)


def with_hooks(a, b, fa, fb):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = fb(BATCH)
    other = fa(BATCH)
    loss.backward()
    other.backward()
    return grown(loss, other) + gradients(a, b)


def checkpointed(a, b, fa, fb):
    x = BATCH.clone().requires_grad_()
    loss = checkpoint(fa, x, use_reentrant=False) + checkpoint(lambda t: fa(t) * 2, x * 2, use_reentrant=True) + fb(x)
    loss.backward()
    return grown(loss, x.grad) + gradients(a, b)


def copied(a, b, fa, fb):
    again = copy.deepcopy(fa)
    losses = [fa(BATCH), again(BATCH)]
    for loss in losses:
        loss.backward()
    found = grown(*losses) + gradients(a, again)
    return found + grown(fb(BATCH))


@pytest.mark.parametrize("calls", sampled([in_order, out_of_order, accumulated, kept_graphs, dropped, between_calls_without_gradients,
                                           beside_exceptions, with_hooks, checkpointed, copied], 2, "orders"), ids=lambda f: f.__name__)
def test_orders_of_calls(calls):
    assert_equal(schedule(calls, device=SLOW, budget=SMALL), schedule(calls))


def drawn(seed):
    """Steps of random calls: most are like the one before, so that plans are made, and some depart from it."""

    def calls(a, b, fa, fb):
        random, found = Random(seed), []
        order = None
        for _ in range(8):
            if order is None or random.random() < 0.4:
                order = [random.choice("abAB" "bk") for _ in range(random.randint(2, 5))]
            alive = []
            for call in order if random.random() < 0.8 else [*order, random.choice("abAB")]:
                if call in "ab":
                    alive.append((fa if call == "a" else fb)(BATCH * random.choice((1, 2))))
                    found += grown(alive[-1])
                elif call == "A" and alive:
                    alive.pop(random.choice((0, -1))).backward()
                elif call == "k" and alive:
                    alive[0].backward(retain_graph=True)
                elif call == "B" and alive and random.random() < 0.3:
                    alive.pop()  # no backward
                elif call == "B":
                    with torch.no_grad():
                        found += grown(fb(3 * BATCH))
            for loss in reversed(alive):
                loss.backward()
            found += gradients(a, b)
        return found

    return calls


@pytest.mark.parametrize("seed, more", [(1, ",adversarial=6"), (2, ",pinned=1MiB,adversarial=5")])
def test_random_orders(seed, more):
    wanted = schedule(drawn(seed), times=1)
    assert_equal(schedule(drawn(seed), SLOW + more, times=1, budget=SMALL), wanted)
    report = schedule.report
    assert report.planned_steps > 0 and report.departed_steps > 0, str(report)


def test_values_outlive_a_planned_step():
    """What a plan has dropped of a graph that nobody goes back through is there when somebody does, much later."""
    def run(**options):
        torch.manual_seed(1)
        net, other = Net(8), Net(2)
        ours, apart = (segue.compile(m, BATCH, device=SLOW, **options) for m in (net, other))
        found = []
        for step in range(2):
            ours(BATCH).backward()
        kept = ours(2 * BATCH)
        for _ in range(34):
            apart(BATCH).backward()
        found += gradients(net, other)
        kept.backward()
        found += grown(kept) + gradients(net)
        ours(BATCH).backward()
        return found + gradients(net), budgets.reports()

    wanted, _ = run()
    gc.collect()
    found, (report,) = run(budget=SMALL)
    assert_equal(found, wanted)
    assert report.departed_steps > 0 and report.computed_again > 0 and report.peak_bytes <= report.budget_bytes, str(report)


def test_a_weight_that_changes_before_backward():
    """A bias may: backward does not read it, and what is computed again from it has the bits of forward."""
    def run(**options):
        torch.manual_seed(1)
        net, found = Net(8), []
        ours = torch.compile(net, backend="segue", options={"device": SLOW, "fallback": "error", **options})
        for step in range(3):
            loss = ours(BATCH)
            with torch.no_grad():
                for layer in net.layers:
                    layer.bias += 0.25
            loss.backward()
            found += grown(loss) + gradients(net)
        reports = budgets.reports()
        torch.compiler.reset()
        return found, reports

    wanted, _ = run()
    gc.collect()
    found, (report,) = run(budget=SMALL)
    assert_equal(found, wanted)
    assert report.planned_steps == 2 and report.computed_again > 0, str(report)


class Checkpointed(nn.Module):

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
        return x.square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_regions_that_are_computed_again(reentrant):
    device = f"{ON},pinned={1 + reentrant}MiB"

    def run(**options):
        torch.manual_seed(1)
        model = Checkpointed(reentrant)
        ours, x, seen = compiled("torch", model, (BATCH,), device, **options), BATCH.clone().requires_grad_(), []
        for _ in range(3):
            loss = ours(x)
            loss.backward()
            seen += grown(loss, x.grad) + gradients(model)
        reports = segue.backend_report()
        torch.compiler.reset()
        return seen, reports

    wanted, report = run()
    assert [s.regions_as_hints for s in report.segments] == [0]
    budget = segue.tensors.device(device).peak_bytes * 9 // 10  # most is what backward computes in
    gc.collect()
    found, whole = run(budget=budget)
    (report,) = whole.budgets
    assert_equal(found, wanted)
    assert report.peak_bytes <= budget and report.spilled_bytes >= report.restored_bytes > 0
    assert [s.regions_as_hints for s in whole.segments] == [4] and report.planned_steps == 2, str(report)
    assert "4 checkpointed regions are a hint, the budget's plan decides" in str(whole)


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_stayed_leaves_for_a_later_call(on_disk):
    where = {"device": "cpu", "spill_dir": spill_folder(), "spill_capacity": "16MiB"} if on_disk else {"device": ON}
    torch.manual_seed(1)
    deep, wide, batch = Net(28), Net(4, 128), torch.randn(512, 128)

    def run(budget):
        """Deep is alone until much of what it saves stays; then wide comes between its forward and its backward."""
        ours = [segue.compile(net, x, budget=budget, **where) for net, x in ((deep, BATCH), (wide, batch))]
        for _ in range(3):
            ours[0](BATCH).backward()
        (alone,), seen = budgets.reports(), gradients(deep)
        losses = [f(x) for f, x in zip(ours, (BATCH, batch))]
        for loss in reversed(losses):
            loss.backward()
        (report,) = budgets.reports()
        return grown(*losses) + seen + gradients(deep, wide), alone, report

    def peak(net, x):
        ours = segue.compile(net, x, budget="16MiB", **where)
        ours(x).backward()
        (report,) = budgets.reports()
        net.zero_grad()
        return report.peak_bytes

    wanted, _, roomy = run("16MiB")
    gc.collect()
    highest = peak(wide, batch)  # with all away that may be
    gc.collect()
    found, alone, report = run(highest * 106 // 100)
    assert_equal(found, wanted)
    assert alone.peak_bytes <= report.peak_bytes <= report.budget_bytes < roomy.peak_bytes
    assert alone.planned_steps == 2 and report.departed_steps == 1, str(report)
    assert report.spilled_bytes == report.restored_bytes


def test_what_is_dropped_frees_its_copies():
    net = segue.compile(Net(), BATCH, device=ON + ",pinned=16KiB", budget=SMALL)

    def away():
        return sum(sum(kinds.values()) for space, kinds in net._device.held().items() if space != "device_dram")

    net(BATCH)
    net(BATCH)
    before = away()
    assert before > 0
    for _ in range(4):
        net(BATCH)
        assert away() <= before
    net(BATCH).backward()
    assert away() < before
    del net


def test_a_budget_that_is_too_small_names_one_that_does():
    torch.manual_seed(1)
    budget, seen = 64 << 10, []
    while True:
        net = segue.compile(Net(), BATCH, name="mlp", device=ON, budget=budget)
        try:
            net(BATCH).backward()
            break
        except segue.OutOfMemoryError as error:
            seen.append(str(error))
        del net
        gc.collect()
        assert re.search(r'(forward|backward) of module "mlp" does not fit in the budget of \d+ bytes.*it is held by', seen[-1], re.S)
        larger = int(re.search(r"the smallest budget that would do is .*?\((\d+) bytes\)", seen[-1])[1])
        assert larger > budget
        budget = larger
    assert 2 <= len(seen) < 20
    wanted = gradients(net._source)
    (report,) = budgets.reports()
    assert report.peak_bytes <= budget
    # A call that failed has left nothing behind: another input is refused for its size, and the next step is whole.
    net(BATCH).backward()
    assert_equal(gradients(net._source), wanted)
    del net


def test_an_error_in_the_midst_of_a_step_leaves_the_rest_whole():
    torch.manual_seed(1)
    net, table = Net(), nn.Embedding(8, 64)
    ours = segue.compile(net, BATCH, device=ON, budget=SMALL)
    rows = segue.compile(table, torch.zeros(4, dtype=torch.long), device=ON)
    free = segue.compile(net, BATCH)
    free(BATCH).backward()
    wanted = gradients(net)
    for _ in range(3):  # without a plan, and by one
        loss = ours(BATCH)
        with pytest.raises(segue.IndexOutOfRangeError):
            rows(torch.full((4,), 8)).sum().backward()
        loss.backward()
        assert_equal(gradients(net), wanted)
        ours(BATCH).backward()
        assert_equal(gradients(net), wanted)
    (report,) = budgets.reports()
    assert report.planned_steps >= 2, str(report)
    assert rows(torch.zeros(4, dtype=torch.long)).shape == (4, 64)
    ours(BATCH).backward()
    assert_equal(gradients(net), wanted)
    del ours, rows


def test_a_device_has_one_budget():
    first = segue.compile(Net(), BATCH, device=ON, budget=SMALL)
    assert segue.compile(Net(), BATCH, device=ON, budget=640 << 10)._device is first._device
    with pytest.raises(segue.InvalidArgumentError, match=r"budget=1048576 for device .*, which has budget=655360 from others.*share one budget"):
        segue.compile(Net(), BATCH, device=ON, budget="1MiB")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="share one budget"):
        compiled("torch", Net(), BATCH, ON, budget="1MiB")(BATCH)
    with pytest.raises(segue.InvalidArgumentError, match="has a budget for calls of modules"):
        segue.Trainer([first], optimizer=segue.AdamW(lr=1e-3))
    (report,) = budgets.reports()
    assert report.device == ON
    device = first._device
    del first, report
    segue.compile(Net(), BATCH, device=ON, budget="1MiB")(BATCH)  # the first is gone, and its budget with it
    gc.collect()
    assert not budgets.reports() and budgets.loop_of(device) is None


@pytest.mark.parametrize("options, said", [
    (dict(budget="much"), "is not a quantity such as 512MiB"), (dict(spill_dir="/nowhere"), "give the budget, too"),
    (dict(budget="1GiB"), "it has 16777216 bytes"), (dict(budget=0), "the budget is 0, in which nothing can be held"),
    (dict(budget="1MiB", spill_dir="/nowhere"), "its spec says dram= itself")])
def test_what_is_no_budget(options, said):
    with pytest.raises(segue.InvalidArgumentError, match=said):
        segue.compile(Net(), BATCH, device=ON, **options)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=said):
        compiled("torch", Net(), BATCH, ON, **options)(BATCH)
