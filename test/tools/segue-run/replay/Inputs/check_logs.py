"""Replays every golden log of a folder: usage `check_logs.py FOLDER segue-run...`.

A golden log is a *.json file whose events say what they expect. Each is
replayed twice with --check: it must agree, and give the same bytes both times.
"""

import subprocess
import sys
from pathlib import Path

folder, tool = Path(sys.argv[1]), sys.argv[2:]
logs = sorted(folder.glob("*.json"))
failed = []
for log in logs:
    first, second = (subprocess.run([*tool, "replay", "--check", log], capture_output=True, timeout=60) for _ in range(2))
    if first.returncode != 0:
        failed.append(f"{log.name}: status {first.returncode}\n{first.stderr.decode()}")
    if first.stderr:
        failed.append(f"{log.name}: talks\n{first.stderr.decode()}")
    if first.stdout != second.stdout:
        failed.append(f"{log.name}: two runs differ")
    if '"expect"' not in log.read_text():
        failed.append(f"{log.name}: expects nothing")
print("\n".join(failed) or f"{len(logs)} logs agree")
sys.exit(bool(failed or not logs))
