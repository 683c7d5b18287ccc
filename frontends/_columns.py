"""Images from columns: `torch.nn.Fold` and ONNX's Col2Im, which add up what windows have of one pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm import relay

from ._column_places import places_of_columns


def image_of_columns(
    columns: relay.Expr,
    shape: Sequence[int],
    dtype: str,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
) -> relay.Expr:
    """(batch, channels, *size) of `columns`, whose `shape` is (batch, channels * elements, windows).

    `before` and `after` pad the image that the windows go over.
    """
    batch, rows, _ = shape
    extents = [sum(each) for each in zip(size, before, after)]
    table = places_of_columns(shape, extents, kernel, strides, dilations)
    channels = rows // table.shape[0]
    empty = relay.zeros([batch * channels, int(np.prod(extents))], dtype)
    indices = relay.broadcast_to(relay.const(table.reshape(1, -1)), [batch * channels, table.size])
    columns = relay.reshape(columns, [batch * channels, -1])
    total = relay.scatter_elements(empty, indices, columns, axis=1, reduction="add")
    total = relay.reshape(total, [batch, channels, *extents])
    if not any(before) and not any(after):
        return total
    end = [start + each for start, each in zip(before, size)]
    axes = list(range(2, 2 + len(size)))
    return relay.strided_slice(total, list(before), end, [1] * len(size), axes=axes)
