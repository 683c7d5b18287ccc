"""TVM's ONNX importer with its slow helpers replaced, in a private copy.

The importer's helpers and its table of converters are globals of its module. Each import here runs in a
fresh copy of that module, loaded from TVM's own file, so replacing a global affects nothing else: neither
`relay.frontend.from_onnx` nor an import in another thread.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from tvm_passes.engine.expressions import shape_of_type, type_of

import tvm
from tvm import relay
from tvm.relay.frontend import common as tvm_common
from tvm.relay.frontend import onnx as tvm_onnx

from .._fold import ConstantFolder, constant
from .._pad import pad_same
from .._types import infer_type
from . import operators as onnx_operators
from .interface import tvm_dtype
from .schema import Inputs
from .scope import scope_class


def load_importer() -> ModuleType:
    """A copy of TVM's importer that is fast and has this project's converters."""
    common, importer = _copy_of(tvm_common), _copy_of(tvm_onnx)
    for name, value in vars(tvm_onnx).items():
        if getattr(value, "__module__", None) == tvm_common.__name__:
            setattr(importer, name, getattr(common, name))
    fold_constant = ConstantFolder()
    stock_set_span = common.set_span

    def set_span(expr: relay.Expr, span: Any) -> relay.Expr:
        spanned = stock_set_span(expr, span)
        fold_constant.follow(expr, spanned)
        return spanned

    helpers = {
        "fold_constant": fold_constant,
        "infer_type": infer_type,
        "set_span": set_span,
        "shape_of": shape_of,
        "autopad": functools.partial(pad_same, common.autopad),
        "infer_value": functools.partial(_infer_value, fold_constant, common.infer_value),
        "get_type": tvm_dtype,
        "get_source_name": functools.partial(_source_name, {}),
    }
    for module in common, importer:
        for name, helper in helpers.items():
            if hasattr(module, name):
                setattr(module, name, helper)
    common.logger.filters.pop()  # the copied module has added its filter to the logger again
    importer.onnx_input = Inputs
    importer.GraphProto = scope_class(importer.GraphProto)
    stock_map = importer._get_convert_map
    importer._get_convert_map = functools.lru_cache(maxsize=None)(
        lambda opset: {**stock_map(opset), **onnx_operators.bound_to(importer)}
    )
    return importer


def _copy_of(module: ModuleType) -> Any:
    spec: Any = importlib.util.spec_from_file_location(module.__name__, module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def shape_of(
    x: relay.Expr, dtype: str = "int64", start: int | None = None, end: int | None = None
) -> relay.Expr:
    """Like the importer's own, which ignores `start` and `end` if the shape is dynamic."""
    x_type = type_of(x)
    shape = shape_of_type(x_type)
    if shape is not None:
        return constant(np.asarray(shape[start:end], dtype))
    start, end, _ = slice(start, end).indices(len(x_type.shape))
    if start >= end:
        return constant(np.zeros(0, dtype))
    whole = relay.shape_of(x, dtype)
    return whole if (start, end) == (0, len(x_type.shape)) else relay.strided_slice(whole, [start], [end])


def _infer_value(
    fold_constant: ConstantFolder,
    stock_infer_value: Callable,
    expr: relay.Expr,
    params: dict[str, tvm.nd.NDArray],
    mod: tvm.IRModule | None = None,
) -> tvm.nd.NDArray:
    """The value of an expression; the importer's own compiles even constants to get it."""
    folded = fold_constant(expr)
    return folded.data if isinstance(folded, relay.Constant) else stock_infer_value(expr, params, mod)


def _source_name(names: dict[str, str], node: onnx.NodeProto, counts: dict[str, int]) -> str:
    """The name of a node; the importer's own writes missing names into the user's model."""
    if node.name:
        return node.name
    kind = getattr(node, "op_type", "Graph")  # it may also be a body
    key = str(node.output[0])
    if key not in names:
        counts[kind] = counts.get(kind, -1) + 1
        names[key] = f"{kind}_{counts[kind]}"
    return names[key]
