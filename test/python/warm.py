# ===- warm.py - processes that have PyTorch imported already -------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A Python for tests whose programs begin with PyTorch, its compiler and Segue imported, which takes others 3 seconds each.

`python()` gives the path of a launcher that is called as an interpreter is: with a script, `-c` or `-m`, and arguments. A server,
started at the first call, has imported the modules once. For each launcher it forks a process that takes over the launcher's
arguments, environment, folder and files, and runs the program. What the program starts by `sys.executable` is launched in the same
way. A launcher that is killed takes its process along, and ends as that ends.

Programs that are about what an import does, about memory that a process has, or about variables that libraries read when they
are loaded belong into a process of their own: `sys.executable` of the test.
"""

import array
import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

#: Read by libraries when they are loaded: with another value of one, the launcher becomes a real interpreter.
#: OMP_NUM_THREADS is not among them, as PyTorch can be told later.
AT_LOADING = ("GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "PYTHONHASHSEED")

LAUNCHER = """#!{python} -SE
import array, json, os, socket, sys
environment, first = dict(os.environ), (sys.argv[1:] or ["-"])[0]
loaded = {{key: value for key, value in environment.items() if key.startswith({prefixes!r})}}
if loaded != {loaded!r} or first not in ("-c", "-m") and first.startswith("-"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), environment]).encode()
server.sendmsg([len(request).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.sendall(request)
status = server.recv(4)
if len(status) < 4:
    sys.exit("the server of warm.py has ended")
status = int.from_bytes(status, "little")
if os.WIFSIGNALED(status):
    import resource, signal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


def at_loading(environment) -> dict:
    return {key: value for key, value in environment.items() if key.startswith(AT_LOADING)}


@functools.cache
def python() -> str:
    """The path of the launcher. The server ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="segue-warm-")
    address, launcher = str(Path(folder.name) / "server"), Path(folder.name) / "python"
    launcher.write_text(LAUNCHER.format(python=sys.executable, prefixes=AT_LOADING, loaded=at_loading(os.environ), address=address))
    launcher.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, address, launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if server.stdout.read(1) != b"+":
        raise RuntimeError("the server of warm.py did not start")

    def end():
        server.stdin.close()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:  # a process that a test left behind has the pipe, too
            server.kill()
        folder.cleanup()

    atexit.register(end)
    return str(launcher)


def received(connection: socket.socket):
    """The request of a launcher, with its three files."""
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data)
    length, request = int.from_bytes(size, "little"), b""
    while len(request) < length:
        part = connection.recv(length - len(request))
        if not part:
            raise EOFError
        request += part
    return *json.loads(request), list(files)


def serve(address: str) -> tuple:
    """Forks a process for each launcher until the process that started this one ends. Returns in those, with arguments, folder,
    environment and files."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    os.write(1, b"+")
    processes, launchers = {}, {}  # connections by process, and processes by connection of a launcher that lives
    while True:
        ready, _, _ = select.select([0, listener, ended, *launchers], [], [])
        if 0 in ready:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            os._exit(0)
        for connection in launchers.keys() & set(ready):  # a launcher says no more, so that it has ended
            os.kill(launchers.pop(connection), signal.SIGKILL)
        if ended in ready:
            os.read(ended, 4096)
            for process in list(processes):
                if (found := os.waitpid(process, os.WNOHANG))[0]:
                    connection = processes.pop(process)
                    launchers.pop(connection, None)
                    with contextlib.suppress(OSError):
                        connection.sendall(found[1].to_bytes(4, "little"))
                    connection.close()
        if listener in ready:
            connection, _ = listener.accept()
            *request, files = received(connection)
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, connection, *processes.values()):
                    other.close()
                os.close(ended)
                os.close(wakeup)
                return *request, files
            for file in files:
                os.close(file)
            processes[process], launchers[connection] = connection, process


def become(arguments: list[str], folder: str, environment: dict[str, str], files: list[int], launcher: str):
    """Makes this process what the launcher's would be. Returns the code to run in `__main__`."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    main = types.ModuleType("__main__")
    main.__builtins__, sys.modules["__main__"], sys.executable = __builtins__, main, launcher
    sys.path[:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    first = arguments[0]
    if first == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, folder)
        return "import runpy; runpy.run_module(__import__('sys').argv[0], run_name='__main__', alter_sys=True)", main.__dict__
    if first == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        return arguments[1], main.__dict__
    sys.argv, main.__file__ = arguments, first
    sys.path.insert(0, str(Path(first).resolve().parent))
    return compile(Path(first).read_bytes(), first, "exec"), main.__dict__


if __name__ == "__main__":
    import numpy  # noqa: F401
    import torch
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch.export  # noqa: F401

    import segue  # noqa: F401

    gc.collect()
    gc.freeze()
    exec(*become(*serve(sys.argv[1]), sys.argv[2]))
