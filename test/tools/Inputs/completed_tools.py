"""Each tool above LLVM offers every option that its --help lists, keys of passes behind their passes, and nothing twice."""

import re
import subprocess

KEY = re.compile(r"^[\w.-]+=$")


def printed(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


for tool in ("segue-opt", "segue-compile", "segue-translate", "segue-lsp-server"):
    script = printed(tool, "--completion=bash")
    (offered,) = re.findall(r"\*\) if \[\[ \$current == -\* \]\]; then words='([^']*)'", script)
    names = offered.split()
    assert len(set(names)) == len(names), (tool, sorted(name for name in set(names) if names.count(name) > 1))
    keys = {word[:-1] for words in re.findall(r"\) words='([^']*)'", script) for word in words.split() if KEY.match(word)}
    listed = set(re.findall(r"^ {2,8}(--?[A-Za-z0-9][\w.-]*)", printed(tool, "--help"), re.M))
    lacking = [name for name in listed - set(names) if name.lstrip("-") not in keys and name != "--help-list"]  # LLVM lists that one for --help alone
    assert lacking == [], (tool, lacking)
    assert set(names) <= listed, (tool, set(names) - listed)
    for shell in ("zsh", "fish"):
        other = printed(tool, f"--completion={shell}")
        lacking = [name for name in names if not re.search(rf"{re.escape(name)}\b" if shell == "zsh" else rf"-[ls] {re.escape(name.lstrip('-'))}\b", other)]
        assert lacking == [], (tool, shell, lacking)
    print(f"{tool}: {len(names)} options, {len(keys)} keys of passes")
