"""Where the elements of columns are in an image: of `torch.nn.Fold` and ONNX's Col2Im."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def places_of_columns(
    shape: Sequence[int],
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> np.ndarray:
    """The number of each pixel in an image of these extents, (elements, windows).

    `shape`, that of the columns, is (batch, channels * elements, windows).
    """
    table = np.zeros((1, 1), "int64")
    for extent, reach, stride, dilation in zip(extents, kernel, strides, dilations):
        starts = np.arange(0, extent - dilation * (reach - 1), stride)
        places = np.arange(reach)[:, None] * dilation + starts
        table = (table[:, None, :, None] * extent + places[None, :, None, :]).reshape(
            table.shape[0] * reach, -1
        )
    _, rows, count = shape
    if rows % table.shape[0] or count != table.shape[1]:
        raise NotImplementedError(
            f"windows of {list(kernel)} over an image of {list(extents)}, with its padding, give columns of "
            f"[channels * {table.shape[0]}, {table.shape[1]}], not of {[rows, count]}"
        )
    return table
