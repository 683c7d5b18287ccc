"""Tensors with other elements in places that are known at import, such as those of a view."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from tvm import relay

from ..._fold import keep_known
from ..._slice import late_slice
from ..memory import shares
from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted, known_number
from .shapes import are_integers, as_length, size


def view_replaced(
    view: Callable[..., torch.Tensor], converter: Converter, inputs: Inputs, _: InputTypes
) -> relay.Expr:
    """TVM lacks it: `torch.export` writes a change of a view so. torch itself takes the view, of places."""
    base, part, *settings = inputs
    from_, to = (converter.infer_type(each).dtype for each in (part, base))
    part = functions.cast(part, from_, to)
    return replaced_anywhere(base, part, *_places(view, converter, base, settings))


def as_strided(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    base, *settings = inputs
    places, _ = _places(torch.as_strided, converter, base, settings)
    return relay.take(relay.reshape(base, [-1]), relay.const(places), mode="fast")


def _places(
    view: Callable[..., torch.Tensor], converter: Converter, base: relay.Expr, settings: list[Any]
) -> tuple[np.ndarray, list[int]]:
    """Where among all elements of `base` those of a view are, and the shape of `base`."""
    shape = list(converter.infer_shape_with_prelude(base))
    if not are_integers(*shape):
        raise NotConverted("it takes a tensor whose shape is known only at run time")
    known = [_known(each) for each in settings]
    if view is torch.as_strided:
        _check_memory(converter)
    return view(torch.arange(math.prod(shape)).reshape(shape), *known).numpy(), shape


def _known(setting: Any) -> Any:
    if isinstance(setting, list):
        return [_known(each) for each in setting]
    known = known_number(setting) if isinstance(setting, relay.Expr) else setting
    if known is None and setting is not None:
        raise NotConverted("which part of the tensor it takes is known only at run time")
    return known


def _check_memory(converter: Converter) -> None:
    """Raise NotConverted unless the tensor is all that is in its memory, in order: a view may be of more."""
    value = converter.current_op[-1].inputsAt(0)
    type_: Any = value.type()
    sizes, strides = type_.sizes(), type_.strides()
    is_ordered = None not in (sizes, strides) and strides == list(torch.empty(sizes, device="meta").stride())
    if not is_ordered or shares(value.node()) is not False:
        raise NotConverted(
            "it reads memory by its strides, of a tensor that may be a view: call clone() before"
        )


def replaced_anywhere(base: relay.Expr, part: relay.Expr, places: np.ndarray, shape: list[int]) -> relay.Expr:
    """`base` with `part` at these places among all elements, which along one axis are quicker to replace."""
    if not places.size:
        return base
    box = [np.unique(each) for each in np.unravel_index(places, shape)]
    cut = [axis for axis, (size, kept) in enumerate(zip(shape, box)) if len(kept) < size]
    if len(cut) == 1 and np.array_equal(np.ravel_multi_index(np.ix_(*box), shape).ravel(), places.ravel()):
        part = relay.reshape(part, [len(kept) for kept in box])
        return replaced(base, part, cut[0], box[cut[0]], shape)
    flat = replaced(
        relay.reshape(base, [-1]), relay.reshape(part, [-1]), 0, places.ravel(), [int(np.prod(shape))]
    )
    return relay.reshape(flat, shape)


def replaced(
    base: relay.Expr, part: relay.Expr, axis: int, places: Iterable[int], shape: list[int]
) -> relay.Expr:
    """`base` with `part` at these places of an axis; TVM's `strided_set` is wrong when fused."""
    places = list(places)
    if not places:
        return base
    taken, source = np.zeros(shape[axis], "bool"), np.zeros(shape[axis], "int32")
    taken[places] = True
    source[places] = range(len(places))
    spread = relay.take(part, relay.const(source), axis)
    mask = taken.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    # Each element is selected from two: a few of these in a row, fused, take minutes to compile.
    return relay.annotation.stop_fusion(relay.where(relay.const(mask), spread, base))


def replaced_between(
    converter: Converter, base: relay.Expr, part: relay.Expr, axis: int, begin: Any, end: Any
) -> relay.Expr:
    """`base` with `part` from `begin` to `end` on an axis: any of them may be known only at run time.

    What is behind the part follows its end even where `end` is before `begin`, or past all elements.
    """
    pieces = [relay.annotation.stop_fusion(part)]  # TVM does not fuse what is as long as the data say
    if begin not in (None, 0):
        pieces.insert(0, late_slice(base, {axis: (0, begin, 1)}))
    if end not in (None, sys.maxsize):
        lengths = [as_length(size(converter, [each, axis], [])) for each in pieces]
        pieces.append(late_slice(base, {axis: (functools.reduce(relay.add, lengths), sys.maxsize, 1)}))
    shape = converter.infer_shape_with_prelude(base)
    joined = relay.annotation.stop_fusion(relay.concatenate(pieces, axis))
    return keep_known(joined, [extent if are_integers(extent) else None for extent in shape])


CONVERTERS = {
    "aten::as_strided": as_strided,
    "aten::as_strided_scatter": functools.partial(view_replaced, torch.as_strided),
    "aten::diagonal_scatter": functools.partial(view_replaced, torch.diagonal),
    "aten::slice_scatter": functools.partial(view_replaced, torch.ops.aten.slice.Tensor),
}
