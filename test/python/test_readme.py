"""The README is true: its commands run, its Python is a file that runs, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "newcomer"))

from first_loss import STAGES  # noqa: E402

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
COMMANDS = [line.split("#")[0].strip() for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.split("#")[0].strip()]

# Commands that would take minutes run with smaller numbers, or are what is running right now.
SHORTER = {
    "make demo": "make demo DEMO_ARGS='--steps 6 --sample 8 --dim 32 --layers 2 --out {tmp}/demo'",
    "make bench": "make bench BENCH_ARGS='--config T --rounds 1 --steps 21 --peers segue,eager --table {tmp}/step.md'",
}
RUNNING_NOW = {"make check"}
# These commands are run by test_bigger_than_memory.py, on a smaller model.
ELSEWHERE = {command for command in COMMANDS if "examples/bigger_than_memory.py" in command}
# Python that has PyTorch imported already runs the commands but the first and the quickstart, which a reader runs first.
PYTHON = ".venv/bin/python"


def environment() -> dict:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}



def test_opens_with_the_two_commands():
    assert COMMANDS[:2] == ["make demo", "make check"]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in RUNNING_NOW | ELSEWHERE])
def test_command(command, tmp_path):
    shorter = SHORTER.get(command, command).format(tmp=tmp_path).replace(PYTHON, warm.python())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", shorter], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "%|" not in done.stdout + done.stderr, "a bar was drawn into a log"
    if command == "make demo":
        # The output has what bench/newcomer/first_loss.py waits for, in its order, but for stages of a build, which has been made.
        assert re.search(".*".join(seen for seen, _ in STAGES if seen.startswith(("A ", "Compiled", "step", "Written"))), done.stdout, re.S)
        assert "setup: ready" in done.stderr


def test_python_is_the_quickstart():
    assert [text for kind, text in BLOCKS if kind == "python"][0] == (ROOT / "examples" / "quickstart.py").read_text()


def test_quickstart_runs():
    done = subprocess.run([sys.executable, ROOT / "examples" / "quickstart.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1.0  # it started at ln(10) = 2.3


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_link(link):
    assert "://" in link or (ROOT / link).exists()
