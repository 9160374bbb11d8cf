# ===- writer.py - writes ops of the segue dialect as text --------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Writes a function of the `segue` dialect, op by op, as MLIR text.

The writer knows the assembly of the ops (SegueOps.td) and the dialect's rule
that broadcasting is explicit; it knows nothing of PyTorch's operators. Values
carry shape and element type, so that callers never parse text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Iterable, Sequence

import torch
from torch.types import Number

from ..errors import InvalidArgumentError

ELEMENT_TYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
}

_HEX_OF_SPECIAL = {  # element type -> (inf, -inf, nan)
    "f64": ("0x7FF0000000000000", "0xFFF0000000000000", "0x7FF8000000000000"),
    "f32": ("0x7F800000", "0xFF800000", "0x7FC00000"),
    "bf16": ("0x7F80", "0xFF80", "0x7FC0"),
    "f16": ("0x7C00", "0xFC00", "0x7E00"),
}


#: Dimensions of one operand of a product, and those of the other that they meet.
Pairs = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value: a ranked tensor.

    `differentiable` is true where a gradient may flow back from the value to a
    parameter or a float input.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool = False

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_empty(self) -> bool:
        """Without elements: no op in the text reads such a value, and what depends on it alone is not computed."""
        return 0 in self.shape

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point


@dataclass(frozen=True, slots=True)
class Dropout:
    """Weights of attention that are dropped: the probability, in (0, 1), and the number of their source."""

    p: float
    id: int


def element_type(dtype: torch.dtype) -> str:
    """Spelling of an element type; raises for those that the dialect lacks."""
    if dtype not in ELEMENT_TYPES:
        known = ", ".join(str(t).removeprefix("torch.") for t in ELEMENT_TYPES)
        raise InvalidArgumentError(f"element type {dtype} is not supported; use one of {known}")
    return ELEMENT_TYPES[dtype]


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The element type in which elements of `dtype` are computed and summed."""
    return torch.float32 if dtype.is_floating_point and dtype != torch.float64 else dtype


def nothing(shape: Iterable[int], dtype: torch.dtype, differentiable: bool = False) -> Value:
    """A value without elements."""
    return Value("%empty", tuple(shape), dtype, differentiable and dtype.is_floating_point)


def tensor_type(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"tensor<{''.join(f'{d}x' for d in shape)}{element_type(dtype)}>"


def quoted(text: str) -> str:
    """A string literal of MLIR."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A") + '"'


