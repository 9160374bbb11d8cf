"""The kernels that are measured: shapes of models, each in several schedules.

A function returns a dict: the MLIR of the kernel, how to launch it, and what its arguments are. `op` names the reference in
run_kernels.py. Arguments are (dtype, elements, "in" or "out" or "inout").
"""
from text import Text, memref, vector

SIZE = {"f32": 4, "bf16": 2}


def kernel(t, op, variant, dtype, shape, grid, args, **extra):
    return {"name": t.name, "op": op, "variant": variant, "dtype": dtype, "shape": list(shape), "grid": list(grid), "block": t.block,
            "args": [list(a) for a in args], "bytes": sum(SIZE[d] * n * (2 if role == "inout" else 1) for d, n, role in args if role != "scratch"),
            "mlir": t.text(), **extra}


def thread_and_block(t):
    return t.op("gpu.thread_id x"), t.op("gpu.block_id x")


def gelu(t, x, vec):
    type = vector("f32", vec)
    k = lambda value: t.f32(value, type)  # noqa: E731
    cube = t.arith("mulf", type, t.arith("mulf", type, x, x), x)
    inner = t.arith("mulf", type, k(0.7978845608), t.arith("addf", type, x, t.arith("mulf", type, k(0.044715), cube)))
    return t.arith("mulf", type, t.arith("mulf", type, k(0.5), x), t.arith("addf", type, k(1.0), t.math("tanh", type, inner)))


