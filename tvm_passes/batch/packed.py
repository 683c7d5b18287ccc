"""Files of many images: tars, as WebDataset writes them, and Parquet files with encoded images."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .decode import SUFFIXES
from .errors import BadImage, BatchError
from .item import MAX_BYTES, Held, Item, as_text, check_bytes
from .optional import pyarrow

PARQUET = ".parquet"
TARS = (".tar", ".tar.gz", ".tgz")
BYTES_COLUMNS = ("bytes", "image", "image_bytes", "jpg", "png", "webp")  # in the order of preference
ID_COLUMNS = ("image_id", "id", "__key__", "key", "path", "file_name", "filename")
ROWS = 16  # of a Parquet file that are read at a time
SAMPLES, SAMPLE = 64, 2**14  # of a Parquet file that are compared, and the bytes of each


def is_packed(path: Path) -> bool:
    return path.name.lower().endswith((*TARS, PARQUET))


def of_packed(path: Path) -> Iterator[Item]:
    return _unique(_of_parquet(path) if path.suffix.lower() == PARQUET else _of_tar(path))


def _of_tar(path: Path) -> Iterator[Item]:
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                if not member.isdir() and os.path.splitext(member.name)[1].lower() in SUFFIXES:
                    yield _member(tar, member)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BatchError(f"{path} is damaged: {error}; what came before is done") from error


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Item:
    """Read now, since a tar is read in order, unless it is not to be read at all; links are not followed."""
    is_read = member.isreg() and member.size <= MAX_BYTES
    data = tar.extractfile(member).read() if is_read else b""  # type: ignore[union-attr]
    if is_read and len(data) < member.size:
        raise tarfile.ReadError("it ends in the middle of an image")

    return Item(as_text(member.name), partial(_checked, Held(data), member.isreg(), member.size), len(data))


def _checked(data: Held, is_file: bool, size: int) -> bytes:
    if not is_file:
        raise BadImage("is not a file")
    check_bytes(size)
    return data()


def _of_parquet(path: Path) -> Iterator[Item]:
    pa = pyarrow()
    try:
        file = pyarrow("parquet").ParquetFile(path)
        schema = file.schema_arrow
        column = next((name for name in BYTES_COLUMNS if _holds_bytes(schema, name)), None)
        if column is None:
            raise BatchError(
                f"{path} has the columns {', '.join(schema.names)}, none of which is of bytes and is one of "
                f"{', '.join(BYTES_COLUMNS)}: rename it"
            )
        id_column = _id_column(schema)
        row = 0
        for part in file.iter_batches(ROWS, columns=[column, *([id_column] if id_column else [])]):
            images = part.column(column)
            if pa.types.is_struct(images.type):  # as Hugging Face's datasets have them
                images = images.field("bytes")
            ids = part.column(id_column).to_pylist() if id_column else [None] * len(images)
            for given, image in zip(ids, images):
                data = image.as_py()
                held = None if data is None else Held(data)
                yield Item(str(row if given is None else given), partial(_value, held), len(data or b""))
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise BatchError(f"{path} cannot be read: {error}; what came before is done") from error


def rows_of(path: Path) -> str:
    """A digest of a Parquet file whose rows have no ids, by which another file is known; "" if they have.

    Not of all of it, which would be to read it once more: of its end, which says where everything is, and of
    samples, since the same rows in another order may have the same end.
    """
    pa = pyarrow()
    try:
        if _id_column(pyarrow("parquet").read_schema(path)) is not None:
            return ""
        size = path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with open(path, "rb") as file:
            for sample in range(SAMPLES + 1):
                file.seek(max(size - SAMPLE, 0) * sample // SAMPLES)
                digest.update(file.read(SAMPLE))
        return digest.hexdigest()
    except (pa.ArrowException, OSError):
        return ""  # whoever reads it says why


def _id_column(schema: Any) -> str | None:
    return next((name for name in ID_COLUMNS if name in schema.names), None)


def _value(held: Held | None) -> bytes:
    if held is None:
        raise BadImage("is null")
    data = held()
    check_bytes(len(data))
    return data


def _holds_bytes(schema: object, name: str) -> bool:
    pa = pyarrow()
    if name not in schema.names:  # type: ignore[attr-defined]
        return False
    type_ = schema.field(name).type  # type: ignore[attr-defined]
    if pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0:
        type_ = type_.field("bytes").type
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def _unique(items: Iterator[Item]) -> Iterator[Item]:
    """The same with a number added to an id that was there before."""
    numbers: dict[str, int] = {}  # of each id that was given, the last number that was tried for it
    for item in items:
        name = item.id
        while name in numbers:
            numbers[item.id] += 1
            name = f"{item.id}#{numbers[item.id]}"
        numbers[name] = 1
        yield item._replace(id=name)
