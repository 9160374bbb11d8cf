# ===- test_mistakes.py - what people do wrong, and what they are told -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The commonest mistakes: each raises an error that says what was wrong, where, and what to do, and the trainer loses nothing by it."""

import copy
import io
import pickle
import re
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.fc(x), y)


class Of(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 2), function

    def forward(self, x):
        return self.function(self.fc(x))


class Wide(nn.Module):
    """Its steps take long enough for threads to meet in one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return self.second(self.first(x).tanh()).square().mean()


X, Y = torch.randn(8, 4), torch.randn(8, 2)


def compiled(**options):
    return segue.compile(Net(), (X, Y), **options)


def trainer(*modules, **options):
    return segue.Trainer(modules or [compiled()], **{"optimizer": segue.SGD(lr=0.1)} | options)


@pytest.fixture(scope="module")
def trained():
    made = trainer()
    made.step(X, Y)
    return made


def loader():
    return DataLoader(TensorDataset(X, Y), batch_size=8)


def stepped_in_a_hook(trained):
    with trained.on_gradient("fc.weight", lambda _: trained.step(X, Y)):
        trained.step(X, Y)


def backward_twice(_):
    loss = compiled()(X, Y)
    loss.backward()
    loss.backward()


def trained_without_a_loss(_):
    trainer(segue.compile(nn.Linear(4, 2), X)).step(X)


def state_of_another_model(trained):
    other = trainer(segue.compile(Of(lambda h: h.sum().square()), X))
    trained.load_state_dict({**trained.state_dict(), "parameters": {"gc.weight": torch.zeros(2, 4), **other.state_dict()["parameters"]}})


def another_trainer_changed_it(_):
    module = compiled()
    first, second = (trainer(module, device="sim:dram=16MiB") for _ in range(2))
    first.step(X, Y)
    first.sync()
    second.step(X, Y)


def changed_by_half(_):
    module = compiled()
    made = trainer(module)
    module.half()
    made.step(X, Y)


Invalid, Mismatch, Unsupported = segue.InvalidArgumentError, segue.LayoutMismatchError, segue.UnsupportedOpError

#: By what was done: the call, the error, and words that it must have, in this order.
MISTAKES = {
    # Mistakes in what a Trainer is given.
    "no optimizer": (lambda _: segue.Trainer([compiled()]), TypeError, ["Trainer", "missing", "'optimizer'"]),
    "None as optimizer": (lambda _: trainer(optimizer=None), Invalid, ["the optimizer is None", "segue.AdamW(lr=...)"]),
    "an optimizer's name": (lambda _: trainer(optimizer="adamw"), Invalid, ["the optimizer is a str", "segue.AdamW(lr=...)"]),
    "a class of torch.optim": (lambda _: trainer(optimizer=torch.optim.Adam), Invalid, ["the class Adam;", "segue.Adam(lr=...), torch.optim.Adam(model.parameters()"]),
    "a class of segue": (lambda _: trainer(optimizer=segue.Lion), Invalid, ["the class Lion; give segue.Lion(lr=...)"]),
    "an optimizer we lack": (lambda _: trainer(optimizer=torch.optim.LBFGS(Net().parameters())), Invalid, ["torch.optim.LBFGS has no counterpart", "AdamW"]),
    "an optimizer of another model": (lambda _: trainer(optimizer=torch.optim.SGD(Net().parameters(), lr=0.1)), Invalid,
                                      ["'fc.weight' is trained", "the optimizer does not have it; give it"]),
    "a plain module": (lambda _: trainer(Net()), Invalid, ["module '0' of the trainer is a Net", "segue.compile(module, example)"]),
    "a class of modules": (lambda _: segue.Trainer(Net, optimizer=segue.SGD()), Invalid, ["the modules of the trainer are the class Net", "segue.compile"]),
    "a module of torch.compile": (lambda _: trainer(torch.compile(Net())), Invalid, ["OptimizedModule", "segue.compile(module, example), the module that torch.compile was given"]),
    "no modules": (lambda _: segue.Trainer(None, optimizer=segue.SGD()), Invalid, ["the modules of the trainer are None", "segue.compile(model, example)"]),
    "an unknown option": (lambda _: trainer(grad_acumulation=2), TypeError, ["Trainer()", "'grad_acumulation'; did you mean 'grad_accumulation'?"]),
    "an option of Lightning's": (lambda _: trainer(accumulate_grad_batches=2), TypeError, ["did you mean 'grad_accumulation'?"]),
    "an option that nothing is near": (lambda _: trainer(zzz=2), TypeError, ["'zzz'; it takes modules, optimizer, clip_grad_norm"]),
    "a text as a number": (lambda _: trainer(clip_grad_norm="1.0"), Invalid, ["clip_grad_norm is '1.0'", "a number, 0 or more"]),
    "a negative norm": (lambda _: trainer(clip_grad_norm=-1), Invalid, ["clip_grad_norm is -1", "0 or more"]),
    "a fraction of batches": (lambda _: trainer(grad_accumulation=2.0), Invalid, ["grad_accumulation is 2.0", "a whole number"]),
    "a seed that is none": (lambda _: trainer(seed="a"), Invalid, ["seed is 'a'", "a whole number"]),
    "a type as precision": (lambda _: trainer(precision=torch.bfloat16), Invalid, ["precision is torch.bfloat16", "'bf16-mixed'"]),
    "a device that there is not": (lambda _: trainer(device="gpu"), Invalid, ['no driver "gpu"', '"cpu"', '"cuda"']),
    "a device of PyTorch's we lack": (lambda _: trainer(device=torch.device("mps")), Invalid, ["the device is mps", "cpu and cuda"]),
    "a number as device": (lambda _: trainer(device=0), Invalid, ["the device is an int", '"cuda:0"']),
    "a config with a typo": (lambda _: trainer(config={"memory": {"stagehnd": {}}}), segue.ConfigError, ["memory.stagehnd", 'nearest known key is "stagehand"']),
    # Budgets.
    "a unit that is none": (lambda _: trainer(budget="600MBs"), Invalid, ['"600MBs" is not a quantity such as 512MiB', "MB", "of 1000", "MiB", "of 1024"]),
    "no unit that is known": (lambda _: trainer(budget="600M"), Invalid, ['"600M" is not a quantity']),
    "a budget below 0": (lambda _: trainer(budget=-1), Invalid, ['"-1" is not a quantity']),
    "a budget of nothing": (lambda _: trainer(budget=0), Invalid, ["the budget is 0", "memory() tells the smallest"]),
    "a budget as a fraction": (lambda _: trainer(budget=6e8), Invalid, ["a whole number of bytes or a text such as '512MiB'", "a float was given"]),
    "bytes that were meant as MiB": (lambda _: trainer(budget=300, device="sim:link=16GB/s").step(X, Y), segue.BudgetInfeasibleError, ["300", "smallest"]),
    "no room beside memory": (lambda _: trainer(budget="600MiB"), Invalid, ['device "cpu"', 'spill_dir="FOLDER"']),
    "two budgets": (lambda _: trainer(budget="1MiB", device="sim:dram=16MiB"), Invalid, ["dram= itself", "leave that or the budget out"]),
    # Mistakes in what is compiled.
    "a compiled module": (lambda _: segue.compile(compiled(), (X, Y)), Invalid, ["Net is compiled already", "give it to a Trainer"]),
    "a compiled part": (lambda _: segue.compile(nn.Sequential(segue.compile(nn.Linear(4, 4), X), nn.ReLU()), X), Invalid,
                        ["'0' of the Sequential is compiled already", "compile the whole"]),
    "a class": (lambda _: segue.compile(Net, (X, Y)), Invalid, ["the class Net", "an instance, Net(...)"]),
    "no example": (lambda _: segue.compile(Net()), Invalid, ["example_inputs is missing", "give a tensor, a tuple, or a dictionary"]),
    "an example that lacks an input": (lambda _: segue.compile(Net(), (X,)), Invalid, ["'y'", "the module takes (x, y)"]),
    "an unknown option of compile": (lambda _: segue.compile(Net(), (X, Y), optimiser=None), TypeError, ["compile()", "did you mean 'optimizer'?"]),
    ".item() in forward": (lambda _: segue.compile(Of(lambda h: h.sum() * h.mean().item()), X), Unsupported,
                           ["aten.item.default", "test_mistakes.py:", ".item(), float()", "keep it a tensor"]),
    "float() in forward": (lambda _: segue.compile(Of(lambda h: h.sum() * float(h.max())), X), segue.ExportError, ["test_mistakes.py:", "float()", "keep numbers"]),
    "an if in forward": (lambda _: segue.compile(Of(lambda h: h.sum() if h.sum() > 0 else h.mean()), X), segue.ExportError, ["test_mistakes.py:", "torch.where"]),
    ".numpy() in forward": (lambda _: segue.compile(Of(lambda h: h.sum() * float(h.detach().numpy().max())), X), segue.ExportError,
                            ["test_mistakes.py:", ".numpy()", "operators of PyTorch"]),
    "a mask as an index": (lambda _: segue.compile(Of(lambda h: h[h > 0].sum()), X), Unsupported, ["aten.index.Tensor", "test_mistakes.py:", "torch.where"]),
    "no loss": (trained_without_a_loss, Invalid, ['float scalar output called "loss"', "return a scalar"]),
    # Optimizers.
    "parameters for an optimizer": (lambda _: segue.AdamW(Net().parameters(), lr=1e-3), Invalid, ["AdamW was given a generator", "given no parameters", "segue.AdamW(lr=...)"]),
    "a list of parameters": (lambda _: segue.SGD([*Net().parameters()], 0.1), Invalid, ["SGD was given a list", "given no parameters"]),
    "a rate as text": (lambda _: segue.AdamW(lr="1e-3"), Invalid, ["lr of AdamW is '1e-3'", "a number"]),
    "a negative rate": (lambda _: segue.SGD(lr=-0.1), Invalid, ["lr of SGD is -0.1", "0 or more"]),
    "a rate that is none": (lambda _: trainer(optimizer=segue.SGD(lr=lambda step: float("nan"))).step(X, Y), Invalid, ["learning rate of step 0 is nan"]),
    "a negative rate of a step": (lambda t: t.step(X, Y, lr=-1.0), Invalid, ["lr of the step is -1.0"]),
    "a keyword of PyTorch's": (lambda _: segue.AdamW(learning_rate=1e-3), TypeError, ["AdamW()", "did you mean 'lr'?"]),
    "a keyword with a typo": (lambda _: segue.Adam(weight_deacy=0.1), TypeError, ["Adam()", "did you mean 'weight_decay'?"]),
    # Batches.
    "a loader for a step": (lambda t: t.step(loader()), Invalid, ["a DataLoader", "trainer.fit(...)"]),
    "a text for a step": (lambda t: t.step("train.csv"), Invalid, ["a batch is a str", "to_batch="]),
    "too few tensors": (lambda t: t.step((X,)), Invalid, ["a batch has 1 tensor", "x, y"]),
    "a batch for fit": (lambda t: t.fit({"x": X, "y": Y}), Invalid, ["batches are a dict", "fit([batch])"]),
    "a tensor for fit": (lambda t: t.fit(X), Invalid, ["batches are a Tensor", "fit([batch])"]),
    "a dataset for fit": (lambda t: t.fit(TensorDataset(X, Y)), Invalid, ["a TensorDataset", "give a DataLoader"]),
    "a keyword of fit": (lambda t: t.fit([(X, Y)], max_epochs=3), TypeError, ["Trainer.fit()", "did you mean 'epochs'?"]),
    "a missing input": (lambda t: t.step(x=X), segue.MissingInputError, ['input "y" (f32[8,2])', 'the batch has "x"', "put it in the batch"]),
    "an unknown input": (lambda t: t.step(x=X, y=Y, yy=Y), segue.NameUnknownError, ['"yy"', 'the nearest is "y"']),
    "numbers of Python": (lambda t: t.step(x=[[1.0] * 4] * 8, y=Y), Invalid, ["'x' of the batch is a list", "torch.as_tensor(...)"]),
    "None for a tensor": (lambda t: t.step(x=X, y=None), Invalid, ["'y' of the batch is None", "a tensor is wanted"]),
    "float64": (lambda t: t.step(x=X.double(), y=Y), Mismatch, ['input "x": f64[8,4]', "f32[8,4] declared; convert it to f32"]),
    "numpy's float64": (lambda t: t.step(x=X.numpy().astype(np.float64), y=Y), Mismatch, ["f64[8,4]", "convert it to f32"]),
    "whole numbers": (lambda t: t.step(x=X.long(), y=Y), Mismatch, ["i64[8,4]", "convert it to f32"]),
    "objects of numpy": (lambda t: t.step(x=np.array([[None] * 4] * 8), y=Y), Invalid, ["a numpy array of object", "convert it to one of"]),
    "another width": (lambda t: t.step(x=torch.zeros(8, 5), y=Y), Mismatch, ["x: [8, 5]", "compiled for x: [8, 4]", "cannot be compiled", "test_mistakes.py:"]),
    "other rows": (lambda t: t.step(x=X, y=Y[:7]), Mismatch, ["y: [7, 2]", "compiled for", "y: [8, 2]"]),
    "no dimension": (lambda t: t.step(x=X[0, 0], y=Y), Mismatch, ['input "x": f32[]', "f32[8,4] declared; compile the module for this shape"]),
    "an empty batch": (lambda t: t.step(x=X[:0], y=Y[:0]), Mismatch, ["f32[0,4]", "it has no elements; leave such a batch out"]),
    "a tensor without values": (lambda t: t.step(x=X.to("meta"), y=Y), Invalid, ["'x' of the batch", "meta device", "on the CPU"]),
    "a sparse tensor": (lambda t: t.step(x=X.to_sparse(), y=Y), Invalid, ["'x' of the batch", "torch.sparse_coo", "x.to_dense()"]),
    "a step within a step": (stepped_in_a_hook, Invalid, ["step was called within step", "hook", "call it after"]),
    # Calls.
    "a call in float64": (lambda t: t.modules["0"](X.double(), Y), Unsupported, ["aten.linear.default in module 'fc'", "x.to(torch.float32)"]),
    "a call of another width": (lambda t: t.modules["0"](torch.zeros(8, 5), Y), segue.ExportError, ["test_mistakes.py:", "same reduction dim"]),
    "a call that lacks an input": (lambda t: t.modules["0"](X), Invalid, ["'y'", "takes (x, y)"]),
    "backward twice": (backward_twice, RuntimeError, ["backward through the graph a second time", "retain_graph=True"]),
    # State.
    "a state of PyTorch's": (lambda t: t.load_state_dict(Net().state_dict()), Invalid, ["no state of a trainer", "'parameters'", "load_weights"]),
    "a state of another model": (state_of_another_model, segue.Error, ["gc.weight"]),
    "a checkpoint that is not there": (lambda t: t.resume("/nowhere/run.safetensors"), segue.FileError, ["/nowhere/run.safetensors", "No such file"]),
    "weights of another model": (lambda t: t.modules["0"].load_state_dict(nn.Linear(4, 2).state_dict()), RuntimeError, ['Missing key(s)', '"fc.weight"']),
    "two trainers of one module": (another_trainer_changed_it, Invalid, ["'fc.weight' was changed in PyTorch", "load_state_dict", "make a new Trainer"]),
    "half() beneath a trainer": (changed_by_half, Invalid, ["'fc.weight' has another memory", "make a new Trainer"]),
    "deepcopy of a trainer": (copy.deepcopy, Invalid, ["cannot be copied or pickled", "save(path)", "resume(path)"]),
    "copy of a trainer": (copy.copy, Invalid, ["cannot be copied or pickled"]),
    "pickle of a trainer": (pickle.dumps, Invalid, ["cannot be copied or pickled"]),
    "torch.save of a trainer": (lambda t: torch.save(t, io.BytesIO()), Invalid, ["cannot be copied or pickled"]),
    "a pattern with a typo": (lambda t: t.freeze("fc.wieght"), Invalid, ["'fc.wieght'", "'fc.weight'"]),
    # Habits.
    "zero_grad": (lambda t: t.zero_grad(), AttributeError, ["no attribute 'zero_grad'", "gradients of its own"]),
    "train()": (lambda t: t.train(), AttributeError, ["'train'", "dropout on"]),
    "eval()": (lambda t: t.eval(), AttributeError, ["'eval'", "evaluate(...)"]),
    "to()": (lambda t: t.to("cuda"), AttributeError, ["'to'", 'Trainer(..., device="cuda:0")']),
    "last before a step": (lambda _: trainer().last, AttributeError, ["'last'", "no step has been made yet"]),
    "memory without an optimizer": (lambda _: compiled().memory("1MiB"), Invalid, ["compiled without an optimizer", "memory(optimizer=...)"]),
    "generation by a compiled module": (lambda _: segue.Generator(compiled().eval(), [torch.zeros(4, 4)]), Invalid, ["Net is compiled", "torch.nn.Module that it was made of"]),
    "fit of a compiled module": (lambda _: segue.fit(compiled(), (X, Y)), Invalid, ["Net is compiled already", "Net.memory(budget)"]),
    "a keyword of segue.fit": (lambda _: segue.fit(Net(), (X, Y), max_memory="1GiB"), TypeError, ["fit()", "did you mean 'budget'?"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_and_loses_nothing(mistake, trained, capfd):
    make, error, words = MISTAKES[mistake]
    before, count = trained.state_dict(), trained.step_count
    with pytest.raises(error, match=r"[\s\S]*".join(map(re.escape, words))) as found:
        make(trained)
    text = str(found.value)
    assert "incompatible function arguments" not in text and "segue._runtime" not in text, "a message of the bindings, which say nothing to a user"
    after = trained.state_dict()
    assert trained.step_count == count and after["step"] == before["step"]
    for kind in ("parameters", "state"):
        assert all(torch.equal(tensor, after[kind][name]) for name, tensor in before[kind].items())
    assert trained.step(X, Y) >= 0, "and it goes on"
    said = capfd.readouterr()
    assert "fake_tensor" not in said.err + said.out and "def forward" not in said.err + said.out, "PyTorch's exporter prints its own story"


# --- what is no mistake ------------------------------------------------------------------------------


def test_batches_as_loaders_give_them(trained):
    for batch in ((X, Y), [X, Y], {"x": X, "y": Y}, (X.numpy(), Y.numpy())):
        assert trained.step(batch) >= 0
    assert len(trained.fit(loader())) == 1 and trained.step(X.requires_grad_(), Y) >= 0
    X.requires_grad_(False)


@pytest.mark.parametrize("text, size", [("600MiB", 600 << 20), ("0.5GB", 500_000_000), ("1.5 mib", 3 << 19), ("64MB", 64_000_000), (1 << 26, 1 << 26), (np.int64(1 << 26), 1 << 26)])
def test_a_budget_as_people_write_it(text, size, tmp_path):
    """It is all that is said: on a device with memory of its own, and on the cpu with a folder for what has no room."""
    batch, losses = {"x": X, "y": Y}, []
    for options in (dict(), dict(device="sim:link=16GB/s", budget=text), dict(budget=text, spill_dir=tmp_path, spill_capacity="64MB")):
        torch.manual_seed(3)
        made = trainer(**options)
        losses.append([made.step(**batch) for _ in range(2)])
        if options:
            assert f"dram={size}" in made._device.name and made.memory(text, device="sim:link=16GB/s").budget_bytes == size
            assert 0 < made.peak_bytes <= size
    assert losses[0] == losses[1] == losses[2]


def test_a_step_after_close_trains(tmp_path):
    with trainer(trace=tmp_path / "trace.json") as made:
        made.step(X, Y)
    written = (tmp_path / "trace.json").read_bytes()
    made.step(X, Y)
    made.close()
    assert made.step_count == 2 and (tmp_path / "trace.json").read_bytes() == written


def test_modes_reach_the_source():
    module = compiled()
    source = module._source
    assert not module.eval().training and not source.training and not source.fc.training
    assert module.train().training and source.fc.training


def test_a_device_of_pytorch_is_one():
    assert trainer(compiled(device=torch.device("cpu")), device=torch.device("cpu")).step(X, Y) >= 0


def test_threads_take_turns():
    """Steps of several threads are steps one after the other, and so are copies of the state between them: none has half a step."""
    torch.manual_seed(0)
    x = torch.randn(64, 256)
    net = Wide()
    made, alone = (trainer(segue.compile(copy.deepcopy(net), x)) for _ in range(2))
    errors, states, start = [], [], threading.Barrier(4)

    def run(call, times):
        start.wait()
        try:
            for _ in range(times):
                call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(lambda: made.step(x), 8)) for _ in range(3)]
    threads.append(threading.Thread(target=run, args=(lambda: states.append(made.state_dict()), 12)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and made.step_count == 24
    expected = [alone.state_dict()["parameters"]]
    for _ in range(24):
        alone.step(x)
        expected.append(alone.state_dict()["parameters"])
    for state in (*states, made.state_dict()):
        for name, tensor in expected[state["step"]].items():
            assert torch.equal(state["parameters"][name], tensor)


def test_ctrl_c_in_a_step_loses_no_step(trained):
    before = trained.step_count
    with pytest.raises(KeyboardInterrupt), trained.on_gradient("fc.weight", lambda _: signal.raise_signal(signal.SIGINT)):
        trained.step(X, Y)
    assert trained.step_count == trained.last.step == before + 1
    trained.step(X, Y)
