"""Operators that torch itself decomposes into simpler ones, which are converted in their place.

torch defines most of its operators in Python, down to a small closed set, its `prims`, for which types are
already promoted, shapes broadcast, and axes normalized. An operator is traced with the shapes and dtypes that
it has in the model; `prims` says what its parts are in Relay.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tvm import relay

from . import functions, quantized_decomposed
from .converter import (
    INSTEAD,
    SCALAR_TYPES,
    Convert,
    Converter,
    Inputs,
    InputTypes,
    NotConverted,
    constant,
    known_number,
)
from .prims import PRIMS, VIEWS, Node
from .unsized import REASON, convert_unsized, has_unknown_shape

# Not decomposed: Relay has one operator for it, or a converter here is better than torch's Python definition.
WHOLE = {
    "_log_softmax", "_softmax", "addbmm", "addmm", "addmv", "baddbmm", "bmm", "bucketize", "clamp",
    "clamp_max", "clamp_min", "cumprod", "cumsum", "index_select", "mm", "mv", "native_batch_norm",
    "native_group_norm", "native_layer_norm", "take", "unfold",
}  # fmt: skip
NAMESPACES = ("aten", quantized_decomposed.NAMESPACE)  # whose definitions are known here
LIKE_PRIMS = {"as_strided", "full_like"}  # operators of aten that are converted like prims
OF_MEMORY = {"layout", "device", "pin_memory", "memory_format", "non_blocking"}  # do not change results


def decomposed(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own is missing, or wrong for some arguments or dtypes: torch's own definition is converted."""
    node = converter.current_op[-1]
    if has_unknown_shape(converter, inputs):
        return convert_unsized(converter, node.kind().rstrip("_"), inputs, input_types)
    overload, in_place = overload_of(node)
    result = decompose(converter, overload, inputs)
    if in_place:
        dtype = converter.infer_type(inputs[0]).dtype
        return result if converter.infer_type(result).dtype == dtype else relay.cast(result, dtype)
    return result


def decompose(converter: Converter, overload: Any, inputs: Inputs) -> Any:
    """Convert an operator of torch by its decomposition; `inputs` are in the order of its schema."""
    tensors: list[relay.Expr] = []
    arguments = [
        _argument(converter, argument, value, tensors)
        for argument, value in zip(overload._schema.arguments, inputs)
    ]
    examples = [_example(converter, tensor) for tensor in tensors]
    graph = _trace(overload, arguments, examples)
    return _Interpreter(converter, overload).convert(graph, tensors)


def decomposition_of(name: str) -> Convert | None:
    """The converter of an operator that torch itself decomposes; None for any other."""
    return decomposed if is_decomposable(name) else None


@functools.lru_cache(None)
def is_decomposable(name: str) -> bool:
    """Whether torch has a definition of an operator of this name, such as `aten::std`, for some arguments."""
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None) if namespace in NAMESPACES else None
    if packet is None or any(base.startswith(word) for word in ("rand", "sym_")):
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return any(one in _definitions(namespace) or _is_composite(one) for one in overloads)


def _is_composite(overload: Any) -> bool:
    """Whether torch defines it by other operators in C++."""
    try:
        return overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    except RuntimeError:  # an operator of TorchScript only
        return False


@functools.lru_cache(None)
def _definitions(namespace: str = "aten") -> dict[Any, Callable]:
    """Those that operators of a namespace need."""
    if namespace != "aten":
        return _definitions() | quantized_decomposed.definitions()
    from torch._decomp import decomposition_table

    return {
        overload: definition
        for overload, definition in decomposition_table.items()
        if overload.name().rpartition("::")[2].partition(".")[0] not in WHOLE
    }


def overload_of(node: torch.Node) -> tuple[Any, bool]:
    """The out-of-place operator of a node, and whether the node works in place."""
    schema = torch._C.parse_schema(node.schema())
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    overload = schema.overload_name or "default"
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place:
        packet = getattr(torch.ops.aten, name[:-1], None)
        if packet is None or overload not in packet.overloads():
            raise NotConverted(f"there is no aten::{name[:-1]} that does not change its input")
    return getattr(packet, overload), in_place


class _Place:
    """The place of a tensor among all tensors that an operator is given."""

    def __init__(self, index: int) -> None:
        self.index = index


def _argument(converter: Converter, argument: Any, value: Any, tensors: list[relay.Expr]) -> Any:
    kind, name = str(argument.type), argument.name
    if value is None or name in OF_MEMORY:
        return None
    if "Tensor" in kind:
        if isinstance(value, (relay.Tuple, relay.expr.TupleWrapper)):
            value = list(value)
        if isinstance(value, list):
            return [_argument(converter, argument, item, tensors) for item in value]
        if isinstance(value, relay.Expr):
            tensors.append(value)
            return _Place(len(tensors) - 1)
        return value  # a constant 0-d tensor is a number
    if isinstance(value, (list, tuple)):
        return [_argument(converter, argument, item, tensors) for item in value]
    if isinstance(value, relay.Expr):
        value = known_number(value)
        if value is None:
            raise NotConverted(f"its argument {name} is known only at run time")
    if "ScalarType" in str(argument.real_type):
        return SCALAR_TYPES[value]
    return value


def _example(converter: Converter, tensor: relay.Expr) -> tuple[tuple[int, ...], torch.dtype]:
    type_ = converter.infer_type_with_prelude(tensor)
    shape = converter.infer_shape_with_prelude(tensor)
    if not all(isinstance(extent, int) for extent in shape):
        raise NotConverted(REASON)
    return tuple(shape), getattr(torch, type_.dtype)


