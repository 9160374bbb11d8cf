#!/usr/bin/env python3
"""What cuBLASLt, cuDNN's attention and PyTorch's own kernels do on this GPU.

    python libraries.py --json out/libraries.json

cuBLASLt is called as a runtime would: opened at run time, descriptors, a heuristic asked for once, a workspace given. Its numbers of
types and attributes are those of cublasLt.h 13.1.
"""
import argparse
import ctypes
import glob
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {torch.float32: 0, torch.float16: 2, torch.int8: 3, torch.int32: 10, torch.bfloat16: 14, torch.float8_e4m3fn: 28}
EPILOGUES = {"none": 1, "bias": 4, "gelu": 32, "gelu_bias": 36, "gelu_aux_bias": 164, "dgelu": 192, "dgelu_bgrad": 208, "bgrada": 256, "bgradb": 512}
rows = []


def note(part, name, **figures):
    rows.append({"part": part, "name": name, **figures})
    print(json.dumps(rows[-1]), flush=True)


def seconds(run, rounds=12):
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(100000)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


class Heuristic(ctypes.Structure):
    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
                ("reserved", ctypes.c_int * 4)]


class Lt:
    def __init__(self):
        places = [p for root in [os.path.dirname(os.path.dirname(torch.__file__))] for p in glob.glob(root + "/nvidia/*/lib/libcublasLt.so*")]
        self.path = (places or ["libcublasLt.so.13"])[0]
        before = torch.cuda.mem_get_info()[0]
        started = time.perf_counter()
        self.lib = ctypes.CDLL(self.path)
        opened = time.perf_counter()
        self.handle = ctypes.c_void_p()
        self.must(self.lib.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")
        self.lib.cublasLtGetVersion.restype = ctypes.c_size_t
        note("cublasLt", "open", path=self.path, version=self.lib.cublasLtGetVersion(), dlopen_ms=round((opened - started) * 1e3, 2),
             create_ms=round((time.perf_counter() - opened) * 1e3, 2), device_mib=round((before - torch.cuda.mem_get_info()[0]) / 2**20, 1))

    def must(self, status, what):
        if status:
            raise RuntimeError(f"{what}: status {status}")

    def layout(self, dtype, height, width, ld):
        out = ctypes.c_void_p()
        self.must(self.lib.cublasLtMatrixLayoutCreate(ctypes.byref(out), TYPES[dtype], ctypes.c_uint64(height), ctypes.c_uint64(width), ctypes.c_int64(ld)), "layout")
        return out

    def set(self, desc, attribute, value):
        self.must(self.lib.cublasLtMatmulDescSetAttribute(desc, attribute, ctypes.byref(value), ctypes.sizeof(value)), f"attribute {attribute}")


class Product:
    """D = A op B in the library's column order: a is [m, k] or its transpose, b [k, n] or its transpose, all as row-major tensors
    of the transposed shapes; so row-major y[n, m] = b[n, k] a[k, m]."""

    def __init__(self, lt, a, b, d, m, n, k, ta=False, tb=False, epilogue="none", bias=None, aux=None, compute=68, limit=32 << 20, wanted=8):
        self.lt, self.a, self.b, self.d, lib = lt, a, b, d, lt.lib
        self.desc = ctypes.c_void_p()
        integer = compute == 72
        started = time.perf_counter()
        lt.must(lib.cublasLtMatmulDescCreate(ctypes.byref(self.desc), compute, 10 if integer else 0), "desc")
        lt.set(self.desc, 3, ctypes.c_int(int(ta)))
        lt.set(self.desc, 4, ctypes.c_int(int(tb)))
        lt.set(self.desc, 7, ctypes.c_int(EPILOGUES[epilogue]))
        if bias is not None:
            lt.set(self.desc, 8, ctypes.c_void_p(bias.data_ptr()))
            lt.set(self.desc, 26, ctypes.c_int(TYPES[bias.dtype]))
        if aux is not None:
            lt.set(self.desc, 11, ctypes.c_void_p(aux.data_ptr()))
            lt.set(self.desc, 12, ctypes.c_int64(m))
        self.la = lt.layout(a.dtype, *((k, m, k) if ta else (m, k, m)))
        self.lb = lt.layout(b.dtype, *((n, k, n) if tb else (k, n, k)))
        self.ld = lt.layout(d.dtype, m, n, m)
        made = time.perf_counter()
        preference = ctypes.c_void_p()
        lt.must(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "preference")
        room = ctypes.c_size_t(limit)
        lt.must(lib.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(room), 8), "workspace")
        found, count = (Heuristic * wanted)(), ctypes.c_int()
        lt.must(lib.cublasLtMatmulAlgoGetHeuristic(lt.handle, self.desc, self.la, self.lb, self.ld, self.ld, preference, wanted, found, ctypes.byref(count)), "heuristic")
        self.heuristic_us = (time.perf_counter() - made) * 1e6
        self.describe_us = (made - started) * 1e6
        self.found = [found[i] for i in range(count.value)]
        self.alpha = ctypes.c_int(1) if integer else ctypes.c_float(1)
        self.beta = ctypes.c_int(0) if integer else ctypes.c_float(0)
        self.workspace = torch.empty(max([h.workspace for h in self.found] + [16]), dtype=torch.uint8, device="cuda")

    def __call__(self, which=0):
        p = lambda t: ctypes.c_void_p(t.data_ptr())  # noqa: E731
        h = self.found[which]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.lt.must(self.lt.lib.cublasLtMatmul(self.lt.handle, self.desc, ctypes.byref(self.alpha), p(self.a), self.la, p(self.b), self.lb,
                                                ctypes.byref(self.beta), p(self.d), self.ld, p(self.d), self.ld, ctypes.byref(h.algo), p(self.workspace),
                                                ctypes.c_size_t(h.workspace), stream), "cublasLtMatmul")


