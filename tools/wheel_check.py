#!/usr/bin/env python3
"""Installs the wheel of `make wheel` into clean systems, and runs quickstart and every command there.

    tools/wheel_check.py --folder /var/tmp/segue-systems [bookworm] [trixie]

debootstrap makes the smallest Debian 12 or 13 with its own Python (as root; some minutes), and pip in a fresh environment there installs
the wheel with all that it depends on, as a user does. Neither system has LLVM, MLIR or oneDNN. PyTorch comes from the index that
pip is set up with on this machine (PIP_* in the environment, /etc/pip.conf): with PyPI's own, that is some gigabytes with CUDA's libraries.
Its version is the one of python/requirements.txt, which all tests run with.
A system that is there already is used again, with a new environment.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIRROR = "http://deb.debian.org/debian"
TOOLS = ["segue-run", "segue-compile", "segue-opt", "segue-translate", "segue-lsp-server"]
SYSTEMS = ["bookworm", "trixie"]


def make_system(name: str, root: Path) -> None:
    if (root / "usr" / "bin" / "python3").exists():
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", name, root, MIRROR],
                   check=True, timeout=1800, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def mounted(root: Path):
    """Gives the system /proc and the folders of packages that pip is set up with here, read-only."""
    folders = [Path("/proc"), *(Path(folder) for folder in ("/opt",) if os.path.isdir(folder))]
    done = []
    try:
        for folder in folders:
            target = root / folder.relative_to("/")
            target.mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", "-o", "ro", folder, target], check=True)
            done.append(target)
        yield
    finally:
        for target in reversed(done):
            subprocess.run(["umount", target], check=True)


def check(name: str, root: Path, wheel: Path, torch: str) -> bool:
    make_system(name, root)
    for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if os.path.exists(file):
            shutil.copy(file, root / file[1:])
    # Of a run before, which was perhaps another version.
    for older in root.glob("root/segue-*.whl"):
        older.unlink()
    shutil.rmtree(root / "root" / "env", ignore_errors=True)
    shutil.copy(wheel, root / "root")
    shutil.copy(ROOT / "examples" / "quickstart.py", root / "root")
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
    environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.lower().endswith("_proxy")}

    def inside(what: str, command: str) -> bool:
        start = time.monotonic()
        done = subprocess.run(["chroot", root, "sh", "-c", f"cd /root && {command}"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=3000)
        lines = [line for line in done.stdout.strip().splitlines() if line.strip()]
        print(f"{name}: {'ok    ' if done.returncode == 0 else 'FAILED'} {what} ({time.monotonic() - start:.1f} s): {lines[-1] if lines else ''}", flush=True)
        if done.returncode:
            print("\n".join(lines[-20:]), flush=True)
        return done.returncode == 0

    python = "env/bin/python"
    steps = [
        ("the system", '. /etc/os-release; echo "$PRETTY_NAME, $(python3 --version), $(ldd --version | head -n 1)"'),
        ("no LLVM, no oneDNN, no OpenMP", "! ldconfig -p | grep -E 'LLVM|MLIR|dnnl|gomp'"),
        ("a fresh environment", "python3 -m venv env"),
        ("pip install", f"env/bin/pip install --no-cache-dir -q {wheel.name} {torch} && env/bin/pip list 2>/dev/null | grep -E '^(torch|segue) ' | tr '\\n' ' '"),
        ("import", f"{python} -c 'import segue; print(segue.__version__)'"),
        ("quickstart", f"{python} quickstart.py"),
        *((f"{tool} --version", f"env/bin/{tool} --version") for tool in TOOLS),
        ("segue-run devices", "env/bin/segue-run devices"),
        ("python -m segue --version", f"{python} -m segue --version"),
        ("python -m segue opt", "echo 'module {}' | " + f"{python} -m segue opt | grep -o module"),
    ]
    with mounted(root):
        return all([inside(what, command) for what, command in steps])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)} (default: all)")
    parser.add_argument("--wheel", type=Path, help="default: the one in build/wheel")
    parser.add_argument("--folder", type=Path, required=True, help="where the systems lie, some gigabytes each")
    pinned = next(line for line in (ROOT / "python" / "requirements.txt").read_text().splitlines() if line.startswith("torch=="))
    parser.add_argument("--torch", default=pinned, help=f"which PyTorch (default: {pinned}; torch is the newest)")
    args = parser.parse_args()
    if unknown := set(args.systems) - set(SYSTEMS):
        parser.error(f"{', '.join(sorted(unknown))}: not a system; there are {', '.join(SYSTEMS)}")
    if os.geteuid() or not shutil.which("debootstrap"):
        parser.error("this needs root and debootstrap (apt-get install debootstrap)")
    wheels = [args.wheel] if args.wheel else list((ROOT / "build" / "wheel").glob("segue-*.whl"))
    if len(wheels) != 1 or not wheels[0].is_file():
        parser.error("there is no wheel; make wheel packs one")
    passed = [check(name, (args.folder / name).resolve(), wheels[0].resolve(), args.torch) for name in args.systems or SYSTEMS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
