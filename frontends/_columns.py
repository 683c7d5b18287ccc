"""Images from columns: `torch.nn.Fold` and ONNX's Col2Im, which add up what windows have of one pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm import relay


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
    batch, rows, count = shape
    extents = [sum(each) for each in zip(size, before, after)]
    table = np.zeros((1, 1), "int64")  # places in the padded image, (elements, windows)
    for extent, reach, stride, dilation in zip(extents, kernel, strides, dilations):
        starts = np.arange(0, extent - dilation * (reach - 1), stride)
        places = np.arange(reach)[:, None] * dilation + starts
        table = (table[:, None, :, None] * extent + places[None, :, None, :]).reshape(
            table.shape[0] * reach, -1
        )
    if rows % table.shape[0] or count != table.shape[1]:
        raise NotImplementedError(
            f"windows of {list(kernel)} over an image of {list(size)} give columns of "
            f"[channels * {table.shape[0]}, {table.shape[1]}], not of {[rows, count]}"
        )
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
