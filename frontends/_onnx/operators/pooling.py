"""MaxPool, AveragePool, LpPool, their global forms, and MaxUnpool.

Convention: a window begins at `stride * i - pad_begin`, takes every `dilation`-th element, and may lie
partly in the padding. With `ceil_mode`, windows that extend past the end of the padded input count, unless
they begin past the end of the input itself, as in PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant
from ..._pad import same_widths
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    dtype_of,
    like,
    rank_of,
    several,
    sizes_of,
)

LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@dataclass
class _Windows:
    """The windows of a pooling, by axis."""

    data: relay.Expr  # already padded if the padding depends on dynamic sizes
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]  # the padding as requested
    overhang: list[int]  # how far the last window reaches beyond that

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def pool(self, op: str, data: relay.Expr, padded: bool = True, **options: bool) -> relay.Expr:
        """Pool over these windows with TVM's operator; `padded=False` if the data are already padded."""
        end = [e + o for e, o in zip(self.end, self.overhang)]
        return getattr(relay.nn, f"{op}_pool{self.rank}d")(
            data,
            tuple(self.kernel),
            tuple(self.strides),
            tuple(self.dilations),
            (*self.begin, *end) if padded else (0,) * 2 * self.rank,
            LAYOUTS[self.rank],
            **options,
        )

    def pad(self, data: relay.Expr, value: float = 0.0) -> relay.Expr:
        widths = [(b, e + o) for b, e, o in zip(self.begin, self.end, self.overhang)]
        return relay.nn.pad(data, [(0, 0), (0, 0), *widths], value) if np.any(widths) else data


