# ===- rank_programs.py - what ranks run in test_distributed.py ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Programs that several ranks run, each in a process and a folder of its own. What one returns, its last line of output says as JSON."""

import hashlib
import json
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import segue

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import GPT, GPTConfig, GPTFirst, GPTLast  # noqa: E402
from models.gpt import Block  # noqa: E402
from nets import Adapters  # noqa: E402

ROWS, WIDTH = 4, 16


def rank():
    return int(os.environ.get("RANK", "0"))


def ranks():
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(seconds=30):
    dist.init_process_group("gloo", init_method=os.environ.get("MEET", "env://"), rank=rank(), world_size=ranks(), timeout=timedelta(seconds=seconds))


class Net(nn.Module):
    """A small network with random masks."""

    def __init__(self, width=WIDTH, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, 1))

    def forward(self, x, y):
        return {"loss": nn.functional.mse_loss(self.net(x), y)}


def compiled(seed=0, device="cpu:threads=1", rows=ROWS, **shape):
    torch.manual_seed(seed)
    return segue.compile(Net(**shape), (torch.zeros(rows, WIDTH), torch.zeros(rows, 1)), device=device, name="net")


def batch(step, part):
    """The part of a rank, or of a micro-batch, of the batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + part)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, x.sum(1, keepdim=True)


def adamw(**options):
    return segue.AdamW(lr=1e-2, **options)


def trainer_of(module=None, **options):
    options = {"optimizer": adamw(), "clip_grad_norm": 1.0} | ({"distributed": "ddp"} if dist.is_initialized() else {}) | options
    return segue.Trainer([module or compiled()], **options)


def train(trainer, steps, first=0):
    """Losses to the bit: of one rank with its part of each batch, or with all parts as micro-batches."""
    if trainer.ranks > 1:
        return [trainer.step(*batch(i, trainer.rank)).hex() for i in range(first, first + steps)]
    parts = [[batch(i, part) for part in range(trainer.grad_accumulation)] for i in range(first, first + steps)]
    return [trainer.step(*(torch.cat(each) for each in zip(*of_step))).hex() for of_step in parts]


def digest(trainer):
    """Of parameters and states."""
    state = trainer.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted([*state["parameters"].items(), *state["state"].items()]):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def error_of(call):
    """The class and text of what a call raises."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


# --- bits ---------------------------------------------------------------------------------

#: By name the options of a trainer: of what each rank has on its own device.
MODES = {
    "in memory": {"device": "cpu:threads=1"},
    "small messages": {"device": "cpu:threads=1", "bucket_mb": 0.01},
    "simulated": {"device": "sim:dram=64MiB,pinned=64MiB,link=16GB/s,threads=1"},
    "by marks": {"device": "sim:dram=2MiB,pinned=64MiB,link=16GB/s,threads=1", "config": {"memory": {"stagehand": {"activation_stagehand": {
        "enabled": True, "telemetry_enabled": True, "telemetry_file": "activations.jsonl", "min_spill_bytes": 0, "vram_high_watermark_mb": 0.5,
        "vram_low_watermark_mb": 0.25}}}}},
    "above a disk": {"device": "cpu:threads=1", "budget": "1MiB", "spill_dir": ".", "spill_capacity": "64MiB"},
    "by a plan": {"device": "sim:streams,dram=1MiB,pinned=64MiB,threads=1,adversarial=3", "config": {"memory": {"stagehand": {
        "activation_stagehand": {"enabled": True, "mode": "planned", "telemetry_enabled": False}}}}},
}


def forms(slab, **options):
    """Losses, forms and a digest of a run that chooses the forms of a slab's weights by the gradients of all ranks."""
    def part(step, of):
        generator = torch.Generator().manual_seed(1000 * step + of)
        return torch.randn(8, 64, generator=generator), torch.randn(8, 64, generator=generator)

    config = {"memory": {"stagehand": {
        "telemetry_enabled": False, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.3,
        "squareq_slab_path": f"{slab}.safetensors", "squareq_manifest_path": f"{slab}.manifest.json",
        "selective_precision": {"enabled": True, "warmup_steps": 4, "update_interval_steps": 4, "min_steps_between_switches": 4,
                                "calibration_samples": 1, "telemetry_file": "precision.jsonl"}}}}
    more = {"distributed": "ddp"} if ranks() > 1 else {"grad_accumulation": 2}
    trainer = trainer_of(segue.compile(Adapters(), part(0, 0), name="net"), device="sim:dram=8MiB,pinned=8MiB,link=4GB/s,threads=1", config=config,
                         **more | options)
    losses = []
    for step in range(14):
        parts = [part(step, trainer.rank)] if ranks() > 1 else [part(step, 0), part(step, 1)]
        losses.append(trainer.step(*(torch.cat(each) for each in zip(*parts))).hex())
    return {"losses": losses, "forms": {unit["name"]: unit["precision"] for unit in trainer.precision()["units"]}, "digest": digest(trainer)}


