"""Python objects as rows of an Arrow table: whatever engine moves the table need not know what is in it.

Arrays are buffers of their own, so that they are read where the table is, without a copy.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from .optional import pyarrow


def packed(value: Any) -> Any:
    """A table of one row."""
    pa = pyarrow()
    data, *buffers = pickled(value)
    large = pa.large_binary()
    columns = {"value": pa.array([data], large), "arrays": pa.array([buffers], pa.large_list(large))}
    return pa.table(columns)


def pickled(value: Any) -> list[memoryview]:
    """What `pickle.loads` needs for a value: its bytes, and then the buffers in it."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [memoryview(data), *(buffer.raw() for buffer in buffers)]


def unpacked(table: Any) -> Iterator[Any]:
    """The objects in a table; their arrays are read-only."""
    if not table.num_rows:
        return
    for value, arrays in zip(table.column("value"), table.column("arrays")):
        buffers = [array.as_buffer() for array in arrays.values]
        yield pickle.loads(value.as_buffer(), buffers=buffers)
