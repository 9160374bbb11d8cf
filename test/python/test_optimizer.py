# ===- test_optimizer.py - segue-optimizer against torch.optim ---------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`@optimizer` and `@grad_norm`, run by the reference interpreter for some steps; and the guide."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from interpreted import SEGUE_OPT, constant, run_main, segue_opt, signature
from known_optimizers import KNOWN, Both, Lion, ours

import segue
from segue.optimizers import OPTIMIZERS as KINDS

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {"w": (3, 4), "b": (4,), "s": (), "t": (2, 3, 4)}

FORWARD = """
func.func @forward(%w: tensor<3x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %b: tensor<4xf32> {segue.name = "b", segue.role = #segue.role<parameter>, segue.weight_decay = 0.0 : f64},
                   %s: tensor<f32> {segue.name = "s", segue.role = #segue.role<parameter>},
                   %t: tensor<2x3x4xf32> {segue.name = "t", segue.role = #segue.role<parameter>})
    -> (tensor<3x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.broadcast %b dims [1] : tensor<4xf32> -> tensor<3x4xf32>
  %1 = segue.broadcast %s dims [] : tensor<f32> -> tensor<3x4xf32>
  %r = segue.reduce sum %t dims [0] : tensor<2x3x4xf32> -> tensor<3x4xf32>
  %x = segue.add %w, %r : tensor<3x4xf32>
  %2 = segue.add %x, %0 : tensor<3x4xf32>
  %3 = segue.mul %2, %1 : tensor<3x4xf32>
  return %3 : tensor<3x4xf32>
}
"""


def muon(groups, **options):
    """Muon for the matrix; what is none has `segue.optimizer`."""
    return Both(torch.optim.Muon(groups[:1], **options), torch.optim.SGD(groups[1:]))