def on_gpus(ways, steps=3, **options):
    """By way of messages, losses, a digest and what the log says of it, on a GPU of the fake driver for each rank; then rank 1 of several is killed, and the
    others say how it ends for them."""
    said = []
    log, handler = logging.getLogger("segue"), logging.Handler()
    log.setLevel(logging.INFO)
    handler.emit = lambda record: said.append(record.getMessage())
    log.addHandler(handler)
    device, found = f"cuda:{rank()},dram=64MiB,pinned=64MiB", {}
    for way in ways:
        said.clear()
        trainer = trainer_of(compiled(device=device), device=device, **options | ({"messages": way} if ranks() > 1 else {}))
        found[way] = [train(trainer, steps), digest(trainer), [text for text in said if "messages between ranks" in text]]
    if ranks() > 1:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        found["killed"] = error_of(lambda: train(trainer, 1))
    return found


def gpt(device, seed=0):
    torch.manual_seed(seed)
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    return segue.compile(GPT(GPTConfig(layers=3, dim=32, heads=4, seq=32)), (tokens, tokens), name="gpt", device=device)


def gpt_batch(step, part):
    generator = torch.Generator().manual_seed(1000 * step + part)
    tokens = torch.randint(0, 256, (4, 33), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def bits(modes, steps=20, **options):
    """Losses and norms of a GPT, and a digest of all that it has learnt: of each mode on several ranks, or of one rank with batches in a row."""
    found = {}
    for name in modes:
        device = MODES[name]["device"] if ranks() > 1 else "cpu:threads=1"
        more = MODES[name] | {"distributed": "ddp"} if ranks() > 1 else {}
        trainer = segue.Trainer([gpt(device)], optimizer=adamw(), clip_grad_norm=1.0, **more | options)
        taken = []
        for i in range(steps):
            parts = [gpt_batch(i, part) for part in ([trainer.rank] if trainer.ranks > 1 else range(trainer.grad_accumulation))]
            loss = trainer.step(*(torch.cat(each) for each in zip(*parts)))
            taken.append([loss.hex(), trainer.last.grad_norm.hex()])
        found[name] = [taken, digest(trainer)]
    return found


def masks(**options):
    """Losses with dropout, whose masks differ by rank."""
    return train(trainer_of(compiled(dropout=0.5), **options), 10)


def parameters_of(trainer):
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in trainer.parameters().items()}


def shared_out(folder):
    """Two ranks that have half of the states each."""
    trainer = trainer_of(distributed="zero1")
    losses = train(trainer, 8)
    trainer.save(os.path.join(folder, "shared.safetensors"))
    found = {"losses": losses, "parameters": parameters_of(trainer), "states": list(trainer.state_dict()["state"]),
             "unwritable": error_of(lambda: trainer.save(os.path.join(folder, "missing", "file.safetensors"))),
             "frozen": error_of(lambda: trainer.freeze("net.0.*"))}
    both = trainer_of(distributed="zero2")
    found["with gradients"] = {"losses": train(both, 8), "parameters": parameters_of(both), "gradients": error_of(lambda: both.gradients(*batch(0, rank())))}
    checkpoint = os.path.join(folder, "fit.safetensors")
    torch.manual_seed(rank())
    found["whole"] = list(trainer_of(distributed="zero1").fit(loader_of(), epochs=3))
    torch.manual_seed(rank())
    trainer_of(distributed="zero1").fit(loader_of(), epochs=3, checkpoint=checkpoint, save_every=2, callbacks=[StopsAt(5)])
    found["rest"] = list(trainer_of(compiled(3), distributed="zero1").fit(loader_of(), epochs=3, checkpoint=checkpoint, resume=True))
    return found


