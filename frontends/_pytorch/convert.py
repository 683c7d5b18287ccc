"""Run TVM's own PyTorch importer over a traced model, with progress, and errors that name the operator."""

from __future__ import annotations

import copy
import functools
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import torch

from topi_ext.quiet import without_warnings_of
from tvm_passes.progress import progress_bar

import tvm
from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span
from tvm.relay.prelude import Prelude

from ..errors import ImportFailure
from .arguments import Arguments, call_text, ignored, is_random, value_text
from .class_loop import name_loops_over_classes
from .constants import computed, factory_of, is_of_numbers
from .memory import mutates
from .messages import line_of, place, stated_reason
from .mutation import mutations_without_outputs, nodes_of, write_back
from .operators import CONVERTERS, Converter
from .operators.converter import INSTEAD, NotConverted, constant
from .operators.decomposed import decomposition_of
from .operators.loops import converted_loop
from .quantized import INSTEAD as INSTEAD_OF_BYTES
from .quantized import QUANTIZED, is_in_floats
from .results import NOT_IMPORTED, instead_of, settle_results
from .trace import TracedModel

PROFILER = "profiler::"  # operators that mark what is measured, as DataParallel does
UNPACKING = ("prim::ListUnpack", "prim::TupleUnpack")
# The last two are the names under which distutils warns when TVM compares versions.
SPEAKERS = ("torch", "tvm", "distutils", "setuptools")
MISSING_SHOWN = 8  # operators
INSTEAD_OF_A_SCRIPT = (
    "a script has what a trace has not: pass the nn.Module that it was scripted from, unless what its Python "
    "does depends on values"
)
INSTEAD_OF_A_LIST = "a loop may carry a tensor that grows, by torch.cat, but no list"
INSTEAD_OF_QUANTIZED = (
    "leave this module in float32 (its qconfig None), or import the model from before it was quantized"
)
RANDOM = (
    "it draws random numbers, which a compiled model cannot repeat: give them to the model as an input, or "
    "keep them as a buffer"
)
Info = tuple[str, tuple[tuple[int, ...], str]]  # an input's name, shape and dtype


def convert(traced: TracedModel) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """The Relay module and its parameters, as from TVM's importer, but with the model's own signature."""
    infos = [
        (name, (tuple(tensor.shape), _dtype(tensor)))
        for name, tensor in zip(traced.input_names, traced.inputs)
    ]
    try:
        with without_warnings_of(*SPEAKERS):
            mod, params = _importer(traced)(traced.module, infos, default_dtype=_dtype(traced))
    except ImportFailure:
        raise
    except Exception as error:
        raise _failure(traced.title, stated_reason(error) or line_of(error)) from error
    return _with_signature(_without_unused_types(mod), infos, traced.output_dtypes), params


def _importer(traced: TracedModel) -> Callable[..., Any]:
    """TVM's importer with our converter, and with `_prepare` in place of its rewriting of aten::copy_.

    It looks both up in its module. Rebinding those names in a copy of the function leaves the module, and so
    every other user of TVM in the process, unchanged.
    """
    function = stock.from_pytorch
    places: dict[str, str] = {}
    ours = {
        "PyTorchOpConverter": partial(_Converter, traced, places),
        "_redirect_inplace_output": partial(_prepare, traced.title, places),
        "convert_params": _convert_params,
        "Prelude": _prelude_in,
    }
    return types.FunctionType(
        function.__code__, {**function.__globals__, **ours}, argdefs=function.__defaults__
    )


def _prelude_in(mod: tvm.IRModule) -> Prelude:
    """Like `Prelude(mod)`, which takes a third of a second for each model."""
    prelude = copy.copy(_prelude())
    prelude.mod = mod
    mod.update(_prelude().mod)
    return prelude


@functools.lru_cache(None)
def _prelude() -> Prelude:
    return Prelude()


def _convert_params(
    graph: Any, state_dict: dict[str, Any], operators: dict[torch.Node, str], *args: Any
) -> tuple[dict, ...]:
    """TVM's own names a weight after the operator that reads it and the last part of its name.

    It merges two that one operator reads, as in `torch.cat([self.query.weight, self.key.weight])`, and has
    no name for what returns a weight, as a model does that gives its anchors.
    """
    readers = defaultdict(lambda: "output", operators)
    variables, tensors, packed, names = stock.convert_params(graph, state_dict, readers, *args)
    seen: set[str] = set()
    weights: dict[str, str] = {}  # by the names of their variables
    for node in graph.findAllNodes("prim::GetAttr", recurse=True):
        if stock._get_output_name(node) in seen:
            continue
        for chain in stock.get_attr_chains(node):
            seen.update(map(stock._get_output_name, chain))
            output, weight = stock._get_output_name(chain[-1]), stock._getattr_full_name(chain)
            if output not in variables:
                continue
            name = variables[output].name_hint
            if weights.setdefault(name, weight) != weight:
                name = next(f"{name}_{number}" for number in count(1) if f"{name}_{number}" not in tensors)
                tensors[name], variables[output] = stock._get_tensor_and_var(state_dict[weight], name)
                names[output] = name
    return variables, tensors, packed, names