def relative(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def products():
    lt = Lt()
    bf16, dev = torch.bfloat16, "cuda"
    shapes = {"gpt2 qkv": (8192, 768, 2304), "gpt2 fc": (8192, 768, 3072), "gpt2 out": (8192, 3072, 768), "gpt2 head": (8192, 768, 50304),
              "llama qkv": (4096, 2048, 6144), "llama gate": (4096, 2048, 5504), "llama down": (4096, 5504, 2048), "square": (8192, 8192, 8192)}
    for name, (n, k, m) in shapes.items():
        x, w = torch.randn(n, k, device=dev, dtype=bf16), torch.randn(k, m, device=dev, dtype=bf16) * 0.05
        dy, y = torch.randn(n, m, device=dev, dtype=bf16), torch.empty(n, m, device=dev, dtype=bf16)
        bias, aux = torch.randn(m, device=dev, dtype=bf16), torch.empty(n, m, device=dev, dtype=bf16)
        wt = w.T.contiguous()
        part = slice(0, 512)
        plain = x[part].double() @ w.double()

        def measure(what, product, want=None, got=None, flops=2.0 * n * k * m):
            try:
                p = product()
                p()
                torch.cuda.synchronize()
                error = relative(got(), want()) if want else None
                each = [seconds(lambda i=i: p(i), 6) for i in range(min(len(p.found), 8))]
                first = p.d.clone()
                p()
                note("cublasLt", f"{name} {what}", shape=[n, k, m], us=round(each[0] * 1e6, 1), tflops=round(flops / each[0] / 1e12, 1),
                     best_tflops=round(flops / min(each) / 1e12, 1), best=each.index(min(each)), found=len(p.found), workspace=p.found[0].workspace,
                     workspaces=[h.workspace for h in p.found], heuristic_us=round(p.heuristic_us, 1), describe_us=round(p.describe_us, 1),
                     error=error, same_bits=torch.equal(first, p.d))
            except RuntimeError as problem:
                note("cublasLt", f"{name} {what}", failed=str(problem)[:200])
        heads = name in ("gpt2 fc", "llama gate", "square")
        for limit in (0, 4 << 20, 32 << 20) if heads else (32 << 20,):
            measure(f"y = x w, workspace {limit >> 20} MiB", lambda: Product(lt, w, x, y, m, n, k, limit=limit), lambda: plain, lambda: y[part])
        measure("y = x w^T", lambda: Product(lt, wt, x, y, m, n, k, ta=True), lambda: plain, lambda: y[part])
        if name == "square":
            continue
        dx, dw = torch.empty(n, k, device=dev, dtype=bf16), torch.empty(k, m, device=dev, dtype=bf16)
        measure("dx = dy w^T", lambda: Product(lt, w, dy, dx, k, n, m, ta=True), lambda: dy[part].double() @ w.double().T, lambda: dx[part])
        measure("dw = x^T dy", lambda: Product(lt, dy, x, dw, m, k, n, tb=True), lambda: x[:, :64].double().T @ dy.double(), lambda: dw[:64])
        dw32 = torch.empty(k, m, device=dev)
        measure("dw = x^T dy in f32", lambda: Product(lt, dy, x, dw32, m, k, n, tb=True), lambda: x[:, :64].double().T @ dy.double(), lambda: dw32[:64])
        if not name.startswith("gpt2") or name == "gpt2 head":
            continue
        with_bias = plain + bias.double()
        measure("bias", lambda: Product(lt, w, x, y, m, n, k, epilogue="bias", bias=bias), lambda: with_bias, lambda: y[part])
        measure("gelu_bias", lambda: Product(lt, w, x, y, m, n, k, epilogue="gelu_bias", bias=bias), lambda: F.gelu(with_bias, approximate="tanh"), lambda: y[part])
        measure("gelu_aux_bias", lambda: Product(lt, w, x, y, m, n, k, epilogue="gelu_aux_bias", bias=bias, aux=aux), lambda: F.gelu(with_bias, approximate="tanh"), lambda: y[part])
        # The gradient through GELU: dx = (dy w^T) * gelu'(saved), and its sum over rows as the gradient of the bias before it.
        saved, grad_bias = torch.randn(n, k, device=dev, dtype=bf16), torch.empty(k, device=dev, dtype=bf16)

        def through():
            s = saved[part].double().requires_grad_()
            F.gelu(s, approximate="tanh").backward(dy[part].double() @ w.double().T)
            return s.grad
        measure("dgelu", lambda: Product(lt, w, dy, dx, k, n, m, ta=True, epilogue="dgelu", aux=saved), through, lambda: dx[part])
        measure("dgelu_bgrad", lambda: Product(lt, w, dy, dx, k, n, m, ta=True, epilogue="dgelu_bgrad", aux=saved, bias=grad_bias), through, lambda: dx[part])
        note("cublasLt", f"{name} dgelu_bgrad, the bias gradient", error=relative(grad_bias, dx.double().sum(0)))
        gb = torch.empty(m, device=dev, dtype=bf16)
        measure("dw with bgrada", lambda: Product(lt, dy, x, dw, m, k, n, tb=True, epilogue="bgrada", bias=gb), lambda: x[:, :64].double().T @ dy.double(), lambda: dw[:64])
        note("cublasLt", f"{name} dw with bgrada, the bias gradient", error=relative(gb, dy.double().sum(0)))
    n, k, m = 8192, 4096, 4096
    for what, dtype, out, compute in (("tf32", torch.float32, torch.float32, 77), ("f32", torch.float32, torch.float32, 68),
                                      ("int8", torch.int8, torch.int32, 72), ("fp8 e4m3", torch.float8_e4m3fn, bf16, 68), ("f16", torch.float16, torch.float16, 68)):
        make = (lambda *s: torch.randint(-100, 100, s, device=dev, dtype=torch.int8)) if dtype == torch.int8 else (
            lambda *s: torch.randn(*s, device=dev).to(dtype))
        x, wt, y = make(n, k), make(m, k), torch.empty(n, m, device=dev, dtype=out)
        want = x[:64].double() @ wt.double().T if dtype != torch.float8_e4m3fn else x[:64].float().double() @ wt.float().double().T
        try:
            p = Product(lt, wt, x, y, m, n, k, ta=True, compute=compute)
            p()
            took = seconds(p)
            note("cublasLt", f"{what} y = x w^T", shape=[n, k, m], us=round(took * 1e6, 1), tflops=round(2.0 * n * k * m / took / 1e12, 1),
                 workspace=p.found[0].workspace, error=relative(y[:64], want), heuristic_us=round(p.heuristic_us, 1))
        except RuntimeError as problem:
            note("cublasLt", f"{what} y = x w^T", failed=str(problem)[:200])
    again = [Product(lt, wt, x, y, m, n, k, ta=True, wanted=1).heuristic_us for _ in range(20)]
    note("cublasLt", "heuristic for a known shape, one wanted", us=round(statistics.median(again), 1))


def attention():
    note("cuDNN", "version", version=torch.backends.cudnn.version(), available=torch.backends.cuda.cudnn_sdp_enabled())
    names = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    for b, h, s, d in ((8, 12, 1024, 64), (2, 16, 2048, 128), (1, 16, 8192, 128)):
        base = [torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        wide = [t[:1, :1].double() for t in base]
        want = F.scaled_dot_product_attention(*wide, is_causal=True)
        flops = 2.0 * b * h * s * s * d
        for name, backend in names.items():
            for dropout in (0.0, 0.1) if s == 1024 else (0.0,):
                try:
                    q, k, v = (t.clone().requires_grad_() for t in base)
                    before = torch.cuda.mem_get_info()[0]
                    with sdpa_kernel(backend):
                        started = time.perf_counter()
                        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
                        torch.cuda.synchronize()
                        first = time.perf_counter() - started
                        dy = torch.randn_like(y)
                        forward = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout))
                        backward = seconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
                        one = torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)
                        two = torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)
                    note("attention", f"{name} [{b}, {h}, {s}, {d}] causal" + (f" dropout {dropout}" if dropout else ""),
                         forward_us=round(forward * 1e6, 1), backward_us=round(backward * 1e6, 1), forward_tflops=round(flops / forward / 1e12, 1),
                         backward_tflops=round(2.5 * flops / backward / 1e12, 1), first_ms=round(first * 1e3, 1),
                         error=relative(y[:1, :1], want) if not dropout else None, backward_same_bits=all(map(torch.equal, one, two)),
                         library_mib=round((before - torch.cuda.mem_get_info()[0]) / 2**20))
                except RuntimeError as problem:
                    note("attention", f"{name} [{b}, {h}, {s}, {d}]", failed=str(problem)[:200])


