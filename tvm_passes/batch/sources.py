"""Where images come from: each as a stable id and a function that reads its bytes.

A source is a folder, a glob, a text file of paths, a list of paths, a Parquet file, or a tar as WebDataset
writes them. Images come in the order of the source, which is the same at every run, and are not read before
they are wanted; those of a Parquet file or a tar are read a few at a time.
"""

from __future__ import annotations

import glob
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Union

from .decode import SUFFIXES
from .errors import BadImage, BatchError
from .optional import pyarrow

Source = Union[str, os.PathLike[str], Sequence[Union[str, os.PathLike[str]]]]

MAX_BYTES = 2**28  # of an encoded image
PARQUET = ".parquet"
TARS = (".tar", ".tar.gz", ".tgz")
BYTES_COLUMNS = ("bytes", "image", "image_bytes", "jpg", "png", "webp")  # in the order of preference
ID_COLUMNS = ("image_id", "id", "__key__", "key", "path", "file_name", "filename")
ROWS = 16  # of a Parquet file that are read at a time


class Item(NamedTuple):
    """An image that is not read yet; `read` raises BadImage if that cannot be done."""

    id: str
    read: Callable[[], bytes]


def items_of(source: Source) -> Iterator[Item]:
    """The images of a source, each once, with ids that are the same at every run.

    The id of a file is its path in the source, that of a row its id or number, that of a member of a tar its
    name. Where an id is not unique, "#2" is added to the second one.
    """
    path = _path(source)
    if path is not None and path.is_dir():
        return _of_folder(path)
    if path is not None and _is_packed(path):
        return _of_packed(path)
    return _of_paths(*_paths(source))


def named(source: Source) -> str:
    """A source as a job is recorded with it."""
    if isinstance(source, (str, os.PathLike)):
        return os.path.abspath(source)
    return f"a list of {len(source)} files"


def count(source: Source) -> int | None:
    """How many images there are, as far as that is known without reading them."""
    path = _path(source)
    if path is not None and path.is_dir():
        return sum(1 for _ in _of_folder(path))
    if path is not None and path.suffix.lower() == PARQUET:
        return int(pyarrow("parquet").ParquetFile(path).metadata.num_rows)
    if path is not None and _is_packed(path):
        return None
    number = 0
    for text in _paths(source)[0]:
        if _is_packed(Path(text)):
            return None
        number += 1
    return number