def _prepare(title: str, places: dict[str, str], graph: torch.Graph) -> None:
    """Prepare TVM's own copy of the graph for the converter; note where operators are first called."""
    for node in reversed([each for each in nodes_of(graph) if each.kind().startswith(PROFILER)]):
        node.destroy()
    name_loops_over_classes(graph)  # what such a loop mutates stays inside
    for node in nodes_of(graph):
        if node.kind() not in places:
            places[node.kind()] = place(node)
        for value in node.outputs():
            kind: Any = value.type()
            dtype = NOT_IMPORTED.get(kind.scalarType()) if kind.kind() == "TensorType" else None
            if dtype is not None:
                raise _failure(title, f"it gives {dtype}, {instead_of(dtype)}", node)
        if is_random(node):
            raise _failure(title, RANDOM, node)
        for lost in mutations_without_outputs(node):
            raise _failure(title, "it changes a tensor from outside the branch or loop that it is in", lost)


def _failure(title: str, reason: str, node: torch.Node | None = None) -> ImportFailure:
    while node is not None and node.kind() in UNPACKING:  # the node that makes the items says more
        node = node.inputsAt(0).node()
    where = f", at {place(node)}" if node is not None else ""
    return ImportFailure(f"TVM cannot import {title}{where}: {reason}")


class _Converter(Converter):
    """The converter, which shows progress, says where it fails, and compares operators with the trace."""

    def __init__(self, traced: TracedModel, places: dict[str, str], *args: Any) -> None:
        super().__init__(CONVERTERS, lambda name: decomposition_of(name) or factory_of(name), *args)
        self.title = traced.title
        self.types_are_known = traced.types_are_known
        self.places = places
        self.has_quantized = any(map(_is_of_quantized, nodes_of(traced.module.inlined_graph)))

    def is_quantized_tensor(self, data: relay.Expr) -> bool:
        """Like TVM's own, which takes all of uint8 for quantized."""
        return self.has_quantized and super().is_quantized_tensor(data)

    def _is_quantized(self, value: torch.Value, converted: Any) -> bool:
        if not self.has_quantized or not isinstance(converted, relay.Expr):
            return False
        kind: Any = value.type()
        known = kind.scalarType() if kind.kind() == "TensorType" else None
        return known in QUANTIZED if known else self.is_quantized_tensor(converted)

    def create_convert_map(self) -> None:
        super().create_convert_map()
        self.convert_map: dict[str, Callable[..., Any]] = {
            name: partial(self._convert, convert) for name, convert in vars(self)["convert_map"].items()
        }

    def report_missing_conversion(self, op_names: Iterable[str]) -> None:
        try:
            super().report_missing_conversion(op_names)
        except NotImplementedError as error:
            missing = [name for name in self.places if repr(name) in str(error)]
            where = ", ".join(self.places[name] for name in missing[:MISSING_SHOWN])
            more = f" and {len(missing) - MISSING_SHOWN} more" if len(missing) > MISSING_SHOWN else ""
            instead = INSTEAD if self.types_are_known else INSTEAD_OF_A_SCRIPT
            if "aten::append" in missing:
                instead = INSTEAD_OF_A_LIST
            elif all(name.startswith("quantized::") for name in missing):
                instead = INSTEAD_OF_QUANTIZED
            raise _failure(self.title, f"there is no converter for {where}{more}: {instead}") from error

    def convert_operators(
        self, operators: list[tuple[str, torch.Node]], outputs: Any, ret_names: list[str]
    ) -> Any:
        outermost = not self.current_op
        if outermost:
            outputs = _with_spans(outputs)
        operators = [item for item in operators if not _take_constant(*item, outputs)]
        bar = progress_bar(f"Importing {self.title}", len(operators)) if outermost else nullcontext(_nothing)
        with bar as advance:
            steps: Any = self._with_consequences(operators, outputs, outermost, advance)
            try:
                return super().convert_operators(steps, outputs, ret_names)
            except ImportFailure:
                raise
            except Exception as error:
                if not self.current_op:
                    raise _failure(self.title, f"at its outputs: {line_of(error)}") from error
                node = self.current_op[-1]
                values = [outputs.get(value.debugName()) for value in node.inputs()]
                raise _failure(self.title, self._reason(node, values, error), node) from error

    def convert_loop(self, loop_node: torch.Node, outputs: dict[str, Any]) -> list[relay.Expr]:
        return converted_loop(self, loop_node, outputs)

    def _with_consequences(
        self,
        operators: list[tuple[str, torch.Node]],
        outputs: Any,
        outermost: bool,
        advance: Callable[[], None],
    ) -> Iterator[tuple[str, torch.Node]]:
        """Yield the operators; after each, check its results, write back what it mutates, and yield the
        views of that again."""
        before = set() if outermost else set(outputs)
        for name, node in operators:
            yield name, node
            try:
                if self.types_are_known:
                    settle_results(self, node, outputs)
                if mutates(node):
                    yield from write_back(self, node, outputs, before)
            except ImportFailure as error:
                raise _failure(self.title, str(error), node) from error
            advance()

    def _convert(self, convert: Callable[..., Any], inputs: list[Any], input_types: list[str]) -> Any:
        """Convert the inputs; fail if the converter ignores one of them."""
        node = self.current_op[-1]
        arguments = Arguments(inputs)
        try:
            if is_of_numbers(node, inputs):
                return computed(node, inputs)
            if is_in_floats(node) and any(map(self._is_quantized, node.inputs(), inputs)):
                raise NotConverted(f"it is of quantized tensors: {INSTEAD_OF_BYTES}")
            converted = convert(arguments, input_types)
        except Exception as error:
            raise _failure(self.title, self._reason(node, inputs, error), node) from error
        for name, value in ignored(node, arguments, inputs):
            raise _failure(self.title, f"{name}={value_text(self, value)} cannot be converted", node)
        return converted

    def _reason(self, node: torch.Node, values: list[Any], error: Exception) -> str:
        """What the error says, or, if that does not help the user, what the operator was called with."""
        if isinstance(error, ImportFailure):
            return str(error)
        return stated_reason(error) or f"it cannot be converted with {call_text(self, node, values)}"


