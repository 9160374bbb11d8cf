#!/usr/bin/env python3
"""What a newcomer waits for: `make demo` in a fresh Debian 12, from nothing to the first loss.

    python bench/newcomer/first_loss.py                         # as root, with debootstrap
    python bench/newcomer/first_loss.py --bind /opt --pip /etc/xdg/pip/pip.conf   # where this machine's pip needs a file and a folder

debootstrap makes a Debian with git, make and nothing else in a folder that is removed afterwards. The commit that is checked out here is
cloned into it, and `make demo` runs there by chroot, without a compiler's cache. Seconds from its start to each of its stages go to
stdout as a Markdown table; what it says goes to a log. Making the Debian and cloning do not count. Exit status 1 if the demo fails.
"""
import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "git,make,ca-certificates"
#: The stages of the demo: each begins with such words in its output, in this order.
STAGES = [
    (r"setup: ready", "packages and the Python environment are installed"),
    (r"\[1/\d+\]", "the build is configured, and begins"),
    (r"A GPT of", "what the demo needs is built"),
    (r"Compiled apart in", "both modules are compiled"),
    (r"step 1 of \d+: loss \d", "**the first loss**"),
    (r"Written to", "Segue and PyTorch have trained, and the text is written"),
]


def run(*command, **options) -> None:
    subprocess.run([str(word) for word in command], check=True, **options)


@contextlib.contextmanager
def mounted(root: Path, binds: list[Path]):
    """Mounts /proc, /dev and `binds` into `root`, the last read-only, as long as the context lasts."""
    made = []
    try:
        for source, options in [("/proc", ["--bind"]), ("/dev", ["--rbind"]), *((bind, ["--bind", "-o", "ro"]) for bind in binds)]:
            target = root / str(source).lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            run("mount", *options, source, target)
            made.append(target)
        yield
    finally:
        for target in reversed(made):
            run("umount", "--recursive", "--lazy", target)


def make_debian(root: Path, args: argparse.Namespace) -> None:
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root, args.mirror, stdout=sys.stderr)
    suites = [f"deb {args.mirror} bookworm main", f"deb {args.mirror} bookworm-updates main", f"deb {args.mirror}-security bookworm-security main"]
    (root / "etc/apt/sources.list").write_text("\n".join(suites) + "\n")
    for file in (Path("/etc/resolv.conf"), Path("/etc/ssl/certs/ca-certificates.crt"), *args.pip):
        if file.exists():
            target = root / str(file).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    run("git", "clone", "--quiet", ROOT, root / "root/segue")


def timed_demo(root: Path, args: argparse.Namespace) -> list[tuple[float, str]]:
    """Runs the demo. Returns the seconds to each stage that it came to."""
    kept = {name: os.environ[name] for name in os.environ if name.startswith("PIP_") or name.endswith(("_proxy", "_PROXY"))}
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **kept}
    command = ["chroot", str(root), "/bin/sh", "-c", "cd /root/segue && exec make demo"]
    found, left, start = [], list(STAGES), time.monotonic()
    with open(args.log, "w") as log, subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:
        text = ""
        while piece := os.read(demo.stdout.fileno(), 4096):
            now = time.monotonic() - start
            log.write(piece.decode(errors="replace"))
            log.flush()
            text += piece.decode(errors="replace")
            while left and (seen := re.search(left[0][0], text)):
                found.append((now, left.pop(0)[1]))
                text = text[seen.end():]
    if demo.returncode or left:
        sys.exit(f"make demo ended with {demo.returncode}, before: {left[0][1] if left else 'nothing'}; see {args.log}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="mirror of Debian; its name with -security is that of updates")
    parser.add_argument("--bind", type=Path, action="append", default=[], help="folder of this machine that is read there, too")
    parser.add_argument("--pip", type=Path, action="append", default=[], help="file of pip's configuration that is copied there")
    parser.add_argument("--log", type=Path, default=Path("newcomer.log"), help="file for what the demo says")
    args = parser.parse_args()
    if os.geteuid() or not shutil.which("debootstrap"):
        sys.exit("needs root and debootstrap: apt-get install debootstrap")
    with tempfile.TemporaryDirectory(prefix="segue-newcomer-") as folder:
        root = Path(folder) / "debian"
        make_debian(root, args)
        with mounted(root, args.bind):
            found = timed_demo(root, args)
    print("| seconds | what is there |\n| --: | --- |")
    for seconds, what in found:
        print(f"| {seconds:.0f} | {what} |")


if __name__ == "__main__":
    main()
