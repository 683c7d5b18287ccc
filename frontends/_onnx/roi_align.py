"""ONNX's RoiAlign in plain Relay operators, where `vision.roi_align` computes something else.

Convention: a box is x1, y1, x2, y2 in the image; `spatial_scale` maps it to the feature map. In the mode
`half_pixel` its corners then move by half a pixel and its size is used as it is, even if smaller than a
pixel; in `output_half_pixel` a side is at least one pixel long. Each bin takes `sampling_ratio` samples per
side, or, if that is 0, as many as it is pixels long. A sample off the map by more than a pixel counts as
zero. `avg` is the mean of the samples, bilinearly interpolated; `max` is the largest of the four weighted
neighbours of any sample, which is not the largest interpolated value.

`vision.roi_align` supports `output_half_pixel` only, and takes the largest interpolated value.
"""

from __future__ import annotations

from tvm_passes.engine.expressions import type_of

from tvm import relay

BINS_DOWN, BINS_ACROSS = (1, 2), (3, 4)  # the axes of the samples' array: (boxes, 1, 2, 3, 4, channels)


def roi_align(
    x: relay.Expr,
    boxes: relay.Expr,
    batch_indices: relay.Expr,
    *,
    half_pixel: bool,
    mode: str,
    pooled: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
) -> relay.Expr:
    """The pooled features, (boxes, channels, *pooled)."""
    dtype = type_of(boxes).dtype
    corners = boxes * relay.const(spatial_scale, dtype) - relay.const(0.5 if half_pixel else 0.0, dtype)
    x1, y1, x2, y2 = (relay.take(corners, relay.const(i), axis=1) for i in range(4))
    height, width = (relay.take(relay.shape_of(x, "int32"), relay.const(axis)) for axis in (2, 3))
    smallest = -float("inf") if half_pixel else 1.0
    rows = _Samples(y1, y2, height, pooled[0], sampling_ratio, smallest, BINS_DOWN, dtype)
    columns = _Samples(x1, x2, width, pooled[1], sampling_ratio, smallest, BINS_ACROSS, dtype)

    pixels = relay.reshape(relay.transpose(x, [0, 2, 3, 1]), [-1, type_of(x).shape[1]])
    image = relay.reshape(relay.cast(batch_indices, "int32"), [-1, 1, 1, 1, 1])
    weighted = []
    for row, row_weight in rows.neighbours:
        for column, column_weight in columns.neighbours:
            index = (image * height + row) * width + column
            weight = relay.expand_dims(row_weight * column_weight, 5)
            weighted.append(relay.take(pixels, index, axis=0) * weight)

    taken = relay.expand_dims(relay.logical_and(rows.taken, columns.taken), 5)
    count = relay.reshape(rows.count * columns.count, [-1, 1, 1, 1])
    some = count > relay.const(0.0, dtype)
    reduced = (BINS_DOWN[1], BINS_ACROSS[1])
    nothing = relay.const(0.0, dtype)
    if mode == "avg":
        total = weighted[0] + weighted[1] + weighted[2] + weighted[3]
        result = relay.sum(relay.where(taken, total, nothing), reduced) / relay.where(
            some, count, relay.const(1.0, dtype)
        )
    else:
        largest = relay.maximum(relay.maximum(*weighted[:2]), relay.maximum(*weighted[2:]))
        result = relay.max(relay.where(taken, largest, relay.const(-float("inf"), dtype)), reduced)
        result = relay.where(some, result, nothing)
    return relay.transpose(result, [0, 3, 1, 2])


class _Samples:
    """The samples along one side of every box, laid out along the two axes given."""

    def __init__(
        self,
        start: relay.Expr,
        end: relay.Expr,
        size: relay.Expr,
        bins: int,
        ratio: int,
        smallest: float,
        axes: tuple[int, int],
        dtype: str,
    ) -> None:
        def along(expr: relay.Expr, axis: int) -> relay.Expr:
            return relay.reshape(expr, [-1 if i == axis else 1 for i in range(5)])

        one, half = relay.const(1.0, dtype), relay.const(0.5, dtype)
        step = relay.maximum(end - start, relay.const(smallest, dtype)) / relay.const(float(bins), dtype)
        if ratio > 0:
            count = relay.ones_like(step) * relay.const(float(ratio), dtype)
            most = relay.const(float(ratio), dtype)
        else:
            count = relay.maximum(relay.ceil(step), relay.const(0.0, dtype))
            most = relay.max(count)
        sample = along(relay.arange(relay.const(0.0, dtype), most, one, dtype), axes[1])
        bin_ = along(
            relay.arange(relay.const(0.0, dtype), relay.const(float(bins), dtype), one, dtype), axes[0]
        )
        step_, count_ = along(step, 0), along(count, 0)
        at = along(start, 0) + bin_ * step_ + (sample + half) * step_ / relay.maximum(count_, one)

        limit = relay.cast(size, dtype)
        inside = relay.cast(relay.logical_and(at >= relay.const(-1.0, dtype), at <= limit), dtype)
        at = relay.minimum(relay.maximum(at, relay.const(0.0, dtype)), limit - one)
        before = relay.floor(at)
        after = relay.minimum(before + one, limit - one)
        fraction = at - before
        self.neighbours = [
            (relay.cast(before, "int32"), (one - fraction) * inside),
            (relay.cast(after, "int32"), fraction * inside),
        ]
        self.taken = sample < count_  # boxes may differ in their number of samples
        self.count = count