def gathered(folder, modes):
    """Each rank has half of the parameters of blocks, and PyTorch's models begin with values of their own."""
    found = {}
    for name in modes:
        options = MODES[name]
        module = gpt(options["device"], seed=rank())
        trainer = segue.Trainer([module], optimizer=adamw(), clip_grad_norm=1.0, distributed="zero3", **options)
        taken = []
        for i in range(20):
            loss = trainer.step(*gpt_batch(i, rank()))
            taken.append([loss.hex(), trainer.last.grad_norm.hex()])
        parameters = parameters_of(trainer)
        trainer.sync()
        same = all(torch.equal(tensor, module.state_dict()[key]) for key, tensor in trainer.parameters().items())
        evaluated = trainer.evaluate(*gpt_batch(50, rank()))["loss"].item()
        found[name] = {"taken": taken, "parameters": parameters, "same": same, "evaluated": evaluated, "states": list(trainer.state_dict()["state"])}
    found["gradients"] = error_of(lambda: trainer.gradients(*gpt_batch(0, rank())))
    found["own"] = sorted(set(parameters) - set(trainer._session.parameters_elsewhere))
    path = os.path.join(folder, "gathered.safetensors")
    trainer.save(path)
    trainer.save_weights(os.path.join(folder, "weights.safetensors"))
    dist.barrier()
    state = trainer.state_dict()
    losses = [trainer.step(*gpt_batch(20 + i, rank())).hex() for i in range(3)]
    trainer.load_state_dict(state)
    again = [trainer.step(*gpt_batch(20 + i, rank())).hex() for i in range(3)]
    other = segue.Trainer([gpt("cpu:threads=1", seed=7)], optimizer=adamw(), clip_grad_norm=1.0, distributed="zero3")
    other.resume(path)
    found["next"] = [losses, again, [other.step(*gpt_batch(20 + i, rank())).hex() for i in range(3)]]
    with torch.no_grad():
        next(p for n, p in other.modules["0"].named_parameters() if n in other._session.parameters_elsewhere).add_(1)
    found["written"] = error_of(lambda: other.step(*gpt_batch(0, rank())))
    return found


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.25)

    def forward(self, h):
        return self.dropout(nn.functional.gelu(self.linear(h)))


class First(Layer):
    def forward(self, x):
        return super().forward(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, h, y):
        return {"loss": nn.functional.mse_loss(self.linear(h), y)}


def layers(device):
    h = torch.zeros(ROWS, WIDTH)
    modules = {f"layer{i}": segue.compile(Layer() if i else First(), (h,), device=device) for i in range(3)}
    return modules | {"head": segue.compile(Head(), (h, torch.zeros(ROWS, 1)), device=device)}


def tied_gpt(device):
    """A GPT in three modules, whose table of tokens is its head's, too."""
    cfg = GPTConfig(layers=3, dim=32, heads=4, seq=32)
    first, middle, last = GPTFirst(cfg, 1), Block(cfg), GPTLast(cfg, 1)
    last.head.weight = first.wte.weight
    tokens, h = torch.zeros(4, 32, dtype=torch.int64), torch.zeros(4, 32, 32)
    examples = {"first": (first, (tokens,)), "middle": (middle, (h,)), "last": (last, (h, tokens))}
    return {name: segue.compile(module, example, device=device) for name, (module, example) in examples.items()}


