"""Every option that --help lists is offered by the script of completion, and --help lists each once."""

import re
import subprocess
import sys
from pathlib import Path

script = Path(sys.argv[1]).read_text()


def help_of(*words):
    return subprocess.run(["segue-run", *words, "--help"], capture_output=True, text=True, timeout=20).stdout


commands = re.findall(r"^  ([a-z][a-z-]*)  ", help_of(), re.M)
assert "profile-device" in commands and "train" in commands, commands
seen = 0
for command in commands:
    listed = [name for names in re.findall(r"^  (-\S+)", help_of(command), re.M) for name in names.split(",")]
    plain = [name.replace("_", "-") for name in listed]
    assert len(set(plain)) == len(plain), (command, sorted(plain))
    offered = re.search(rf"^    {command}\) .*?words='([^']*)'", script, re.M)[1].split()
    assert sorted(offered) == sorted(listed), (command, set(offered) ^ set(listed))
    seen += len(listed)
assert seen > 100, seen
print(f"{seen} options of {len(commands)} commands are offered")
