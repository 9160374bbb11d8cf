# ===- importer.py - from torch.export to the segue dialect -------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Runs `torch.export` and translates its graph.

The graph is the training IR: ATen operators that are not decomposed, so that
`linear`, `layer_norm`, `scaled_dot_product_attention` and their like arrive whole.
The importer gives every argument and result its name and role; the nodes between
are translated by `nodes.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import threading
import traceback
import warnings
from typing import Any, Callable, Iterable, Iterator, Mapping, NoReturn, Sequence

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from ..errors import ExportError, InvalidArgumentError, UnsupportedOpError
from .autocast import Around, place_of
from .fx import Operator, attribute, node_in, placeholders, submodule, target_of
from .nodes import TORCH, NodeTranslator, Values
from .parts import tracing, without_cudnn
from .signature import Argument, Captured, Constant, FlatCall, Result, Structure, flatten_call
from .writer import GraphWriter, Value, element_type, port_attributes


def capture(module: torch.nn.Module, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None,
            look: Callable[[ExportedProgram], None] | None = None, overwritten: int = 0) -> Captured:
    """Translate a module, called with these example arguments, to the `segue` dialect.

    Parameters
    ----------
    module : torch.nn.Module
        Parameters that require a gradient are trained; other parameters and buffers are frozen.
    args, kwargs
        Example arguments: their shapes and element types are those of the program.
    look : callable, optional
        Is given what `torch.export` made, before it is translated.
    overwritten : int
        How many of the last inputs have their new values as the last results, in the same order: programs write these in the memory of the inputs.

    Raises
    ------
    UnsupportedOpError
        For an operator without a lowering: names it, the module path and the source line.
    InvalidArgumentError
        For dynamic shapes and for element types that Segue lacks.
    ExportError
        When `torch.export` fails; its error is chained.
    """
    call = flatten_call(module.forward, tuple(args), dict(kwargs or {}))
    for leaf, name in zip(call.leaves, call.names):
        if isinstance(leaf, torch.Tensor):
            _check_tensor(leaf, f"input {name!r}")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        _check_tensor(tensor, f"{name!r} of the module")
    program = exported(module, call.args, call.kwargs)
    if look is not None:
        look(program)
    return _Importer(module, program, call, overwritten).run()


def _check_tensor(tensor: torch.Tensor, what: str) -> None:
    try:
        element_type(tensor.dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None


#: What forward may be given, and torch.export takes as no argument.
_TYPES = (torch.dtype, torch.layout, torch.memory_format)


@contextlib.contextmanager
def _types_as_texts(module: torch.nn.Module, args: Sequence[object],
                    kwargs: Mapping[str, object]) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
    """The arguments with texts in the place of element types and the like, which forward gets as they were."""
    types = {f"{leaf} of this call": leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _TYPES)}
    if not types:
        yield tuple(args), dict(kwargs)
        return
    forward, own = module.forward, vars(module).get("forward")

    @functools.wraps(forward)
    def given_types(*args: object, **kwargs: object) -> object:
        args, kwargs = pytree.tree_map(lambda x: types.get(x, x) if isinstance(x, str) else x, (args, kwargs))
        return forward(*args, **kwargs)

    module.forward = given_types
    try:
        yield pytree.tree_map(lambda x: f"{x} of this call" if isinstance(x, _TYPES) else x, (tuple(args), dict(kwargs)))
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def exported(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> ExportedProgram:
    """What `torch.export` makes of a call: operators of any kind, of which none writes to a tensor. Raises ExportError."""
    # A tensor given twice would be one input of the exported graph; a copy of each keeps them apart.
    fresh = lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x  # noqa: E731
    args, kwargs = pytree.tree_map(fresh, args), pytree.tree_map(fresh, kwargs)
    try:
        with tracing, warnings.catch_warnings(), torch.enable_grad(), _without_hooks(module), _without_own_backwards(), _inference_mode_seen(), without_cudnn(), _silent():
            warnings.simplefilter("ignore")
            with _types_as_texts(module, args, kwargs) as (args, kwargs):
                program = torch.export.export(module, tuple(args), kwargs, strict=False)
            _detach_regions(program.graph_module)
            if _mutates(program.graph_module):
                program = program.run_decompositions({})
    except UnsupportedOpError:
        raise
    except Exception as error:  # whatever user code or the exporter raises
        first = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {first[0] if first else ''}"
        if type(error).__name__ == "GuardOnDataDependentSymNode":
            why = ("what it does depends on what a tensor holds (in an if, a size, a range, by .item() or float()), and a program is compiled before "
                   "it holds anything; use torch.where, masks or sizes that shapes give, and keep numbers of tensors tensors")
        elif "We found a fake tensor in the exported program constant's list" in why:
            why = ("it uses a tensor that came about unseen by torch.export, as `.data` of another and torch.autograd.grad within forward give them; use detach() for "
                   "the one, and torch.compile(module, backend=\"segue\") for the other")
        elif ".numpy() is not supported" in why:
            why = (".numpy() makes an array of what a tensor holds, and a program is compiled before it holds anything; compute it by operators of PyTorch, "
                   "or before the module is called")
        where = _line_of(error)
        raise ExportError(f"torch.export could not capture {type(module).__name__}{f', at {where}' if where else ''}: {why}",
                          report={"module": type(module).__name__, "source": where}) from error
    return program


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """PyTorch says what cannot be exported in its logs and prints the graph so far; here the error says it. With TORCH_LOGS set all is said."""
    if "TORCH_LOGS" in os.environ:
        yield
        return
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.export._trace")]
    were_disabled = [logger.disabled for logger in loggers]
    said = vars(importlib.import_module("torch.export._trace"))  # which PyTorch imports at the first export
    said["print"] = lambda *_, **__: None  # of the graph; the module has no print of its own
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        del said["print"]
        for logger, was_disabled in zip(loggers, were_disabled):
            logger.disabled = was_disabled


def _line_of(error: BaseException) -> str:
    """The innermost line outside of PyTorch and Segue that an error came through; empty if there is none."""
    inside = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*inside, "<frozen", "<eval_with_key")):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _detach_regions(graph_module: GraphModule) -> None:
    """Says of each result of a region without gradients that none flow through it: decompositions dissolve regions."""
    for part in [m for m in graph_module.modules() if isinstance(m, GraphModule)]:
        for node in part.graph.nodes:
            if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
                _detach_results(submodule(part, str(node_in(node.args[1]).target)))


def _detach_results(region: GraphModule) -> None:
    output = region.graph.output_node()
    for value in output.all_input_nodes:
        with region.graph.inserting_after(value):
            detached = region.graph.call_function(torch.ops.aten.detach.default, (value,))
        detached.meta = dict(value.meta)
        output.replace_input_with(value, detached)
    region.recompile()


@contextlib.contextmanager
def _without_hooks(module: torch.nn.Module) -> Iterator[None]:
    """Refuses hooks on gradients: the exporter would lose them, and their gradients be others in silence."""
    for name, part in module.named_modules():
        if part is not module and (part._backward_hooks or part._backward_pre_hooks):
            raise _hook_error(f"module {name!r} has a backward hook", f"module {name!r}", "")
    kept = {name: getattr(torch.Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook")}
    tracer = threading.get_ident()

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != tracer:  # another thread trains meanwhile
                return kept[name](tensor, *args, **kwargs)
            where = _line_of_call()
            raise _hook_error(f"a tensor of shape {list(tensor.shape)} is given a gradient hook at {where}", "register_hook", where)

        return refuse

    for name in kept:
        setattr(torch.Tensor, name, refusing(name))
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(torch.Tensor, name, function)


@contextlib.contextmanager
def _without_own_backwards() -> Iterator[None]:
    """Refuses functions with a backward of their own: the exporter sees their forward alone, and gradients would be those of that in silence.

    A region under the reentrant form of `torch.utils.checkpoint` is such a function, too, whose backward is that of what it runs.
    """
    kept, tracer = vars(torch.autograd.Function)["apply"], threading.get_ident()

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == tracer and torch.is_grad_enabled():
            if cls is CheckpointFunction:
                return args[0](*args[2:])  # behind the function is whether random numbers are kept
            if not cls.__module__.startswith("torch."):
                where = _line_of_call()
                raise UnsupportedOpError(
                    f"{cls.__name__}, a torch.autograd.Function, is applied at {where}: a program has the derivative of its forward, and no place for its "
                    "backward. torch.compile(module, backend=\"segue\") takes both; a value with the gradient of another is y + (x - y).detach() for a value x and "
                    "the gradient of y", report={"op": cls.__name__, "module": "", "source": where})
        return kept.__get__(None, cls)(*args, **kwargs)

    setattr(torch.autograd.Function, "apply", classmethod(apply))
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", kept)


@contextlib.contextmanager
def _inference_mode_seen() -> Iterator[None]:
    """Has regions under `torch.inference_mode` captured as those under `torch.no_grad`: the exporter looks past them, and gradients would flow there."""
    kept, tracer = {name: vars(torch.inference_mode)[name] for name in ("__enter__", "__exit__")}, threading.get_ident()
    entered: list[torch.set_grad_enabled] = []

    def enter(mode: torch.inference_mode) -> Any:
        if threading.get_ident() != tracer:
            return kept["__enter__"](mode)
        entered.append(torch.set_grad_enabled(not mode.mode))
        return entered[-1].__enter__()

    def leave(mode: torch.inference_mode, *raised: Any) -> Any:
        if threading.get_ident() != tracer:
            return kept["__exit__"](mode, *raised)
        return entered.pop().__exit__(*raised)

    for name, function in (("__enter__", enter), ("__exit__", leave)):
        setattr(torch.inference_mode, name, function)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(torch.inference_mode, name, function)


def _line_of_call() -> str:
    """The innermost line outside of PyTorch and this file in which something was called that is refused."""
    own = [f for f in traceback.extract_stack() if not f.filename.startswith(TORCH) and f.filename != __file__]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"


def _hook_error(what: str, op: str, where: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{what}, which a program has no place for. torch.compile(module, backend=\"segue\") runs it, cutting the program there; hooks on parameters, "
        "and on what goes into a compiled module and comes out of it, run as in PyTorch", report={"op": op, "module": "", "source": where})


def _operators(graph_module: GraphModule) -> Iterator[Operator]:
    for part in graph_module.modules():
        if isinstance(part, GraphModule):
            yield from (n.target for n in part.graph.nodes if isinstance(n.target, torch._ops.OpOverload))


def _mutates(graph_module: GraphModule) -> bool:
    return any(op._schema.is_mutable for op in _operators(graph_module))


class _Importer:

    def __init__(self, module: torch.nn.Module, program: ExportedProgram, call: FlatCall, overwritten: int = 0):
        self.module, self.program, self.call, self.overwritten = module, program, call, overwritten
        self.writer = GraphWriter()
        self.arguments: list[Argument] = []
        self.ports: list[tuple[Value, str]] = []  # of the arguments: value and attributes
        self.values: dict[str, Value] = {}  # of the arguments, by their name in the program
        self.env: Values = {}

    def run(self) -> Captured:
        self._bind_placeholders()
        leaves, names = self.call.leaves, self.call.names
        given = (*self.module.parameters(), *self.module.buffers(), *leaves)
        place = place_of(t for t in given if isinstance(t, torch.Tensor))
        NodeTranslator(self.writer, autocast=Around.now(), place=place, takes_apart=True).translate(self.program.graph_module, self.env)
        results, result_leaves, returned = self._results()
        if self.writer.uses_random:
            for name in ("seed", "step"):
                self._add_argument(name, "hyper", (), torch.int64, f"%{name}")
        inputs = [n if isinstance(leaf, torch.Tensor) else Constant(n, leaf) for n, leaf in zip(names, leaves)]
        structure = Structure(self.call.spec, inputs, self._out_spec(), result_leaves, self.call.signature)
        return Captured(self._text(results, returned), self.arguments, results, structure,
                        any(value.differentiable for value in returned))

    # --- arguments ------------------------------------------------------------------

    def _bind_placeholders(self) -> None:
        nodes = {n.name: n for n in placeholders(self.program.graph)}
        tensors = iter(zip(self.call.names, self.call.leaves))
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                name, leaf = next(tensors)
                if isinstance(spec.arg, TensorArgument):
                    self._check_static(node, name)
                    assert isinstance(leaf, torch.Tensor), f"{name} is exported as a tensor"
                    self.env[node] = self._add_argument(name, "input", leaf.shape, leaf.dtype)
                else:
                    self.env[node] = leaf
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                if node.users:
                    self.env[node] = self._add_weight(target_of(spec))
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                if node.users:
                    self.env[node] = self.writer.constant_tensor(self.program.constants[target_of(spec)])
            else:
                raise InvalidArgumentError(f"the module has an input of kind {spec.kind.name}, which Segue lacks")

    def _check_static(self, node: Node, name: str) -> None:
        if any(isinstance(d, torch.SymInt) for d in node.meta["val"].shape):
            raise InvalidArgumentError(f"input {name!r} has a dynamic shape; Segue compiles one variant per static shape")

    def _add_weight(self, target: str) -> Value:
        tensor = attribute(self.module, target)
        names = tuple(n for n, t in _named_weights(self.module) if t is tensor)
        name = names[0] if names else target
        if name not in self.values:
            trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad and tensor.is_floating_point()
            self._add_argument(name, "parameter" if trained else "frozen", tensor.shape, tensor.dtype, names=names)
        return self.values[name]

    def _add_argument(self, name: str, role: str, shape: Iterable[int], dtype: torch.dtype, ssa: str | None = None,
                      names: Iterable[str] = ()) -> Value:
        if name in self.values:
            raise InvalidArgumentError(f"input {name!r} has the name of a {role} of the module; rename one of them")
        shape = tuple(shape)
        differentiable = role in ("input", "parameter") and dtype.is_floating_point
        value = Value(ssa or f"%arg{len(self.arguments)}", shape, dtype, differentiable)
        self.arguments.append(Argument(name, role, shape, dtype, tuple(names)))
        self.ports.append((value, port_attributes(name, role)))
        self.values[name] = value
        return value

    # --- results ----------------------------------------------------------------------------

    def _out_spec(self) -> pytree.TreeSpec:
        spec: pytree.TreeSpec | None = self.program.call_spec.out_spec
        assert spec is not None, "torch.export says what a call gives"
        return spec

    def _results(self) -> tuple[list[Result], list[int | Constant], list[Value]]:
        """The results of the program, what the caller gets in terms of them, and their values."""
        self.writer.block = self.writer.location = None
        by_name = {n.name: self.env.get(n) for n in self.program.graph.nodes}
        specs = self.program.graph_signature.output_specs
        for spec in specs:
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise InvalidArgumentError(
                    f"the module changes {spec.target!r} in place ({spec.kind.name}); Segue programs change no buffer: "
                    "return the new value instead, or call module.eval()")
        values = [None if isinstance(s.arg, ConstantArgument) else by_name[s.arg.name] for s in specs]
        names = _result_names(self._out_spec(), values)
        results: list[Result] = []
        leaves: list[int | Constant] = []
        returned: list[Value] = []
        for spec, value, name in zip(specs, values, names):
            if isinstance(value, Value):
                leaves.append(len(results))
                results.append(Result(name, value.shape, value.dtype))
                returned.append(self.writer.returned(value))
            else:
                leaves.append(Constant(name, getattr(spec.arg, "value", None)))
        if not results:
            raise InvalidArgumentError("the module returns no tensor")
        return results, leaves, returned

    def _text(self, results: Sequence[Result], returned: Sequence[Value]) -> str:
        ports = [(v, port_attributes(r.name, "output")) for r, v in zip(results, returned)]
        if self.overwritten:
            inputs = [(i, a) for i, a in enumerate(self.arguments) if a.role == "input"][-self.overwritten :]
            for (place, argument), at in zip(inputs, range(len(ports) - self.overwritten, len(ports))):
                found = None if at < 0 else (results[at].shape, results[at].dtype)
                if found != (argument.shape, argument.dtype):
                    what = "none" if found is None else f"{list(found[0])} of {found[1]}"
                    raise InvalidArgumentError(f"input {argument.name!r} is {list(argument.shape)} of {argument.dtype}, and the result that is its new value is {what}")
                ports[at] = (ports[at][0], f"segue.alias = {place} : i64, {ports[at][1]}")
        return f"module {{\n{self.writer.function('forward', self.ports, ports)}\n}}\n{self.writer.location_definitions()}\n"


def _result_names(out_spec: pytree.TreeSpec, values: Sequence[object]) -> list[str]:
    """Keys of a dictionary; "loss" for the only float scalar; otherwise out0, out1, ..."""
    stand_in = pytree.tree_unflatten(list(range(len(values))), out_spec)
    pairs, _ = pytree.tree_flatten_with_path(stand_in)
    keyed = ["".join(f".{getattr(k, 'key', getattr(k, 'idx', getattr(k, 'name', k)))}" for k in path)[1:]
             for path, _ in pairs]
    if any(not text.replace(".", "").isdigit() for text in keyed if text):
        return keyed
    scalars = [i for i, v in enumerate(values) if isinstance(v, Value) and v.shape == () and v.is_float]
    names = [f"out{i}" for i in range(len(values))]
    if len(scalars) == 1:
        names[scalars[0]] = "loss"
    return names


def _named_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