def pipelined(folder, tied, modes):
    """Each of three ranks has some of the modules; one rank alone has all."""
    found = {}
    make, names, part_of = (tied_gpt, ("tokens", "targets"), gpt_batch) if tied else (layers, ("x", "y"), batch)
    several = {"distributed": "pipeline"} if ranks() > 1 else {}
    name = "pipelined" if ranks() > 1 else "alone"
    for mode in modes:
        options = MODES[mode]
        torch.manual_seed(rank())  # values are those of rank 0
        modules = make(options["device"])
        trainer = segue.Trainer(modules, optimizer=adamw(), clip_grad_norm=1.0, grad_accumulation=4, **several, **options)

        def whole(step):
            return dict(zip(names, (torch.cat(each) for each in zip(*(part_of(step, part) for part in range(4))))))

        taken = []
        for i in range(10):
            loss = trainer.step(**whole(i))
            taken.append([loss.hex(), trainer.last.grad_norm.hex()])
        evaluated = trainer.evaluate_on([dict(zip(names, part_of(50 + i, 0))) for i in range(3)])["loss"].hex()
        elsewhere = list(trainer._session.parameters_elsewhere)
        trainer.save(os.path.join(folder, f"{name}.safetensors"))
        if ranks() > 1:
            dist.barrier()
        trainer.fit([whole(20 + i) for i in range(4)], epochs=2, evaluate_on=[dict(zip(names, part_of(60, 0)))], progress=False)
        found[mode] = {"taken": taken, "evaluated": evaluated, "parameters": parameters_of(trainer), "elsewhere": elsewhere,
                       "modules": [hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for m in modules.values() for p in m.parameters()]}
        with open(os.path.join(folder, f"{name}.safetensors"), "rb") as file:
            found[mode]["file"] = hashlib.sha256(file.read()).hexdigest()
        if ranks() > 1:
            dist.barrier()
    if several:
        found["gradients"] = error_of(lambda: trainer.gradients(**whole(0)))
        found["others"] = error_of(lambda: trainer.step(**whole(rank())))
        trainer.step(**whole(0))
    if several and not tied:
        found["stages"] = error_of(lambda: segue.Trainer(modules, optimizer=adamw(), distributed="pipeline", stages=[2, 2]))
    return found


def without_bytes(folder, modes):
    """Models on PyTorch's meta device: each rank keeps what it has of a file's values, or draws them all and keeps its own."""
    found = {}
    for name in modes:
        options = MODES[name]
        with torch.device("meta"):
            model = GPT(GPTConfig(layers=3, dim=32, heads=4, seq=32))
        tokens = torch.zeros(4, 32, dtype=torch.int64)
        trainer = segue.Trainer([segue.compile(model, (tokens, tokens), name="gpt", device=options["device"])], optimizer=adamw(), clip_grad_norm=1.0,
                                distributed="zero3", **options)
        trainer.load_weights(os.path.join(folder, "weights.safetensors"))
        losses = [trainer.step(*gpt_batch(i, rank())).hex() for i in range(5)]
        trainer.sync()
        parameters = {key: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for key, tensor in trainer.parameters().items()}
        found[name] = {"losses": losses, "parameters": parameters, "bare": all(p.is_meta for p in model.parameters())}
    h = torch.zeros(ROWS, WIDTH)
    with torch.device("meta"):
        modules = [First(), Layer(), Head()]
    trainer = segue.Trainer([segue.compile(module, (h, torch.zeros(ROWS, 1)) if i == 2 else (h,)) for i, module in enumerate(modules)],
                            optimizer=adamw(), grad_accumulation=2, distributed="pipeline")
    trainer.init_weights(3)
    drawn = trainer.parameters()
    torch.manual_seed(3)
    parts = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)]
    keys = [info.key for info in trainer._session.parameters]
    found["drawn"] = len(keys) == 6 and all(torch.equal(drawn[keys[2 * i + j]], value) for i, part in enumerate(parts)
                                            for j, value in enumerate((part.weight, part.bias)))
    x, y = (torch.cat(each) for each in zip(batch(0, 0), batch(0, 1)))
    found["pipeline"] = trainer.step(x=x, y=y).hex()
    return found


def fit_gathered(folder):
    """A run that is never ended, and one that ends in mid-epoch and goes on; both keep what was best. Then a rank evaluates alone."""
    data = [gpt_batch(i, rank()) for i in range(6)]
    held_out = [gpt_batch(100 + i, rank()) for i in range(2)]

    def run(seed, *callbacks, **options):
        module = gpt("cpu:threads=1", seed=seed)
        trainer = segue.Trainer([module], optimizer=adamw(), distributed="zero3")
        history = trainer.fit(data, epochs=2, evaluate_on=held_out, callbacks=[segue.EarlyStop(patience=10), *callbacks], **options)
        return module, trainer, list(history)

    checkpoint = os.path.join(folder, "fit.safetensors")
    module, trainer, whole = run(0)
    run(0, StopsAt(7), checkpoint=checkpoint, save_every=2)
    other, last, rest = run(5, checkpoint=checkpoint, resume=True)
    found = {"whole": whole, "rest": rest, "steps": trainer.step_count,
             "weights": [{n: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for n, p in each.named_parameters()} for each in (module, other)]}
    found["alone"] = error_of(lambda: trainer.evaluate(*gpt_batch(0, 0)) if rank() else trainer.step(*gpt_batch(0, 0)))

    def unreadable():
        yield from data
        if rank() == 1:
            raise ValueError("row 21 cannot be read")
        yield data[0]

    found["failing"] = error_of(lambda: last.fit(unreadable(), steps=7))
    return found