#: A spec of the compiler, the optimizer of PyTorch that does the same, and its weight decay.
OPTIMIZERS = {
    "adamw": ("adamw:beta1=0.8,beta2=0.95,eps=1e-1,decay=0.1",
              lambda groups: torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-1), 0.1),
    "adamw_default": ("adamw", lambda groups: torch.optim.AdamW(groups), 0.0),
    "adamw_amsgrad": ("adamw:amsgrad,beta2=0.5", lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.5), amsgrad=True), 0.0),
    "adam": ("adam:beta1=0.8,beta2=0.95,eps=1e-6,decay=0.1",
             lambda groups: torch.optim.Adam(groups, betas=(0.8, 0.95), eps=1e-6), 0.1),
    "adam_amsgrad": ("adam:amsgrad=true,beta2=0.5", lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.5), amsgrad=True), 0.0),
    "adamax": ("adamax:beta1=0.8,beta2=0.95,eps=1e-2,decay=0.1",
               lambda groups: torch.optim.Adamax(groups, betas=(0.8, 0.95), eps=1e-2), 0.1),
    "adadelta": ("adadelta:rho=0.8,eps=1e-4,decay=0.05", lambda groups: torch.optim.Adadelta(groups, rho=0.8, eps=1e-4), 0.05),
    "nadam": ("nadam:beta1=0.8,beta2=0.95,eps=1e-6,decay=0.1,momentum-decay=0.05",
              lambda groups: torch.optim.NAdam(groups, betas=(0.8, 0.95), eps=1e-6, momentum_decay=0.05), 0.1),
    "nadam_decoupled": ("nadam:decay=0.1,decoupled-weight-decay",
                        lambda groups: torch.optim.NAdam(groups, decoupled_weight_decay=True), 0.1),
    "radam": ("radam:beta1=0.8,beta2=0.95,eps=1e-3,decay=0.1",
              lambda groups: torch.optim.RAdam(groups, betas=(0.8, 0.95), eps=1e-3), 0.1),
    "radam_decoupled": ("radam:decay=0.1,decoupled-weight-decay=1",
                        lambda groups: torch.optim.RAdam(groups, decoupled_weight_decay=True), 0.1),
    "radam_short": ("radam:beta2=0.5", lambda groups: torch.optim.RAdam(groups, betas=(0.9, 0.5)), 0.0),
    "lion": ("lion:beta1=0.8,beta2=0.95,decay=0.1", lambda groups: Lion(groups, betas=(0.8, 0.95)), 0.1),
    "adagrad": ("adagrad:lr-decay=0.1,initial-accumulator-value=0.5,eps=1e-3,decay=0.1",
                lambda groups: torch.optim.Adagrad(groups, lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-3), 0.1),
    "adagrad_default": ("adagrad", lambda groups: torch.optim.Adagrad(groups), 0.0),
    "rmsprop": ("rmsprop:alpha=0.8,eps=1e-3,decay=0.1",
                lambda groups: torch.optim.RMSprop(groups, alpha=0.8, eps=1e-3), 0.1),
    "rmsprop_centered": ("rmsprop:centered,momentum=0.5",
                         lambda groups: torch.optim.RMSprop(groups, centered=True, momentum=0.5), 0.0),
    "adafactor": ("adafactor:beta2-decay=-0.5,eps1=1e-4,eps2=1e-2,d=1.5,decay=0.1",
                  lambda groups: torch.optim.Adafactor(groups, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5), 0.1),
    "adafactor_default": ("adafactor", lambda groups: torch.optim.Adafactor(groups), 0.0),
    "lion_clipped": ("lion:clip-value=0.2", Lion, 0.0),
    "sgd": ("sgd", lambda groups: torch.optim.SGD(groups, lr=1.0), 0.0),
    "sgd_dampened": ("sgd:dampening=0.3,decay=0.05",
                     lambda groups: torch.optim.SGD(groups, lr=1.0, dampening=0.3), 0.05),
    "momentum": ("sgd:momentum=0.9,dampening=0.3,decay=0.05",
                 lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=0.9, dampening=0.3), 0.05),
    "muon": ("muon:momentum=0.8,nesterov=false,decay=0.1,ns-steps=3,match-rms-adamw",
             lambda groups: muon(groups, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"), 0.1),
    "muon_default": ("muon", muon, 0.0),
    "nesterov": ("sgd:momentum=0.9,nesterov,decay=0.05",
                 lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True), 0.05),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_equal_torch(kind):
    """Eight steps with a rate and a clipping factor that change; `b` has its own decay of 0."""
    spec, make, decay = OPTIMIZERS[kind]
    parameters = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    trained = {name: torch.nn.Parameter(p.clone()) for name, p in parameters.items()}
    reference = make([{"params": [p], "weight_decay": 0.0 if name == "b" else decay} for name, p in trained.items()])
    forward = FORWARD
    if spec.startswith("muon"):
        for name in "bst":
            own = f"sgd:decay={0.0 if name == 'b' else decay}"
            forward = forward.replace(f'{{segue.name = "{name}",', f'{{segue.name = "{name}", segue.optimizer = "{own}",')
    text = segue_opt(forward, "--segue-autodiff", f"--segue-optimizer=optimizer={spec}")
    arguments, results = signature(text, "optimizer")

    known, lines = {}, []

    def define(name, type_, tensor):
        lines.append(f"    %c{len(lines)} = segue.constant {constant(tensor)} : {type_}")
        known[name] = f"%c{len(lines) - 1}"

    for name, type_ in arguments:
        if name in parameters:
            define(name, type_, parameters[name])
        elif "." in name and not name.startswith("grad."):
            define(name, type_, torch.zeros([int(extent) for extent in type_[7:-1].split("x")[:-1]]))
    for step, (lr, clip) in enumerate([(0.1, 1.0), (0.05, 0.25), (0.2, 0.5), (0.01, 1.0)] * 2, start=1):
        gradients = {name: torch.randn(shape) for name, shape in SHAPES.items()}
        for name, parameter in trained.items():
            parameter.grad = gradients[name] * clip
        if "clip-value" in spec:
            torch.nn.utils.clip_grad_value_(trained.values(), 0.2)
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        hypers = {"lr": torch.tensor(lr), "clip": torch.tensor(clip), "step": torch.tensor(step)}
        for name, type_ in arguments:
            if name in hypers:
                define(name, type_, hypers[name])
            elif name.startswith("grad."):
                define(name, type_, gradients[name[5:]])
        types = ", ".join(t for _, t in arguments), ", ".join(t for _, t in results)
        lines.append(f"    %s{step}:{len(results)} = func.call @optimizer("
                     f"{', '.join(known[name] for name, _ in arguments)}) : ({types[0]}) -> ({types[1]})")
        known.update({name: f"%s{step}#{k}" for k, (name, _) in enumerate(results)})

    types = dict(results)
    found = run_main(text, lines, [(known[name], types[name]) for name in SHAPES])
    for name, numbers in zip(SHAPES, found):
        # The interpreter prints six digits; Muon's update is rounded to bf16 on the way, where the last bit may differ.
        torch.testing.assert_close(torch.tensor(numbers).reshape(SHAPES[name]), trained[name].detach(),
                                   rtol=2e-5, atol=3e-3 if name == "w" and "muon" in kind else 2e-6, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_the_compiler(kind):
    """A spec that names no constant makes the program of the class without options, but for the weight decay."""
    others = FORWARD if kind != "muon" else re.sub('segue.name = "([bst])"', r'segue.name = "\1", segue.optimizer = "sgd"', FORWARD)
    bare, named = (segue_opt(others, "--segue-autodiff", f"--segue-optimizer=optimizer={spec}")
                   for spec in (kind, KINDS[kind](weight_decay=0.0).spec()))
    assert bare == named and KINDS[kind](weight_decay=0.0).spec().count("=") >= 2


def test_every_kind_is_compared_with_torch():
    """An optimizer that is added has its cases: the formula here, training in known_optimizers.py, its kernels in OptimizerKernelTest.cpp."""
    assert {spec.partition(":")[0] for spec, _, _ in OPTIMIZERS.values()} == set(KINDS), "add a case to OPTIMIZERS of this file"
    assert {ours(name).kind for name in KNOWN} == set(KINDS), "add a case to test/python/known_optimizers.py"
    kernels = (ROOT / "test" / "unit" / "OptimizerKernelTest.cpp").read_text()
    assert [kind for kind in KINDS if f'{{"{kind}:' not in kernels] == ["muon"], "add a case to Kernel.Optimizers"  # whose products are no kernels
    guide = (ROOT / "docs" / "guides" / "optimizers.md").read_text()
    assert [cls.__name__ for cls in KINDS.values() if f"`{cls.__name__}`" not in guide.partition("| optimizer |")[2].partition("\n\n")[0]] == []
    assert [cls.__name__ for cls in KINDS.values() if cls.__name__ not in segue.__all__] == []


@pytest.mark.parametrize("made", [*(cls() for cls in KINDS.values()), segue.SGD(momentum=0.9), segue.RMSprop(centered=True),
                                  segue.RMSprop(centered=True, momentum=0.5)], ids=lambda made: made.spec())
def test_python_knows_whether_there_are_codes(made):
    """Its rule says so in the compiler: the class must not take 8 bits where it has no code, nor refuse them where it has one."""
    text = re.sub('segue.name = "([bst])"', r'segue.name = "\1", segue.optimizer = "sgd"', FORWARD) if made.kind == "muon" else FORWARD
    done = subprocess.run([SEGUE_OPT, "-", "--segue-autodiff", f"--segue-optimizer=optimizer={made.spec()},state-bits=8"], input=text,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == made._has_codes(), done.stderr
    assert made._has_codes() or "has no state with a code of 8 bits" in done.stderr


def test_grad_norm_is_the_sum_of_all_squares():
    text = segue_opt(FORWARD, "--segue-autodiff", "--segue-optimizer=optimizer=sgd")
    arguments, _ = signature(text, "grad_norm")
    assert [name for name, _ in arguments] == ["grad.w", "grad.b", "grad.s", "grad.t"]
    gradients = [torch.randn(shape) for shape in SHAPES.values()]
    lines = [f"    %c{k} = segue.constant {constant(g)} : {type_}"
             for k, (g, (_, type_)) in enumerate(zip(gradients, arguments))]
    lines.append(f"    %n:5 = func.call @grad_norm(%c0, %c1, %c2, %c3) : ({', '.join(t for _, t in arguments)}) -> "
                 "(tensor<4xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)")
    found, *each = run_main(text, lines, [("%n#0", "tensor<4xf32>"), *((f"%n#{k}", "tensor<1xf32>") for k in range(1, 5))])
    assert found == [value for [value] in each] == pytest.approx([gradient.square().sum().item() for gradient in gradients], rel=1e-5)
    assert sum(found) == pytest.approx(torch.nn.utils.get_total_norm(gradients).item()**2, rel=1e-5)


@pytest.mark.parametrize("in_backward", [False, True])
def test_squares_of_many_gradients_are_joined_in_groups(in_backward):
    """A value that a kernel joins is a parameter of it, of which a GPU's kernel has room for some hundred."""
    count, width = 300, 8
    role = "{segue.name = \"%s\", segue.role = #segue.role<%s>}"
    arguments = ", ".join(f"%w{i}: tensor<{width}xf32> {role % (f'w{i}', 'parameter')}" for i in range(count))
    sums = [f"  %h{i + 1} = segue.mul %h{i}, %w{i} : tensor<{width}xf32>" for i in range(count)]
    text = "\n".join([f"func.func @forward(%h0: tensor<{width}xf32> {role % ('x', 'input')}, {arguments}) -> (tensor<f32> {role % ('loss', 'output')}) {{", *sums,
                      f"  %loss = segue.reduce sum %h{count} dims [0] : tensor<{width}xf32> -> tensor<f32>", "  return %loss : tensor<f32>", "}"])
    passes = ["segue-autodiff", "segue-optimizer{optimizer=sgd}", *(["segue-update-in-backward"] if in_backward else []), "cse", "canonicalize"]
    joins = r"segue.concat ((?:%\w+(?:, )?)+) dim"
    flat = segue_opt(text, f"--pass-pipeline=builtin.module({','.join(passes)})")
    assert sorted(inputs.count("%") for inputs in re.findall(joins, flat)) == [3, 44, 128, 128]
    fused = segue_opt(text, f"--pass-pipeline=builtin.module({','.join(passes)},func.func(segue-form-kernels))")
    regions = [sum(inputs.count("%") for inputs in re.findall(joins, region)) for region in fused.split("segue.fused")[1:]]
    assert sum(regions) == 303 and max(regions) <= 256, regions


def test_the_guide_is_true(capsys):
    guide = (Path(__file__).parents[2] / "docs/guides/optimizers.md").read_text()
    torch.manual_seed(0)
    scope = {"__name__": "guide"}
    for code in re.findall(r"^```python\n(.*?)^```$", guide, re.M | re.S):
        exec(compile(code, "optimizers.md", "exec"), scope)
    assert len(scope["seen"]) == len(scope["frozen"]) == 3
    first, last, averaged = map(float, re.findall(r"\d+\.\d+", capsys.readouterr().out))
    assert averaged < 2 * last < first / 2
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", guide, re.M))))
    assert listed == {cls.__name__ for cls in KINDS.values()}