def literal(value: Number, dtype: torch.dtype) -> str:
    """A number as an element of `dtype` in an MLIR attribute."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    return float_literal(float(value), element_type(dtype))


def float_literal(value: float, element: str = "f64") -> str:
    if math.isinf(value) or math.isnan(value):
        special = _HEX_OF_SPECIAL[element]
        return special[2] if math.isnan(value) else special[0 if value > 0 else 1]
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"
    return text


def _ints(values: Iterable[int]) -> str:
    return "[" + ", ".join(str(int(v)) for v in values) + "]"


def port_attributes(name: str, role: str, of: str = "") -> str:
    """Attributes of an argument or result of a function: name, role, and the value that it belongs to."""
    text = f"segue.name = {quoted(name)}, segue.role = #segue.role<{role}>"
    return f"{text}, segue.of = {quoted(of)}" if of else text


class GraphWriter:
    """Appends ops to the body of one function.

    `block` and `location` are stamped on each op as it is written; the importer
    sets them when it moves to another node of the source. Writers of functions
    of one module share `locations`. Random ops read the arguments `%seed` and,
    unless `counts_steps` is false, `%step`.
    """

    def __init__(self, locations: dict[str, int] | None = None, counts_steps: bool = True):
        self.block: str | None = None
        self.location: str | None = None
        self._lines: list[str] = []
        self._count = 0
        self._locations = {} if locations is None else locations
        self._constants: dict[tuple[str, tuple[int, ...], torch.dtype], Value] = {}
        self.random_id = 0  # of the next random op
        self.cast_to: set[torch.dtype] = set()  # floats that values were cast to; for who wants to know, and empties it
        self.uses_random = False
        self._drawn: dict[str, int] = {}  # by name
        self._counts_steps = counts_steps

    # --- text ----------------------------------------------------------------

    def move_to(self, file: str, line: int, path: str) -> None:
        """Ops come from this line from now on, and from the module at `path`, where there is one."""
        place = f"{quoted(file)}:{line}:1"
        self.location = f"{quoted(path)}({place})" if path else place

    def location_ref(self) -> str:
        if self.location is None:
            return ""
        number = self._locations.setdefault(self.location, len(self._locations))
        return f" loc(#loc{number})"

    def body(self) -> str:
        return "\n".join(self._lines)

    def function(self, name: str, arguments: list[tuple[Value, str]], results: list[tuple[Value, str]]) -> str:
        """The function with what was written; arguments and results with their attributes."""
        given = ",\n    ".join(f"{v.name}: {v.type} {{{attributes}}}" for v, attributes in arguments)
        types = ", ".join(f"{v.type} {{{attributes}}}" for v, attributes in results)
        back = f" {', '.join(v.name for v, _ in results)} : {', '.join(v.type for v, _ in results)}" if results else ""
        return f"  func.func @{name}(\n    {given}\n  ) -> ({types}) {{\n{self.body()}\n    return{back}\n  }}"

    def location_definitions(self) -> str:
        return "\n".join(f"#loc{number} = loc({text})" for text, number in self._locations.items())

    def emit(self, name: str, head: str, tail: str, results: list[tuple[tuple[int, ...], torch.dtype]],
              operands: Sequence[Value] = (), attributes: str = "") -> list[Value]:
        flows = any(v.differentiable for v in operands)
        if all(0 in shape for shape, _ in results):
            return [nothing(shape, dtype, flows) for shape, dtype in results]
        if any(v.is_empty for v in operands):
            raise InvalidArgumentError(f"segue.{name} of a tensor without elements")
        number = self._count
        self._count += 1
        if self.block is not None:
            attributes = f"segue.block = {quoted(self.block)}" + (f", {attributes}" if attributes else "")
        attr_dict = f" {{{attributes}}}" if attributes else ""
        count = f":{len(results)}" if len(results) > 1 else ""
        self._lines.append(
            f"    %{number}{count} = segue.{name}{' ' if head else ''}{head}{attr_dict} : {tail}{self.location_ref()}")
        return [
            Value(f"%{number}" + (f"#{i}" if len(results) > 1 else ""), tuple(shape), dtype,
                  flows and dtype.is_floating_point)
            for i, (shape, dtype) in enumerate(results)
        ]

    # --- values from nothing ---------------------------------------------------

    def constant(self, value: Number, shape: Iterable[int] = (), dtype: torch.dtype = torch.float32) -> Value:
        """A splat."""
        shape = tuple(shape)
        if 0 in shape:
            return nothing(shape, dtype)
        key = (literal(value, dtype), shape, dtype)
        if key not in self._constants:
            number = self._count
            self._count += 1
            self._lines.append(
                f"    %{number} = segue.constant dense<{key[0]}> : {tensor_type(shape, dtype)}{self.location_ref()}")
            self._constants[key] = Value(f"%{number}", shape, dtype)
        return self._constants[key]

    def of_nothing(self, value: float, shape: Iterable[int], dtype: torch.dtype, *operands: Value) -> Value:
        """What an op gives for `operands` of which some have no elements: `value` everywhere, as differentiable as they are."""
        constant = self.constant(value, shape, dtype)
        return replace(constant, differentiable=dtype.is_floating_point and any(v.differentiable for v in operands))

    def returned(self, x: Value) -> Value:
        """`x`, which is in the text then even if it has no elements."""
        if not x.is_empty or x.name != nothing((), x.dtype).name:
            return x
        number = self._count
        self._count += 1
        self._lines.append(f"    %{number} = segue.constant dense<> : {x.type}{self.location_ref()}")
        return replace(x, name=f"%{number}")

    def constant_tensor(self, tensor: torch.Tensor) -> Value:
        """A constant with the elements of a tensor."""
        tensor = tensor.detach().contiguous().cpu()
        shape, dtype = tuple(tensor.shape), tensor.dtype
        if tensor.numel() == 0:
            return nothing(shape, dtype)
        if tensor.numel() == 1:
            return self.constant(tensor.reshape(()).item(), shape, dtype)
        if dtype == torch.bool:
            data = json.dumps(tensor.tolist())
        else:
            data = '"0x' + tensor.reshape(-1).view(torch.uint8).numpy().tobytes().hex().upper() + '"'
        number = self._count
        self._count += 1
        self._lines.append(
            f"    %{number} = segue.constant dense<{data}> : {tensor_type(shape, dtype)}{self.location_ref()}")
        return Value(f"%{number}", shape, dtype)

    def iota(self, dim: int, shape: Iterable[int], dtype: torch.dtype = torch.int64) -> Value:
        shape = tuple(shape)
        return self.emit("iota", f"dim {dim}", tensor_type(shape, dtype), [(shape, dtype)])[0]

    def random(self, shape: Sequence[int]) -> Value:
        """Uniform in [0, 1), f32, another draw at each call."""
        if 0 in tuple(shape):
            return nothing(shape, torch.float32)
        shape, number = tuple(shape), self.new_random_id()
        drawn = self.emit("random", f"{self._random_source()} id {number}", tensor_type(shape, torch.float32),
                          [(shape, torch.float32)])[0]
        self._drawn[drawn.name] = number
        return drawn

    def random_id_of(self, x: Value) -> int | None:
        """The number of the source of `x`, if `random` gave it."""
        return self._drawn.get(x.name)

    def new_random_id(self) -> int:
        """A number that no other source of random numbers has."""
        self.random_id += 1
        return self.random_id - 1

    def _random_source(self) -> str:
        """The seed and the step of what draws random numbers."""
        self.uses_random = True
        return f"%seed, {'%step' if self._counts_steps else self.constant(0, (), torch.int64).name}"

    def _dropout_text(self, dropout: Dropout | None) -> str:
        return f" dropout {float_literal(dropout.p)} by {self._random_source()} id {dropout.id}" if dropout else ""

    # --- elementwise -------------------------------------------------------------

    def unary(self, name: str, x: Value, attributes: str = "") -> Value:
        """An op whose result has the type of its operand; `attributes` follow the operand in the text."""
        return self.emit(name, f"{x.name} {attributes}".rstrip(), x.type, [(x.shape, x.dtype)], [x])[0]

    def detach(self, x: Value) -> Value:
        """The same value, to which no gradient flows back."""
        if not x.differentiable:
            return x
        return replace(self.unary("detach", x), differentiable=False)

    def gelu(self, kind: str, x: Value) -> Value:
        return self.emit("gelu", f"{kind} {x.name}", x.type, [(x.shape, x.dtype)], [x])[0]

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """Broadcasts both to one shape; element types must already agree."""
        if a.dtype != b.dtype:
            raise InvalidArgumentError(f"segue.{name} of {a.dtype} and {b.dtype}; convert one of them, as by x.to({b.dtype})")
        a, b = self.broadcast_together(a, b)
        return self.emit(name, f"{a.name}, {b.name}", a.type, [(a.shape, a.dtype)], [a, b])[0]

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        a, b = self.broadcast_together(a, b)
        tail = f"{a.type} -> {tensor_type(a.shape, torch.bool)}"
        return self.emit("compare", f"{predicate} {a.name}, {b.name}", tail, [(a.shape, torch.bool)])[0]

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        condition, a, b = self.broadcast_together(condition, a, b)
        return self.emit("select", f"{condition.name}, {a.name}, {b.name}", f"{condition.type}, {a.type}",
                          [(a.shape, a.dtype)], [a, b])[0]

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype == dtype:
            return x
        if dtype.is_floating_point:
            self.cast_to.add(dtype)
        return self.emit("cast", x.name, f"{x.type} -> {tensor_type(x.shape, dtype)}", [(x.shape, dtype)], [x])[0]

    # --- shapes --------------------------------------------------------------------

    def broadcast_together(self, *values: Value) -> list[Value]:
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        return [self.broadcast_to(v, shape) for v in values]

    def broadcast_to(self, x: Value, shape: Iterable[int]) -> Value:
        """Broadcasts as numpy does: dimensions align at the right."""
        shape = tuple(shape)
        return self.broadcast(x, range(len(shape) - x.rank, len(shape)), shape)

    def broadcast(self, x: Value, dims: Iterable[int], shape: Iterable[int]) -> Value:
        """Dimension k of `x` becomes dimension `dims[k]` of the result."""
        shape, dims = tuple(shape), list(dims)
        if shape == x.shape:
            return x
        return self.emit("broadcast", f"{x.name} dims {_ints(dims)}", f"{x.type} -> {tensor_type(shape, x.dtype)}",
                          [(shape, x.dtype)], [x])[0]

    def reshape(self, x: Value, shape: Iterable[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        return self.emit("reshape", x.name, f"{x.type} -> {tensor_type(shape, x.dtype)}", [(shape, x.dtype)], [x])[0]

    def transpose(self, x: Value, permutation: Iterable[int]) -> Value:
        permutation = list(permutation)
        if permutation == list(range(x.rank)):
            return x
        shape = tuple(x.shape[p] for p in permutation)
        return self.emit("transpose", f"{x.name} {_ints(permutation)}", f"{x.type} -> {tensor_type(shape, x.dtype)}",
                          [(shape, x.dtype)], [x])[0]

    def slice(self, x: Value, starts: Sequence[int], limits: Sequence[int], steps: Sequence[int]) -> Value:
        shape = tuple(max(0, -(-(e - s) // t)) for s, e, t in zip(starts, limits, steps))
        if shape == x.shape:
            return x
        head = f"{x.name} {_ints(starts)} to {_ints(limits)} by {_ints(steps)}"
        return self.emit("slice", head, f"{x.type} -> {tensor_type(shape, x.dtype)}", [(shape, x.dtype)], [x])[0]

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, step: int = 1) -> Value:
        starts, limits, steps = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dim], limits[dim], steps[dim] = start, limit, step
        return self.slice(x, starts, limits, steps)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], value: float = 0.0,
            interior: Sequence[int] | None = None) -> Value:
        interior = interior or [0] * x.rank
        shape = tuple(l + d + max(d - 1, 0) * i + h for l, d, i, h in zip(low, x.shape, interior, high))
        if x.is_empty:
            return self.of_nothing(value, shape, x.dtype, x)
        typed = "" if x.dtype == torch.bool else f" : {element_type(x.dtype)}"  # `true` has its type by itself
        head = f"{x.name} low {_ints(low)} high {_ints(high)} interior {_ints(interior)} value {literal(value, x.dtype)}{typed}"
        return self.emit("pad", head, f"{x.type} -> {tensor_type(shape, x.dtype)}", [(shape, x.dtype)], [x])[0]

    def concat(self, values: Sequence[Value], dim: int) -> Value:
        some = [v for v in values if not v.is_empty]
        if some:  # one that is empty may have another rank, in PyTorch
            values = some
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        dtype = values[0].dtype
        head = f"{', '.join(v.name for v in values)} dim {dim}"
        tail = f"{', '.join(v.type for v in values)} -> {tensor_type(tuple(shape), dtype)}"
        return self.emit("concat", head, tail, [(tuple(shape), dtype)], values)[0]

    # --- reductions and contractions -------------------------------------------------

    def reduce(self, kind: str, x: Value, dims: Iterable[int], keepdim: bool = False) -> Value:
        dims = sorted(dims)
        if dims:
            shape = tuple(d for i, d in enumerate(x.shape) if i not in dims)
            of_none = {"sum": 0, "prod": 1, "mean": math.nan}.get(kind) if x.is_empty else None
            if of_none is not None:
                result = self.of_nothing(of_none, shape, x.dtype, x)
            else:
                tail = f"{x.type} -> {tensor_type(shape, x.dtype)}"
                result = self.emit("reduce", f"{kind} {x.name} dims {_ints(dims)}", tail, [(shape, x.dtype)], [x])[0]
        else:
            result = x
        if keepdim:
            result = self.reshape(result, [1 if i in dims else d for i, d in enumerate(x.shape)])
        return result

    def dot_general(self, a: Value, b: Value, batch: Pairs, contract: Pairs) -> Value:
        """`batch` and `contract` are pairs (dimensions of a, dimensions of b); element types must already agree."""
        if a.dtype != b.dtype:
            raise InvalidArgumentError(f"segue.dot_general of {a.dtype} and {b.dtype}; convert one of them, as by x.to({b.dtype})")
        free_a = [d for i, d in enumerate(a.shape) if i not in batch[0] and i not in contract[0]]
        free_b = [d for i, d in enumerate(b.shape) if i not in batch[1] and i not in contract[1]]
        shape = tuple([a.shape[i] for i in batch[0]] + free_a + free_b)
        if a.is_empty or b.is_empty:  # sums of nothing, if there are any
            return self.of_nothing(0, shape, a.dtype, a, b)
        head = (f"{a.name}, {b.name} batch {_ints(batch[0])} x {_ints(batch[1])} "
                f"contract {_ints(contract[0])} x {_ints(contract[1])}")
        tail = f"{a.type}, {b.type} -> {tensor_type(shape, a.dtype)}"
        return self.emit("dot_general", head, tail, [(shape, a.dtype)], [a, b])[0]

    def recurrence(self, factors: Value, x: Value, dim: int) -> Value:
        """`y[i] = factors[i] * y[i - 1] + x[i]` along a dimension; the first element is that of `x`."""
        return self.emit("recurrence", f"{factors.name}, {x.name} dim {dim}", x.type, [(x.shape, x.dtype)], [factors, x])[0]

    def argsort(self, x: Value, descending: bool, first: int, count: int) -> Value:
        """The places of elements in the order of the last dimension, i64: those from `first` on."""
        shape = x.shape[:-1] + (count,)
        head = f"{x.name}{' descending' if descending else ''} from {first}"
        return self.emit("argsort", head, f"{x.type} -> {tensor_type(shape, torch.int64)}", [(shape, torch.int64)], [x])[0]

    def grouped_dot(self, rows: Value, matrices: Value, ends: Value) -> Value:
        """Each row times the matrix of its group; group e has the rows up to `ends[e]`."""
        shape = (rows.shape[0], matrices.shape[2])
        tail = f"{rows.type}, {matrices.type}, {ends.type} -> {tensor_type(shape, rows.dtype)}"
        return self.emit("grouped_dot", f"{rows.name}, {matrices.name} by {ends.name}", tail, [(shape, rows.dtype)],
                         [rows, matrices])[0]

    def grouped_outer(self, x: Value, y: Value, ends: Value) -> Value:
        """The sum of the outer products of the rows of each group."""
        shape = (ends.shape[0], x.shape[1], y.shape[1])
        tail = f"{x.type}, {y.type}, {ends.type} -> {tensor_type(shape, x.dtype)}"
        return self.emit("grouped_outer", f"{x.name}, {y.name} by {ends.name}", tail, [(shape, x.dtype)], [x, y])[0]

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float,
                  dropout: Dropout | None = None) -> list[Value]:
        """The result, and the logarithm of the sum of exponentials per row."""
        lse = (q.shape[:3], torch.float32)
        head = f"{q.name}, {k.name}, {v.name}"
        if mask is not None:
            head += f" mask {mask.name} : {mask.type}"
        head += self._dropout_text(dropout)
        head += f"{' causal' if causal else ''} scale {float_literal(scale)}"
        return self.emit("attention", head, f"{q.type}, {k.type} -> {tensor_type(*lse)}",
                          [(q.shape, q.dtype), lse], [q, k, v])

    def attention_grad(self, q: Value, k: Value, v: Value, mask: Value | None, out: Value, lse: Value, grad: Value,
                       causal: bool, scale: float, dropout: Dropout | None = None) -> list[Value]:
        """Gradients for q, k and v."""
        head = f"{q.name}, {k.name}, {v.name}"
        if mask is not None:
            head += f" mask {mask.name} : {mask.type}"
        head += f" out {out.name} lse {lse.name} grad {grad.name}"
        head += self._dropout_text(dropout)
        head += f"{' causal' if causal else ''} scale {float_literal(scale)}"
        return self.emit("attention_grad", head, f"{q.type}, {k.type}, {lse.type}",
                          [(x.shape, x.dtype) for x in (q, k, v)], [q, k, v])

    # --- normalisation, losses, indexing -------------------------------------------------

    def layer_norm(self, x: Value, gamma: Value | None, beta: Value | None, eps: float) -> list[Value]:
        """The result, and mean and reciprocal deviation per row."""
        stat = (x.shape[:-1], compute_type(x.dtype))
        head = x.name
        head += f" gamma {gamma.name} : {gamma.type}" if gamma is not None else ""
        head += f" beta {beta.name} : {beta.type}" if beta is not None else ""
        return self.emit("layer_norm", f"{head} eps {float_literal(eps)}", f"{x.type} -> {tensor_type(*stat)}",
                          [(x.shape, x.dtype), stat, stat], [v for v in (x, gamma, beta) if v is not None])

    def rms_norm(self, x: Value, gamma: Value | None, eps: float) -> Value:
        stat = (x.shape[:-1], compute_type(x.dtype))
        head = x.name + (f" gamma {gamma.name} : {gamma.type}" if gamma is not None else "")
        return self.emit("rms_norm", f"{head} eps {float_literal(eps)}", f"{x.type} -> {tensor_type(*stat)}",
                          [(x.shape, x.dtype), stat], [v for v in (x, gamma) if v is not None])[0]

    def softmax(self, x: Value, dim: int, log: bool = False) -> Value:
        return self.unary("log_softmax" if log else "softmax", x, f"dim {dim}")

    def cross_entropy(self, logits: Value, targets: Value, ignore_index: int) -> Value:
        row = (logits.shape[:1], compute_type(logits.dtype))
        head = f"{logits.name}, {targets.name} ignore_index {ignore_index}"
        return self.emit("cross_entropy", head, f"{logits.type}, {targets.type} -> {tensor_type(*row)}",
                          [row, row], [logits])[0]

    def gather(self, table: Value, indices: Value) -> Value:
        shape = indices.shape + table.shape[1:]
        tail = f"{table.type}, {indices.type} -> {tensor_type(shape, table.dtype)}"
        return self.emit("gather", f"{table.name}[{indices.name}]", tail, [(shape, table.dtype)], [table])[0]

    def scatter_add(self, updates: Value, indices: Value, rows: int) -> Value:
        """Rows of `updates`, added into zeros at the places that `indices` names."""
        shape = (rows,) + updates.shape[indices.rank :]
        if updates.is_empty:
            return self.of_nothing(0, shape, updates.dtype, updates)
        tail = f"{updates.type}, {indices.type} -> {tensor_type(shape, updates.dtype)}"
        return self.emit("scatter_add", f"{updates.name}[{indices.name}]", tail, [(shape, updates.dtype)], [updates])[0]
