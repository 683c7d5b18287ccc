"""Pooling, and the windows of an image as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm import relay

from ..._columns import image_of_columns
from . import quantised
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted, bind
from .shapes import as_number

MAX_POOL = {1: relay.nn.max_pool1d, 2: relay.nn.max_pool2d, 3: relay.nn.max_pool3d}
AVG_POOL = {1: relay.nn.avg_pool1d, 2: relay.nn.avg_pool2d, 3: relay.nn.avg_pool3d}
ADAPTIVE_MAX = {
    1: relay.nn.adaptive_max_pool1d,
    2: relay.nn.adaptive_max_pool2d,
    3: relay.nn.adaptive_max_pool3d,
}
ADAPTIVE_AVG = {
    1: relay.nn.adaptive_avg_pool1d,
    2: relay.nn.adaptive_avg_pool2d,
    3: relay.nn.adaptive_avg_pool3d,
}


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of an image."""

    size: int  # of the image
    kernel: int
    stride: int
    padding: int
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def outputs(self) -> int:
        """How many windows there are; the last one starts in the image or in the padding before it."""
        room = self.size + 2 * self.padding - self.reach
        count = (room + (self.stride - 1 if self.ceil_mode else 0)) // self.stride + 1
        past_the_end = self.ceil_mode and (count - 1) * self.stride >= self.size + self.padding
        return count - past_the_end

    @property
    def after(self) -> int:
        """The padding after the image with which rounding down gives as many windows."""
        return max((self.outputs - 1) * self.stride + self.reach - self.size - self.padding, self.padding)

    @property
    def starts(self) -> np.ndarray:
        return np.arange(self.outputs) * self.stride - self.padding

    def counted(self, include_padding: bool) -> np.ndarray:
        """The divisor of each window's sum; what is beyond the padding never counts."""
        starts, ends = self.starts, self.starts + self.kernel
        if include_padding:
            return np.minimum(ends, self.size + self.padding) - starts
        return np.minimum(ends, self.size) - np.maximum(starts, 0)

    def places(self) -> np.ndarray:
        """The elements of each window, (outputs, kernel); for one off the image, another of the window."""
        places = self.starts[:, None] + np.arange(self.kernel) * self.dilation
        inside = (places >= 0) & (places < self.size)
        first = places[np.arange(len(places)), inside.argmax(axis=1)]
        return np.where(inside, places, first[:, None])


def spread(values: Any, rank: int) -> list[int]:
    """A number for each axis; PyTorch also takes one for all."""
    known = numbers(values if isinstance(values, (list, tuple)) else [values])
    return known * rank if len(known) == 1 else known


def numbers(values: Iterable[Any]) -> list[int]:
    """The values as numbers, all of which must be known."""
    known = [as_number(value) for value in values]
    if None in known:
        raise NotConverted("its sizes must be known at import")
    return [value for value in known if value is not None]


def image_size(converter: Converter, data: relay.Expr, rank: int) -> list[int]:
    """The extents of the last `rank` axes."""
    extents = converter.infer_shape(data)[-rank:]
    if not all(isinstance(extent, int) for extent in extents):
        raise NotConverted("images whose size is known only at run time are not supported")
    return list(extents)


def windows_of(
    converter: Converter, data: relay.Expr, rank: int, kernel: Any, stride: Any, padding: Any, *others: Any
) -> list[Windows]:
    """The windows along each axis of an image; without a stride they do not overlap."""
    kernel = spread(kernel, rank)
    stride = spread(stride, rank) if stride else kernel
    dilation = spread(others[0], rank) if others else [1] * rank
    ceil_mode = bool(others[1]) if len(others) > 1 else False
    axes = zip(image_size(converter, data, rank), kernel, stride, spread(padding, rank), dilation)
    return [Windows(*axis, ceil_mode) for axis in axes]


def batched(converter: Converter, data: relay.Expr, rank: int) -> tuple[relay.Expr, bool]:
    """The image with a batch axis, and whether it had one."""
    has_batch = len(converter.infer_shape(data)) == rank + 2
    return (data if has_batch else relay.expand_dims(data, 0)), has_batch


def unbatched(data: relay.Expr, had_batch: bool) -> relay.Expr:
    return data if had_batch else relay.squeeze(data, [0])


