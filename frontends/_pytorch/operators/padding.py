"""Padding in all modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay

from ..._pad import pad_late
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted, bind
from .pooling import numbers
from .shapes import as_length, as_number


def pad(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own lacks the mode circular, and pads three axes at most."""
    data, amounts, *rest = inputs
    mode = rest[0] if rest and rest[0] is not None else "constant"
    value = rest[1] if len(rest) > 1 and rest[1] is not None else 0
    if mode == "constant":
        return constant(converter, [data, amounts, value], input_types)
    return by_index(mode, converter, [data, amounts], input_types)


def constant(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own pads three axes at most, and with a value of another dtype than the data's."""
    data, amounts, value = inputs
    rank = len(converter.infer_shape_with_prelude(data))
    if None in map(as_number, amounts):
        return _late(converter, data, amounts, rank, value)
    widths = [(0, 0)] * (rank - len(amounts) // 2) + _pairs(amounts)
    dtype = str(converter.infer_type(data).dtype)
    for axis, width in enumerate(widths):
        if min(width) < 0:
            extent = converter.infer_shape(data)[axis]
            begin, end = max(-width[0], 0), extent - max(-width[1], 0)
            data = relay.strided_slice(data, [begin], [end], axes=[axis])
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if not any(map(any, widths)):
        return data
    if isinstance(value, relay.Expr):
        return relay.nn.pad(data, widths, relay.cast(value, dtype))
    if dtype == "bool":
        padded = relay.nn.pad(relay.cast(data, "uint8"), widths, relay.const(int(bool(value)), "uint8"))
        return relay.cast(padded, "bool")
    return relay.nn.pad(data, widths, relay.const(value, dtype))


def _late(converter: Converter, data: relay.Expr, amounts: Inputs, rank: int, value: Any) -> relay.Expr:
    """By amounts that are known only at run time."""
    zero = relay.const(0, "int64")
    given = list(map(as_length, amounts))
    sides = []
    for side in (0, 1):
        of_axes = given[side::2][::-1]
        sides.append(relay.stack([zero] * (rank - len(of_axes)) + of_axes, 0))
    dtype = str(converter.infer_type_with_prelude(data).dtype)
    if dtype == "bool":
        raise NotConverted("truths are padded by sizes that are known at import")
    value = relay.cast(value, dtype) if isinstance(value, relay.Expr) else relay.const(value, dtype)
    return pad_late(data, relay.stack(sides, 0), rank, value, "constant")


def by_index(mode: str, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own lacks the mode circular and some ranks."""
    data, amounts = inputs[:2]
    shape = converter.infer_shape(data)
    for axis, (before, after) in zip(range(len(shape) - len(amounts) // 2, len(shape)), _pairs(amounts)):
        size = int(shape[axis])
        places = np.arange(-before, size + after)
        if mode == "circular":
            # Negative amounts crop before the rest is repeated.
            kept = np.arange(max(-before, 0), size - max(-after, 0))
            places = kept[np.arange(-max(before, 0), len(kept) + max(after, 0)) % len(kept)]
        elif mode == "reflect":
            places = np.abs(places)
            places = size - 1 - np.abs(size - 1 - places)
        else:
            places = np.clip(places, 0, size - 1)
        if before or after:
            data = relay.take(data, relay.const(places.astype("int32")), axis=axis, mode="fast")
    return data


def _pairs(amounts: Any) -> list[tuple[int, int]]:
    """The padding before and after each axis, the first axis first; PyTorch begins with the last."""
    known = numbers(amounts)
    return [(known[at], known[at + 1]) for at in range(len(known) - 2, -1, -2)]


CONVERTERS: dict[str, Convert] = {
    "aten::pad": pad,
    "aten::constant_pad_nd": constant,
    "aten::_pad_circular": bind(by_index, "circular"),
}
for _rank in (1, 2, 3):
    CONVERTERS[f"aten::reflection_pad{_rank}d"] = bind(by_index, "reflect")
    CONVERTERS[f"aten::replication_pad{_rank}d"] = bind(by_index, "replicate")
