# ===- typed_script.py - a script that uses every public name, for mypy ------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What users write, read by mypy in its strict mode (test_typing.py) and never run: a name without a type, or with one that is too narrow, is an error here."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import segue


def optimizers() -> list[segue.Optimizer]:
    groups = [segue.Group("*.bias", "*norm*", weight_decay=0.0), segue.Group("head.*", lr=segue.step_decay(1e-3, 10))]
    return [
        segue.AdamW(lr=segue.warmup_cosine(3e-4, 100, warmup=10), betas=(0.9, 0.95), groups=groups), segue.Adam(lr=1e-3, state_bits=8), segue.Adamax(), segue.NAdam(),
        segue.RAdam(), segue.Lion(lr=segue.warmup_linear(1e-4, 100)), segue.Adagrad(), segue.Adadelta(rho=0.9), segue.RMSprop(momentum=0.9), segue.Adafactor(),
        segue.SGD(lr=segue.one_cycle(0.1, 100), momentum=0.9), segue.Muon(groups=[segue.Group("*.bias", optimizer=segue.AdamW())]),
    ]


class Printing(segue.Callback):

    def on_step(self, run: segue.Run) -> None:
        last: segue.StepResult = run.trainer.last
        print(run.step, run.loss, last.grad_norm, last.is_skipped)

    def on_evaluate(self, run: segue.Run) -> None:
        evaluation: segue.Evaluation = run.history.evaluations[-1]
        print(evaluation.step, run.metrics["loss"])


def compiles(net: nn.Module, x: torch.Tensor) -> segue.Module:
    module = segue.compile(net, {"x": x}, optimizer=segue.AdamW(), name="net", device=torch.device("cpu"), precision="bf16-mixed",
                           buckets=segue.Buckets([128, 256]), budget="1.5GiB", spill_dir=Path("/tmp"))
    module.save(Path("net.segue"), weights=True)
    loaded: segue.LoadedModule = segue.load("net.segue", Path("net.safetensors"), device="cpu:threads=2", allow_native_kernels=True)
    loaded.eval()
    print(module.inspect(), module.mlir, module.build().memory("512MiB").smallest_budget_bytes)
    return module


def trains(module: segue.Module, x: torch.Tensor) -> float:
    trainer = segue.Trainer({"net": module}, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-3), clip_grad_norm=1, grad_accumulation=2,
                            budget="600MiB", spill_dir="/tmp", spill_capacity="2GB", loss_scale=segue.LossScale(), trace=Path("trace.json"))
    loss = trainer.step(x=x, lr=1e-3) + trainer.step(x, x) + trainer.step({"x": x}) + trainer.step(np.zeros(3))
    hook: segue.GradientHook = trainer.on_gradient("*.weight", lambda gradient: gradient * 0.5)
    hook.remove()
    history: segue.History = trainer.fit([{"x": x}], epochs=2, evaluate_on=[(x, x)], evaluate_every=1, callbacks=[Printing(), segue.EarlyStop(patience=2)],
                                         metrics={"largest": lambda outputs, batch: outputs["loss"].max()}, checkpoint=Path("run.safetensors"), resume=True)
    found: segue.Profile = trainer.profile([{"x": x}], steps=3)
    row: segue.CommandRow = found.rows[0]
    memory: segue.Memory = trainer.memory(1 << 30)
    step: segue.Step = memory.unconstrained
    report: segue.StitchReport = trainer.stitch_report()
    outputs = trainer.evaluate(x=x)
    print(history.stopped, row.share, memory.fits, step.peak_bytes, report.edges, outputs["loss"].item(), trainer.gradients(x=x)[1]["net.weight"].norm())
    trainer.save(Path("run.safetensors"), notes={"epoch": 3})
    notes = trainer.resume("run.safetensors")
    trainer.load_state_dict(trainer.state_dict())
    segue.export_checkpoint("run.safetensors", Path("whole.safetensors"))
    with trainer as entered:
        entered.freeze("h.0.*")
    return sum(history) + float(notes["epoch"]) + loss


def fits(net: nn.Module) -> None:
    memory = segue.fit(net, (1, 1024), budget="8GiB", lora_rank=16)
    table: segue.FitTable = segue.fit_table(net, (1, 1024), batch_sizes=[1, 2], budget="8GiB")
    rows: list[segue.FitRow] = table.rows
    print(memory, rows[0].memory.fits)


def generates(net: nn.Module) -> torch.Tensor:
    generator = segue.Generator(net, [torch.zeros(256, 8)])
    cache = segue.write_rows(torch.zeros(256, 8), torch.arange(2), torch.ones(2, 8))
    return generator.generate([1, 2, 3], 16, temperature=0.8) + cache.long()


def reports() -> None:
    backend: segue.BackendReport = segue.backend_report()
    operators: segue.Operators = segue.supported_ops("sort")
    operator: segue.Operator = operators["aten.sort.default"]
    print(backend.compiled, operator.how, segue.squareq.__doc__, segue.__version__)


def errors(trainer: segue.Trainer, tensor: segue.Tensor) -> str:
    try:
        trainer.step(x=tensor)
    except (segue.MissingInputError, segue.LayoutMismatchError, segue.NameUnknownError, segue.InvalidArgumentError, segue.IndexOutOfRangeError) as error:
        return error.code
    except (segue.NanLossError, segue.StateTornError, segue.RankFailedError, segue.OutOfMemoryError, segue.BudgetInfeasibleError) as error:
        return str(error.report.get("held"))
    except (segue.FileError, segue.CorruptFileError, segue.VersionError, segue.NativeCodeRefusedError, segue.ConfigError, segue.MissingWeightError):
        return "file"
    except (segue.UnsupportedError, segue.UnsupportedOpError, segue.ExportError, segue.CompileError, segue.ValuesDifferError, segue.FallbackWarning):
        return "model"
    except segue.Error as error:
        return error.code
    return f"{tensor.shape} {tensor.element}"