def _pool(pools: dict[int, Any], data: relay.Expr, windows: list[Windows], **options: Any) -> relay.Expr:
    """Relay's pooling, which adds no windows of its own at the end."""
    return pools[len(windows)](
        data,
        pool_size=[axis.kernel for axis in windows],
        strides=[axis.stride for axis in windows],
        dilation=[axis.dilation for axis in windows],
        padding=[axis.padding for axis in windows] + [axis.after for axis in windows],
        ceil_mode=False,
        **options,
    )


def max_pool(rank: int, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own pools a window more than PyTorch with `ceil_mode`, and takes no unbatched image."""
    data, *arguments = inputs
    windows = windows_of(converter, data, rank, *arguments)
    data, had_batch = batched(converter, data, rank)
    return unbatched(_pool(MAX_POOL, data, windows), had_batch)


def max_pool_with_indices(rank: int, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own gives no indices."""
    windows = windows_of(converter, inputs[0], rank, *inputs[1:])
    values = max_pool(rank, converter, inputs, input_types)
    return values, _indices_of_maxima(converter, inputs[0], [axis.places() for axis in windows])


def avg_pool(rank: int, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own ignores `divisor_override`, and counts what `ceil_mode` adds as padding."""
    data, kernel, stride, padding, ceil_mode, include_padding, *divisor = inputs
    if converter.is_quantized_tensor(data):
        if include_padding and np.any(padding):
            raise NotConverted(
                "an average of quantized numbers and padding is not supported: give count_include_pad=False, "
                "or dequantize before"
            )
        return _to_nearest(avg_pool, rank, converter, inputs, input_types)
    windows = windows_of(converter, data, rank, kernel, stride, padding, 1, ceil_mode)
    override = divisor[0] if divisor else None
    data, had_batch = batched(converter, data, rank)
    dtype = str(converter.infer_type(data).dtype)
    elements = int(np.prod([axis.kernel for axis in windows]))
    counted = np.ones((), "int64")
    for axis in windows:
        counted = np.multiply.outer(counted, axis.counted(bool(include_padding)))
    if override is not None:
        counted = np.full_like(counted, override)
    if "int" in dtype:
        mean = _pool(AVG_POOL, relay.cast(data, "float64"), windows, count_include_pad=True)
        total = relay.cast(relay.round(mean * relay.const(float(elements), "float64")), dtype)
        result = relay.trunc_divide(total, relay.const(counted, dtype))
    elif override is None and (not include_padding or (counted == elements).all()):
        result = _pool(AVG_POOL, data, windows, count_include_pad=bool(include_padding))
    else:
        mean = _pool(AVG_POOL, data, windows, count_include_pad=True)
        result = mean * relay.const(elements / counted, dtype)
    return unbatched(result, had_batch)


def _to_nearest(
    pool: Callable[..., Any], rank: int, converter: Converter, inputs: Inputs, input_types: InputTypes
) -> Any:
    """An average of quantized numbers, to the nearest step: TVM's own is of integers, and cut."""
    data, *others = inputs
    return quantised.to_nearest(lambda exact: pool(rank, converter, [exact, *others], input_types), data)


def adaptive_avg_pool(rank: int, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no unbatched image."""
    data, size = inputs[:2]
    if converter.is_quantized_tensor(data):
        return _to_nearest(adaptive_avg_pool, rank, converter, inputs, input_types)
    data, had_batch = batched(converter, data, rank)
    return unbatched(ADAPTIVE_AVG[rank](data, output_size=spread(size, rank)), had_batch)


def adaptive_max_pool(rank: int, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own gives no indices, and takes no unbatched image."""
    data, size = inputs
    size = spread(size, rank)
    places = []
    for extent, outputs in zip(image_size(converter, data, rank), size):
        starts = np.arange(outputs) * extent // outputs
        ends = -(-np.arange(1, outputs + 1) * extent // outputs)
        place = starts[:, None] + np.arange((ends - starts).max(initial=1))
        places.append(np.where(place < ends[:, None], place, starts[:, None]))
    indices = _indices_of_maxima(converter, data, places)
    data, had_batch = batched(converter, data, rank)
    return unbatched(ADAPTIVE_MAX[rank](data, output_size=size), had_batch), indices


def _flat(places: list[np.ndarray], size: list[int]) -> np.ndarray:
    """The elements of each window of an image as indices into the flattened image, (windows, elements)."""
    table = np.zeros((1, 1), "int64")
    for place, extent in zip(places, size):
        outputs, kernel = table.shape[0] * place.shape[0], table.shape[1] * place.shape[1]
        table = table[:, None, :, None] * extent + place[None, :, None, :]
        table = table.reshape(outputs, kernel)
    return table


def _indices_of_maxima(converter: Converter, data: relay.Expr, places: list[np.ndarray]) -> relay.Expr:
    """The index of the first largest element of each window in the flattened image, or of the last NaN."""
    rank = len(places)
    table = _flat(places, image_size(converter, data, rank))
    lead = list(converter.infer_shape(data)[:-rank])
    flat = relay.reshape(data, [*lead, -1])
    taken = relay.take(flat, relay.const(table.astype("int32")), axis=len(lead), mode="fast")
    largest = relay.equal(taken, relay.max(taken, axis=-1, keepdims=True))
    beyond = relay.const(int(table.max()), "int64")
    indices = relay.min(relay.where(largest, relay.const(table, "int64"), beyond), axis=-1)
    if "float" in converter.infer_type(data).dtype:
        none = relay.const(-1, "int64")
        of_nan = relay.max(relay.where(relay.isnan(taken), relay.const(table, "int64"), none), axis=-1)
        indices = relay.where(relay.equal(of_nan, none), indices, of_nan)
    return relay.reshape(indices, [*lead, *(len(place) for place in places)])


def max_unpool(rank: int, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, indices, size = inputs[:3]
    lead = list(converter.infer_shape(data)[:-rank])
    size = spread(size, rank)
    rows, length = int(np.prod(lead)), int(np.prod(size))
    empty = relay.zeros([rows, length], str(converter.infer_type(data).dtype))
    filled = relay.scatter_elements(
        empty, relay.reshape(indices, [rows, -1]), relay.reshape(data, [rows, -1]), axis=1
    )
    return relay.reshape(filled, [*lead, *size])


def im2col(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, kernel, dilation, padding, stride = inputs
    windows = windows_of(converter, data, 2, kernel, stride, padding, dilation)
    data, had_batch = batched(converter, data, 2)
    batch, channels = converter.infer_shape(data)[:2]
    padded = [(0, 0), (0, 0), *((axis.padding, axis.padding) for axis in windows)]
    data = relay.nn.pad(data, padded) if any(map(any, padded)) else data
    table = _padded_table(windows)
    columns = relay.take(
        relay.reshape(data, [batch, channels, -1]),
        relay.const(table.T.astype("int32")),
        axis=2,
        mode="fast",
    )
    return unbatched(relay.reshape(columns, [batch, channels * table.shape[1], len(table)]), had_batch)


def col2im(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, *settings = inputs
    size, kernel, dilation, padding, stride = (spread(each, 2) for each in settings)
    has_batch = len(converter.infer_shape(data)) == 3
    data = data if has_batch else relay.expand_dims(data, 0)
    shape, dtype = converter.infer_shape(data), str(converter.infer_type(data).dtype)
    image = image_of_columns(data, shape, dtype, size, kernel, stride, dilation, padding, padding)
    return unbatched(image, has_batch)


def _padded_table(windows: list[Windows]) -> np.ndarray:
    """The elements of each window in the flattened padded image, (windows, elements)."""
    places = [
        axis.starts[:, None] + axis.padding + np.arange(axis.kernel) * axis.dilation for axis in windows
    ]
    return _flat(places, [axis.size + 2 * axis.padding for axis in windows])


CONVERTERS: dict[str, Convert] = {"aten::im2col": im2col, "aten::col2im": col2im}
for _rank in MAX_POOL:
    CONVERTERS[f"aten::max_pool{_rank}d"] = bind(max_pool, _rank)
    CONVERTERS[f"aten::max_pool{_rank}d_with_indices"] = bind(max_pool_with_indices, _rank)
    CONVERTERS[f"aten::avg_pool{_rank}d"] = bind(avg_pool, _rank)
    CONVERTERS[f"aten::adaptive_avg_pool{_rank}d"] = bind(adaptive_avg_pool, _rank)
    CONVERTERS[f"aten::adaptive_max_pool{_rank}d"] = bind(adaptive_max_pool, _rank)
for _rank in (2, 3):
    CONVERTERS[f"aten::_adaptive_avg_pool{_rank}d"] = bind(adaptive_avg_pool, _rank)  # of exported programs
    CONVERTERS[f"aten::max_unpool{_rank}d"] = bind(max_unpool, _rank)