def _is_of_quantized(node: torch.Node) -> bool:
    return node.kind().startswith(("quantized::", "aten::quantize_per_"))


def _nothing() -> None:
    """Advance no bar: only the outermost block shows one."""


def _with_spans(outputs: dict[str, Any]) -> dict[str, Any]:
    """The initial values, with spans: TVM replaces a variable without a span by a new one."""
    spanned = {
        id(value): set_span(value, value.name_hint)
        for value in outputs.values()
        if isinstance(value, relay.Var) and not value.span
    }
    return {name: spanned.get(id(value), value) for name, value in outputs.items()}


def _take_constant(name: str, node: torch.Node, outputs: Any) -> bool:
    """Take a constant list, which TVM takes only where it is constructed, or a constant tensor, of which TVM
    keeps no int64 and float64."""
    if node.kind() != "prim::Constant":
        return False
    value: Any = node.output().toIValue()
    if isinstance(value, torch.Tensor) and value.dim():
        outputs[name] = constant(value)
    elif node.output().type().kind() == "ListType":
        outputs[name] = [constant(each) if isinstance(each, torch.Tensor) else each for each in value]
    else:
        return False
    return True


def _without_unused_types(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop the types of lists and trees, which TVM adds to every module, unless they are used."""
    data = []
    relay.analysis.post_order_visit(
        mod["main"].body,
        lambda node: data.append(node) if isinstance(node, (relay.Match, tvm.ir.Constructor)) else None,
    )
    return mod if data or len(mod.functions) > 1 else tvm.IRModule(mod.functions)


def _with_signature(mod: tvm.IRModule, infos: list[Info], output_dtypes: tuple[str, ...]) -> tvm.IRModule:
    """Make every input a parameter, even if unused, and give every output the dtype that it has in torch.

    TVM drops unused inputs, and gives indices as int32.
    """
    main = relay.transform.InferType()(mod)["main"]
    used = {var.name_hint: var for var in main.params}
    inputs = [
        used.pop(name, None) or relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in infos
    ]
    outputs = [_cast(output, dtype) for output, dtype in zip(_fields(main.body), output_dtypes)]
    body = relay.Tuple(outputs) if len(outputs) > 1 else outputs[0]
    mod["main"] = relay.Function([*inputs, *used.values()], body)
    return mod


def _cast(output: relay.Expr, dtype: str) -> relay.Expr:
    if output.checked_type.dtype == dtype:
        return output
    cast = relay.cast(output, dtype)
    return set_span(cast, output.span) if output.span else cast


def _fields(body: relay.Expr) -> list[relay.Expr]:
    return list(body.fields) if isinstance(body, relay.Tuple) else [body]


def _dtype(typed: torch.Tensor | TracedModel) -> str:
    """Relay's name for the dtype of a tensor or a traced model."""
    return str(typed.dtype).replace("torch.", "")