def in_folder(folder, strategy):
    """Checkpoints with a file of each rank; then two that cannot be written, which cost no more than that."""
    trainer = trainer_of(distributed=strategy)
    path = os.path.join(folder, strategy, "")
    losses = train(trainer, 8)
    trainer.save(path)
    found = {"unwritable": error_of(lambda: trainer.save(os.path.join(folder, "missing", "folder", ""))),
             "on one": error_of(lambda: trainer.save(path if rank() == 0 else os.path.join(folder, "missing", "")))}
    dist.barrier()
    found["after"] = sorted(os.listdir(path))
    dist.barrier()
    found["losses"] = losses + train(trainer, 2, first=8)
    trainer.save(Path(path))  # without its slash, and there
    checkpoint = os.path.join(folder, f"fit of {strategy}", "")
    held_out = [batch(100 + i, rank()) for i in range(2)]
    options = {"epochs": 3, "evaluate_on": held_out}
    early = lambda: segue.EarlyStop(patience=10)  # noqa: E731
    torch.manual_seed(rank())
    found["whole"] = list(trainer_of(distributed=strategy).fit(loader_of(), **options))
    torch.manual_seed(rank())
    trainer_of(distributed=strategy).fit(loader_of(), checkpoint=checkpoint, save_every=2, callbacks=[early(), StopsAt(7)], **options)
    found["rest"] = list(trainer_of(compiled(3), distributed=strategy).fit(loader_of(), checkpoint=checkpoint, resume=True, callbacks=[early()], **options))
    return found


def alone_of_shared_out(folder):
    """The same of one rank with the batches of both."""
    trainer = trainer_of(grad_accumulation=2)
    losses = train(trainer, 8)
    trainer.save(os.path.join(folder, "alone.safetensors"))
    return {"losses": losses, "parameters": parameters_of(trainer), "states": list(trainer.state_dict()["state"])}


def alone_of_gathered(folder):
    """The same of one rank with the batches of both, and what it evaluates of each."""
    trainer = segue.Trainer([gpt("cpu:threads=1")], optimizer=adamw(), clip_grad_norm=1.0, grad_accumulation=2)
    step = lambda i: trainer.step(*(torch.cat(each) for each in zip(gpt_batch(i, 0), gpt_batch(i, 1))))  # noqa: E731
    taken = []
    for i in range(20):
        loss = step(i)
        taken.append([loss.hex(), trainer.last.grad_norm.hex()])
    trainer.save(os.path.join(folder, "alone.safetensors"))
    trainer.save_weights(os.path.join(folder, "alone-weights.safetensors"))
    found = {"taken": taken, "parameters": parameters_of(trainer), "states": list(trainer.state_dict()["state"]),
             "evaluated": [trainer.evaluate(*gpt_batch(50, part))["loss"].item() for part in range(2)]}
    return found | {"next": [step(20 + i).hex() for i in range(3)]}


def three():
    """Three ranks, and a group of the first and the last of them."""
    pair = dist.new_group([0, 2])
    found = {"all": train(trainer_of(reduction="ordered"), 20)}
    if rank() == 1:
        found["pair"] = error_of(lambda: trainer_of(process_group=pair))
    else:
        trainer = trainer_of(process_group=pair)
        found["pair"], found["rank"] = train(trainer, 20), [trainer.rank, trainer.ranks, repr(trainer)]
        dist.barrier(pair)  # the group is still its owner's
    return found


# --- files --------------------------------------------------------------------------------

def files():
    """All that a trainer can write, in the folder of each rank."""
    for folder in ("logs", "plain"):
        os.mkdir(folder)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    with trainer_of(**MODES["by marks"], report="run.html", trace="run.json", record_events="logs") as trainer:
        data = [batch(i, rank()) for i in range(4)]
        trainer.fit(data, evaluate_on=data, checkpoint="run.safetensors", progress=True, epochs=2, callbacks=[segue.EarlyStop()])
        trainer.save("plain/all.safetensors")
        trainer.save_weights("plain/weights.safetensors")
    seal = error_of(lambda: trainer_of(budget="1MiB", spill_dir=".", spill_capacity="8MiB", seal="sealed"))
    return sorted(str(path) for path in Path(".").rglob("*") if path.is_file()), seal


