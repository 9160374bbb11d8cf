"""Causal attention forward with `nvvm.mma.sync` in bf16: a block of four warps per 64 queries, keys in tiles of 64.

Scores stay in registers: what one product leaves in a thread is the left operand of the next, packed to bf16. Keys and values pass
through shared memory in rows padded by 16 bytes, so that `ldmatrix` meets no bank twice. With `stages` of 2 the next tile is on its
way by `cp.async` while one is computed.
"""
from kernels import kernel, thread_and_block
from text import FAST, Text, memref

MMA = ("{layoutA = #nvvm.mma_layout<row>, layoutB = #nvvm.mma_layout<col>, multiplicandAPtxType = #nvvm.mma_type<bf16>, "
       "multiplicandBPtxType = #nvvm.mma_type<bf16>, shape = #nvvm.shape<m = 16, n = 8, k = 16>} : (i32, i32, f32) -> "
       "!llvm.struct<(f32, f32, f32, f32)>")
TILE, WARPS = 64, 4


class Attention(Text):
    def mma(self, a, b, c):
        made = self.op(f"nvvm.mma.sync A[{', '.join(a)}] B[{', '.join(b)}] C[{', '.join(c)}] {MMA}")
        return [self.op(f"llvm.extractvalue {made}[{i}] : !llvm.struct<(f32, f32, f32, f32)>") for i in range(4)]

    def ldmatrix(self, pointer, layout):
        """Four matrices of 8 x 8; transposed with layout `col`."""
        made = self.op(f"nvvm.ldmatrix {pointer} {{num = 4 : i32, layout = #nvvm.mma_layout<{layout}>, shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, "
                       "eltType = #nvvm.ld_st_matrix_elt_type<b16>} : (!llvm.ptr<3>) -> !llvm.struct<(i32, i32, i32, i32)>")
        return [self.op(f"llvm.extractvalue {made}[{i}] : !llvm.struct<(i32, i32, i32, i32)>") for i in range(4)]

    def pointer(self, base, at, bytes_each, space):
        """The address of element `at`, from an index that is an address."""
        place = self.idx("addi", base, self.idx("muli", at, self.index(bytes_each)))
        number = self.op(f"arith.index_cast {place} : index to i64")
        return self.op(f"llvm.inttoptr {number} : i64 to !llvm.ptr{f'<{space}>' if space else ''}")

    def address(self, buffer, type):
        return self.op(f"memref.extract_aligned_pointer_as_index {buffer} : {type} -> index")

    def pack(self, low, high):
        pair = self.op(f"vector.from_elements {low}, {high} : vector<2xf32>")
        half = self.op(f"arith.truncf {pair} : vector<2xf32> to vector<2xbf16>")
        whole = self.op(f"vector.bitcast {half} : vector<2xbf16> to vector<1xi32>")
        return self.op(f"vector.extract {whole}[0] : i32 from vector<1xi32>")

    def quad(self, what, value):
        for distance in (1, 2):
            other, valid = self.fresh(), self.fresh()
            self.put(f"{other}, {valid} = gpu.shuffle xor {value}, {self.i32(distance)}, {self.i32(32)} : f32")
            value = self.arith(what, "f32", value, other)
        return value

    def exp2(self, value):
        return self.op(f"math.exp2 {value} {FAST} : f32")


