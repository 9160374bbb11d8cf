#!/usr/bin/env python3
"""What a call costs in one of Segue's peers: microseconds, the least of many rounds, one thread.

    peers.py torch|jax|onnxruntime|iree

Prints one JSON object per line. A peer that is not installed is said to be absent.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

MLIR = """
func.func @add(%a: tensor<16xf32>, %b: tensor<16xf32>) -> tensor<16xf32> {
  %r = arith.addf %a, %b : tensor<16xf32>
  return %r : tensor<16xf32>
}
func.func @nothing() {
  return
}
"""


def least_us(fn, calls=1000, rounds=50):
    for _ in range(calls):
        fn()
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        least = min(least, time.perf_counter() - start)
    return least / calls * 1e6


def torch_rows():
    import torch

    torch.set_num_threads(1)
    a, b, out = torch.randn(16), torch.randn(16), torch.empty(16)
    yield torch.__version__, "empty Python call", least_us(lambda: None)
    with torch.inference_mode():
        yield torch.__version__, "eager add, 16 floats, out=, inference_mode", least_us(lambda: torch.add(a, b, out=out))
    yield torch.__version__, "eager add, 16 floats", least_us(lambda: a + b)


def jax_rows():
    import jax
    import jax.numpy as jnp

    a, b = jnp.ones(16), jnp.ones(16)
    add = jax.jit(lambda p, q: p + q).lower(a, b).compile()
    yield jax.__version__, "compiled add, 16 floats, and wait", least_us(lambda: add(a, b).block_until_ready(), 300)


def onnxruntime_rows():
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper

    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [16])

    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "add", [info("a"), info("b")], [info("c")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in "ab":
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ones(16, np.float32)))
    binding.bind_ortvalue_output("c", ort.OrtValue.ortvalue_from_numpy(np.empty(16, np.float32)))
    yield ort.__version__, "add, 16 floats, bound inputs", least_us(lambda: session.run_with_iobinding(binding))


def iree_rows():
    import iree.compiler as compiler
    import iree.runtime
    from iree.compiler import version

    release = getattr(version, "VERSION", "?")
    blob = compiler.compile_str(MLIR, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"])
    tool = os.path.join(os.path.dirname(sys.executable), "iree-benchmark-module")
    with tempfile.NamedTemporaryFile(suffix=".vmfb") as file:
        file.write(blob)
        file.flush()
        for what, function, inputs in (("native invoke of an empty function", "nothing", []),
                                       ("native invoke of add, 16 floats", "add", ["16xf32=1", "16xf32=1"])):
            command = [tool, f"--module={file.name}", f"--function={function}", "--device=local-sync",
                       "--benchmark_format=json", "--benchmark_repetitions=20", *(f"--input={i}" for i in inputs)]
            report = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
            units = {"ns": 1e-3, "us": 1, "ms": 1e3}
            yield release, what, min(run["real_time"] * units[run["time_unit"]] for run in report["benchmarks"]
                                     if run["run_type"] == "iteration")


def main():
    peer = sys.argv[1]
    try:
        for release, what, us in globals()[f"{peer}_rows"]():
            print(json.dumps(dict(peer=f"{peer} {release}", what=what, us=round(us, 4))), flush=True)
    except ImportError as error:
        print(json.dumps(dict(peer=peer, what=f"absent: {error}", us=None)), flush=True)


if __name__ == "__main__":
    main()
