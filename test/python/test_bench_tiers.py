# ===- test_bench_tiers.py - the benchmark of a disk below the memory, small -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""bench/tiers on a tiny model: every peer runs, bits are equal, and the tables say what moved and what was sealed."""

import os
import re
import subprocess
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))


def test_a_small_run(tmp_path):
    spill = BUILD / "check" / "bench-tiers"  # on the disk of the build: a temporary folder may lie in memory
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "run.py", "--config", "T", "--budgets", "80,1", "--rounds", "1",
                           "--steps", "21", "--threads", "1", "--disk-mib", "2", "--spill-dir", spill, "--work", tmp_path, "--table",
                           tmp_path / "table.md"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in re.findall(r"^\| (?:segue|torch).*", table, re.M)}
    assert re.match(r"^refused: no (plan|step) keeps to ", rows["segue disk 1 %"][1])
    assert re.match(r"^\d+ \+ \d+$", rows["segue disk 80 %"][2]) and rows["segue disk 80 %"][2] != "0 + 0", table
    assert rows["segue"][4] == "1.000"
    assert any(name.startswith("torch eager, limit") for name in rows) and "torch eager" in rows
    assert list(spill.iterdir()) == []


def test_seals_of_a_small_run():
    spill = BUILD / "check" / "bench-seal"
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "seal.py", "--config", "T", "--budget", "80", "--every", "2", "--cycles", "2",
                           "--threads", "1", "--spill-dir", spill], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert len(row) == 10 and float(row[2]) > 1 and float(row[3]) < float(row[0]), done.stdout
    assert list(spill.iterdir()) == []


def test_adapters_on_a_small_slab():
    spill = BUILD / "check" / "bench-lora"
    done = subprocess.run([warm.python(), ROOT / "bench" / "tiers" / "lora.py", "--config", "T", "--budgets", "3,2", "--steps", "2", "--threads", "1",
                           "--spill-dir", spill], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row.strip("| ").split(" | ") for row in done.stdout.splitlines()[-3:]]
    assert [row[1] for row in rows] == ["-", "3", "2"] and all(float(row[4]) <= float(row[1]) for row in rows[1:]), done.stdout
    assert list(spill.iterdir()) == []
