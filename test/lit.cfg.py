"""How lit runs the tests of Segue's IR and tools.

A test is a file with RUN lines. Every process it starts is limited in memory
and processor time, so that a pass that never ends stops alone.
"""

import glob
import os
import resource
import shutil

import lit.formats

config.name = "Segue"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "python"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.segue_binary_dir, "test")

# Workers are forked from this process and hand the limits down. Wall time is
# limited by `lit --timeout` where psutil is installed.
MEMORY_LIMIT = 8 << 30  # bytes of address space; libMLIR maps under 1 GiB
CPU_LIMIT_S = 60


def limit(what, value):
    soft, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or value <= hard:
        resource.setrlimit(what, (value, hard))


# Python has one address-space limit per process; lit itself stays far below.
# A sanitizer reserves terabytes of address space and cannot run under it.
if not os.environ.get("SEGUE_TEST_NO_LIMIT"):
    limit(resource.RLIMIT_AS, MEMORY_LIMIT)
limit(resource.RLIMIT_CORE, 0)
config.test_retry_attempts = 0

# The tools of this build first, then FileCheck, not and split-file.
config.environment["PATH"] = os.pathsep.join(
    [os.path.join(config.segue_binary_dir, "bin"), config.llvm_tools_dir, os.environ["PATH"]]
)
# What a test compiles is signed with a key of this build, and runs unasked.
config.environment["XDG_DATA_HOME"] = os.path.join(config.segue_binary_dir, "check", "data")
config.environment["FILECHECK_OPTS"] = "--enable-var-scope --allow-unused-prefixes=false"

# NVIDIA's ptxas makes cubins: a wheel of the environment of the Python tests, or one of the machine.
packages = os.path.join(os.path.dirname(config.python_executable), "..", "lib", "python3*", "site-packages")
ptxas = glob.glob(os.path.join(packages, "nvidia", "cu13", "bin", "ptxas")) or [shutil.which("ptxas")]
if ptxas[0]:
    config.environment["SEGUE_PTXAS"] = ptxas[0]
    config.available_features.add("ptxas")

config.substitutions.append(("%python", f"timeout {CPU_LIMIT_S} {config.python_executable}"))
config.substitutions.append(("%segue_source", config.segue_source_dir))
config.substitutions.append(("%llvm_include", os.path.join(os.path.dirname(config.llvm_tools_dir), "include")))
config.substitutions.append(("%segue_build", config.segue_binary_dir))

# `timeout` ends a tool that hangs, also where psutil is missing.
for tool in ("segue-opt", "segue-compile", "segue-translate", "segue-run"):
    path = os.path.join(config.segue_binary_dir, "bin", tool)
    config.substitutions.append((rf"(?<![\w/.-]){tool}(?![\w/.-])", f"timeout --signal=KILL {CPU_LIMIT_S} {path}"))
