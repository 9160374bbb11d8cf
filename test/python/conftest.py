# ===- conftest.py - what all Python tests share ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A fixed seed and two threads for every test; the time limit is set in pyproject.toml."""

import gc
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from claims import pytest_runtest_protocol  # noqa: F401

# What a test compiles is signed with a key of this build, not of its user.
BUILD = Path(os.environ.get("SEGUE_BUILD", Path(__file__).resolve().parents[2] / "build"))
os.environ["XDG_DATA_HOME"] = str(BUILD / "check" / "data")
os.environ.pop("SEGUE_ALLOW_NATIVE", None)
# Tests are about what is compiled now: the cache is this run's alone. What several tests compile, at most 256 MiB of it, is
# compiled once; test_compile_cache.py has folders of its own.
(BUILD / "check").mkdir(parents=True, exist_ok=True)
_compiled = tempfile.TemporaryDirectory(prefix="compiled-", dir=BUILD / "check")
os.environ |= {"SEGUE_CACHE_DIR": _compiled.name, "SEGUE_CACHE_SIZE": "256MiB"}

# Whoever runs tests in the background (nohup, &) ignores SIGINT, and programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest listens to every logger that does not propagate. PyTorch prints each graph of a compile into this one as soon as
# anybody listens, which takes up to a tenth of a compile's time.
logging.getLogger("torch.__trace").propagate = True

_imported = set()  # those of PyTorch's modules whose objects the collector no longer looks through


def _freeze_imports():
    """PyTorch's objects of its imports stay: the collector need not look through them time and again."""
    imported = {"torch", "torch._dynamo", "torch._inductor.pattern_matcher"} & sys.modules.keys()
    if imported != _imported:
        _imported.update(imported)
        gc.collect()
        gc.freeze()


_freeze_imports()


@pytest.fixture(autouse=True)
def seeded():
    _freeze_imports()
    torch.manual_seed(0)
    torch.set_num_threads(2)


@pytest.fixture
def fresh_backend():
    """For tests of `torch.compile(backend="segue")`: no segment of another test, and warnings of fallback are errors unless it waits for them."""
    import segue

    torch.compiler.reset()
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error", segue.FallbackWarning)
        yield


@pytest.fixture
def without_a_sine(monkeypatch):
    """Segue lacks two operators, whatever it will learn: the sine, and `torch.expm1`."""
    from segue.frontend.ops import OPS

    for name in ("aten.sin.default", "aten.expm1.default"):
        monkeypatch.delitem(OPS, name)
