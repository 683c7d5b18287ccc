"""Expand, Pad, Slice and others that change a shape."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tvm_passes.engine.expressions import type_of

from tvm import relay

from ... import _slice as _onnx_slice
from ..._fold import constant
from ..._pad import pad_from_inside, pad_late
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    axis_of,
    dtype_of,
    like,
    opset_of,
    rank_of,
    several,
    sizes_of,
    stock,
)


def concat(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own copies a single tensor."""
    axis = attrs["axis"]
    return inputs[0] if len(inputs) == 1 else relay.concatenate(list(inputs), axis)


def expand(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the greater of two lengths, and so turns zero rows into one."""
    data, shape = inputs
    known, wanted = type_of(data).shape, type_of(shape)
    if any(not hasattr(dim, "value") for dim in (*known, *wanted.shape)):
        numbers = importer.fold_constant(shape)
        if isinstance(numbers, relay.Constant):
            return _expanded_to(data, len(known), numbers.data.numpy())
        if sizes_of(shape) == (None,):
            raise NotImplementedError("how many axes it expands to is known only at run time")
        return stock(importer, "Expand")(inputs, attrs, params)
    rank = max(len(known), int(wanted.shape[0]))
    lengths = [1] * (rank - len(known)) + [int(dim) for dim in known]
    missing = relay.const([1] * (rank - int(wanted.shape[0])), wanted.dtype)
    shape = relay.concatenate([missing, shape], 0) if rank > int(wanted.shape[0]) else shape
    # Only axes of length 1 are expanded.
    have = np.array(lengths, wanted.dtype)
    shape = relay.where(relay.const(have == 1), shape, relay.const(have, wanted.dtype))
    return relay.broadcast_to(data, importer.fold_constant(shape))


def _expanded_to(data: relay.Expr, rank: int, numbers: np.ndarray) -> relay.Expr:
    """Of unknown lengths, expanded to numbers, of which a 1 leaves the axis as it is, even without rows."""
    if len(numbers) > rank:
        data = relay.expand_dims(data, 0, len(numbers) - rank)
    numbers = np.concatenate([np.ones(max(rank - len(numbers), 0), numbers.dtype), numbers])
    if (numbers == 1).all():
        return data
    dtype = str(numbers.dtype)
    have = relay.shape_of(data, dtype)
    return relay.broadcast_to(data, relay.where(relay.const(numbers == 1), have, relay.const(numbers, dtype)))


def pad(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the axes for pads, reads out of bounds for negative pads, and lacks the mode wrap."""
    data, mode = inputs[0], attrs.get("mode", b"constant").decode()
    rank = rank_of(data)
    if opset_of(importer) < 11:
        pads = attrs.get("pads") or attrs["paddings"]
        pads, value, axes = constant(np.array(pads, "int64")), attrs.get("value", 0.0), None
    else:
        pads, value, axes = inputs[1], inputs[2], inputs[3]
    if axes is not None:
        pads = _of_all_axes(pads, axes, rank)
    pads = importer.fold_constant(pads)
    if isinstance(value, relay.Expr):
        value = importer.fold_constant(relay.reshape(value, []))
    elif value is None:
        value = 0.0
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise NotImplementedError(f"its attribute mode={mode} is not known")
    if not isinstance(pads, relay.Constant):
        widths = relay.reshape(relay.cast(pads, "int64"), [2, rank])
        value = value if isinstance(value, relay.Expr) else like(value, data)
        return pad_late(data, widths, rank, value, mode)
    before, after = pads.data.numpy().reshape(2, rank).tolist()
    data, before, after = _without_negative(data, before, after)
    if not any(before + after):
        return data
    shape = sizes_of(data)
    if mode in ("reflect", "wrap"):
        for axis, (first, last) in enumerate(zip(before, after)):
            size = shape[axis]
            if size is None and (first or last):
                widths = relay.const(first, "int64"), relay.const(last, "int64")
                data = pad_from_inside(data, *widths, axis, mode)
                before[axis] = after[axis] = 0
            elif size is not None and max(first, last) > size - (mode == "reflect"):
                raise NotImplementedError(f"its mode {mode} needs an axis that is longer than its padding")
    if mode == "wrap":
        for axis, (first, last) in enumerate(zip(before, after)):
            size = shape[axis]
            if size is not None and (first or last):
                places = np.arange(-first, size + last) % size
                data = relay.take(data, constant(places), axis)
        return data
    return relay.nn.pad(data, list(zip(before, after)), value, mode) if any(before + after) else data


def _of_all_axes(pads: relay.Expr, axes: relay.Expr, rank: int) -> relay.Expr:
    """Extend the pads of some axes to all, with zeros for the others."""
    (count,) = sizes_of(axes)
    if count is None:
        raise NotImplementedError("how many axes it pads is known only at run time")
    is_this = relay.cast(_is_axis(axes, count, rank), "int64")
    widths = relay.reshape(relay.cast(pads, "int64"), [2, count, 1]) * is_this
    return relay.reshape(relay.sum(widths, [1]), [2 * rank])


def _without_negative(
    data: relay.Expr, before: list[int], after: list[int]
) -> tuple[relay.Expr, list[int], list[int]]:
    """Crop the data by the negative pads; return it with the remaining pads."""
    if min(before + after) < 0:
        bounds = {
            axis: (max(-first, 0), min(last, 0) or np.iinfo("int64").max, 1)
            for axis, (first, last) in enumerate(zip(before, after))
            if min(first, last) < 0
        }
        data = _onnx_slice.constant_slice(data, bounds)
    return data, [max(width, 0) for width in before], [max(width, 0) for width in after]


def size(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own gives 0 for a scalar that is known, and fails for sizes that are not."""
    shape = [each for each in sizes_of(inputs[0]) if each is not None]
    if len(shape) < rank_of(inputs[0]):
        return relay.prod(relay.shape_of(inputs[0], "int64"))
    return constant(np.array(np.prod(shape), "int64"))


def slice_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own forgets the sizes of all axes if bounds are dynamic, and takes other elements.

    The bounds were attributes once, and are inputs now.
    """
    data, *bounds = inputs
    if not bounds:
        bounds = [attrs.get(name) for name in ("starts", "ends", "axes")]
    else:
        bounds = [
            bound.data.numpy().tolist() if isinstance(bound, relay.Constant) else bound for bound in bounds
        ]
    starts, ends, axes, steps = (bounds + [None, None])[:4]
    if isinstance(axes, relay.Expr):
        return _slice_late_axes(data, starts, ends, axes, steps)
    if axes is None:
        axes = range(all_sizes_of(starts)[0] if isinstance(starts, relay.Expr) else len(starts))
    steps = [1] * len(axes) if steps is None else steps
    columns = [_items(column, len(axes)) for column in (starts, ends, steps)]
    slice_by = _onnx_slice.constant_slice
    if any(isinstance(bound, relay.Expr) for bound in (starts, ends, steps)):
        slice_by = _onnx_slice.late_slice
    return slice_by(data, dict(zip(axes, zip(*columns))))


def _slice_late_axes(data: relay.Expr, starts: Any, ends: Any, axes: relay.Expr, steps: Any) -> relay.Expr:
    """Slice along axes that are known only at run time: along each axis, as a whole unless it is one of them.

    TVM's own reads before the first element if a start lies there.
    """
    count, rank = all_sizes_of(axes, "its input 3, the axes,")[0], rank_of(data)
    is_this = _is_axis(axes, count, rank)

    def of_all_axes(given: Any, otherwise: int) -> relay.Expr:
        given = given if isinstance(given, relay.Expr) else constant(np.array(given, "int64"))
        given = relay.reshape(relay.cast(given, "int64"), [count, 1])
        there = relay.sum(relay.where(is_this, given, constant(np.array(0, "int64"))), [0])
        return relay.where(relay.any(is_this, [0]), there, constant(np.array(otherwise, "int64")))

    steps = [1] * count if steps is None else steps
    full = ((starts, 0), (ends, np.iinfo("int64").max), (steps, 1))
    columns = [_items(of_all_axes(given, otherwise), rank) for given, otherwise in full]
    return _onnx_slice.late_slice(data, dict(enumerate(zip(*columns))))


def _is_axis(axes: relay.Expr, count: int, rank: int) -> relay.Expr:
    """Whether each of the axes, in a row of its own, is axis 0, 1, ..."""
    axes = relay.cast(axes, "int64")
    axes = relay.where(axes < relay.const(0, "int64"), axes + relay.const(rank, "int64"), axes)
    return relay.equal(relay.reshape(axes, [count, 1]), constant(np.arange(rank).reshape(1, rank)))


def _items(numbers: Any, count: int) -> list[Any]:
    """The numbers of a list, or of a vector that is known only at run time."""
    if not isinstance(numbers, relay.Expr):
        return numbers
    return [numbers] if count == 1 else list(relay.split(numbers, count))


def space_to_depth(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports the mode DCR only, the only one before ONNX had the attribute."""
    block = int(attrs["blocksize"])
    if attrs.get("mode", b"DCR") == b"DCR":
        return relay.nn.space_to_depth(inputs[0], block)
    tiles = relay.reshape(inputs[0], [0, 0, -4, -1, block, -4, -1, block])
    tiles = relay.transpose(tiles, [0, 1, 3, 5, 2, 4])  # N, C, block, block, H, W
    return relay.reshape(relay.reshape(tiles, [0, -3, -2]), [0, -3, -2])


def split(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own lacks a shorter last part and dynamic sizes, and a single part does not compile."""
    data, count = inputs[0], attrs["tvm_custom"]["num_outputs"]
    axis = axis_of(attrs.get("axis", 0), rank_of(data))
    parts = inputs[1] if len(inputs) > 1 else attrs.get("split")
    may_differ = bool(attrs.get("num_outputs"))  # the node has as many; before, all parts were of one length
    if isinstance(parts, relay.Constant):
        parts = parts.data.numpy().tolist()
    if count == 1:
        return data
    size = sizes_of(data)[axis]
    if parts is None:
        if size is None:
            return (
                several(*_split_evenly(data, count, axis)) if may_differ else relay.split(data, count, axis)
            )
        length = -(-size // count)
        parts = [length] * (count - 1) + [size - length * (count - 1)]
    if isinstance(parts, relay.Expr):
        return several(*_split_late(data, parts, count, axis))
    return several(*split_into(data, parts, axis))


def split_into(data: relay.Expr, lengths: list[int], axis: int) -> list[relay.Expr]:
    """Parts of these lengths along an axis."""
    ends = np.cumsum(lengths).tolist()
    if 0 in lengths:
        bounds = zip([0, *ends[:-1]], ends)
        return [relay.strided_slice(data, [b], [e], axes=[axis]) for b, e in bounds]
    return list(relay.split(data, ends[:-1], axis)) if len(lengths) > 1 else [data]


def _split_evenly(data: relay.Expr, count: int, axis: int) -> list[relay.Expr]:
    """Split an axis of unknown length into parts of one length, of which the last may be shorter."""
    size = relay.take(relay.shape_of(data, "int64"), relay.const(axis))
    length = relay.floor_divide(size + relay.const(count - 1, "int64"), relay.const(count, "int64"))
    ends = [length * relay.const(place, "int64") for place in range(count + 1)]
    return [
        _onnx_slice.late_slice(data, {axis: (begin, end, 1)}) for begin, end in zip([0, *ends[1:]], ends[1:])
    ]


def _split_late(data: relay.Expr, parts: relay.Expr, count: int, axis: int) -> list[relay.Expr]:
    """Split into parts whose sizes are known only at run time."""
    rank, ends = rank_of(data), relay.cumsum(relay.cast(parts, "int64"), 0)
    here = constant(np.arange(rank) == axis)
    shape, none = relay.shape_of(data, "int64"), constant(np.zeros(rank, "int64"))
    results, begin = [], none
    for place in range(count):
        end = relay.where(here, relay.take(ends, relay.const(place)), shape)
        results.append(relay.strided_slice(data, begin, end, constant(np.ones(rank, "int64"))))
        begin = relay.where(here, end, none)
    return results


def tile(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not repeat zero times."""
    data, repeats = inputs
    if not isinstance(repeats, relay.Constant) or repeats.data.numpy().all():
        return stock(importer, "Tile")([data, repeats], attrs, params)
    shape = np.multiply(all_sizes_of(data, "none of it"), repeats.data.numpy())
    return constant(np.zeros(shape, dtype_of(data)))


def unsqueeze(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own sorts axes before it counts negative ones, and takes no scalar, as in AffineGrid."""
    data, axes = inputs[0], inputs[1] if opset_of(importer) >= 13 else attrs["axes"]
    if isinstance(axes, relay.Constant):
        axes = axes.data.numpy().reshape(-1).tolist()
    if isinstance(axes, relay.Expr):
        (count,) = sizes_of(axes)
        if count is None:
            raise NotImplementedError("how many axes it inserts is known only at run time")
        axes = relay.where(axes < like(0, axes), axes + like(rank_of(data) + count, axes), axes)
        return stock(importer, "Unsqueeze")([data, axes], attrs, params)
    places = sorted(axis_of(axis, rank_of(data) + len(axes)) for axis in axes)
    if len(set(places)) < len(places):
        raise NotImplementedError(f"its axes {axes} name one more than once")
    for place in places:
        data = relay.expand_dims(data, place)
    return data


def optional_has_element(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes a scalar for a missing element."""
    return relay.const(any(given is not None for given in inputs))


CONVERTERS: dict[str, Converter] = {
    "Concat": concat,
    "Expand": expand,
    "OptionalHasElement": optional_has_element,
    "Pad": pad,
    "Size": size,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Tile": tile,
    "Unsqueeze": unsqueeze,
}
