# ===- test_typing.py - types of the package, and stubs of its native modules ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""mypy finds nothing in the package nor in a script that uses every public name; stubs say what the bindings have."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD

import segue

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "test" / "python" / "typed_script.py"


def test_mypy_finds_nothing():
    """In its strict mode, within the package and for users."""
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", BUILD / "check" / "mypy",
                           ROOT / "python" / "segue", SCRIPT], capture_output=True, text=True, timeout=280,
                          env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"MYPYPATH": str(ROOT / "python")})
    assert done.returncode == 0 and done.stdout.startswith("Success"), done.stdout + done.stderr


def test_the_script_uses_every_public_name():
    used = set(re.findall(r"\bsegue\.(\w+)", SCRIPT.read_text()))
    assert set(segue.__all__) - used == set()
    assert set(dir(segue)) == {*segue.__all__, "__version__", "__doc__", "__name__", "__path__", "__file__"}


def test_public_names_are_typed_and_documented():
    """Also methods and properties: what a completion offers, help explains."""
    for name in segue.__all__:
        found = getattr(segue, name)
        if inspect.ismodule(found):
            continue
        assert found.__doc__, name
        own = inspect.isclass(found) and {n: m for cls in found.__mro__ if cls.__module__.startswith("segue") for n, m in vars(cls).items()} or {name: found}
        for member, value in own.items():
            function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
            if member.startswith("_") or not inspect.isfunction(function):
                continue
            if not member.startswith("on_"):
                assert inspect.getdoc(getattr(found, member, found)), f"{name}.{member} has no docstring"
            lacking = [p.name for p in inspect.signature(function).parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
            assert not lacking and "return" in function.__annotations__, f"{name}.{member}: {lacking or 'the result'} has no type"


def test_completion_offers_what_is_documented():
    """Attributes too: what an object has besides methods is in the section Attributes of its class."""
    import torch

    module = segue.compile(torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0), torch.nn.Softmax(0)), torch.zeros(1, 2))
    trainer = segue.Trainer([module], optimizer=segue.SGD())
    for found in (trainer, module, trainer.memory):
        cls = type(found)
        for name in (n for n in vars(found) if not n.startswith("_") and n not in vars(torch.nn.Module())):
            assert re.search(rf"^    (\w+, )*{name}\b", inspect.cleandoc(cls.__doc__).replace("\n", "\n    "), re.M), f"{cls.__name__}.{name} is not in its docstring"
    assert {"step", "fit", "memory", "last"} <= {*dir(segue.Trainer), "last"} and not [n for n in dir(trainer) if n.startswith(("segue", "torch"))]


# --- stubs ---------------------------------------------------------------------------------------------


def shape_of(function):
    """Names of arguments, whether each has a default, and what kind of method it is. Arguments that the bindings do not name have none."""
    kinds = sorted(each.id for each in function.decorator_list if isinstance(each, ast.Name))
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [False] * (len(arguments) - len(function.args.defaults)) + [True] * len(function.args.defaults)
    named = [("" if a.arg.startswith("arg") and a in function.args.posonlyargs else a.arg, d) for a, d in zip(arguments, defaults)]
    return kinds, named


def members(body):
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = members(node.body)
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = shape_of(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = (["property"], [("self", False)])  # `loss: float` in a stub is an attribute that is read
    hidden = [n for n in found if n.startswith("_") and n not in ("__init__", "__enter__", "__exit__", "__bool__", "__dlpack__", "__dlpack_device__")]
    return {name: value for name, value in found.items() if name not in hidden}


def differences(stub, made, path):
    for name in sorted({*stub, *made}):
        where = f"{path}.{name}"
        if name not in stub or name not in made:
            yield f"{where} is {'in the bindings alone' if name in made else 'in the stub alone'}"
        elif isinstance(made[name], dict) or isinstance(stub[name], dict):
            yield from differences(stub[name], made[name], where)
        else:
            (kinds, arguments), (made_kinds, made_arguments) = stub[name], made[name]
            same = len(arguments) == len(made_arguments) and all(m[0] in ("", s[0]) and m[1] == s[1] for s, m in zip(arguments, made_arguments))
            if kinds != made_kinds or not same:
                yield f"{where} is {kinds} {arguments} in the stub, and {made_kinds} {made_arguments} in the bindings"


def generated(name):
    from nanobind.stubgen import StubGen

    module = importlib.import_module(f"segue.{name}")
    generator = StubGen(module)
    generator.put(module)
    return members(ast.parse(generator.get()).body)


def stub_of(name):
    return members(ast.parse((ROOT / "python" / "segue" / f"{name}.pyi").read_text()).body)


@pytest.mark.parametrize("name", ["_runtime", "_compiler"])
def test_the_stub_is_that_of_the_bindings(name):
    assert list(differences(stub_of(name), generated(name), name)) == []


def test_a_stub_that_is_behind_is_noticed():
    made, stub = generated("_runtime"), stub_of("_runtime")
    del stub["Session"]["seal"], stub["Value"]["role"]
    stub["submit"] = ([], [("device", False)])
    stub["Module"]["backward"][1][3] = ("keep", False)
    stub["gone"] = ([], [])
    assert [text.split(" is ")[0] for text in differences(stub, made, "m")] == ["m.Module.backward", "m.Session.seal", "m.Value.role", "m.gone", "m.submit"]
