"""Machine code of files: whose runs, and that nothing else maps it (the tools: test/tools/segue-run/native-code.test)."""

import os
import pickle
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import segue

BIN = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build")) / "bin"
SIM = "sim:dram=64MiB,link=16GB/s"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return torch.tanh(self.linear(x)).sum()


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Says whose key counts from now on."""
    return lambda name: monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / name))


@pytest.fixture
def saved(tmp_path, users):
    """A file of another user, its weights, and what it gives."""
    users("theirs")
    net, x = Net(), torch.randn(4, 5)
    model = segue.compile(net, (x,), optimizer=segue.SGD())
    model.save(tmp_path / "net.segue")
    assert segue.load(tmp_path / "net.segue", net.state_dict())(x).item() == model(x).item()  # their own runs
    users("mine")
    return tmp_path / "net.segue", net.state_dict(), x, model(x).item()


def test_a_file_of_another_user_is_refused(saved):
    path, state, x, expected = saved
    with pytest.raises(segue.NativeCodeRefusedError, match="segue-run trust FILE.*allow_native_kernels=True") as refused:
        segue.load(path, state)(x)
    assert refused.value.code == "NATIVE_CODE_REFUSED"
    assert segue.load(path, state, allow_native_kernels=True)(x).item() == expected
    with pytest.raises(segue.NativeCodeRefusedError):
        segue.load(path, state, allow_native_kernels=False)(x)


def test_it_is_inspected_and_planned_all_the_same(saved):
    path, state, x, expected = saved
    model = segue.load(path, state, device=SIM, allow_native_kernels=False)
    assert "machine code does not run: whoever loaded it refused that" in model.inspect()
    assert model.memory().unconstrained.peak_bytes > 0
    with pytest.raises(segue.NativeCodeRefusedError):
        model(x)
    assert "does not run: it is not signed" in segue.load(path).inspect()


def test_it_is_trusted_by_the_tool(saved, monkeypatch):
    path, state, x, expected = saved
    subprocess.run([BIN / "segue-run", "trust", path], check=True, timeout=60)
    assert "machine code is trusted: it is signed" in segue.load(path).inspect()
    assert segue.load(path, state)(x).item() == expected
    with pytest.raises(segue.NativeCodeRefusedError):
        segue.load(path, state, allow_native_kernels=False)(x)


def test_the_environment_allows_every_file(saved, monkeypatch):
    path, state, x, expected = saved
    monkeypatch.setenv("SEGUE_ALLOW_NATIVE", "1")
    assert segue.load(path, state)(x).item() == expected


def test_without_a_home_all_but_the_signature_is_there(tmp_path, monkeypatch, caplog):
    """What is compiled here never left the process: it runs, trains and is saved."""
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/none")
    net, x = Net(), torch.randn(4, 5)
    model = segue.compile(net, (x,))
    expected = model(x)
    expected.backward()
    caplog.set_level("WARNING", "segue")
    model.save(tmp_path / "net.segue")
    assert "net.segue is not signed" in caplog.text and "/dev/null/none/segue cannot be made" in caplog.text
    with pytest.raises(segue.NativeCodeRefusedError):
        segue.load(tmp_path / "net.segue", net.state_dict())(x)
    again = segue.load(tmp_path / "net.segue", net.state_dict(), allow_native_kernels=True)
    assert again(x).item() == expected.item()
    assert torch.compile(net, backend="segue")(x).item() == pytest.approx(expected.item())


def targets(file: Path) -> str:
    shown = subprocess.run([BIN / "segue-run", "inspect", file], capture_output=True, text=True, timeout=60, check=True).stdout
    return next(line.split(" = ")[1] for line in shown.splitlines() if "option targets" in line)


def test_a_process_compiles_for_its_processor_and_a_file_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGUE_ISA", "v3")  # a processor without AVX-512, on every machine
    assert segue._runtime.kernel_target() == "x86-64-v3"
    x = torch.randn(4, 5)
    model = segue.compile(Net(), (x,))
    expected = model(x)
    (here,) = model._primary._bytes.values()
    (tmp_path / "here.segue").write_bytes(here)
    model.save(tmp_path / "all.segue")
    assert targets(tmp_path / "here.segue") == "x86_64_v3" and targets(tmp_path / "all.segue") == "x86_64_v3,x86_64_v4"
    assert torch.equal(segue.load(tmp_path / "all.segue", model.state_dict())(x), expected)
    carried = pickle.dumps(model)
    monkeypatch.setattr(segue.module, "_target_of", lambda on: "x86-64-v4")  # the copy comes to another processor
    copy = pickle.loads(carried)
    copy.build()
    assert [key[0] for key in copy._primary._bytes] == ["x86-64-v3", "x86-64-v4"]
    (tmp_path / "there.segue").write_bytes(list(copy._primary._bytes.values())[1])
    assert targets(tmp_path / "there.segue") == "x86_64_v4"