# --- fit ----------------------------------------------------------------------------------

class Noisy(torch.utils.data.Dataset):
    """Rows that random numbers of the process change, as those of a rank do when it reads them."""

    def __len__(self):
        return 38

    def __getitem__(self, index):
        x = torch.full((WIDTH,), float(index)) / 38 + 0.1 * torch.randn(WIDTH)
        return x, x.sum(0, keepdim=True)


def loader_of(dataset=None):
    dataset = dataset or Noisy()
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)
    return torch.utils.data.DataLoader(dataset, batch_size=ROWS, sampler=sampler)


class StopsAt:
    """Asks for the end after a step, on one rank alone."""

    def __init__(self, step, on=1):
        self.step, self.on = step, on

    def on_step(self, run):
        if run.step == self.step and rank() == self.on:
            run.stop("rank had enough")


def fit(folder):
    """A run that is never ended, and one that ends in mid-epoch and goes on."""
    checkpoint = os.path.join(folder, "run.safetensors")
    held_out = [batch(100 + i, rank()) for i in range(1 + 2 * rank())]

    def run(seed, **options):
        torch.manual_seed(seed + rank())
        module = compiled(seed)
        torch.manual_seed(seed + rank())
        trainer = trainer_of(module)
        history = trainer.fit(loader_of(), epochs=3, evaluate_on=held_out, **options)
        return trainer, history

    whole, history = run(0)
    stopped, part = run(0, checkpoint=checkpoint, save_every=100, callbacks=[StopsAt(7)])
    resumed, rest = run(5, checkpoint=checkpoint, resume=True)
    evaluated = whole.evaluate_on(held_out, metrics={"mean": lambda outputs, given: given["y"].mean()})
    y = torch.cat([batch(100 + i, r)[1] for r in range(2) for i in range(1 + 2 * r)])
    return {"whole": list(history), "evaluations": [list(each.metrics.values()) for each in history.evaluations], "stopped": part.stopped, "part": list(part), "rest": list(rest),
            "rest evaluations": [list(each.metrics.values()) for each in rest.evaluations], "digests": [digest(whole), digest(resumed)],
            "mean": [evaluated["mean"], y.mean().item()], "steps": stopped.step_count}