def _trace(
    overload: Any, arguments: list[Any], examples: list[tuple[tuple[int, ...], torch.dtype]]
) -> torch.fx.GraphModule:
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
        UnsupportedOperatorException,
    )
    from torch.fx.experimental.proxy_tensor import make_fx

    def filled(value: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
        if isinstance(value, list):
            return [filled(item, tensors) for item in value]
        return tensors[value.index] if isinstance(value, _Place) else value

    def call(*tensors: torch.Tensor) -> Any:
        schema = overload._schema.arguments
        values = [filled(value, tensors) for value in arguments]
        given = {
            argument.name: value for argument, value in zip(schema, values) if argument.name not in OF_MEMORY
        }
        by_place = [given.pop(argument.name) for argument in schema if not argument.kwarg_only]
        return overload(*by_place, **given)

    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in examples]
    try:
        return make_fx(call, decomposition_table=_definitions(overload.namespace))(*tensors)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        raise NotConverted("the shape of its result depends on the values of its inputs") from error
    except (UnsupportedOperatorException, AssertionError, NotImplementedError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        if "value out of a tracing tensor" in reason:
            raise NotConverted("torch's own definition of it depends on the values of its inputs") from error
        raise NotConverted(f"torch has no definition of it for these arguments ({reason})") from error


class _Interpreter:
    """Converts a traced graph, operator by operator."""

    def __init__(self, converter: Converter, overload: Any) -> None:
        self.converter = converter
        self.overload = overload
        self.values: dict[Node, Any] = {}

    def convert(self, module: torch.fx.GraphModule, tensors: list[relay.Expr]) -> Any:
        waiting: Iterator[relay.Expr] = iter(tensors)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(waiting)
            elif node.op == "get_attr":
                self.values[node] = constant(getattr(module, node.target))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            else:
                return self._result(node.args[0])
        raise AssertionError("a graph has an output")

    def _result(self, output: Any) -> Any:
        if isinstance(output, (list, tuple)):
            items = [self._result(item) for item in output]
            return items if "[]" in str(self.overload._schema).rpartition("->")[2] else tuple(items)
        return self._settled(output, self.values[output])

    def _settled(self, node: Node, value: relay.Expr) -> relay.Expr:
        """The value, with the dtype it has in torch."""
        expected = node.meta["val"]
        dtype = str(expected.dtype).replace("torch.", "")
        shape = tuple(self.converter.infer_shape_with_prelude(value))
        if shape != tuple(expected.shape):
            raise NotConverted(f"{node.target} gives a tensor of {list(shape)}, not {list(expected.shape)}")
        return value if self.converter.infer_type(value).dtype == dtype else relay.cast(value, dtype)

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        namespace, name, _ = str(node.target).split(".")
        if name in PRIMS and (namespace == "prims" or name in LIKE_PRIMS):
            return PRIMS[name](self._operand, node)
        kind = f"{namespace}::{name}"
        if node.target._schema.is_mutable:
            return self._changed(node, kind)
        convert = self.converter.convert_map.get(kind)
        if convert is None or getattr(convert, "func", None) is decomposed:
            raise NotConverted(f"{kind} has no equivalent in Relay: {INSTEAD}")
        inputs, types = self._inputs(node)
        results = convert(inputs, types)
        if isinstance(results, relay.Expr):
            return self._settled(node, results)
        return list(results)

    def _changed(self, node: Node, kind: str) -> relay.Expr:
        """The new value of a tensor into which another is copied."""
        tensor, source = node.args[:2]
        others = [tensor, *tensor.users]
        if kind != "aten::copy_" or tensor.op != "call_function" or any(map(_is_view, others)):
            raise NotConverted(f"torch defines it with {kind}, which changes a tensor")
        dtype = str(source.meta["val"].dtype).replace("torch.", "")
        wanted = str(tensor.meta["val"].dtype).replace("torch.", "")
        value = functions.cast(self._operand(source), dtype, wanted)
        self.values[tensor] = relay.broadcast_to(value, list(tensor.meta["val"].shape))
        return self.values[tensor]

    def _inputs(self, node: Node) -> tuple[Inputs, InputTypes]:
        """All arguments in the order of the schema, as TorchScript gives them."""
        values = dict(node.kwargs)
        values.update(zip((argument.name for argument in node.target._schema.arguments), node.args))
        inputs, types = [], []
        for argument in node.target._schema.arguments:
            value = values.get(
                argument.name, argument.default_value if argument.has_default_value() else None
            )
            if isinstance(value, torch.dtype):
                value = SCALAR_TYPES.index(value)
            inputs.append(self._operand(value))
            types.append(
                str(value.meta["val"].dtype).replace("torch.", "")
                if isinstance(value, torch.fx.Node)
                else "float32"
            )
        return inputs, types

    def _operand(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._operand(item) for item in value]
        return self.values[value] if isinstance(value, torch.fx.Node) else value


def _is_view(node: Node) -> bool:
    target = str(node.target).split(".")
    return len(target) > 1 and target[1] in VIEWS


# TVM has these, but ignores an argument, or computes them wrongly for some dtype or shape.
REPLACED = (
    *("addcdiv", "addcmul", "einsum", "frobenius_norm", "lerp", "linspace", "tril", "triu"),
    *("linalg_vector_norm", "logsumexp", "norm", "std", "var", "var_mean"),
)
CONVERTERS = {f"aten::{name}": decomposed for name in REPLACED}
