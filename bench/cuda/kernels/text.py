"""Writes one gpu.func in MLIR, line by line. A value is its name; types are given where an operation needs one."""

FAST = "fastmath<reassoc,nsz,arcp,contract,afn>"


class Text:
    def __init__(self, name, arguments, block, shared=()):
        """`arguments`: (name, type) of static memrefs; `shared`: (name, count) of f32 in shared memory."""
        self.name, self.arguments, self.block, self.shared = name, arguments, block, shared
        # LLVM 22 joins loads of shared memory to 16 bytes on the preferred alignment of the array, and PTX declares the natural
        # one: without a stated alignment such a load is misaligned where buffers of other sizes lie before it.
        self.shared_type = "f32"
        self.lines, self.count, self.depth, self.constants = [], 0, 3, {}

    def put(self, line):
        self.lines.append("  " * self.depth + line)

    def fresh(self):
        self.count += 1
        return f"%{self.count + 1000}"

    def op(self, what):
        name = self.fresh()
        self.put(f"{name} = {what}")
        return name

    # Index arithmetic and constants.
    def index(self, value):
        key = ("index", value)
        if key not in self.constants:
            self.constants[key] = f"%i{value}"
        return self.constants[key]

    def i32(self, value):
        key = ("i32", value)
        if key not in self.constants:
            self.constants[key] = f"%w{value}"
        return self.constants[key]

    def f32(self, value, type="f32"):
        key = (type, value)
        if key not in self.constants:
            self.constants[key] = f"%k{len(self.constants)}"
        return self.constants[key]

    def idx(self, what, a, b):
        return self.op(f"arith.{what} {a}, {b} : index")

    def arith(self, what, type, *operands):
        return self.op(f"arith.{what} {', '.join(operands)} {FAST} : {type}")

    def math(self, what, type, operand):
        return self.op(f"math.{what} {operand} {FAST} : {type}")

    # Memory: `type` is the memref's, elements may be vectors.
    def load(self, memref, at, type):
        return self.op(f"memref.load {memref}[{at}] : {type}")

    def store(self, value, memref, at, type):
        self.put(f"memref.store {value}, {memref}[{at}] : {type}")

    # f32 values of what memory holds, and back.
    def widen(self, value, dtype, vec):
        if dtype == "f32":
            return value
        return self.op(f"arith.extf {value} : {vector(dtype, vec)} to {vector('f32', vec)}")

    def narrow(self, value, dtype, vec):
        if dtype == "f32":
            return value
        return self.op(f"arith.truncf {value} : {vector('f32', vec)} to {vector(dtype, vec)}")

    def loop(self, begin, end, step, carried, body):
        """`body(index, values) -> values`; returns the results."""
        at = self.fresh()
        if not carried:
            self.put(f"scf.for {at} = {begin} to {end} step {step} {{")
            self.depth += 1
            body(at, [])
            self.depth -= 1
            self.put("}")
            return []
        names = [self.fresh() for _ in carried]
        results = self.fresh()
        pairs = ", ".join(f"{name} = {value}" for name, value in zip(names, carried))
        head = results if len(carried) == 1 else f"{results}:{len(carried)}"
        types = ", ".join(["f32"] * len(carried))
        self.put(f"{head} = scf.for {at} = {begin} to {end} step {step} iter_args({pairs}) -> ({types}) {{")
        self.depth += 1
        values = body(at, names)
        self.put(f"scf.yield {', '.join(values)} : {types}")
        self.depth -= 1
        self.put("}")
        return [results] if len(carried) == 1 else [f"{results}#{i}" for i in range(len(carried))]

    # Sums and maxima over a warp and over a block, in one order on every run.
    def warp(self, what, value):
        for distance in (16, 8, 4, 2, 1):
            other, valid = self.fresh(), self.fresh()
            self.put(f"{other}, {valid} = gpu.shuffle xor {value}, {self.i32(distance)}, {self.i32(32)} : f32")
            value = self.arith(what, "f32", value, other)
        return value

    def across(self, what, value, buffer, thread):
        """Each thread has the result; `buffer` is used by this reduction alone."""
        warps = self.block // 32
        value = self.warp(what, value)
        if warps == 1:
            return value
        type = f"memref<{warps}xf32, #gpu.address_space<workgroup>>"
        lane, warp = self.idx("remui", thread, self.index(32)), self.idx("divui", thread, self.index(32))
        first = self.op(f"arith.cmpi eq, {lane}, {self.index(0)} : index")
        self.put(f"scf.if {first} {{")
        self.put(f"  memref.store {value}, {buffer}[{warp}] : {type}")
        self.put("}")
        self.put("gpu.barrier")
        total = self.load(buffer, self.index(0), type)
        for i in range(1, warps):
            total = self.arith(what, "f32", total, self.load(buffer, self.index(i), type))
        return total

    def sum_of(self, vector_value, vec):
        """The elements of a vector in a fixed tree."""
        if vec == 1:
            return vector_value
        parts = [self.op(f"vector.extract {vector_value}[{i}] : f32 from vector<{vec}xf32>") for i in range(vec)]
        return self.tree("addf", parts)

    def max_of(self, vector_value, vec):
        if vec == 1:
            return vector_value
        return self.tree("maximumf", [self.op(f"vector.extract {vector_value}[{i}] : f32 from vector<{vec}xf32>") for i in range(vec)])

    def tree(self, what, parts, type="f32"):
        while len(parts) > 1:
            parts = [self.arith(what, type, *parts[i:i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
        return parts[0]

    def splat(self, value, vec):
        return value if vec == 1 else self.op(f"vector.broadcast {value} : f32 to vector<{vec}xf32>")

    def text(self):
        out = [f"    gpu.func @{self.name}(" + ", ".join(f"{name}: {type}" for name, type in self.arguments) + ")"]
        if self.shared:
            out[0] += " workgroup(" + ", ".join(f"{n}: memref<{c}x{self.shared_type}, #gpu.address_space<workgroup>> {{llvm.align = 16 : i64}}" for n, c in self.shared) + ")"
        out[0] += f" kernel attributes {{known_block_size = array<i32: {self.block}, 1, 1>}} {{"
        for (type, value), name in self.constants.items():
            if type in ("index", "i32"):
                out.append(f"      {name} = arith.constant {value} : {type}")
            elif type == "f32":
                out.append(f"      {name} = arith.constant {value:e} : f32" if abs(value) != float("inf") else
                           f"      {name} = arith.constant {'0xFF800000' if value < 0 else '0x7F800000'} : f32")
            else:
                out.append(f"      {name} = arith.constant dense<{value:e}> : {type}")
        return "\n".join(out + self.lines + ["      gpu.return", "    }"]) + "\n"


def vector(dtype, vec):
    return dtype if vec == 1 else f"vector<{vec}x{dtype}>"


def memref(dtype, count, vec=1):
    assert count % vec == 0
    return f"memref<{count // vec}x{vector(dtype, vec)}>"
