"""Samples of images at grids of points: computed as torch does, and fast on CUDA.

TVM computes the place of a point again for each channel, within the expression of each pixel around it, and
again with all that computes the grid. It converts places that are NaN, infinite or huge to integers, which
leaves to the target what is read; and it samples in NCHW only. Importing this module replaces the
computation and the schedules of samples of images; those of volumes stay.

Convention, which is that of torch on CPUs: a point that is NaN or infinite is nowhere. Between pixels it
gives NaN, unless borders are repeated or reflected, which takes NaN for the first pixel; it has no nearest
pixel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import tvm
from tvm import te, tir
from tvm.relay.op import op as registry
from tvm.topi.utils import traverse_inline

from .._kernel import most_lanes
from .._register import known
from .._strategy import ABOVE_STOCK, compute_by, generic, stock_compute
from .._types import IntExpr
from .injective_on_cpus import schedule_by_tvm

NAME = "image.grid_sample"
THREADS = 256  # of a block
CHANNELS = 8  # at most, of NCHW, for which a thread uses a place
VECTOR = 4  # of NHWC
LANES = 16  # of places on a CPU
CUBIC = -0.75  # torch's coefficient of bicubic weights


def grid_sample(
    data: te.Tensor,
    grid: te.Tensor,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> te.Tensor:
    """The result of `image.grid_sample` of images, in NCHW or NHWC; `grid` is (N, 2, height, width)."""
    extent = dict(zip(layout, data.shape))
    sides = extent["H"], extent["W"]
    dtype = "float64" if "float64" in (data.dtype, grid.dtype) else "float32"
    around = [_Padding(padding_mode, align_corners, side, dtype) for side in sides]
    batch, _, height, width = grid.shape

    def places(axis: int) -> te.Tensor:
        def place(*at: tir.Var) -> tir.PrimExpr:
            point = grid(at[0], 1 - axis, *at[1:]).astype(dtype)
            pixel = _in_pixels(point, sides[axis], align_corners)
            pixel = pixel if method == "bicubic" else around[axis].padded(pixel)
            return tir.nearbyint(pixel) if method == "nearest" else pixel

        return te.compute((batch, height, width), place, name=("rows", "columns")[axis])

    both = [places(0), places(1)]
    taps = {"nearest": _nearest, "bilinear": _bilinear, "bicubic": _bicubic}[method]

    def sample(*at: tir.Var) -> tir.PrimExpr:
        of = dict(zip(layout, at))

        def pixel(row: tir.PrimExpr, column: tir.PrimExpr) -> tir.PrimExpr:
            index = {**of, "H": row, "W": column}
            inside = [tir.all(at >= 0, at < side) for at, side in zip((row, column), sides)]
            value = data(*(index[axis] for axis in layout)).astype(dtype)
            return tir.if_then_else(tir.all(*inside), value, tir.const(0, dtype))

        rows, columns = (
            taps(place(of["N"], of["H"], of["W"]), padding) for place, padding in zip(both, around)
        )
        terms = [
            pixel(row, column) if down is None else pixel(row, column) * (down * across)
            for (row, down), (column, across) in product(rows, columns)
        ]
        return sum(terms[1:], terms[0]).astype(data.dtype)

    extent["H"], extent["W"] = height, width
    return te.compute(
        [extent[axis] for axis in layout], sample, name="grid_sample", tag=NAME, attrs={"layout": layout}
    )


class _Padding:
    """What stands for a place outside the image, along one axis."""

    def __init__(self, mode: str, align_corners: bool, side: IntExpr, dtype: str) -> None:
        self._mode, self._align_corners, self._dtype = mode, align_corners, dtype
        self._side = _as_float(side, dtype)

    def padded(self, place: tir.PrimExpr) -> tir.PrimExpr:
        """A place in the image, unless it is padded with zeros."""
        if self._mode == "zeros":
            return place
        place = self._reflected(place) if self._mode == "reflection" else place
        return self._clamped(place, self._number(0), self._side - self._number(1))

    def index(self, place: tir.PrimExpr) -> tir.PrimExpr:
        """A place that is a whole number, as an integer; what is far away, or NaN, is just outside."""
        if self._mode == "zeros":
            place = self._clamped(place, self._number(-2), self._side + self._number(1))
        return place.astype("int32")

    def _reflected(self, place: tir.PrimExpr) -> tir.PrimExpr:
        low = self._number(0 if self._align_corners else -0.5)
        span = self._side - self._number(1 if self._align_corners else 0)
        twice = te.max(span * self._number(2), self._number(1))  # of one pixel, whose corners are aligned: 0
        place = tir.abs(place - low)
        place = place - tir.trunc(place / twice) * twice
        return te.min(place, span * self._number(2) - place) + low

    def _clamped(self, place: tir.PrimExpr, low: tir.PrimExpr, high: tir.PrimExpr) -> tir.PrimExpr:
        return te.min(te.max(place, low), high)  # in this order, NaN becomes `low` on every target

    def _number(self, value: float) -> tir.PrimExpr:
        return tir.const(value, self._dtype)


Taps = list[tuple[tir.PrimExpr, Any]]  # the pixels that are read along an axis, and their weights, if any


def _in_pixels(point: tir.PrimExpr, side: IntExpr, align_corners: bool) -> tir.PrimExpr:
    one, half = tir.const(1, point.dtype), tir.const(0.5, point.dtype)
    length = _as_float(side, point.dtype)
    if align_corners and known(side) == 1:  # TVM takes a product with 0 for 0, also that of NaN
        no_place = tir.Or(tir.isnan(point), tir.abs(point) == tir.const(math.inf, point.dtype))
        return tir.Select(no_place, tir.const(math.nan, point.dtype), tir.const(0, point.dtype))
    if align_corners:
        return (point + one) * ((length - one) * half)
    return (point + one) * (length * half) - half


def _as_float(side: IntExpr, dtype: str) -> tir.PrimExpr:
    length = known(side)
    return tir.Cast(dtype, side) if length is None else tir.const(length, dtype)


def _nearest(place: tir.PrimExpr, padding: _Padding) -> Taps:
    return [(padding.index(place), None)]


def _bilinear(place: tir.PrimExpr, padding: _Padding) -> Taps:
    whole = tir.floor(place)
    index, fraction = padding.index(whole), place - whole
    return [(index, tir.const(1, place.dtype) - fraction), (index + 1, fraction)]


def _bicubic(place: tir.PrimExpr, padding: _Padding) -> Taps:
    whole = tir.floor(place)
    fraction = place - whole
    distances = [fraction + 1, fraction, 1 - fraction, 2 - fraction]
    weights = [_far, _near, _near, _far]
    return [
        (padding.index(padding.padded(whole + tir.const(step, place.dtype))), weight(distance))
        for step, weight, distance in zip((-1, 0, 1, 2), weights, distances)
    ]


def _near(x: tir.PrimExpr) -> tir.PrimExpr:
    """The weight of a pixel that is less than 1 away."""
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _far(x: tir.PrimExpr) -> tir.PrimExpr:
    """The weight of a pixel that is 1 to 2 away."""
    return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


# --- schedules


def _schedule(attrs: tvm.ir.Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    (out,) = outs
    schedule = te.create_schedule(out.op)
    found: list[te.Operation] = []
    traverse_inline(schedule, out.op, lambda op: found.append(op) if op.tag == NAME else None)
    with target:
        if not found:  # of volumes
            return generic.schedule_injective(attrs, outs, target)
        sample = found[0].output(0)
        places = [tensor for tensor in sample.op.input_tensors if tensor.op.name in ("rows", "columns")]
        kept = [sample] if _times_read(schedule, out, sample) > 1 else []
        if sample.op != out.op and not kept:
            schedule[sample].compute_inline()
        if target.kind.name == "cuda":
            _on_cuda(schedule, out, str(sample.op.attrs["layout"]), places, kept)
        else:
            _on_cpu(schedule, out, places, kept)
    return schedule


def _times_read(schedule: te.Schedule, out: te.Tensor, sample: te.Tensor) -> int:
    """How often a sample is read for an element of the result: as often it is computed where it is inlined.

    It takes seconds to compile where it is read four times, as by the masks of optical flow,
    `mask[mask < 0.9999] = 0; mask[mask > 0] = 1`.
    """
    times = Counter({out.op: 1})
    for stage in reversed(schedule.stages):  # those that read before those that are read
        for read in _reads(stage.op) if times[stage.op] and stage.op != sample.op else ():
            times[read] += times[stage.op]
    return times[sample.op] if sample.op != out.op else 0


def _reads(op: te.Operation) -> list[te.Operation]:
    """The operations that an element reads, each as often as it does."""
    found: list[te.Operation] = []

    def look(node: Any) -> None:
        if isinstance(node, tir.ProducerLoad):
            found.append(node.producer.op)

    for value in op.body if isinstance(op, te.ComputeOp) else ():
        tir.stmt_functor.post_order_visit(value, look)
    return found


def _on_cuda(
    schedule: te.Schedule, out: te.Tensor, layout: str, places: list[te.Tensor], kept: list[te.Tensor]
) -> None:
    """A thread computes a place and some channels there; neighbours write side by side."""
    stage = schedule[out]
    axes = dict(zip(layout, stage.op.axis))
    number = known(out.shape[layout.index("C")]) or 1
    if layout == "NHWC":
        count = most_lanes(number, VECTOR)
    else:
        count = next(k for k in range(CHANNELS, 0, -1) if number % k == 0)
    outer, channels = stage.split(axes["C"], count)
    order = [outer if axis == "C" else axes[axis] for axis in layout]
    stage.reorder(*order, channels)
    block, thread = stage.split(stage.fuse(*order), THREADS)
    stage.bind(block, te.thread_axis("blockIdx.x"))
    stage.bind(thread, te.thread_axis("threadIdx.x"))
    if layout == "NHWC" and count > 1:
        stage.vectorize(channels)
    else:
        stage.unroll(channels)
        stage.pragma(channels, "unroll_explicit", False)  # nvcc unrolls: the source stays short
    for tensor in places + kept:
        schedule[tensor].compute_at(stage, thread)
        schedule[tensor].set_scope("local")


def _on_cpu(schedule: te.Schedule, out: te.Tensor, places: list[te.Tensor], kept: list[te.Tensor]) -> None:
    """First all places, then the pixels."""
    for place in places:
        n, h, w = schedule[place].op.axis
        schedule[place].parallel(schedule[place].fuse(n, h))
        schedule[place].vectorize(schedule[place].split(w, LANES)[1])
    schedule_by_tvm(schedule, out)
    *_, vectors, _lanes = schedule[out].leaf_iter_vars
    for sample in kept:
        schedule[sample].compute_at(schedule[out], vectors)
        schedule[sample].vectorize(schedule[sample].op.axis[-1])


# --- registration

_stock = stock_compute(NAME)


def _compute(attrs: Any, inputs: list[te.Tensor], type_: tvm.ir.Type) -> list[te.Tensor]:
    if len(inputs[0].shape) != 4:
        return _stock(attrs, inputs, type_)
    data, grid = inputs
    method, layout, padding_mode = map(str, (attrs.method, attrs.layout, attrs.padding_mode))
    return [grid_sample(data, grid, method, layout, padding_mode, bool(attrs.align_corners))]


compute_by(NAME, _compute, _schedule)
# What computes the grid is a kernel of its own: TVM would compute it again for each channel.
if registry.get(NAME).get_attr("TOpPattern") != registry.OpPattern.OUT_ELEMWISE_FUSABLE:  # TVM keeps it
    registry.register_pattern(NAME, registry.OpPattern.OUT_ELEMWISE_FUSABLE, ABOVE_STOCK)
