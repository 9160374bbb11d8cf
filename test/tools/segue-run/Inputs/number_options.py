"""Every numeric option of segue-run refuses what is out of its range, before anything is looked for or done.

The options and their ranges are those that --help shows: a new option is tested from its first day. One that takes a
number and shows no range is a mistake.
"""

import re
import subprocess

NO_NUMBERS = ["", "nan", "inf", "-inf", "1e999", "1x", "0x10", "9" * 40, "-" + "9" * 40, "10" * 300]


def call(*words):
    return subprocess.run(["segue-run", *words], capture_output=True, text=True, timeout=20)


def outside(kind, low, high):
    """Texts that lie next to the range, and far from it."""
    if kind == "bytes":
        return ["0", "-1", "0.5", "1.5KiB1", "9007199254740994", "8193TiB", "64MBit", "1e3", "+5MiB"]
    low, high = float(low), float(high)
    near = [f"{low - 1:.0f}", f"{high + 1:.0f}"] if high < 2**53 else []
    return near + ["1.5"] * (kind == "whole number")


commands = re.findall(r"^  ([a-z]+)  ", call("--help").stdout, re.M)
assert len(commands) >= 10, commands
seen = 0
for command in commands:
    help_text = call(command, "--help").stdout
    assert not re.search(r"--\S+ (INT|UINT|FLOAT|NUMBER|SIZE)\b", help_text), (command, help_text)
    for names, kind, low, high in re.findall(r"^ +(--[\w,-]+) +(whole number|number|bytes) from (\S+) to ([^\s=]+)", help_text, re.M):
        option = names.split(",")[0]
        seen += 1
        for text in NO_NUMBERS + outside(kind, low, high):
            done = call(command, f"{option}={text}")
            said = (command, option, text, done.returncode, done.stderr)
            assert done.returncode == 2, said
            assert option in done.stderr and text[:40] in done.stderr and f"from {low} to {high}" in done.stderr, said
assert seen >= 21, seen
print(f"{seen} numeric options")