def _path(source: Source) -> Path | None:
    """A source that is there under its own name."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source)
    return path if path.exists() else None


# --- files


def _of_folder(folder: Path, at: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Item]:
    """The image files in a folder and in those inside, in the order of their names.

    Images of formats that cannot be decoded are among them, and become errors.
    """
    try:
        here = os.stat(folder)
        with os.scandir(folder) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        if not at:
            raise BatchError(f"{folder} cannot be read: {error.strerror}") from error
        reason = BadImage(f"is a folder that cannot be read: {error.strerror}")
        yield Item(_item(at, folder).id, lambda: _raise(reason))
        return
    if (here.st_dev, here.st_ino) in above:
        return  # a link to a folder that it is in
    above |= {(here.st_dev, here.st_ino)}
    for name, is_folder in names:
        if is_folder:
            yield from _of_folder(folder / name, f"{at}{name}/", above)
        elif os.path.splitext(name)[1].lower() in SUFFIXES:
            yield _item(f"{at}{name}", folder / name)


def _paths(source: Source) -> tuple[Iterator[str], Path]:
    """The files that a glob, a text file or a list names, and the folder that their paths are relative to."""
    path = _path(source)
    if not isinstance(source, (str, os.PathLike)):
        return map(str, source), Path()
    if path is not None and path.suffix == ".txt":
        return _lines(path), path.parent
    if path is None and glob.has_magic(str(source)):
        return _found(str(source))
    if path is None:
        raise BatchError(
            f"there is no {source}: give a folder, a glob, a text file of paths, a Parquet file, or a tar"
        )
    raise BatchError(
        f"{source} is one file: give a folder, a glob, a text file of paths (.txt), a Parquet file "
        f"({PARQUET}), or a tar ({', '.join(TARS)})"
    )


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        yield from (line.rstrip("\r\n") for line in lines if line.strip())


def _found(pattern: str) -> tuple[Iterator[str], Path]:
    """What a glob finds."""
    parts = Path(pattern).parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    base = Path(*parts[:fixed])
    found = sorted(set(glob.iglob(pattern, recursive=True)))
    return (os.path.relpath(path, base) for path in found if not os.path.isdir(path)), base


def _of_paths(paths: Iterable[str], base: Path) -> Iterator[Item]:
    """Files by their paths, each once; the images inside those that are Parquet files or tars."""
    seen: set[str] = set()
    for text in paths:
        if text in seen:
            continue
        seen.add(text)
        path = base / text
        if _is_packed(path):
            name = _item(text, path).id
            yield from (Item(f"{name}/{item.id}", item.read) for item in _of_packed(path))
        else:
            yield _item(text, path)


def _item(name: str, path: Path) -> Item:
    """A table has text: a name that is none has its bytes in hexadecimal."""
    return Item(os.fsencode(name).decode("utf-8", "backslashreplace"), lambda: _read(path))


def _read(path: Path) -> bytes:
    try:
        # Opening anything else may wait for ever, as a pipe does.
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise BadImage("is not a file")
        _check_bytes(found.st_size)
        return path.read_bytes()
    except FileNotFoundError:
        raise BadImage("does not exist") from None
    except (OSError, ValueError) as error:
        raise BadImage(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _raise(reason: BadImage) -> bytes:
    raise reason


def _check_bytes(size: int) -> None:
    if size > MAX_BYTES:
        raise BadImage(f"has {size} bytes, more than the {MAX_BYTES} that are allowed")


# --- files of many images


def _is_packed(path: Path) -> bool:
    return path.name.lower().endswith((*TARS, PARQUET))


def _of_packed(path: Path) -> Iterator[Item]:
    return _unique(_of_parquet(path) if path.suffix.lower() == PARQUET else _of_tar(path))


def _of_tar(path: Path) -> Iterator[Item]:
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                if not member.isdir() and os.path.splitext(member.name)[1].lower() in SUFFIXES:
                    yield Item(_item(member.name, path).id, _member(tar, member))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BatchError(f"{path} is damaged: {error}; what came before is done") from error


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    """Read now, since a tar is read in order, unless it is not to be read at all; links are not followed."""
    is_read = member.isreg() and member.size <= MAX_BYTES
    data = tar.extractfile(member).read() if is_read else b""  # type: ignore[union-attr]
    if is_read and len(data) < member.size:
        raise tarfile.ReadError("it ends in the middle of an image")

    def read() -> bytes:
        if not member.isreg():
            raise BadImage("is not a file")
        _check_bytes(member.size)
        return data

    return read


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
        id_column = next((name for name in ID_COLUMNS if name in schema.names), None)
        row = 0
        for part in file.iter_batches(ROWS, columns=[column, *([id_column] if id_column else [])]):
            images = part.column(column)
            if pa.types.is_struct(images.type):  # as Hugging Face's datasets have them
                images = images.field("bytes")
            ids = part.column(id_column).to_pylist() if id_column else [None] * len(images)
            for given, image in zip(ids, images):
                yield Item(str(row if given is None else given), _value(image.as_py()))
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise BatchError(f"{path} cannot be read: {error}; what came before is done") from error


def _value(data: bytes | None) -> Callable[[], bytes]:
    def read() -> bytes:
        if data is None:
            raise BadImage("is null")
        _check_bytes(len(data))
        return data

    return read


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
    seen: set[str] = set()
    for item in items:
        name, number = item.id, 1
        while name in seen:
            number += 1
            name = f"{item.id}#{number}"
        seen.add(name)
        yield item._replace(id=name)
