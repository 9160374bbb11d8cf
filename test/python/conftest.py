# ===- conftest.py - what all Python tests share ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every test has a time limit, two threads and a fixed seed."""

import os
import signal

import pytest
import torch

LIMIT_SECONDS = int(os.environ.get("SEGUE_TEST_LIMIT", "180"))


@pytest.fixture(autouse=True)
def limited_and_seeded():
    torch.manual_seed(0)
    torch.set_num_threads(2)

    def late(signum, frame):
        raise TimeoutError(f"the test took more than {LIMIT_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