def flash(heads, length, dim, stages=1):
    """q, k, v and the result are [heads, length, dim]; also the logarithm of each row's sum, as the backward pass needs it."""
    count = heads * length * dim
    words, pieces = memref("i32", count // 2), memref("vector<4xi32>", count // 8)
    stride = dim + 8
    t = Attention(f"flash_{dim}_{length}_s{stages}", [("%q", words), ("%k", pieces), ("%v", pieces), ("%o", words), ("%lse", memref("f32", heads * length))],
                  32 * WARPS, [("%ks", TILE * stride // 8), ("%vs", TILE * stride // 8)] if stages == 1 else [])
    t.shared_type = "vector<4xi32>"
    shared = f"memref<{TILE * stride // 8}xvector<4xi32>, #gpu.address_space<workgroup>>"
    thread, _ = thread_and_block(t)
    head = t.op("gpu.block_id y")
    # The blocks with most keys begin first.
    tile = t.idx("subi", t.index(length // TILE - 1), t.op("gpu.block_id x"))
    lane, warp = t.idx("remui", thread, t.index(32)), t.idx("divui", thread, t.index(32))
    row, pair = t.idx("divui", lane, t.index(4)), t.idx("remui", lane, t.index(4))
    start = t.idx("muli", head, t.index(length))
    query = t.idx("addi", t.idx("addi", t.idx("muli", tile, t.index(TILE)), t.idx("muli", warp, t.index(16))), row)
    query_word = t.idx("addi", t.idx("muli", t.idx("addi", start, query), t.index(dim // 2)), pair)
    q = []
    for step in range(dim // 16):
        q.append([t.load("%q", t.idx("addi", query_word, t.index(step * 8 + down * 8 * dim // 2 + right * 4)), words)
                  for right in (0, 1) for down in (0, 1)])
    if stages == 1:
        keys, values = t.address("%ks", shared), t.address("%vs", shared)
    else:
        # More than 48 KiB cannot be declared: it is asked for at the launch.
        dynamic = "memref<?xi8, #gpu.address_space<workgroup>>"
        keys = t.address(t.op(f"gpu.dynamic_shared_memory : {dynamic}"), dynamic)
        values = t.idx("addi", keys, t.index(stages * TILE * stride * 2))
    # ldmatrix: lane l names row l % 8 of matrix l / 8.
    inner, matrix = t.idx("remui", lane, t.index(8)), t.idx("divui", lane, t.index(8))
    key_lane = t.idx("addi", t.idx("muli", inner, t.index(stride)), t.idx("muli", matrix, t.index(8)))
    value_row = t.idx("addi", t.idx("muli", t.idx("remui", matrix, t.index(2)), t.index(8)), inner)
    value_lane = t.idx("addi", t.idx("muli", value_row, t.index(stride)), t.idx("muli", t.idx("divui", matrix, t.index(2)), t.index(8)))
    key_pointer, value_pointer = t.pointer(keys, key_lane, 2, 3), t.pointer(values, value_lane, 2, 3)
    per_row = dim // 8
    each = TILE * per_row // (32 * WARPS)

    def offset(p, elements):
        index = ", i64" if str(elements).startswith("%") else ""
        return t.op(f"llvm.getelementptr {p}[{elements}] : (!llvm.ptr<3>{index}) -> !llvm.ptr<3>, bf16")

    def fetch(at, stage):
        """Brings tile `at` to shared memory, 16 bytes per thread and copy."""
        for i in range(each):
            piece = t.idx("addi", thread, t.index(i * 32 * WARPS))
            line, column = t.idx("divui", piece, t.index(per_row)), t.idx("remui", piece, t.index(per_row))
            to = t.idx("addi", t.idx("muli", line, t.index(stride // 8)), column)
            if stage is not None:
                to = t.idx("addi", to, t.idx("muli", stage, t.index(TILE * stride // 8)))
            source = t.idx("addi", t.idx("muli", t.idx("addi", t.idx("addi", start, t.idx("muli", at, t.index(TILE))), line), t.index(per_row)), column)
            for memory, buffer, base in (("%k", "%ks", keys), ("%v", "%vs", values)):
                if stages == 1:
                    t.store(t.load(memory, source, pieces), buffer, to, shared)
                else:
                    far = t.pointer(t.address(memory, pieces), source, 16, 0)
                    globe = t.op(f"llvm.addrspacecast {far} : !llvm.ptr to !llvm.ptr<1>")
                    t.put(f"nvvm.cp.async.shared.global {t.pointer(base, to, 16, 3)}, {globe}, 16, cache = cg : !llvm.ptr<3>, !llvm.ptr<1>")
        if stages > 1:
            t.put("nvvm.cp.async.commit.group")

    scale = 1.4426950408889634 / dim ** 0.5
    f = lambda what, *v: t.arith(what, "f32", *v)  # noqa: E731

    def step(at, carried, masked, stage):
        out, (high, sums) = carried[:dim // 2], (carried[dim // 2:dim // 2 + 2], carried[dim // 2 + 2:])
        shift = None if stage is None else t.op(f"arith.index_cast {t.idx('muli', stage, t.index(TILE * stride))} : index to i64")
        kp = key_pointer if shift is None else offset(key_pointer, shift)
        vp = value_pointer if shift is None else offset(value_pointer, shift)
        zero = t.f32(0.0)
        scores = []
        for n in range(TILE // 8):
            c = [zero] * 4
            for k in range(dim // 32):
                b = t.ldmatrix(offset(kp, n * 8 * stride + k * 32), "row")
                c = t.mma(q[2 * k], b[:2], c)
                c = t.mma(q[2 * k + 1], b[2:], c)
            scores.append([f("mulf", v, t.f32(scale)) for v in c])
        if masked:
            # On the diagonal the key of column n * 8 + pair * 2 + e is seen by queries from it on.
            mine = t.idx("addi", t.idx("muli", warp, t.index(16)), row)
            for n in range(TILE // 8):
                for e in range(4):
                    key = t.idx("addi", t.idx("muli", pair, t.index(2)), t.index(n * 8 + e % 2))
                    own = mine if e < 2 else t.idx("addi", mine, t.index(8))
                    seen = t.op(f"arith.cmpi ule, {key}, {own} : index")
                    scores[n][e] = t.op(f"arith.select {seen}, {scores[n][e]}, {t.f32(-1e30)} : f32")
        new_high, shrink, new_sums = [], [], []
        for half in (0, 1):
            most = t.tree("maximumf", [scores[n][2 * half + e] for n in range(TILE // 8) for e in (0, 1)])
            most = f("maximumf", high[half], t.quad("maximumf", most))
            new_high.append(most)
            shrink.append(t.exp2(f("subf", high[half], most)))
            for n in range(TILE // 8):
                for e in (0, 1):
                    scores[n][2 * half + e] = t.exp2(f("subf", scores[n][2 * half + e], most))
            part = t.tree("addf", [scores[n][2 * half + e] for n in range(TILE // 8) for e in (0, 1)])
            new_sums.append(f("addf", f("mulf", sums[half], shrink[half]), part))
        out = [f("mulf", v, shrink[(i % 4) // 2]) for i, v in enumerate(out)]
        for s in range(TILE // 16):
            left, right = scores[2 * s], scores[2 * s + 1]
            a = [t.pack(left[0], left[1]), t.pack(left[2], left[3]), t.pack(right[0], right[1]), t.pack(right[2], right[3])]
            for d in range(dim // 16):
                b = t.ldmatrix(offset(vp, s * 16 * stride + d * 16), "col")
                for side in (0, 1):
                    i = 4 * (2 * d + side)
                    out[i:i + 4] = t.mma(a, b[2 * side:2 * side + 2], out[i:i + 4])
        return out + new_high + new_sums

    carried = [t.f32(0.0)] * (dim // 2) + [t.f32(-1e30)] * 2 + [t.f32(0.0)] * 2
    zero, one = t.index(0), t.index(1)
    if stages == 1:
        def body(at, values_):
            t.put("gpu.barrier")
            fetch(at, None)
            t.put("gpu.barrier")
            return step(at, values_, False, None)
        carried = t.loop(zero, tile, one, carried, body)
        t.put("gpu.barrier")
        fetch(tile, None)
        t.put("gpu.barrier")
        carried = step(tile, carried, True, None)
    else:
        fetch(zero, zero)

        def body(at, values_):
            stage = t.idx("remui", at, t.index(2))
            following = t.idx("addi", at, one)
            fetch(following, t.idx("remui", following, t.index(2)))
            t.put("nvvm.cp.async.wait.group 1")
            t.put("gpu.barrier")
            made = step(at, values_, False, stage)
            t.put("gpu.barrier")
            return made
        carried = t.loop(zero, tile, one, carried, body)
        t.put("nvvm.cp.async.wait.group 0")
        t.put("gpu.barrier")
        carried = step(tile, carried, True, t.idx("remui", tile, t.index(2)))
    out, high, sums = carried[:dim // 2], carried[dim // 2:dim // 2 + 2], carried[dim // 2 + 2:]
    sums = [t.quad("addf", v) for v in sums]
    scales = [f("divf", t.f32(1.0), v) for v in sums]
    for n in range(dim // 8):
        for half in (0, 1):
            value = t.pack(f("mulf", out[4 * n + 2 * half], scales[half]), f("mulf", out[4 * n + 2 * half + 1], scales[half]))
            t.store(value, "%o", t.idx("addi", query_word, t.index(n * 4 + half * 8 * dim // 2)), words)
    first = t.op(f"arith.cmpi eq, {pair}, {zero} : index")
    t.put(f"scf.if {first} {{")
    t.depth += 1
    for half in (0, 1):
        natural = f("mulf", f("addf", high[half], t.math("log2", "f32", sums[half])), t.f32(0.6931471805599453))
        t.store(natural, "%lse", t.idx("addi", t.idx("addi", start, query), t.index(8 * half)), memref("f32", heads * length))
    t.depth -= 1
    t.put("}")
    return kernel(t, "attention", f"mma.sync m16n8k16, 64 queries x 64 keys, {'cp.async, two stages' if stages > 1 else 'one stage'}", "bf16",
                  [heads, length, dim], [length // TILE, heads],
                  [("bf16", count, "in")] * 3 + [("bf16", count, "out"), ("f32", heads * length, "out")], flops=2.0 * heads * length * length * dim,
                  dynamic_shared=0 if stages == 1 else 4 * stages * TILE * stride)


def attentions(small):
    if small:
        return [flash(2, 128, 64), flash(2, 128, 64, 2), flash(1, 128, 128, 2)]
    return [flash(96, 1024, 64), flash(96, 1024, 64, 2), flash(32, 2048, 128), flash(32, 2048, 128, 2), flash(16, 8192, 128, 2)]
