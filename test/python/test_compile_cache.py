# ===- test_compile_cache.py - what was compiled before is not compiled again ----------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The cache of compiled files: it gives what was kept and nothing else, whoever wrote into its folder."""

import os
import stat
import subprocess
import sys

import pytest
import torch
from torch import nn

import segue
from segue import compile_cache, compile_process

TEXT = """
func.func @forward(%x: tensor<4xf32> {{segue.name = "x", segue.role = #segue.role<input>}}) -> (tensor<4xf32> {{segue.name = "y"}}) {{
  %0 = segue.{op} %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGUE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch):
    """The names that the compiler itself was asked for."""
    asked, original = [], compile_process._compiled
    monkeypatch.setattr(compile_process, "_compiled", lambda name, arguments: (asked.append(name), original(name, arguments))[1])
    return asked


def entries(cache):
    return sorted(cache.iterdir())


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))


def test_the_next_process_compiles_nothing(cache, compiled):
    x = torch.randn(3, 8)
    y = segue.compile(net(), x)(x)
    assert len(compiled) == len(entries(cache)) == 1
    assert torch.equal(segue.compile(net(), x)(x), y) and len(compiled) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    program = ("import torch, segue\nfrom segue import compile_process\nfrom torch import nn\ntorch.manual_seed(0)\n"
               "net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))\nx = torch.ones(3, 8)\n"
               "f = torch.compile(net, backend='segue')\nf(x).sum().backward()\n"
               "print(len(compile_process._idle))\n")
    children = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=True).stdout.strip()
                for _ in range(2)]
    assert children == ["1", "0"]  # the second needs no compiler


def test_what_decides_the_bytes_decides_the_entry(cache, compiled, tmp_path):
    hints = tmp_path / "hints.json"
    ask = lambda op="exp", **more: compile_process.compile_text(TEXT.format(op=op), "m", training=False, **more)  # noqa: E731
    hints.write_text('{"version": 1, "edges": []}')
    first = ask()
    for ways in ({"op": "log"}, {"target": "x86-64-v3"}, {"l1_bytes": 4096}):
        ask(**ways)
    assert len(compiled) == 4 and ask() == first and len(compiled) == 4
    key = compile_cache._name({"text": "", "stitch_hints": str(hints)})
    hints.write_text('{"version": 1, "edges": [ ]}')
    assert compile_cache._name({"text": "", "stitch_hints": str(hints)}) != key


@pytest.mark.parametrize("harm", ["byte", "cut", "empty", "other", "foreign"])
def test_what_others_put_there_is_not_run(cache, compiled, harm, caplog, monkeypatch, tmp_path):
    ask = lambda op: compile_process.compile_text(TEXT.format(op=op), "m", training=False)  # noqa: E731
    with monkeypatch.context() as context:
        if harm == "foreign":  # all of it made with the key of somebody else
            context.setenv("XDG_DATA_HOME", str(tmp_path / "somebody"))
        good = ask("exp")
    (entry,) = entries(cache)
    data = bytearray(entry.read_bytes())
    if harm == "other":  # a whole entry, under the name of another text
        ask("log")
        (other,) = set(entries(cache)) - {entry}
        data = other.read_bytes()
    elif harm == "byte":
        data[len(data) // 2] ^= 1
    elif harm != "foreign":
        data = data[: 0 if harm == "empty" else 1000]
    entry.write_bytes(data)
    before = len(compiled)
    assert [ask("exp"), ask("exp")] == [good, good] and len(compiled) == before + 1
    assert "is damaged, or not this user's" in caplog.text and len(entries(cache)) == (2 if harm == "other" else 1)


def test_it_keeps_to_its_size(cache, monkeypatch):
    monkeypatch.setenv("SEGUE_CACHE_SIZE", "10KiB")
    cache.mkdir(mode=0o700)
    left = cache / ".new-left"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    entry = lambda i: cache / compile_cache._name({"text": str(i)})  # noqa: E731
    for i in range(6):
        compile_cache.keep({"text": str(i)}, bytes(3000))
        os.utime(entry(i), (i + 2, i + 2))
        assert compile_cache.find({"text": "0"}) == bytes(3000)  # which is used all the time
    assert [i for i in range(6) if entry(i).exists()] == [0, 4, 5]
    assert not left.exists()


def test_a_size_that_is_none_ends_nothing(cache, monkeypatch, caplog):
    monkeypatch.setenv("SEGUE_CACHE_SIZE", "much")
    for i in range(2):
        compile_cache.keep({"text": str(i)}, b"file")
    assert len(entries(cache)) == 2 and caplog.text.count("SEGUE_CACHE_SIZE: ") == 1 and "1GiB are taken" in caplog.text


@pytest.mark.parametrize("place", ["a file", "read-only", "nothing"])
def test_a_folder_that_cannot_be_used_ends_nothing(tmp_path, monkeypatch, place, caplog):
    folder = tmp_path / "there"
    if place == "a file":
        folder.write_text("")
    elif place == "read-only":
        if os.geteuid() == 0:
            folder = tmp_path / ("x" * 300)  # root may write anywhere
        else:
            folder.mkdir(mode=0o500)
    monkeypatch.setenv("SEGUE_CACHE_DIR", "" if place == "nothing" else str(folder))
    x = torch.randn(3, 8)
    for _ in range(2):
        segue.compile(net(), x)(x)
    assert caplog.text.count("compiled code is not kept") == (place != "nothing")