class Fails(torch.utils.data.Dataset):
    """Gives an error for a row, on the second rank."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if rank() == 1 and index == 21:
            raise ValueError("row 21 cannot be read")
        return torch.zeros(WIDTH), torch.zeros(1)


def failing_fits():
    """Errors of one rank, as each rank has them."""

    class Bad:
        def on_step(self, run):
            if run.step == 3 and rank() == 0:
                raise KeyError("a callback of rank 0")

    def bad_metric(outputs, given):
        return "none" if rank() == 1 else 1.0

    lists = [batch(i, 0) for i in range(4 + rank())]
    generator = (batch(i, 0) for i in range(4 + rank()))
    in_fit = lambda *data, **options: error_of(lambda: trainer_of().fit(*data, **options))  # noqa: E731
    loader = torch.utils.data.DataLoader(Fails(), batch_size=ROWS)
    return {"loader": in_fit(loader), "callback": in_fit(lists[:4], callbacks=[Bad()]), "lengths": in_fit(lists), "ends": in_fit(generator),
            "checkpoint": in_fit(lists[:4], checkpoint=f"{rank()}.safetensors", resume=True) if _touch_on(0) else None,
            "metric": error_of(lambda: trainer_of().evaluate_on(lists[:4], metrics={"bad": bad_metric})),
            "alone": error_of(lambda: _evaluates_alone())}


def _touch_on(which):
    if rank() == which:
        Path(f"{which}.safetensors").write_bytes(b"no checkpoint")
    return True


def _evaluates_alone():
    trainer = trainer_of()
    if rank() == 0:
        trainer.evaluate_on([batch(0, 0)])
    trainer.step(*batch(0, 0))


# --- ranks that differ, and numbers that are none -------------------------------------------

def nan():
    """A batch of one rank gives no number."""
    trainer = trainer_of()
    losses = train(trainer, 3)
    before = digest(trainer)
    x, y = batch(3, rank())
    error = error_of(lambda: trainer.step(x * float("nan") if rank() == 1 else x, y))
    kept = before == digest(trainer)
    return {"error": error, "kept": kept, "losses": losses + train(trainer, 7, first=3), "digest": digest(trainer)}


def differing():
    """What ranks may not have each for itself, one after the other."""
    own = rank()

    def rates():
        trainer = trainer_of()
        trainer.step(*batch(0, own))
        trainer.step(*batch(1, own), lr=0.1 + own)

    def schedules():
        trainer = trainer_of(optimizer=segue.AdamW(lr=lambda step: 1e-3 * (step + own)))
        trainer.step(*batch(0, own))

    def frozen():
        trainer = trainer_of()
        if own:
            trainer.freeze("net.0.weight")
        trainer.step(*batch(0, own))

    def steps():
        trainer = trainer_of()
        train(trainer, 2)
        if own:
            state = trainer.state_dict()
            trainer.load_state_dict(state | {"step": 1})
        trainer.step(*batch(0, own))

    return {
        "module": error_of(lambda: trainer_of(compiled(width=WIDTH + own)).step(*batch(0, own))),
        "optimizer": error_of(lambda: trainer_of(optimizer=adamw(weight_decay=0.1 * own))),
        "kind": error_of(lambda: trainer_of(optimizer=segue.SGD() if own else adamw())),
        "clip": error_of(lambda: trainer_of(clip_grad_norm=1.0 + own).step(*batch(0, own))),
        "accumulation": error_of(lambda: trainer_of(grad_accumulation=1 + own)),
        "rates": error_of(rates), "schedules": error_of(schedules), "frozen": error_of(frozen), "steps": error_of(steps),
        "calls": error_of(lambda: (lambda t: t.gradients(*batch(0, own)) if own else t.evaluate_on([batch(0, own)]))(trainer_of())),
    }


def values():
    """Other values, another seed, and what one rank alone loads: those of the first rank are taken, as those of one rank that has them."""
    trainer = trainer_of(compiled(seed=rank(), dropout=0.5), seed=rank())
    losses = train(trainer, 5)
    if rank() == 1:
        trainer.load_weights({name: torch.zeros_like(tensor) for name, tensor in trainer.parameters().items()})
    return losses + train(trainer, 5, first=5), digest(trainer)


def values_of_one():
    """The same by one rank."""
    trainer = trainer_of(compiled(seed=0, dropout=0.5), seed=0, grad_accumulation=2)
    return train(trainer, 10), digest(trainer)


# --- ends -----------------------------------------------------------------------------------

def ends(how):
    """Ends of programs and trainers that leave nobody waiting."""
    trainer = trainer_of()
    losses = train(trainer, 5)
    if how == "destroy before":
        dist.destroy_process_group()
    elif how == "destroy after":
        del trainer
        dist.destroy_process_group()
    elif how == "another trainer":
        for _ in range(10):
            trainer = trainer_of(trainer.modules["0"])
            train(trainer, 3)
        dist.barrier()
    elif how == "deleted on one":
        if rank() == 1:
            del trainer
            time.sleep(1)
        else:
            return error_of(lambda: train(trainer, 5))
    elif how == "exception" and rank() == 1:
        raise ValueError("the data of rank 1 is gone")
    elif how in ("exception", "exit"):
        if rank() == 1:
            sys.exit(0)
        return error_of(lambda: train(trainer, 5))
    elif how == "step after":
        dist.destroy_process_group()
        return train(trainer, 3)
    return losses


def connects(how):
    """How long a transport takes whose connections take rank 1 another 0.4 seconds, cannot be made there, or end its process before or after; and what it raises."""
    make = dist.ProcessGroupGloo

    def slowly(*arguments):
        if how == "dies before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = make(*arguments)
        time.sleep(0.4)
        if how == "fails":
            raise RuntimeError("Gloo connectFullMesh failed with [pair.cc:144] no connection")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    if rank() == 1:
        dist.ProcessGroupGloo = slowly
    dist.barrier()
    began = time.monotonic()
    found = error_of(lambda: segue.distributed.GroupTransport())
    return time.monotonic() - began, found


def dies(folder, after, which, signal_name="SIGKILL", seconds=30, steps=100000, checkpoint="run.safetensors", every=3, strategy="ddp"):
    """Trains until the rank `which` is killed by a signal so many seconds after the first step; a run that was resumed goes on."""
    trainer = trainer_of(distributed=strategy)
    path = os.path.join(folder, checkpoint)
    if os.path.exists(os.path.join(path, "model.safetensors.index.json") if path.endswith("/") else path):
        trainer.resume(path)

    def kill():
        time.sleep(after)
        os.kill(os.getpid(), getattr(signal, signal_name))

    if rank() == which:
        threading.Thread(target=kill, daemon=True).start()
    losses, error, began = {}, ["", ""], time.monotonic()
    try:
        while trainer.step_count < steps:
            i = trainer.step_count
            losses[i] = trainer.step(*batch(i, rank())).hex()
            began = time.monotonic()
            if i % every == 0:
                trainer.save(path)
    except (segue.RankFailedError, segue.StateTornError) as failure:
        error = [type(failure).__name__, str(failure)]
    return {"losses": losses, "error": error, "waited": time.monotonic() - began}


class Waits:
    """After a step of its second epoch the second rank is long in its callback, while the others wait for it."""

    def on_step(self, run):
        if run.step == 12 and rank() == 1:
            Path("waits").touch()
            time.sleep(30)


def interrupted(folder):
    """What ends `fit` on each rank when Ctrl-C comes to all."""
    Path("pid").write_text(str(os.getpid()))
    trainer = trainer_of()
    try:
        trainer.fit([batch(i, rank()) for i in range(8)], epochs=1000, checkpoint=os.path.join(folder, "run.safetensors"), save_every=5, callbacks=[Waits()])
    except BaseException as error:
        return [type(error).__name__, str(error), type(error.__cause__).__name__]


class Counts:
    """Notes the last step that has ended."""

    def on_step(self, run):
        Path(f"steps{rank()}").write_text(str(run.step))


def ctrl_c(strategy):
    """A run that goes on until Ctrl-C: what ends it on this rank, and after which step."""
    trainer = trainer_of(distributed=strategy)
    try:
        trainer.fit([batch(i, rank()) for i in range(8)], epochs=100000, checkpoint="run.safetensors", save_every=5, callbacks=[Counts()])
    except BaseException as error:
        return [type(error).__name__, trainer.step_count]


class Dies:
    """Ends the second rank after a step, at the first start alone."""

    def on_step(self, run):
        print(f"step {run.step} loss {run.loss.hex()}", flush=True)
        if run.step == 9 and rank() == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)


def restarts(folder):
    """A run that torchrun starts again when a rank has died; each rank has random numbers of its own."""
    torch.manual_seed(rank())
    trainer = trainer_of(compiled(seed=0))
    torch.manual_seed(rank())
    history = trainer.fit(loader_of(), epochs=3, checkpoint=os.path.join(folder, "run.safetensors"), save_every=4, resume=True, callbacks=[Dies()])
    return [loss.hex() for loss in history]


def spins(seconds):
    """The second of three ranks does something else for ever; nobody sees it of its process."""
    trainer = trainer_of()
    train(trainer, 3)
    if rank() == 1:
        time.sleep(60)
    if rank() == 2:
        time.sleep(0.7 * seconds)  # waits not as long as the first when that one's patience ends
    return error_of(lambda: train(trainer, 3))


# --- other ways to train ----------------------------------------------------------------------

def torch_ddp(how):
    """A compiled model in a loop of PyTorch's, with its DistributedDataParallel around; losses, and those of eager mode."""
    losses = {}
    for name in ("eager", "segue"):
        torch.manual_seed(rank())  # DistributedDataParallel has those of the first rank taken
        model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 1))
        if name == "segue" and how == "compile":
            model = segue.compile(model, (torch.zeros(ROWS, WIDTH),))
        ddp = nn.parallel.DistributedDataParallel(model)
        called = torch.compile(ddp, backend="segue") if name == "segue" and how == "torch.compile" else ddp
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        losses[name] = []
        for i in range(8):
            x, y = batch(i, rank())
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(called(x), y)
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss)
            losses[name].append(loss.item())
        losses[name + " weights"] = [parameter.sum().item() for parameter in ddp.parameters()]
    return losses


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    torch.set_num_threads(1)
    random.seed(0)
    arguments = json.loads(sys.argv[2])
    if ranks() > 1:
        join(arguments.get("seconds", 30))
    print("\nRESULT " + json.dumps(globals()[sys.argv[1]](**arguments)), flush=True)
