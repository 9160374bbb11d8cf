#!/usr/bin/env python3
"""Packs the wheel of Segue from a build tree; nothing is compiled again.

    tools/wheel.py --build build [--out build/wheel] [--compression 0..9]

`cmake --install` of the component "python" lays out modules and tools, scikit-build-core writes the metadata of pyproject.toml, `wheel`
packs, and auditwheel adds the libraries that a machine may lack and checks the tag. What is done here besides:

- LLVM is linked to Z3, to libedit and, by libxml2, to ICU, 57 MB of which Segue calls nothing. In their place come stand-ins
  that have the functions by name, and end the program if one is called after all.
- libgomp keeps its name, in segue/lib: where PyTorch has loaded its own, the loader takes that one for oneDNN too, and a process has
  one OpenMP. Tools, which have no PyTorch, find the copy.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAG = "cp310-abi3"  # python/CMakeLists.txt
PLATFORM = "manylinux_2_36_x86_64"  # the C library of Debian 12
#: Libraries that nothing of Segue calls, by who is linked to them.
UNCALLED = {"libz3.so.4": "libLLVM.so.22.1", "libedit.so.2": "libLLVM.so.22.1", "libicuuc.so.72": "libxml2.so.2"}


def run(*command, **more) -> str:
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **more)
    if done.returncode:
        sys.exit(f"wheel: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def library(name: str, of: Path) -> Path:
    """Returns where the loader finds library `name` for the file `of`."""
    for line in run("ldd", of).splitlines():
        words = line.split()
        if words and words[0] == name and len(words) > 2 and words[1] == "=>":
            return Path(words[2])
    sys.exit(f"wheel: {of} has no library {name}")


def symbols(kind: str, file: Path) -> set:
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", kind, file).splitlines() if line.strip()}


def stand_in(name: str, real: Path, caller: Path, folder: Path) -> None:
    """Makes a library with the functions of `real` that `caller` is linked to."""
    source = folder / "stand-in.c"
    functions = sorted(symbols("--defined-only", real) & symbols("--undefined-only", caller))
    if not functions:
        sys.exit(f"wheel: {caller} takes nothing of {real}")
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    lines += [f'void {f}(void) {{ fputs("{f}: this wheel of Segue has no {name}\\n", stderr); abort(); }}' for f in functions]
    source.write_text("\n".join(lines))
    run("cc", "-O1", "-fPIC", "-fno-builtin", "-shared", "-s", f"-Wl,-soname,{name}", "-o", folder / name, source)
    source.unlink()


def lay_out(build: Path, content: Path) -> None:
    """Fills `content` with what a folder of packages gets, metadata included."""
    run("cmake", "--install", build, "--component", "python", "--prefix", content)
    package = content / "segue"
    shutil.copytree(ROOT / "python" / "segue", package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    program = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as write; write(sys.argv[1])"
    run(sys.executable, "-c", program, content, cwd=ROOT)
    (info,) = content.glob("segue-*.dist-info")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: segue\nRoot-Is-Purelib: false\nTag: {TAG}-linux_x86_64\n")
    (info / "licenses").mkdir(exist_ok=True)
    shutil.copy(ROOT / "LICENSE", info / "licenses")

    tools = sorted((package / "bin").iterdir())
    modules = sorted(package.glob("*.so"))
    (package / "lib").mkdir()
    shutil.copy(library("libgomp.so.1", package / "bin" / "segue-run"), package / "lib")
    for file, origin in [*((tool, "$ORIGIN/../lib") for tool in tools), *((module, "$ORIGIN/lib") for module in modules)]:
        run("strip", "--strip-unneeded", file)
        run("patchelf", "--set-rpath", origin, file)


def pack(build: Path, out: Path, compression: int) -> Path:
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=build) as folder:
        work = Path(folder)
        content, plain, stand_ins = work / "content", work / "plain", work / "stand-ins"
        for each in (content, plain, stand_ins):
            each.mkdir()
        compiler = build / "bin" / "segue-opt"
        for name, caller in UNCALLED.items():
            stand_in(name, library(name, compiler), library(caller, compiler), stand_ins)
        lay_out(build, content)
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", plain, content)
        (packed,) = plain.iterdir()
        out.mkdir(parents=True, exist_ok=True)
        llvm = library("libLLVM.so.22.1", compiler).parent
        environment = os.environ | {"AUDITWHEEL_LD_LIBRARY_PATH": f"{stand_ins}:{llvm}"}
        for older in out.glob("segue-*.whl"):
            older.unlink()
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--exclude", "libgomp.so.1",
            "--wheel-dir", out, packed, "-z", compression, env=environment)
        (wheel,) = out.glob("segue-*.whl")
        return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, help="folder of the wheel; default: wheel in the build tree")
    parser.add_argument("--compression", type=int, default=6, help="of zip, 0 to 9 (default: 6)")
    args = parser.parse_args()
    build = args.build.resolve()
    # patchelf and auditwheel lie beside this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    wheel = pack(build, (args.out or build / "wheel").resolve(), args.compression)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