def map_gelu(dtype, count, vec, per_thread, block=256):
    """`per_thread` pieces of `vec` elements, a block's pieces side by side; all loads come first."""
    name = f"gelu_{dtype}_v{vec}x{per_thread}_b{block}"
    type = memref(dtype, count, vec)
    t = Text(name, [("%x", type), ("%y", type)], block)
    thread, group = thread_and_block(t)
    base = t.idx("addi", t.idx("muli", group, t.index(block * per_thread)), thread)
    places = [t.idx("addi", base, t.index(i * block)) for i in range(per_thread)]
    loaded = [t.load("%x", place, type) for place in places]
    for place, value in zip(places, loaded):
        t.store(t.narrow(gelu(t, t.widen(value, dtype, vec), vec), dtype, vec), "%y", place, type)
    return kernel(t, "gelu", f"{vec * per_thread} per thread, {vec * SIZE[dtype]} B loads x {per_thread}, block {block}", dtype, [count],
                  [count // (vec * per_thread * block), 1], [(dtype, count, "in"), (dtype, count, "out")])


def map_gelu_unaligned(dtype, count, vec, aligned, block=256):
    """`vector.load` from a memref of scalars, with and without a stated alignment."""
    name = f"gelu_{dtype}_load{vec}_{'aligned' if aligned else 'plain'}"
    type = memref(dtype, count)
    t = Text(name, [("%x", type), ("%y", type)], block)
    thread, group = thread_and_block(t)
    at = t.idx("muli", t.idx("addi", t.idx("muli", group, t.index(block)), thread), t.index(vec))
    stated = f" {{alignment = {vec * SIZE[dtype]} : i64}}" if aligned else ""
    x = t.op(f"vector.load %x[{at}]{stated} : {type}, {vector(dtype, vec)}")
    y = t.narrow(gelu(t, t.widen(x, dtype, vec), vec), dtype, vec)
    t.put(f"vector.store {y}, %y[{at}]{stated} : {type}, {vector(dtype, vec)}")
    return kernel(t, "gelu", f"vector.load of a memref of scalars, alignment {'stated' if aligned else 'not stated'}", dtype, [count],
                  [count // (vec * block), 1], [(dtype, count, "in"), (dtype, count, "out")])


def map_gelu_guarded(dtype, count, block=256, stride_blocks=1056):
    """A loop over the grid, one element at a time: what outlining gives with the unit's loop as the grid's."""
    name = f"gelu_{dtype}_loop"
    type = memref(dtype, count)
    t = Text(name, [("%x", type), ("%y", type)], block)
    thread, group = thread_and_block(t)
    first = t.idx("addi", t.idx("muli", group, t.index(block)), thread)

    def body(at, _):
        t.store(t.narrow(gelu(t, t.widen(t.load("%x", at, type), dtype, 1), 1), dtype, 1), "%y", at, type)
    t.loop(first, t.index(count), t.index(block * stride_blocks), [], body)
    return kernel(t, "gelu", f"a loop over the grid ({stride_blocks} blocks), scalar loads", dtype, [count], [stride_blocks, 1],
                  [(dtype, count, "in"), (dtype, count, "out")])


def adamw(count, vec, per_thread, block=256):
    name = f"adamw_f32_v{vec}x{per_thread}"
    type, value = memref("f32", count, vec), vector("f32", vec)
    t = Text(name, [(f"%{n}", type) for n in "pgmv"], block)
    thread, group = thread_and_block(t)
    base = t.idx("addi", t.idx("muli", group, t.index(block * per_thread)), thread)
    k = lambda number: t.f32(number, value)  # noqa: E731
    f = lambda what, *operands: t.arith(what, value, *operands)  # noqa: E731
    places = [t.idx("addi", base, t.index(i * block)) for i in range(per_thread)]
    loaded = [[t.load(f"%{n}", place, type) for n in "pgmv"] for place in places]
    for place, (p, g, m, v) in zip(places, loaded):
        m = f("addf", f("mulf", k(0.9), m), f("mulf", k(0.1), g))
        v = f("addf", f("mulf", k(0.95), v), f("mulf", k(0.05), f("mulf", g, g)))
        root = f("addf", t.math("sqrt", value, f("divf", v, k(0.0975))), k(1e-8))
        p = f("subf", f("mulf", k(1 - 3e-5), p), f("divf", f("mulf", k(3e-4 / 0.19), m), root))
        for n, new in zip("pmv", (p, m, v)):
            t.store(new, f"%{n}", place, type)
    return kernel(t, "adamw", f"{vec * 4} B loads x {per_thread}, block {block}", "f32", [count], [count // (vec * per_thread * block), 1],
                  [("f32", count, "inout"), ("f32", count, "in"), ("f32", count, "inout"), ("f32", count, "inout")])


class Row:
    """How a row of `width` lies in a thread: in registers, in shared memory, or read again from memory."""

    def __init__(self, t, dtype, rows, width, vec, threads, keep, thread, row):
        self.t, self.dtype, self.width, self.vec, self.threads, self.keep, self.thread = t, dtype, width, vec, threads, keep, thread
        self.pieces = width // (vec * threads)
        self.memref = memref(dtype, rows * width, vec)
        self.base = t.idx("addi", t.idx("muli", row, t.index(width // vec)), thread)
        self.kept = {}

    def place(self, i):
        return self.t.idx("addi", self.base, self.t.index(i * self.threads))

    def read(self, argument):
        t = self.t
        if self.keep == "registers":
            if argument not in self.kept:
                raw = [t.load(argument, self.place(i), self.memref) for i in range(self.pieces)]
                self.kept[argument] = [t.widen(v, self.dtype, self.vec) for v in raw]
            return self.kept[argument]
        return [t.widen(t.load(argument, self.place(i), self.memref), self.dtype, self.vec) for i in range(self.pieces)]


def row_softmax(dtype, rows, width, vec, threads, keep="registers", rows_per_block=1):
    name = f"softmax_{dtype}_{width}_v{vec}_t{threads}_{keep}" + (f"_w{rows_per_block}" if rows_per_block > 1 else "")
    block = threads * rows_per_block
    type = memref(dtype, rows * width, vec)
    warps = threads // 32
    t = Text(name, [("%x", type), ("%y", type)], block, [("%s0", warps), ("%s1", warps)] if warps > 1 else [])
    lane, group = thread_and_block(t)
    row = group
    if rows_per_block > 1:
        row = t.idx("addi", t.idx("muli", group, t.index(rows_per_block)), t.idx("divui", lane, t.index(threads)))
        lane = t.idx("remui", lane, t.index(threads))
    data = Row(t, dtype, rows, width, vec, threads, keep, lane, row)
    value = vector("f32", vec)
    reduce = (lambda what, v, s: t.warp(what, v)) if warps == 1 else (lambda what, v, s: t.across(what, v, s, lane))
    high = reduce("maximumf", t.max_of(t.tree("maximumf", data.read("%x"), value), vec), "%s0")
    shift = t.splat(high, vec)
    powers = [t.math("exp", value, t.arith("subf", value, v, shift)) for v in data.read("%x")]
    total = reduce("addf", t.sum_of(t.tree("addf", powers, value), vec), "%s1")
    scale = t.splat(t.arith("divf", "f32", t.f32(1.0), total), vec)
    if keep != "registers":
        powers = [t.math("exp", value, t.arith("subf", value, v, shift)) for v in data.read("%x")]
    for i, v in enumerate(powers):
        t.store(t.narrow(t.arith("mulf", value, v, scale), dtype, vec), "%y", data.place(i), type)
    how = "a warp" if warps == 1 else f"a block of {threads}"
    return kernel(t, "softmax", f"{how} per row, {vec * SIZE[dtype]} B loads, row in {keep}" + (f", {rows_per_block} rows a block" if rows_per_block > 1 else ""),
                  dtype, [rows, width], [rows // rows_per_block, 1], [(dtype, rows * width, "in"), (dtype, rows * width, "out")])


def row_norm(dtype, rows, width, vec, threads, keep="registers", rows_per_block=1):
    """Layer norm with gain and bias, mean and 1 / deviation saved."""
    name = f"norm_{dtype}_{width}_v{vec}_t{threads}_{keep}" + (f"_w{rows_per_block}" if rows_per_block > 1 else "")
    block, warps = threads * rows_per_block, threads // 32
    type, weight, value = memref(dtype, rows * width, vec), memref("f32", width, vec), vector("f32", vec)
    t = Text(name, [("%x", type), ("%g", weight), ("%b", weight), ("%y", type), ("%mean", memref("f32", rows)), ("%rstd", memref("f32", rows))],
             block, [("%s0", warps), ("%s1", warps)] if warps > 1 else [])
    lane, group = thread_and_block(t)
    row = group
    if rows_per_block > 1:
        row = t.idx("addi", t.idx("muli", group, t.index(rows_per_block)), t.idx("divui", lane, t.index(threads)))
        lane = t.idx("remui", lane, t.index(threads))
    data = Row(t, dtype, rows, width, vec, threads, keep, lane, row)
    reduce = (lambda v, s: t.warp("addf", v)) if warps == 1 else (lambda v, s: t.across("addf", v, s, lane))
    share = t.f32(1.0 / width)
    mean = t.arith("mulf", "f32", reduce(t.sum_of(t.tree("addf", data.read("%x"), value), vec), "%s0"), share)
    center = t.splat(mean, vec)
    apart = [t.arith("subf", value, v, center) for v in data.read("%x")]
    spread = t.arith("mulf", "f32", reduce(t.sum_of(t.tree("addf", [t.arith("mulf", value, v, v) for v in apart], value), vec), "%s1"), share)
    rstd = t.math("rsqrt", "f32", t.arith("addf", "f32", spread, t.f32(1e-5)))
    scale = t.splat(rstd, vec)
    if keep != "registers":
        apart = [t.arith("subf", value, v, center) for v in data.read("%x")]
    for i, v in enumerate(apart):
        column = t.idx("addi", lane, t.index(i * threads))
        gain, bias = t.load("%g", column, weight), t.load("%b", column, weight)
        y = t.arith("addf", value, t.arith("mulf", value, t.arith("mulf", value, v, scale), gain), bias)
        t.store(t.narrow(y, dtype, vec), "%y", data.place(i), type)
    first = t.op(f"arith.cmpi eq, {lane}, {t.index(0)} : index")
    t.put(f"scf.if {first} {{")
    t.put(f"  memref.store {mean}, %mean[{row}] : {memref('f32', rows)}")
    t.put(f"  memref.store {rstd}, %rstd[{row}] : {memref('f32', rows)}")
    t.put("}")
    n = rows * width
    how = "a warp" if warps == 1 else f"a block of {threads}"
    return kernel(t, "norm", f"{how} per row, {vec * SIZE[dtype]} B loads, row in {keep}" + (f", {rows_per_block} rows a block" if rows_per_block > 1 else ""),
                  dtype, [rows, width], [rows // rows_per_block, 1],
                  [(dtype, n, "in"), ("f32", width, "in"), ("f32", width, "in"), (dtype, n, "out"), ("f32", rows, "out"), ("f32", rows, "out")])


def row_norm_grad(dtype, rows, width, vec, threads, rows_per_block=1):
    """dx of layer norm from x, dy, gain and the saved mean and 1 / deviation."""
    name = f"normgrad_{dtype}_{width}_v{vec}_t{threads}" + (f"_w{rows_per_block}" if rows_per_block > 1 else "")
    block, warps = threads * rows_per_block, threads // 32
    type, weight, value, per_row = memref(dtype, rows * width, vec), memref("f32", width, vec), vector("f32", vec), memref("f32", rows)
    t = Text(name, [("%x", type), ("%dy", type), ("%g", weight), ("%mean", per_row), ("%rstd", per_row), ("%dx", type)], block,
             [("%s0", warps), ("%s1", warps)] if warps > 1 else [])
    lane, group = thread_and_block(t)
    row = group
    if rows_per_block > 1:
        row = t.idx("addi", t.idx("muli", group, t.index(rows_per_block)), t.idx("divui", lane, t.index(threads)))
        lane = t.idx("remui", lane, t.index(threads))
    data = Row(t, dtype, rows, width, vec, threads, "registers", lane, row)
    reduce = (lambda v, s: t.warp("addf", v)) if warps == 1 else (lambda v, s: t.across("addf", v, s, lane))
    x, dy = data.read("%x"), data.read("%dy")
    center, scale = t.splat(t.load("%mean", row, per_row), vec), t.splat(t.load("%rstd", row, per_row), vec)
    gains = [t.load("%g", t.idx("addi", lane, t.index(i * threads)), weight) for i in range(data.pieces)]
    hat = [t.arith("mulf", value, t.arith("subf", value, v, center), scale) for v in x]
    wdy = [t.arith("mulf", value, d, g) for d, g in zip(dy, gains)]
    share = t.f32(1.0 / width)
    a = t.splat(t.arith("mulf", "f32", reduce(t.sum_of(t.tree("addf", wdy, value), vec), "%s0"), share), vec)
    b = t.splat(t.arith("mulf", "f32", reduce(t.sum_of(t.tree("addf", [t.arith("mulf", value, w, h) for w, h in zip(wdy, hat)], value), vec), "%s1"), share), vec)
    for i, (w, h) in enumerate(zip(wdy, hat)):
        dx = t.arith("mulf", value, t.arith("subf", value, t.arith("subf", value, w, a), t.arith("mulf", value, h, b)), scale)
        t.store(t.narrow(dx, dtype, vec), "%dx", data.place(i), type)
    n = rows * width
    how = "a warp" if warps == 1 else f"a block of {threads}"
    return kernel(t, "normgrad", f"{how} per row, {vec * SIZE[dtype]} B loads, rows in registers" + (f", {rows_per_block} rows a block" if rows_per_block > 1 else ""),
                  dtype, [rows, width], [rows // rows_per_block, 1],
                  [(dtype, n, "in"), (dtype, n, "in"), ("f32", width, "in"), ("f32", rows, "in"), ("f32", rows, "in"), (dtype, n, "out")])


def unit_softmax(dtype, rows, width, block=128):
    """One thread per row, its exponentials in the thread's stack: the CPU's schedule, outlined."""
    name = f"softmax_{dtype}_{width}_unit"
    type = memref(dtype, rows * width)
    t = Text(name, [("%x", type), ("%y", type)], block)
    thread, group = thread_and_block(t)
    base = t.idx("muli", t.idx("addi", t.idx("muli", group, t.index(block)), thread), t.index(width))
    stack = f"memref<{width}xf32>"
    t.put(f"%stack = memref.alloca() : {stack}")
    zero, one, end = t.index(0), t.index(1), t.index(width)
    at = lambda i: t.idx("addi", base, i)  # noqa: E731
    read = lambda i: t.widen(t.load("%x", at(i), type), dtype, 1)  # noqa: E731
    [high] = t.loop(zero, end, one, [t.f32(float("-inf"))], lambda i, c: [t.arith("maximumf", "f32", c[0], read(i))])

    def power(i, carried):
        e = t.math("exp", "f32", t.arith("subf", "f32", read(i), high))
        t.store(e, "%stack", i, stack)
        return [t.arith("addf", "f32", carried[0], e)]
    [total] = t.loop(zero, end, one, [t.f32(0.0)], power)

    def write(i, _):
        t.store(t.narrow(t.arith("divf", "f32", t.load("%stack", i, stack), total), dtype, 1), "%y", at(i), type)
    t.loop(zero, end, one, [], write)
    return kernel(t, "softmax", "a thread per row, exponentials in its stack (the outlined kernel)", dtype, [rows, width], [rows // block, 1],
                  [(dtype, rows * width, "in"), (dtype, rows * width, "out")])


def row_softmax_loop(dtype, rows, width, vec, threads):
    """For rows of any width: loops over the row's pieces, with two sums at once (the maximum seen so far rescales the sum), then a second pass."""
    name = f"softmax_{dtype}_{width}_v{vec}_t{threads}_loop"
    type, value, warps = memref(dtype, rows * width, vec), vector("f32", vec), threads // 32
    t = Text(name, [("%x", type), ("%y", type)], threads, [("%s0", warps), ("%s1", warps)])
    lane, row = thread_and_block(t)
    base = t.idx("muli", row, t.index(width // vec))
    read = lambda i: t.widen(t.load("%x", t.idx("addi", base, i), type), dtype, vec)  # noqa: E731
    f = lambda what, *v: t.arith(what, "f32", *v)  # noqa: E731

    def body(i, carried):
        x = read(i)
        high = f("maximumf", carried[0], t.max_of(x, vec))
        powers = t.math("exp", value, t.arith("subf", value, x, t.splat(high, vec)))
        total = f("addf", f("mulf", carried[1], t.math("exp", "f32", f("subf", carried[0], high))), t.sum_of(powers, vec))
        return [high, total]
    high, total = t.loop(lane, t.index(width // vec), t.index(threads), [t.f32(-1e30), t.f32(0.0)], body)
    most = t.across("maximumf", high, "%s0", lane)
    whole = t.across("addf", f("mulf", total, t.math("exp", "f32", f("subf", high, most))), "%s1", lane)
    scale, shift = t.splat(f("divf", t.f32(1.0), whole), vec), t.splat(most, vec)

    def write(i, _):
        y = t.arith("mulf", value, t.math("exp", value, t.arith("subf", value, read(i), shift)), scale)
        t.store(t.narrow(y, dtype, vec), "%y", t.idx("addi", base, i), type)
    t.loop(lane, t.index(width // vec), t.index(threads), [], write)
    return kernel(t, "softmax", f"a block of {threads} per row, {vec * SIZE[dtype]} B loads in scf.for, two passes over memory", dtype, [rows, width],
                  [rows, 1], [(dtype, rows * width, "in"), (dtype, rows * width, "out")])


def transpose(dtype, rows, width, tile=32, down=8):
    name = f"transpose_{dtype}_{tile}"
    type = memref(dtype, rows * width)
    t = Text(name, [("%x", type), ("%y", type)], tile * down, [("%s", tile * (tile + 1))])
    shared = f"memref<{tile * (tile + 1)}xf32, #gpu.address_space<workgroup>>"
    thread, group = thread_and_block(t)
    across = width // tile
    x0, y0 = t.idx("muli", t.idx("remui", group, t.index(across)), t.index(tile)), t.idx("muli", t.idx("divui", group, t.index(across)), t.index(tile))
    lane, line = t.idx("remui", thread, t.index(tile)), t.idx("divui", thread, t.index(tile))
    for i in range(0, tile, down):
        at = t.idx("addi", line, t.index(i))
        source = t.idx("addi", t.idx("muli", t.idx("addi", y0, at), t.index(width)), t.idx("addi", x0, lane))
        t.store(t.widen(t.load("%x", source, type), dtype, 1), "%s", t.idx("addi", t.idx("muli", at, t.index(tile + 1)), lane), shared)
    t.put("gpu.barrier")
    for i in range(0, tile, down):
        at = t.idx("addi", line, t.index(i))
        value = t.load("%s", t.idx("addi", t.idx("muli", lane, t.index(tile + 1)), at), shared)
        t.store(t.narrow(value, dtype, 1), "%y", t.idx("addi", t.idx("muli", t.idx("addi", x0, at), t.index(rows)), t.idx("addi", y0, lane)), type)
    return kernel(t, "transpose", f"tiles of {tile} x {tile} in shared memory, scalar loads", dtype, [rows, width],
                  [rows * width // tile // tile, 1], [(dtype, rows * width, "in"), (dtype, rows * width, "out")])


def transpose_pairs(dtype, rows, width, tile=64, down=8):
    """Tiles of 64 x 64, two elements per load and per store."""
    name = f"transpose_{dtype}_{tile}_v2"
    type, half = memref(dtype, rows * width, 2), tile // 2
    t = Text(name, [("%x", type), ("%y", type)], half * down, [("%s", tile * (tile + 1))])
    shared = f"memref<{tile * (tile + 1)}xf32, #gpu.address_space<workgroup>>"
    thread, group = thread_and_block(t)
    across = width // tile
    tx, ty = t.idx("remui", group, t.index(across)), t.idx("divui", group, t.index(across))
    lane, line = t.idx("remui", thread, t.index(half)), t.idx("divui", thread, t.index(half))
    place = lambda row, column: t.idx("addi", t.idx("muli", row, t.index(tile + 1)), column)  # noqa: E731
    two = t.idx("muli", lane, t.index(2))
    raw = []
    for i in range(0, tile, down):
        row = t.idx("addi", t.idx("muli", ty, t.index(tile)), t.idx("addi", line, t.index(i)))
        raw.append(t.load("%x", t.idx("addi", t.idx("muli", row, t.index(width // 2)), t.idx("addi", t.idx("muli", tx, t.index(half)), lane)), type))
    for i, value in zip(range(0, tile, down), raw):
        wide = t.widen(value, dtype, 2)
        for e in (0, 1):
            one = t.op(f"vector.extract {wide}[{e}] : f32 from vector<2xf32>")
            t.store(one, "%s", place(t.idx("addi", line, t.index(i)), t.idx("addi", two, t.index(e))), shared)
    t.put("gpu.barrier")
    for i in range(0, tile, down):
        column = t.idx("addi", line, t.index(i))
        a, b = (t.load("%s", place(t.idx("addi", two, t.index(e)), column), shared) for e in (0, 1))
        pair = t.narrow(t.op(f"vector.from_elements {a}, {b} : vector<2xf32>"), dtype, 2)
        row = t.idx("addi", t.idx("muli", tx, t.index(tile)), column)
        t.store(pair, "%y", t.idx("addi", t.idx("muli", row, t.index(rows // 2)), t.idx("addi", t.idx("muli", ty, t.index(half)), lane)), type)
    return kernel(t, "transpose", f"tiles of {tile} x {tile} in shared memory, {2 * SIZE[dtype]} B loads", dtype, [rows, width],
                  [rows * width // tile // tile, 1], [(dtype, rows * width, "in"), (dtype, rows * width, "out")])


def column_sum_naive(dtype, rows, width, block=256):
    name = f"colsum_{dtype}_{width}_thread"
    type, out = memref(dtype, rows * width), memref("f32", width)
    t = Text(name, [("%x", type), ("%y", out)], block)
    thread, group = thread_and_block(t)
    column = t.idx("addi", t.idx("muli", group, t.index(block)), thread)
    [total] = t.loop(t.index(0), t.index(rows), t.index(1), [t.f32(0.0)], lambda i, c: [
        t.arith("addf", "f32", c[0], t.widen(t.load("%x", t.idx("addi", t.idx("muli", i, t.index(width)), column), type), dtype, 1))])
    t.store(total, "%y", column, out)
    return kernel(t, "colsum", "a thread per column", dtype, [rows, width], [width // block, 1], [(dtype, rows * width, "in"), ("f32", width, "out")])


def column_sum_tiles(dtype, rows, width, vec, chunk, lanes=32, down=8, unroll=4):
    """First stage: a block sums `chunk` rows of `lanes * vec` columns in a fixed order. Second: a thread per column sums the chunks."""
    name = f"colsum_{dtype}_{width}_v{vec}_c{chunk}"
    type, block, chunks = memref(dtype, rows * width, vec), lanes * down, rows // chunk
    partial = memref("f32", chunks * width)
    t = Text(name, [("%x", type), ("%p", partial)], block, [("%s", block * vec)])
    thread, group = thread_and_block(t)
    shared = f"memref<{block * vec}xf32, #gpu.address_space<workgroup>>"
    across = width // (lanes * vec)
    tile, part = t.idx("remui", group, t.index(across)), t.idx("divui", group, t.index(across))
    lane, line = t.idx("remui", thread, t.index(lanes)), t.idx("divui", thread, t.index(lanes))
    column = t.idx("addi", t.idx("muli", tile, t.index(lanes)), lane)
    first = t.idx("addi", t.idx("muli", part, t.index(chunk)), line)
    value = vector("f32", vec)
    sums = None
    for step in range(0, chunk // down, unroll):
        raw = []
        for i in range(step, min(step + unroll, chunk // down)):
            row = t.idx("addi", first, t.index(i * down))
            raw.append(t.load("%x", t.idx("addi", t.idx("muli", row, t.index(width // vec)), column), type))
        part_sum = t.tree("addf", [t.widen(v, dtype, vec) for v in raw], value)
        sums = part_sum if sums is None else t.arith("addf", value, sums, part_sum)
    # Thread (line, lane) leaves its sums at [line][e][lane], so that a warp's stores meet no bank twice.
    base = t.idx("addi", t.idx("muli", line, t.index(lanes * vec)), lane)
    for e in range(vec):
        one = sums if vec == 1 else t.op(f"vector.extract {sums}[{e}] : f32 from {value}")
        t.store(one, "%s", t.idx("addi", base, t.index(e * lanes)), shared)
    t.put("gpu.barrier")
    # Thread i < lanes * vec sums one column over the lines.
    inside = t.op(f"arith.cmpi ult, {thread}, {t.index(lanes * vec)} : index")
    t.put(f"scf.if {inside} {{")
    t.depth += 1
    total = t.tree("addf", [t.load("%s", t.idx("addi", thread, t.index(i * lanes * vec)), shared) for i in range(down)])
    # The column of slot [e][lane] is lane * vec + e.
    slot = t.idx("addi", t.idx("muli", t.idx("remui", thread, t.index(lanes)), t.index(vec)), t.idx("divui", thread, t.index(lanes)))
    place = t.idx("addi", t.idx("addi", t.idx("muli", part, t.index(width)), t.idx("muli", tile, t.index(lanes * vec))), slot)
    t.store(total, "%p", place, partial)
    t.depth -= 1
    t.put("}")
    assert lanes * vec <= block
    second = Text(name + "_2", [("%p", partial), ("%y", memref("f32", width))], 64)
    thread, group = thread_and_block(second)
    column = second.idx("addi", second.idx("muli", group, second.index(64)), thread)
    total = second.tree("addf", [second.load("%p", second.idx("addi", column, second.index(i * width)), partial) for i in range(chunks)])
    second.store(total, "%y", column, memref("f32", width))
    made = kernel(t, "colsum", f"tiles of {chunk} x {lanes * vec}, {vec * SIZE[dtype]} B loads, two stages", dtype, [rows, width], [across * chunks, 1],
                  [(dtype, rows * width, "in"), ("f32", chunks * width, "scratch"), ("f32", width, "out")])
    made |= {"then": {"name": second.name, "grid": [width // 64, 1], "block": 64, "args": [1, 2], "mlir": second.text()}, "first_args": [0, 1]}
    return made


def everything(small):
    """`small`: shapes that the CPU twins run in a moment."""
    n, rows = (4096 * 8, 64) if small else (1 << 26, 32768)
    out = []
    for dtype, wide in (("f32", 4), ("bf16", 8)):
        out.append(map_gelu_guarded(dtype, n, stride_blocks=16 if small else 1056))
        for vec, per_thread in ((1, 1), (1, 4), (2, 1), (wide // 2, 1), (wide, 1), (wide, 2), (wide, 4)):
            if not any(k["name"] == f"gelu_{dtype}_v{vec}x{per_thread}_b256" for k in out):
                out.append(map_gelu(dtype, n, vec, per_thread))
        out.append(map_gelu(dtype, n, wide, 1, 128))
        out.append(map_gelu(dtype, n, wide, 1, 512))
        out += [map_gelu_unaligned(dtype, n, wide, aligned) for aligned in (False, True)]
    m = n // 2
    out += [adamw(m, 1, 1), adamw(m, 4, 1), adamw(m, 4, 2), adamw(m, 2, 1)]
    for dtype, wide in (("f32", 4), ("bf16", 8)):
        out.append(unit_softmax(dtype, rows if not small else 128, 1024))
        for width in (1024, 4096):
            r = rows * 1024 // width
            for keep in ("memory", "registers"):
                out.append(row_softmax(dtype, r, width, 1, 256, keep))
                out.append(row_softmax(dtype, r, width, wide, width // wide // (2 if width == 4096 else 1), keep))
            out.append(row_softmax(dtype, r, width, wide, 32, "registers", 4))
            out.append(row_norm(dtype, r, width, 1, 256, "memory"))
            out.append(row_norm(dtype, r, width, wide, width // wide // (2 if width == 4096 else 1)))
            out.append(row_norm_grad(dtype, r, width, wide, width // wide // (2 if width == 4096 else 1)))
        out.append(row_softmax_loop(dtype, rows * 1024 // 4096, 4096, wide, 4096 // wide // 2))
        out.append(row_softmax_loop(dtype, rows * 1024 // 4096, 4096, 1, 256))
        if not small:
            out += [row_softmax_loop(dtype, 4096, 50304, wide, 512), row_softmax_loop(dtype, 4096, 50304, wide, 1024)]
        square = (64, 128) if small else (8192, 8192)
        out += [transpose(dtype, *square), transpose_pairs(dtype, *square)]
        for shape in ((32, 4), (32, 8)):
            out.append(row_norm(dtype, rows, 1024, wide, shape[0], "registers", shape[1]))
            out.append(row_norm_grad(dtype, rows, 1024, wide, shape[0], shape[1]))
        out.append(row_norm(dtype, rows, 768, wide, 32 if dtype == "f32" else 32, "registers", 4))
        out.append(row_norm(dtype, rows, 768, wide, 192 if dtype == "f32" else 96))
        out.append(row_norm_grad(dtype, rows, 768, wide, 32, 4))
        crow, width = (64, 512) if small else (16384, 3072)
        out.append(column_sum_naive(dtype, crow, width))
        for vec in (1, wide if wide == 4 else 4, wide):
            for chunk in ((32,) if small else (128, 256, 512)):
                made = column_sum_tiles(dtype, crow, width, vec, chunk)
                if not any(k["name"] == made["name"] for k in out):
                    out.append(made)
    return out
