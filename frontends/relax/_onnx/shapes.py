"""Operators that move, select and join elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import numpy_helper

from tvm import relax, te, tirx
from tvm.ir import Expr

from ..._onnx.interface import tvm_dtype
from .._scatter import scattered
from .node import Convert, Node, constant, shape_of
from .sizes import INSTEAD, LARGEST, Extent, Size, bounded, broadcast, expressions, is_number, is_same

op = relax.op


def converters() -> dict[str, Convert]:
    return {
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "DepthToSpace": _depth_to_space,
        "Expand": _expand,
        "EyeLike": _eye_like,
        "Flatten": _flatten,
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "OneHot": _one_hot,
        "Pad": _pad,
        "Range": _range,
        "Reshape": _reshape,
        "ScatterElements": _scatter_elements,
        "ScatterND": _scatter_nd,
        "Slice": _slice,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
        "Squeeze": _squeeze,
        "Tile": _tile,
        "Transpose": _transpose,
        "Trilu": _trilu,
        "Unsqueeze": _unsqueeze,
    }


def _concat(n: Node) -> relax.Expr:
    axis = n.axis()
    first, *others = (shape_of(value)[:axis] + shape_of(value)[axis + 1 :] for value in n.inputs)
    for shape in others:
        if shape != first:
            n.refuse(f"{list(first)} and {list(shape)}, its shapes beside axis {axis}, are not the same")
    return op.concat(n.all_data(), axis)


def _constant_of_shape(n: Node) -> relax.Expr:
    given = n.attribute("value")
    value = np.zeros((), "float32") if given is None else numpy_helper.to_array(given).reshape(())
    return op.full(n.integers(0), constant(value))


def _depth_to_space(n: Node) -> relax.Expr:
    batch, channels, height, width = n.shape(0)
    block = n.attribute("blocksize")
    out = channels // block**2
    if n.attribute("mode") == "CRD":
        split, axes = (batch, out, block, block, height, width), [0, 1, 4, 2, 5, 3]
    else:
        split, axes = (batch, block, block, out, height, width), [0, 3, 4, 1, 5, 2]
    moved = op.permute_dims(op.reshape(n.data(0), split), axes)
    return op.reshape(moved, (batch, out, height * block, width * block))


def _space_to_depth(n: Node) -> relax.Expr:
    batch, channels, height, width = n.shape(0)
    block = n.attribute("blocksize")
    if height % block or width % block:
        n.refuse(f"blocks of {block} do not fill {height}x{width}")
    split = batch, channels, height // block, block, width // block, block
    moved = op.permute_dims(op.reshape(n.data(0), split), [0, 3, 5, 1, 2, 4])
    return op.reshape(moved, (batch, channels * block**2, height // block, width // block))


def _expand(n: Node) -> relax.Expr:
    return op.broadcast_to(n.data(0), broadcast(n.shape(0), n.integers(1)))


def _eye_like(n: Node) -> relax.Expr:
    """Of the shape of its input alone."""
    offset, given = n.attribute("k"), n.attribute("dtype")
    n.inputs[0]
    dtype = tvm_dtype(given) if given else n.dtype()

    def ones(rows: Expr, columns: Expr) -> te.Tensor:
        return te.compute((rows, columns), lambda row, column: (column - row == offset).astype(dtype), "eye")

    return n.builder.emit_te(ones, *expressions(n.shape(0)))


def _flatten(n: Node) -> relax.Expr:
    axis, shape = n.attribute("axis"), n.shape(0)
    axis = axis + len(shape) if axis < 0 else axis
    return op.reshape(n.data(0), (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _reshape(n: Node) -> relax.Expr:
    before, wanted = n.shape(0), n.integers(1)
    if not n.attribute("allowzero"):
        wanted = [before[at] if is_number(size, 0) else size for at, size in enumerate(wanted)]
    open_at = [at for at, size in enumerate(wanted) if is_number(size, -1)]
    if len(open_at) == 1:
        others = -math.prod(wanted)
        wanted[open_at[0]] = math.prod(before) // others if others else 0
    if math.prod(wanted) != math.prod(before) or any(isinstance(size, int) and size < 0 for size in wanted):
        n.refuse(f"{list(before)} cannot get the shape {wanted}")
    original = n.reshaped(n.data(0))
    if original is not None and _is_of_shape(original, wanted):
        return original
    return op.reshape(n.data(0), wanted)


def _is_of_shape(data: relax.Expr, shape: list[Extent]) -> bool:
    return len(shape) == data.ty.ndim and all(map(is_same, shape_of(data), shape))


def _squeeze(n: Node) -> relax.Expr:
    shape = n.shape(0)
    axes = _axes(n, 1, len(shape)) or [axis for axis, size in enumerate(shape) if size == 1]
    return op.reshape(n.data(0), [size for axis, size in enumerate(shape) if axis not in axes])


def _unsqueeze(n: Node) -> relax.Expr:
    shape = list(n.shape(0))
    for axis in sorted(_axes(n, 1, len(shape) + n.value(1).size) or []):
        shape.insert(axis, 1)
    return op.reshape(n.data(0), shape)


def _transpose(n: Node) -> relax.Expr:
    return op.permute_dims(n.data(0), n.attribute("perm") or list(range(n.rank()))[::-1])


def _trilu(n: Node) -> relax.Expr:
    offset = n.integers(1)[0] if n.has(1) else 0
    return (op.triu if n.attribute("upper") else op.tril)(n.data(0), offset)


def _one_hot(n: Node) -> relax.Expr:
    """Of indices that are not known: negative ones count from the end, others outside have no 1."""
    n.only_integers()
    (depth,), rank, dtype = n.integers(1), n.rank() + 1, n.dtype()
    axis = n.axis(rank=rank)
    off, on = (constant(value) for value in n.value(2))
    index = n.emit(op.expand_dims(n.data(0), axis))
    counted = op.where(op.less(index, relax.const(0, dtype)), op.add(index, relax.const(depth, dtype)), index)
    places = np.arange(depth).reshape([-1 if at == axis else 1 for at in range(rank)])
    return op.where(op.equal(counted, constant(places.astype(dtype))), on, off)


def _tile(n: Node) -> relax.Expr:
    repeats, shape = n.integers(1), n.shape(0)
    if all(isinstance(each, int) for each in repeats):
        return op.tile(n.data(0), repeats)
    if any(count != 1 and size != 1 for count, size in zip(repeats, shape)):
        n.refuse(f"it repeats {list(shape)} as often as only the run knows: {INSTEAD}")
    return op.broadcast_to(n.data(0), broadcast(shape, repeats))


def _split(n: Node) -> list[relax.Expr]:
    axis, parts = n.axis(), len(n.proto.output)
    size = n.shape(0)[axis]
    if n.has(1):
        lengths = n.integers(1)
    else:
        n.attribute("num_outputs")
        largest = -(-size // parts)
        lengths = [min(largest, size - at * largest) for at in range(parts)]
    if sum(lengths) != size or min(lengths) < 0 or len(lengths) != parts:
        n.refuse(f"{size} cannot be split into {lengths}")
    ends = np.cumsum(lengths).tolist()
    return [_part(n, n.data(0), axis, end - length, end) for length, end in zip(lengths, ends)]


def _part(n: Node, data: relax.Expr, axis: int, begin: Extent, end: Extent) -> relax.Expr:
    shape = list(shape_of(data))
    shape[axis] = end - begin
    return n.emit_of_shape(op.strided_slice(data, [axis], [begin], [end], assume_inbound=True), shape)


def _slice(n: Node) -> relax.Expr:
    """Backwards by a list of places, since TVM's slices only go forwards as ONNX's do."""
    starts, ends, shape = n.integers(1), n.integers(2), n.shape(0)
    axes = _axes(n, 3, len(shape)) or list(range(len(starts)))
    steps = n.integers(4) if n.has(4) else [1] * len(starts)
    result, forwards = n.data(0), []
    for axis, *bounds in zip(axes, starts, ends, steps):
        if isinstance(shape[axis], Size) and _are_all_backwards(*bounds):
            result = n.emit(op.flip(result, axis))
            continue
        start, end, step = bounded(slice(*bounds), shape[axis])
        if step > 0:
            forwards.append((axis, start, max(start, end), step))
        else:
            places = np.arange(start, end, step, dtype="int64")
            result = n.emit(op.take(result, constant(places), axis))
    if forwards:
        after = list(shape_of(result))
        for axis, start, end, step in forwards:
            after[axis] = -((start - end) // step)
        axes, starts, ends, steps = (list(each) for each in zip(*forwards))
        result = n.emit_of_shape(
            op.strided_slice(result, axes, starts, ends, steps, assume_inbound=True), after
        )
    return result


def _are_all_backwards(start: Extent, end: Extent, step: Extent) -> bool:
    return is_number(start, -1) and is_number(step, -1) and isinstance(end, int) and end <= -LARGEST


def _axes(n: Node, place: int, rank: int) -> list[int] | None:
    """An optional input of axes, counted from the front."""
    if not n.has(place):
        return None
    axes = [axis + rank if axis < 0 else axis for axis in n.integers(place)]
    if len(set(axes)) < len(axes) or not all(0 <= axis < max(rank, 1) for axis in axes):
        n.refuse(f"the axes {n.integers(place)} are not axes of a tensor of {rank}")
    return axes


def _gather(n: Node) -> relax.Expr:
    axis = n.axis()
    indices = _inside(n, 1, n.shape(0)[axis])
    return op.take(n.data(0), indices, axis)


def _gather_elements(n: Node) -> relax.Expr:
    axis = n.axis()
    return op.gather_elements(n.data(0), _inside(n, 1, n.shape(0)[axis]), axis)


def _gather_nd(n: Node) -> relax.Expr:
    batch_dims, indices = n.attribute("batch_dims"), n.shape(1)
    sizes = n.shape(0)[batch_dims : batch_dims + indices[-1]]
    return op.gather_nd(n.data(0), _inside(n, 1, *sizes), batch_dims=batch_dims)


def _scatter_elements(n: Node) -> relax.Expr:
    axis = n.axis()
    indices = _inside(n, 1, n.shape(0)[axis])
    return scattered(n.emit, n.data(0), indices, n.data(2), axis, _reduction(n))


def _scatter_nd(n: Node) -> relax.Expr:
    shape, known = n.shape(0), n.shape(1)[-1]
    indices, data, updates = _inside(n, 1, *shape[:known]), n.data(0), n.data(2)
    if any(isinstance(size, Size) for size in shape[known:]):  # TVM's kernel compares only variables
        sizes = [tirx.Var(f"size_{axis}", "int64") for axis in range(known, len(shape))]
        data, updates = (_with_last(n, each, sizes) for each in (data, updates))
    return n.emit_of_shape(op.scatter_nd(data, indices, updates, _reduction(n)), shape)


def _with_last(n: Node, value: relax.Expr, sizes: list[tirx.Var]) -> relax.Expr:
    """With these names for the sizes of its last axes."""
    first = list(value.ty.shape)[: -len(sizes)]
    return n.builder.match_cast(value, relax.TensorType([*first, *sizes], value.ty.dtype))


def _reduction(n: Node) -> str:
    """Extremes of integers only: of floats, TVM may lose NaN."""
    reduction = n.attribute("reduction")
    if reduction in ("min", "max"):
        if n.is_float():
            n.refuse(f"the reduction {reduction} of floats is not supported")
        return str(reduction)
    return {"none": "update", "add": "add", "mul": "mul"}[reduction]


def _inside(n: Node, place: int, *sizes: Extent) -> relax.Expr:
    """Indices counted from the front, where ONNX counts negative ones from the end, and none outside."""
    known, dtype = n.inputs[place], n.dtype(place)
    if isinstance(known, np.ndarray):
        for each, size in zip(known.reshape(-1, len(sizes)).T, sizes):
            if each.size and not (size > int(each.max()) and size >= -int(each.min())):
                n.refuse(f"an index is outside of {size}")
        if np.all(known >= 0):
            return n.data(place)
    indices, zero, extents = n.data(place), relax.const(0, dtype), _tensor_of(n, sizes, dtype)
    counted = op.where(op.less(indices, zero), op.add(indices, extents), indices)
    last = op.maximum(op.subtract(extents, relax.const(1, dtype)), zero)
    return n.emit(op.minimum(op.maximum(counted, zero), last))


def _tensor_of(n: Node, sizes: Sequence[Extent], dtype: str) -> relax.Expr:
    """Sizes, a scalar if it is one alone, computed as it runs where they are open."""
    if not any(isinstance(size, Size) for size in sizes):
        return constant(np.asarray(sizes if len(sizes) > 1 else sizes[0], dtype))

    def numbers(*sizes: Expr) -> te.Tensor:
        def number(*at: Expr) -> Expr:
            value = sizes[-1]
            for place, size in enumerate(sizes[:-1]):
                value = tirx.Select(at[0] == place, size, value)
            return value.astype(dtype)

        return te.compute((len(sizes),) if len(sizes) > 1 else (), number, "sizes")

    return n.builder.emit_te(numbers, *expressions(sizes))


def _range(n: Node) -> relax.Expr:
    """Of sizes that only the run knows."""
    start, end, step = (n.integers(place)[0] for place in range(3))
    if not isinstance(step, int) or step == 0:
        n.refuse(f"its step is {step}: {INSTEAD}")
    count = -((start - end) // step)
    if not count >= 0:
        count = 0

    def numbers(start: Expr, count: Expr) -> te.Tensor:
        return te.compute((count,), lambda at: start + at * step, "numbers")

    return n.builder.emit_te(numbers, *expressions([start, count]))


MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def _pad(n: Node) -> relax.Expr:
    mode, rank = n.attribute("mode"), n.rank()
    if mode not in MODES:
        n.refuse(f"the mode {mode} is not supported")
    axes = _axes(n, 3, rank) or list(range(rank))
    given = n.integers(1)
    widths = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        widths[2 * axis], widths[2 * axis + 1] = given[at], given[at + len(axes)]
    number = n.value(2).item() if n.has(2) else 0
    if mode != "constant":
        if min(widths, default=0) < 0:
            n.refuse(f"a negative width is not supported in the mode {mode}: cut by a Slice")
        return _repeated(n, mode, widths)
    if isinstance(number, int) and int(float(number)) != number:
        n.refuse(f"the number {number} is not supported, which float64 does not hold")
    result = n.data(0)
    for axis, size in enumerate(n.shape(0)):
        front, behind = widths[2 * axis : 2 * axis + 2]
        if min(front, behind) < 0:
            result = _part(n, result, axis, max(-front, 0), size + min(behind, 0))
    widths = [max(width, 0) for width in widths]
    if any(isinstance(width, Size) for width in widths):
        return _with_numbers_around(n, result, widths, number)
    return op.nn.pad(result, widths, "constant", float(number)) if any(widths) else result


def _with_numbers_around(n: Node, data: relax.Expr, widths: list[Extent], number: float) -> relax.Expr:
    """Around data by widths that follow from open sizes, which `relax.op.nn.pad` does not take."""
    shape, fronts = shape_of(data), widths[::2]
    after = [front + size + behind for front, size, behind in zip(fronts, shape, widths[1::2])]

    def padded(data: te.Tensor, fronts: list[Expr], after: list[Expr]) -> te.Tensor:
        def element(*at: Expr) -> Expr:
            places = [place - front for place, front in zip(at, fronts)]
            outside = [
                bound
                for place, front, size, end in zip(places, fronts, data.shape, after)
                for bound in (place < 0, place >= size)
                if not (is_number(front, 0) and end is size)
            ]
            value = tirx.const(number, data.dtype)
            return tirx.if_then_else(tirx.any(*outside), value, data(*places))

        return te.compute(after, element, "padded")

    return n.builder.emit_te(padded, data, expressions(fronts), expressions(after))


def _repeated(n: Node, mode: str, widths: list[Extent]) -> relax.Expr:
    """By a list of places along each axis, which is computed as it runs where the size is open."""
    result = n.data(0)
    for axis, size in enumerate(n.shape(0)):
        around = widths[2 * axis : 2 * axis + 2]
        if all(is_number(width, 0) for width in around):
            continue
        if not any(isinstance(each, Size) for each in (size, *around)):
            places = np.pad(np.arange(size), around, mode=mode)  # type: ignore[call-overload]
            result = n.emit(op.take(result, constant(places.astype("int64")), axis))
            continue
        if mode == "reflect":
            for width in around:
                _check_mirrored(n, size, width)
        result = n.emit(op.take(result, n.emit(_places_around(n, size, around[0], around[1], mode)), axis))
    return result


def _check_mirrored(n: Node, size: Extent, width: Extent) -> None:
    """Now, or as it runs where both are open: a size may be one that is large enough for its own width."""
    if isinstance(size, Size) and isinstance(width, Size):
        n.builder.match_cast(
            relax.ShapeExpr([size.expr]), relax.ShapeType([tirx.Max(size.expr, (width + 1).expr)])
        )
    elif size <= width:
        n.refuse(f"{size} elements cannot be mirrored to {width}")


def _places_around(n: Node, size: Extent, front: Extent, behind: Extent, mode: str) -> relax.Expr:
    """The places of an axis of open size, from `front` in front of it to `behind` behind it."""

    def places(size: Expr, front: Expr, after: Expr) -> te.Tensor:
        first, last = tirx.IntImm("int64", 0), size - 1

        def place(at: Expr) -> Expr:
            outside = at - front
            if mode == "edge":
                return tirx.max(tirx.min(outside, last), first)
            return last - tirx.abs(last - tirx.abs(outside))

        return te.compute((after,), place, "places")

    return n.builder.emit_te(places, *expressions([size, front, front + size + behind]))
