"""Helpers of the converters. Each converter takes its importer, then what all of TVM's converters take."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tvm_passes.engine.expressions import type_of

import tvm
from tvm import relay

from ..._types import sizes

Inputs = list[relay.Expr]
Attrs = dict[str, Any]
Params = dict[str, tvm.nd.NDArray]
Converter = Callable[[ModuleType, Inputs, Attrs, Params], relay.Expr]


def stock(importer: ModuleType, name: str) -> Callable:
    """TVM's own converter for the opset of the model."""
    return getattr(importer, name).get_converter(opset_of(importer))


def in_float32(convert: Converter) -> Converter:
    """Compute float16 in float32, as other runtimes do: sums in float16 lose small terms."""

    @functools.wraps(convert)
    def converted(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        if dtype_of(inputs[0]) != "float16":
            return convert(importer, inputs, attrs, params)
        wide = copy.copy(inputs)
        wide[0] = relay.cast(inputs[0], "float32")
        return relay.cast(convert(importer, wide, attrs, params), "float16")

    return converted


def opset_of(importer: ModuleType) -> int:
    """The version of ONNX's operator set that the model uses."""
    return importer.GraphProto.current.opset


def dtype_of(expr: relay.Expr) -> str:
    return type_of(expr).dtype


def rank_of(expr: relay.Expr) -> int:
    return len(type_of(expr).shape)


def sizes_of(expr: relay.Expr) -> tuple[int | None, ...]:
    """The shape, with None for a size that is known only at run time."""
    return sizes(type_of(expr))


def all_sizes_of(expr: relay.Expr, what: str = "it") -> tuple[int, ...]:
    """The shape, all sizes of which `what` needs to know."""
    shape = tuple(size for size in sizes_of(expr) if size is not None)
    if len(shape) < rank_of(expr):
        raise NotImplementedError(f"{what} needs sizes that are known")
    return shape


def like(value: float, expr: relay.Expr) -> relay.Constant:
    """A scalar of the dtype of an expression."""
    return relay.const(value, dtype_of(expr))


def known(expr: relay.Expr | None, what: str) -> np.ndarray | None:
    """The value of an optional input that must be constant."""
    if expr is None:
        return None
    if not isinstance(expr, relay.Constant):
        raise NotImplementedError(f"its {what} must be constant, and is known only at run time")
    return expr.data.numpy()


def axis_of(axis: int, rank: int) -> int:
    """An axis, which may be negative, counted from the first."""
    if not -rank <= axis < rank:
        raise NotImplementedError(f"its axis {axis} is out of range for an input of {rank} axes")
    return axis % rank


def channels_first(images: relay.Expr) -> relay.Expr:
    """Images whose channels come last, with the channels behind the batch."""
    rank = rank_of(images)
    return relay.transpose(images, [0, rank - 1, *range(1, rank - 1)])


def channels_last(images: relay.Expr) -> relay.Expr:
    """Images whose channels are behind the batch, with the channels last."""
    return relay.transpose(images, [0, *range(2, rank_of(images)), 1])


def several(*results: relay.Expr) -> relay.TupleWrapper:
    """The results of a node that has more than one."""
    return relay.TupleWrapper(relay.Tuple(list(results)), len(results))