def deterministic_attention():
    """The backward pass with PyTorch asked for the same bits on every run."""
    torch.use_deterministic_algorithms(True)
    for b, h, s, d in ((8, 12, 1024, 64), (2, 16, 2048, 128)):
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
            try:
                q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
                with sdpa_kernel(backend):
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    dy = torch.randn_like(y)
                    backward = seconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
                    found = [torch.autograd.grad(y, (q, k, v), dy, retain_graph=True) for _ in range(5)]
                note("attention, deterministic", f"{name} [{b}, {h}, {s}, {d}]", backward_us=round(backward * 1e6, 1),
                     same_bits=all(torch.equal(x, y) for one in found[1:] for x, y in zip(found[0], one)))
            except RuntimeError as problem:
                note("attention, deterministic", f"{name} [{b}, {h}, {s}, {d}]", failed=str(problem)[:200])
    torch.use_deterministic_algorithms(False)


def own_kernels():
    a, b = (torch.randn(1 << 30, device="cuda") for _ in range(2))
    peak = 2 * 4 * 2**30 / seconds(lambda: b.copy_(a))
    del a, b
    for dtype in (torch.float32, torch.bfloat16):
        size = torch.finfo(dtype).bits // 8
        x = torch.randn(1 << 26, device="cuda").to(dtype)
        out = torch.empty_like(x)

        def line(name, run, moved):
            took = seconds(run)
            note("torch kernels", f"{name} {str(dtype)[6:]}", us=round(took * 1e6, 1), gb_s=round(moved / took / 1e9), of_memory=round(moved / took / peak, 3))
        line("gelu 2^26", lambda: torch.ops.aten.gelu.out(x, approximate="tanh", out=out), 2 * size * 2**26)
        for width in (768, 1024, 4096):
            r = (1 << 25) // width
            rowed, w, bias = x[: r * width].view(r, width), torch.ones(width, device="cuda", dtype=dtype), torch.zeros(width, device="cuda", dtype=dtype)
            dy = torch.randn_like(rowed)
            line(f"softmax {r}x{width}", lambda: torch.softmax(rowed, -1), 2 * size * r * width)
            line(f"layer_norm {r}x{width}", lambda: torch.layer_norm(rowed, [width], w, bias), 2 * size * r * width)
            y, mean, rstd = torch.ops.aten.native_layer_norm(rowed, [width], w, bias, 1e-5)
            line(f"layer_norm dx {r}x{width}", lambda: torch.ops.aten.native_layer_norm_backward(dy, rowed, [width], mean, rstd, w, bias, [True, False, False]), 3 * size * r * width)
            line(f"layer_norm dx, dgain, dbias {r}x{width}", lambda: torch.ops.aten.native_layer_norm_backward(dy, rowed, [width], mean, rstd, w, bias, [True, True, True]), 3 * size * r * width)
        line("column sum 16384x3072", lambda: x[: 16384 * 3072].view(16384, 3072).sum(0, dtype=torch.float32), size * 16384 * 3072)
    p = torch.randn(1 << 25, device="cuda", requires_grad=True)
    p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW([p], fused=True)
    took = seconds(optimizer.step)
    note("torch kernels", "AdamW fused 2^25 f32", us=round(took * 1e6, 1), gb_s=round(28 * 2**25 / took / 1e9), of_memory=round(28 * 2**25 / took / peak, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("parts", nargs="*", default=[])
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    failed = False
    for name, part in (("own", own_kernels), ("attention", attention), ("deterministic", deterministic_attention), ("products", products)):
        if args.parts and name not in args.parts:
            continue
        started = time.monotonic()
        try:
            part()
        except Exception as problem:  # noqa: BLE001
            note(name, "FAILED", failed=repr(problem)[:500])
            failed = True
        note(name, "took", seconds=round(time.monotonic() - started, 1))
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
