# ===- test_wheel.py - the wheel, in an environment with nothing else --------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The wheel is packed from the build tree and installed by pip beside this environment's PyTorch; what it loads is its own.

Clean systems of Debian, where nothing else could be loaded, are for `tools/wheel_check.py`.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import segue
import segue_tools
from segue.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SEGUE_BUILD", ROOT / "build"))
TOOLS = ["segue-run", "segue-compile", "segue-opt", "segue-translate", "segue-lsp-server"]
# What every Linux with this C library has (PEP 600); zlib's too.
BASELINE = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libz|ld-linux-x86-64|linux-vdso)\.so")


def run(*command, **more):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment | more.pop("env", {}), **more)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, ROOT / "tools" / "wheel.py", "--build", BUILD, "--out", out, "--compression", "0")
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment with the wheel, which sees the packages of this one by a .pth file."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-index", "--no-deps", "--no-compile", wheel)
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    yield folder
    subprocess.run(["rm", "-rf", folder, wheel], check=True, timeout=60)  # 0.8 GB


def test_the_name_says_every_python_and_debian_12s_c_library(wheel):
    assert wheel.name == f"segue-{segue.__version__}-cp310-abi3-manylinux_2_36_x86_64.whl"


def test_nothing_of_the_package_is_left_out(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(file.relative_to(ROOT / "python")) for file in (ROOT / "python" / "segue").rglob("*") if file.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    assert {"segue/py.typed", "segue/_runtime.pyi", "segue/dynamo/backend.py"} <= sources <= names
    assert not [name for name in names if "__pycache__" in name]


def test_each_command_says_the_version(environment):
    for tool in TOOLS:
        assert f"{tool} {segue.__version__}" in run(environment / "bin" / tool, "--version"), tool


def test_every_file_finds_its_libraries_in_the_wheel(environment):
    (package,) = environment.glob("lib/python3.*/site-packages")
    elves = [*package.glob("segue/*.so"), *package.glob("segue/bin/*"), *package.glob("segue.libs/*")]
    assert len(elves) > len(TOOLS) + 2 + 8
    for file in elves:
        for line in run("ldd", file).splitlines():
            name, _, path = line.strip().partition(" => ")
            assert "not found" not in path, f"{file}: {line}"
            # ldd looks for what a library needs as if it were alone; a process has libgomp from whoever needs it first.
            if BASELINE.search(name) or name.startswith("statically") or (file.parent.name == "segue.libs" and "libgomp" in name):
                continue
            assert path.startswith(str(package)), f"{file}: {line}"


def test_quickstart_runs_on_the_libraries_of_the_wheel(environment, tmp_path):
    program = (ROOT / "examples" / "quickstart.py").read_text() + """
import sys
from segue import compile_process
print("compiler", *{line.split()[-1] for line in open(f"/proc/{compile_process._idle[0].process.pid}/maps") if ".so" in line}, sep="\\n")
print("runtime", *{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}, sep="\\n")
"""
    (tmp_path / "quickstart.py").write_text(program)
    # LD_BIND_NOW resolves every function at once, those of the stand-ins too.
    said = run(environment / "bin" / "python", tmp_path / "quickstart.py", cwd=tmp_path,
               env={"SEGUE_CACHE_DIR": str(tmp_path / "cache"), "LD_BIND_NOW": "1"})
    loss, compiler, runtime = re.fullmatch(r"loss after 50 steps: ([0-9.]+)\ncompiler\n(.*)runtime\n(.*)", said, re.S).groups()
    assert float(loss) < 0.1
    assert "/segue.libs/libMLIR" in compiler and "/segue.libs/libdnnl" in runtime
    systems = [path for path in (compiler + runtime).split() if path.startswith(("/lib/", "/usr/lib/", "/usr/local/lib/"))]
    python = ("_", "libpython", "libffi", "libssl", "libcrypto", "libsqlite", "libbz2", "liblzma", "libuuid", "libexpat", "libnuma")  # of Python's modules
    assert not [path for path in systems if not BASELINE.search(path) and not Path(path).name.startswith(python)]
    # PyTorch's OpenMP is the one of the whole process.
    assert len([path for path in runtime.split() if "gomp" in path]) == 1


def test_tools_work_on_the_libraries_of_the_wheel(environment, tmp_path):
    (tmp_path / "mlp.mlir").write_text((ROOT / "examples" / "mlp.mlir").read_text())
    home = {"XDG_DATA_HOME": str(tmp_path / "data")}
    run(environment / "bin" / "segue-compile", "mlp.mlir", "-o", "mlp.segue", "--inference-only", cwd=tmp_path, env=home)
    assert "forward" in run(environment / "bin" / "segue-run", "inspect", "mlp.segue", cwd=tmp_path, env=home)


def test_python_m_segue_becomes_the_tool(environment):
    assert run(environment / "bin" / "python", "-m", "segue", "run", "--version") == f"segue-run {segue.__version__}\n"


def test_python_m_segue(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"segue {segue.__version__}\n"
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {tool.removeprefix('segue-')} " in listed for tool in TOOLS)
    assert main(["trnslate"]) == 2
    assert "there is no tool 'trnslate'; did you mean translate?" in capsys.readouterr().err
    assert main(["frobnicate"]) == 2
    assert "there is no tool 'frobnicate'; python -m segue lists them" in capsys.readouterr().err


def test_a_tool_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(segue_tools, "FOLDER", str(tmp_path))
    with pytest.raises(SystemExit, match="segue-opt: .*/segue-opt cannot be run: No such file or directory; install segue again"):
        segue_tools.become("segue-opt", [])


def test_tools_look_for_packages_of_the_environment_that_they_are_in(monkeypatch):
    found = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: found.append((program, arguments, os.environ["VIRTUAL_ENV"])))
    monkeypatch.setenv("VIRTUAL_ENV", "/another")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    segue_tools.become("segue-run", ["devices"])
    assert found == [(os.path.join(segue_tools.FOLDER, "segue-run"), ["segue-run", "devices"], sys.prefix)]


def test_the_version_stands_in_one_place():
    (version,) = re.findall(r"project\(Segue VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert segue.__version__ == version
    assert version not in (ROOT / "pyproject.toml").read_text()
    assert version not in (ROOT / "python" / "segue" / "__init__.py").read_text()


def test_texts_that_cannot_read_it_say_the_same_version():
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M) == [segue.__version__]
    assert json.loads((ROOT / "editors/vscode/package.json").read_text())["version"] == segue.__version__
    said = {}
    for path in subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout.split():
        for name in re.findall(r"segue-mlir-([0-9.]+)\.vsix|segue-([0-9.]+)-cp310", (ROOT / path).read_text()):
            said[path] = "".join(name)
    assert len(said) >= 3 and set(said.values()) == {segue.__version__}, said