def _windows(importer: ModuleType, data: relay.Expr, attrs: Attrs, filler: float) -> _Windows:
    rank = rank_of(data) - 2
    if rank not in LAYOUTS:
        raise NotImplementedError(f"pooling over {rank} axes is not supported, only over 1 to 3")
    ones = [1] * rank
    kernel, strides, dilations = (
        list(attrs.get(name, ones)) for name in ("kernel_shape", "strides", "dilations")
    )
    pads = list(attrs.get("pads", [0] * 2 * rank))
    auto_pad = attrs.get("auto_pad", b"NOTSET").decode()
    ceil_mode = bool(attrs.get("ceil_mode", 0))
    shape = sizes_of(data)[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    begin, end = pads[:rank], pads[rank:]
    if auto_pad == "VALID":
        begin, end = [0] * rank, [0] * rank
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        ceil_mode = False
        pairs = [same_widths(*each, auto_pad) for each in zip(shape, reach, strides)]
        begin, end = ([pair[side] if pair else 0 for pair in pairs] for side in (0, 1))
        if None in pairs:
            data = importer.autopad(data, strides, kernel, dilations, pad_value=filler, mode=auto_pad)
            begin, end = [0] * rank, [0] * rank
    elif auto_pad != "NOTSET":
        raise NotImplementedError(f"its attribute auto_pad={auto_pad} is not known")
    if min(*begin, *end) < 0:
        raise NotImplementedError("its padding is negative")
    overhang = [0] * rank
    if ceil_mode:
        overhang = [_overhang(*each) for each in zip(shape, reach, strides, begin, end)]
    return _Windows(data, kernel, strides, dilations, begin, end, overhang)


def _overhang(size: int | None, reach: int, stride: int, begin: int, end: int) -> int:
    if size is None:
        raise NotImplementedError("its ceil_mode needs sizes that are known at import, not only at run time")
    count = -(-(size + begin + end - reach) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max((count - 1) * stride + reach - (size + begin + end), 0)


def max_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own adds a row that lies in the padding with `ceil_mode`, and lacks indices."""
    dtype = np.dtype(dtype_of(inputs[0]))
    lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    windows = _windows(importer, inputs[0], attrs, lowest)
    column_major = bool(attrs.get("storage_order", 0))
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return windows.pool("max", windows.data)
    return several(windows.pool("max", windows.data), _indices(windows, lowest, column_major))


def _indices(windows: _Windows, lowest: float, column_major: bool) -> relay.Expr:
    """The index in the flat input of each maximum: of each window's largest elements, the first."""
    what = "its second result, the indices,"
    shape = all_sizes_of(windows.data, what)
    padded = windows.pad(windows.data, lowest)
    lengths = all_sizes_of(padded, what)[2:]
    counts = [
        (length - (k - 1) * d - 1) // s + 1
        for length, k, d, s in zip(lengths, windows.kernel, windows.dilations, windows.strides)
    ]
    taps = list(np.ndindex(*windows.kernel))
    axes = list(range(2, 2 + windows.rank))
    parts = []
    for tap in taps:
        first = [t * d for t, d in zip(tap, windows.dilations)]
        last = [f + (n - 1) * s + 1 for f, n, s in zip(first, counts, windows.strides)]
        parts.append(relay.strided_slice(padded, first, last, windows.strides, axes=axes))
    # Padding comes first in some windows, and must not win against an element that is as low.
    inside = _inside(windows, shape[2:], counts, taps)
    data = relay.stack(parts, 0)
    largest = relay.max(data, 0, keepdims=True)
    is_largest = relay.logical_and(relay.equal(data, largest), constant(inside))
    tap = relay.cast(relay.argmax(relay.cast(is_largest, "int32"), 0), "int64")

    weights = np.cumprod([1, *shape[:1:-1]])[-2::-1] if not column_major else np.cumprod([1, *shape[2:]])[:-1]
    steps = [sum(t * d * w for t, d, w in zip(tap_, windows.dilations, weights)) for tap_ in taps]
    grids = np.meshgrid(*(np.arange(n) for n in counts), indexing="ij")
    start = sum((g * s - b) * w for g, s, b, w in zip(grids, windows.strides, windows.begin, weights))
    planes = np.arange(shape[0] * shape[1]) * np.prod(shape[2:])
    base = planes.reshape(*shape[:2], *[1] * windows.rank) + start
    return relay.take(constant(np.array(steps, "int64")), tap) + constant(base.astype("int64"))


def _inside(windows: _Windows, shape: tuple, counts: list[int], taps: list) -> np.ndarray:
    """Which elements of the windows are not padding, (taps, 1, 1, *counts)."""
    result = np.ones((len(taps), *counts), bool)
    for place, tap in enumerate(taps):
        for axis, count in enumerate(counts):
            at = np.arange(count) * windows.strides[axis] + tap[axis] * windows.dilations[axis]
            at = at - windows.begin[axis]
            result[place] &= ((at >= 0) & (at < shape[axis])).reshape(
                [-1 if each == axis else 1 for each in range(len(counts))]
            )
    return result[:, None, None]


def average_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own divides by the wrong count with `ceil_mode`, and with dilation and padding."""
    count_all = bool(attrs.get("count_include_pad", 0))
    windows = _windows(importer, inputs[0], attrs, 0.0)
    if not count_all and not windows.data.same_as(inputs[0]):  # padded by widths known only at run time
        ones = _windows(importer, relay.ones_like(inputs[0]), attrs, 0.0)
        return windows.pool("avg", windows.data) / ones.pool("avg", ones.data)
    is_padded = any(windows.begin + windows.end)
    if not any(windows.overhang) and (count_all or not is_padded or max(windows.dilations) == 1):
        return windows.pool("avg", windows.data, count_include_pad=count_all)
    if any(windows.overhang) and count_all:
        raise NotImplementedError("versions of ONNX disagree on what count_include_pad counts with ceil_mode")
    shape = all_sizes_of(windows.data, "padding with dilation or ceil_mode")[2:]
    sums = windows.pool("avg", windows.pad(windows.data), padded=False, count_include_pad=True)
    counts = [_counts(windows, axis, size, count_all) for axis, size in enumerate(shape)]
    total = functools.reduce(np.multiply.outer, counts)
    scale = np.prod(windows.kernel) / np.maximum(total, 1)
    return sums * constant(scale.astype(dtype_of(sums)))


def _counts(windows: _Windows, axis: int, size: int, count_all: bool) -> np.ndarray:
    """How many elements each window has along an axis, with or without the requested padding."""
    begin, end = windows.begin[axis], windows.end[axis]
    reach = (windows.kernel[axis] - 1) * windows.dilations[axis] + 1
    starts = np.arange(0, begin + size + end + windows.overhang[axis] - reach + 1, windows.strides[axis])
    at = starts[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
    counted = (0, begin + size + end) if count_all else (begin, begin + size)
    return ((at >= counted[0]) & (at < counted[1])).sum(1)


def lp_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own omits the absolute value before the power, and ignores `ceil_mode` and dilation."""
    windows = _windows(importer, inputs[0], attrs, 0.0)
    p = float(attrs.get("p", 2))
    powers = _power(windows.data, p)
    sums = windows.pool("avg", windows.pad(powers), padded=False, count_include_pad=True)
    sums = sums * like(float(np.prod(windows.kernel)), sums)
    return relay.power(sums, like(1 / p, sums))


def _power(data: relay.Expr, p: float) -> relay.Expr:
    return data * data if p == 2 else relay.power(relay.abs(data), like(p, data))


def pooled_axes(data: relay.Expr) -> list[int]:
    """The axes after batch and channels. TVM takes an empty list for all axes."""
    rank = rank_of(data)
    if rank < 3:
        raise NotImplementedError(f"its input has {rank} axes, and none after batch and channels to pool")
    return list(range(2, rank))


def global_lp_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs static sizes."""
    data, p = inputs[0], float(attrs.get("p", 2))
    sums = relay.sum(_power(data, p), pooled_axes(data), True)
    return relay.power(sums, like(1 / p, sums))


def _global(name: str, reduce: str) -> Converter:
    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own supports no more than three spatial axes."""
        data = inputs[0]
        axes = pooled_axes(data)
        if len(axes) in LAYOUTS:
            return getattr(relay.nn, f"global_{name}_pool{len(axes)}d")(data)
        return getattr(relay, reduce)(data, axes, True)

    return convert


def max_unpool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes indices as into the output, even if `output_shape` is not the pooled shape."""
    data, indices, output_shape = inputs[0], inputs[1], inputs[2]
    shape = all_sizes_of(data)
    rank = len(shape) - 2
    kernel, pads = attrs["kernel_shape"], attrs.get("pads", [0] * 2 * rank)
    strides = attrs.get("strides", [1] * rank)
    pooled = [
        (n - 1) * s - b - e + k for n, s, b, e, k in zip(shape[2:], strides, pads[:rank], pads[rank:], kernel)
    ]
    pooled = [*shape[:2], *pooled]
    zeros = constant(np.zeros(int(np.prod(pooled)), dtype_of(data)))
    flat = relay.scatter_elements(zeros, relay.reshape(indices, [-1]), relay.reshape(data, [-1]), axis=0)
    result = relay.reshape(flat, pooled)
    if output_shape is None:
        return result
    behind = output_shape - constant(np.array(pooled, "int64"))
    widths = relay.stack([relay.zeros_like(behind), behind], 1)
    return relay.nn.pad(result, importer.fold_constant(widths), 0.0)


CONVERTERS: dict[str, Converter] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": _global("avg", "mean"),
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": _global("max", "max"),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
}
