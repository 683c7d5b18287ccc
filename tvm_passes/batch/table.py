"""The tables of a job: folders of Parquet files, each of which has another name until it is whole.

Such a folder is a table for pyarrow, pandas, DuckDB, Spark and Ray Data, which do not read files whose names
begin with a dot.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.coco import RunLengths
from .errors import BatchError
from .optional import pyarrow

ROWS = 2000  # of a part at most
BYTES = 2**25  # of masks in a part, at most
REPEATED = ["labels.list.element", "model", "manifest", "reason"]  # columns whose values come again and again


def detections_schema() -> Any:
    """One row for each image. Masks are COCO's compressed run lengths, of an image of `height` x `width`."""
    pa = pyarrow()
    numbers = pa.float32()
    return pa.schema(
        {
            "image_id": pa.string(),
            "height": pa.int32(),
            "width": pa.int32(),
            "boxes": pa.list_(pa.list_(numbers, 4)),  # left, top, right, bottom
            "scores": pa.list_(numbers),
            "labels": pa.list_(pa.int64()),
            "masks": pa.list_(pa.binary()),
            "keypoints": pa.list_(pa.list_(pa.list_(numbers, 3))),  # x, y, whether it is seen
            "model": pa.string(),
            "manifest": pa.string(),
        }
    )


def errors_schema() -> Any:
    pa = pyarrow()
    return pa.schema({"image_id": pa.string(), "reason": pa.string()})


class Table:
    """A table that is written part by part; parts that are there stay."""

    def __init__(self, folder: Path, schema: Any, rows: int = ROWS) -> None:
        self.folder, self.schema = folder, schema
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*.parquet"):  # of a job that was killed
            left.unlink()
        numbers = [int(path.stem.partition("-")[2]) for path in parts(folder)]
        self._next = max(numbers, default=-1) + 1
        self._limit = rows
        self._rows: list[Mapping[str, Any]] = []
        self._tables: list[Any] = []
        self._number = self._bytes = 0

    def append(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._grown(1, sum(map(len, row.get("masks") or ())))

    def append_all(self, table: Any) -> None:
        """The rows of a table with this schema."""
        while len(table):
            part = table.slice(0, self._limit - self._number)
            self._tables.append(part)
            self._grown(len(part), part.column("masks").nbytes)
            table = table.slice(len(part))

    def _grown(self, number: int, bytes_: int) -> None:
        self._number += number
        self._bytes += bytes_
        if self._number >= self._limit or self._bytes >= BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that were appended as a part."""
        if not self._number:
            return
        pa, parquet = pyarrow(), pyarrow("parquet")
        table = pa.concat_tables([*self._tables, table_of(self._rows, self.schema)])
        path = self.folder / f"part-{self._next:06}.parquet"
        with whole_file(path) as file:
            parquet.write_table(table, file, use_dictionary=REPEATED)
        # First: a row may be lost to an interruption, but not be there twice.
        self._rows, self._tables, self._number, self._bytes = [], [], 0, 0
        self._next += 1


def table_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows as a table of pyarrow; arrays of NumPy in them are not taken apart."""
    pa = pyarrow()
    columns = [_column([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: Sequence[Any], type_: Any) -> Any:
    pa = pyarrow()
    given = [value for value in values if value is not None]
    if not pa.types.is_list(type_):
        return pa.array(values, type_)
    begins = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype="int32")
    is_null = np.array([*(value is None for value in values), False])
    if given and all(isinstance(value, np.ndarray) for value in given):
        items = _of_array(np.concatenate(given), type_.value_type)
    elif given and all(isinstance(value, RunLengths) for value in given):
        items = _of_run_lengths(given)
    else:
        items = pa.array([item for value in given for item in value], type_.value_type)
    offsets = pa.array(begins, mask=is_null)  # without one there is no list
    return pa.ListArray.from_arrays(offsets, items, type=type_)


def _of_array(array: np.ndarray, type_: Any) -> Any:
    """Along its first axis, whose items may be lists."""
    pa = pyarrow()
    if not pa.types.is_nested(type_):
        return pa.array(array, type_)
    count, length = array.shape[:2]
    items = _of_array(array.reshape(count * length, *array.shape[2:]), type_.value_type)
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    offsets = pa.array(np.arange(count + 1, dtype="int32") * np.int32(length))
    return pa.ListArray.from_arrays(offsets, items, type=type_)


def _of_run_lengths(masks: Sequence[RunLengths]) -> Any:
    pa = pyarrow()
    arrays = []
    for each in masks:
        buffers = None, pa.py_buffer(each.bounds.astype("int32")), pa.py_buffer(each.text)
        arrays.append(pa.BinaryArray.from_buffers(pa.binary(), len(each), buffers))
    return pa.concat_arrays(arrays)  # while other threads go on


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def ids_of(folder: Path) -> Iterator[str]:
    """The ids in a table, part by part."""
    for path in parts(folder):
        yield from read_part(path, ["image_id"]).column("image_id").to_pylist()


def read_part(path: Path, columns: list[str] | None = None) -> Any:
    pa = pyarrow()
    try:
        return pyarrow("parquet").read_table(path, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise BatchError(
            f"{path} is damaged ({error}): remove it and give --resume, which computes its images again"
        ) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A file that has its name only when all of it is on the disk."""
    hidden = path.with_name(f".{path.name}")
    try:
        with open(hidden, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
