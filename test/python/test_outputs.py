# ===- test_outputs.py - what runs leave, and how they end ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Outputs of all programs: links stay links, pipes are written through, what cannot be written is refused before the work.
A signal ends a run in order; a disk that is full costs a checkpoint and not the run."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import warm

import segue

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SEGUE_BUILD", ROOT / "build")) / "bin"
INPUTS = ROOT / "test/tools/segue-run/Inputs"


def call(*command, status=0, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, timeout=60, **more)
    assert done.returncode == status, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def bigram(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bigram")
    call(BIN / "segue-compile", INPUTS / "bigram.mlir", "--optimizer=adamw", "-o", folder / "bigram.segue")
    (folder / "text").write_bytes(bytes(i * i % 251 for i in range(4000)))
    return folder


def train(bigram, *more):
    begin = () if "--resume" in more else ("--parameter", "table=256x256xf32=0")
    return [str(a) for a in (BIN / "segue-run", "train", bigram / "bigram.segue", *begin, "--data", bigram / "text", "--lr", "0.02",
                             "--device", "cpu:threads=1", *more)]


# --- places that cannot be written ------------------------------------------------------------


@pytest.mark.parametrize("place", ["folder", "file/below", "missing/below"])
def test_refused_before_the_work(bigram, tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    there = tmp_path / place
    for flag in ("--trace", "--report") if place == "folder" else ("--save", "--trace", "--report"):  # checkpoints may be folders
        done = call(*train(bigram, "--steps", "3", flag, there), status=1)
        assert done.stdout == b"", "no step was made"
        assert f"IO_FAILED: {flag}: {there}: ".encode() in done.stderr
    # The input is no MLIR: had the work begun, that would be the error.
    done = call(BIN / "segue-compile", bigram / "text", "-o", there, status=1)
    assert str(there).encode() in done.stderr and b"error:" not in done.stderr
    call(BIN / "segue-translate", "--prog-to-flatbuffer", bigram / "text", "-o", there, status=1)
    done = call(BIN / "segue-run", "report", "--telemetry", bigram / "text", "-o", there, status=1)
    assert str(there).encode() in done.stderr
    done = call(BIN / "segue-run", "quantize", bigram / "text", "-o", tmp_path / "missing/slab", status=1)
    module = segue.compile(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    with pytest.raises(segue.FileError, match="IO_FAILED"):
        module.save(there)
    assert not module._primary._bytes, "nothing was compiled for it"
    with pytest.raises(segue.FileError, match="IO_FAILED"):
        segue.Trainer([module], optimizer=segue.SGD(), trace=there)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("place", ["file/", "missing/below/", "weights"])
def test_a_folder_for_checkpoints_is_refused_before_the_work(bigram, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    done = call(*train(bigram, "--steps", "3", "--save", f"{tmp_path}/{place}"), status=1)
    assert done.stdout == b"" and re.search(rf"(IO_FAILED|INVALID_ARGUMENT): --save: {tmp_path}/{place}".encode(), done.stderr), done.stderr
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_one_file_for_two_outputs_is_refused(bigram, tmp_path):
    (tmp_path / "link").symlink_to("out")
    done = call(*train(bigram, "--steps", "1", "--save", tmp_path / "out", "--trace", tmp_path / "link"), status=1)
    assert b"--save and --trace both name" in done.stderr and not (tmp_path / "out").exists()


# --- links and pipes ----------------------------------------------------------------------------


def writers(bigram):
    """Commands that write `out`, by name."""
    source = INPUTS / "bigram.mlir"
    return {
        "segue-compile": [BIN / "segue-compile", source, "--inference-only", "-o", "out"],
        "segue-opt": [BIN / "segue-opt", source, "-o", "out"],
        "segue-translate": [BIN / "segue-translate", "--flatbuffer-to-prog", bigram / "bigram.segue", "-o=out"],
        "--save": train(bigram, "--steps", "1", "--save", "out"),
        "--trace": train(bigram, "--steps", "1", "--trace", "out"),
        "--report": train(bigram, "--steps", "1", "--report", "out"),
    }


@pytest.mark.parametrize("writer", ["segue-compile", "segue-opt", "segue-translate", "--save", "--trace", "--report"])
def test_links_stay_and_pipes_are_written_through(bigram, tmp_path, writer):
    command = writers(bigram)[writer]
    plain, linked, piped = tmp_path / "plain", tmp_path / "linked", tmp_path / "piped"
    for folder in (plain, linked, piped):
        folder.mkdir()
    call(*command, cwd=plain)
    whole = (plain / "out").read_bytes()
    (linked / "there").mkdir()
    (linked / "there/target").write_text("old")
    (linked / "there/target").chmod(0o640)
    (linked / "out").symlink_to("there/target")
    call(*command, cwd=linked)
    target = linked / "there/target"
    assert (linked / "out").is_symlink() and not target.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    os.mkfifo(piped / "out")
    found = []
    reader = threading.Thread(target=lambda: found.append((piped / "out").read_bytes()))
    reader.start()
    call(*command, cwd=piped)
    reader.join(timeout=60)
    assert (piped / "out").is_fifo()
    for written in (target.read_bytes(), found[0]):
        assert written == whole or writer in ("--trace", "--report") and len(written) > len(whole) // 2  # times differ
    for folder, count in ((plain, 1), (linked, 2), (piped, 1)):
        assert len(list(folder.iterdir())) == count, "nothing else is left"


def test_a_failed_translation_leaves_the_old_file_and_its_link(bigram, tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    for tool in (("segue-translate", "--prog-to-flatbuffer"), ("segue-opt",), ("segue-compile",)):
        call(BIN / tool[0], *tool[1:], bigram / "text", "-o", tmp_path / "link", status=1)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "old"


def test_python_writes_through_links(tmp_path):
    module = segue.compile(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    (tmp_path / "m.segue").symlink_to("target.segue")
    (tmp_path / "m.safetensors").symlink_to("target.safetensors")
    module.save(tmp_path / "m.segue", weights=True)
    assert (tmp_path / "m.segue").is_symlink() and (tmp_path / "m.safetensors").is_symlink()
    loaded = segue.load(tmp_path / "target.segue", tmp_path / "target.safetensors")
    x = torch.randn(1, 2)
    assert torch.equal(loaded(x), module(x))


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_after_the_step(bigram, tmp_path, number, status):
    outputs = [tmp_path / name for name in ("checkpoint", "trace", "report.html")]
    process = subprocess.Popen(train(bigram, "--steps", "1000000", "--save", outputs[0], "--trace", outputs[1], "--report", outputs[2]),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(number)
    lines += process.stdout.readlines()
    talk = process.stderr.read()
    assert process.wait(timeout=60) == status, talk
    assert lines[-1].endswith("\n") and "ending after the step in progress" in talk
    assert sorted(tmp_path.iterdir()) == sorted(outputs), "whole, and nothing partial beside them"
    steps = len(lines)
    whole = call(*train(bigram, "--steps", steps + 2), text=True).stdout.splitlines(keepends=True)
    assert lines == whole[:steps]
    more = call(*train(bigram, "--until", steps + 2, "--resume", outputs[0]), text=True).stdout.splitlines(keepends=True)
    assert more == whole[steps:]


def test_a_second_signal_ends_at_once(bigram, tmp_path):
    # A pipe that nobody reads holds the run where it writes its trace.
    os.mkfifo(tmp_path / "trace")
    process = subprocess.Popen(train(bigram, "--steps", "1000000", "--trace", tmp_path / "trace"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    while "ms per step" not in process.stderr.readline():  # what comes after the last step
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert [p.name for p in tmp_path.iterdir()] == ["trace"]


def test_a_signal_that_was_ignored_stays_so(bigram, tmp_path):
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731 - as nohup and & do
    process = subprocess.Popen(train(bigram, "--steps", "30"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ignore)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


# --- a disk that is full --------------------------------------------------------------------------


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(bigram, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    process = subprocess.Popen(train(bigram, "--steps", "1000000", "--save", checkpoint, "--save-every", "2"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not checkpoint.exists():
        process.stdout.readline()
    # No file of this process may grow from here on, as on a disk that is full.
    unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    warning = process.stderr.readline()
    last_good = checkpoint.read_bytes()
    lines = [process.stdout.readline() for _ in range(20)]
    assert lines[-1].startswith("step "), "training goes on"
    assert checkpoint.read_bytes() == last_good
    assert "warning: no checkpoint of step" in warning and "File too large" in warning
    call(*train(bigram, "--steps", "1", "--resume", checkpoint))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
    process.send_signal(signal.SIGINT)
    rest, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk
    assert checkpoint.read_bytes() != last_good
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_a_checkpoint_that_cannot_be_written_at_the_end_is_an_error(bigram, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))  # noqa: E731 - a trace has room, three tables have not
    done = call(*train(bigram, "--steps", "2", "--save", tmp_path / "c", "--trace", tmp_path / "t"), status=1, preexec_fn=limit)
    assert done.stdout.count(b"step") == 2 and b"/c: cannot be written: File too large" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["t"], "the trace is there all the same"


def test_results_that_nobody_gets_are_no_success(bigram, tmp_path):
    """On a full disk, or into a file that is closed; what a run saves is there all the same."""
    for command in ([BIN / "segue-run", "inspect", bigram / "bigram.segue"], train(bigram, "--steps", "2", "--save", tmp_path / "c")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([str(c) for c in command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1 and "IO_FAILED: stdout: results could not be written" in done.stderr, done.stderr
        closed = subprocess.run([str(c) for c in command], preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, text=True, timeout=60)
        assert closed.returncode == 1 and "stdout: results could not be written" in closed.stderr, closed.stderr
    call(*train(bigram, "--steps", "1", "--resume", tmp_path / "c"))


# --- files that are read ----------------------------------------------------------------------------


def test_a_folder_in_the_place_of_a_file_is_named(bigram, tmp_path):
    report = [BIN / "segue-run", "report", "--telemetry", bigram / "text", "--trace", tmp_path, "-o", tmp_path / "r.html"]
    (bigram / "lines.jsonl").write_text("{}")
    report[3] = bigram / "lines.jsonl"
    for command in ([tmp_path if word == str(bigram / "text") else word for word in train(bigram, "--steps", "1")], report):
        assert f"IO_FAILED: {tmp_path}: cannot be read: Is a directory".encode() in call(*command, status=1).stderr


def test_a_text_that_changes_ends_a_run_with_its_checkpoint(bigram, tmp_path):
    """A text lies where it is. A run that goes on from what was saved learns from the bytes that are there then, and says nothing of others."""
    text = tmp_path / "text"
    text.write_bytes((bigram / "text").read_bytes())
    begin = [text if a == str(bigram / "text") else a for a in train(bigram, "--steps", "1000000", "--save", tmp_path / "c")]
    process = subprocess.Popen([str(a) for a in begin], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(3)]
    with open(text, "ab") as file:
        file.write(b"more")
    said, warned = process.communicate(timeout=60)
    assert process.returncode == 1 and f"SOURCE_CHANGED: {text}: was written to while a run learns from it" in warned, warned
    done = int([*lines, *said.splitlines()][-1].split()[1])
    assert call(*train(bigram, "--steps", "1", "--resume", tmp_path / "c")).stdout.startswith(f"step {done + 1} ".encode())
    replaced = subprocess.Popen([str(a) for a in begin], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    replaced.stdout.readline()
    (tmp_path / "new").write_bytes(b"x" * 4000)
    (tmp_path / "new").rename(text)
    lines = [replaced.stdout.readline() for _ in range(20)]
    assert lines[-1].startswith("step "), "the file that was opened is what it was"
    replaced.terminate()
    assert replaced.wait(timeout=60) == 143


# --- Python -----------------------------------------------------------------------------------------


INTERRUPTED = """
import signal, sys, torch, segue
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)
    def forward(self, x):
        loss = self.fc(x).square().mean()
        return {"loss": loss}
torch.manual_seed(0)
net = Net()
trainer = segue.Trainer([segue.compile(net, (torch.ones(8, 4),))], optimizer=segue.SGD(), device=sys.argv[1], report=sys.argv[2])
def batches():
    for i in range(1000):
        if i == 5:
            signal.raise_signal(signal.SIGINT)
        yield {"x": torch.ones(8, 4)}
step = trainer._session.step
class Interrupting:  # the signal comes while the step runs
    def __getattr__(self, name):
        return getattr(session, name)
    def step(self, *args):
        result = session.step(*args)
        if session.step_count == 3:
            signal.raise_signal(signal.SIGINT)
            for _ in range(100): pass
        return result
session = trainer._session
trainer._session = Interrupting()
try:
    trainer.fit(batches())
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("nothing was raised")
assert trainer.step_count == 3 and trainer.last.step == 3, trainer.last.step
trainer._session = session
same = {n: torch.equal(p, trainer.parameters()[n]) for n, p in net.named_parameters()}
assert all(same.values()), same
try:
    trainer.fit(batches())
except KeyboardInterrupt:
    pass
assert trainer.step_count == 8
assert all(torch.equal(p, trainer.parameters()[n]) for n, p in net.named_parameters())
trainer.close()
"""


@pytest.mark.parametrize("device", ["cpu:threads=1", "sim:dram=16MiB,threads=1"])
def test_an_interrupted_trainer_loses_nothing(tmp_path, device):
    call(warm.python(), "-c", INTERRUPTED, device, tmp_path / "report.html",
         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (tmp_path / "report.html").stat().st_size > 1000
