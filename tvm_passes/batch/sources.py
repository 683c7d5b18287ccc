"""Where images come from: each as a stable id and a function that reads its bytes.

A source is a folder, a glob, a text file of paths, a list of paths, a Parquet file, or a tar as WebDataset
writes them. Images come in the order of the source, which is the same at every run, and are not read before
they are wanted; those of a Parquet file or a tar are read a few at a time.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Union

from .decode import SUFFIXES
from .errors import BadImage, BatchError
from .item import Item, as_text, check_bytes
from .optional import pyarrow
from .packed import PARQUET, TARS, is_packed, of_packed, rows_of

RECURSIVE = "**"  # in a glob, folders inside folders
WANTED = "a folder, a glob, a text file of paths, a Parquet file, or a tar"
Source = Union[str, os.PathLike[str], Sequence[Union[str, os.PathLike[str]]]]


def items_of(source: Source, folder: Path = Path()) -> Iterator[Item]:
    """The images of a source, each once, with ids that are the same at every run.

    The id of a file is its path in the source, that of a row its id or number, that of a member of a tar its
    name. Where an id is not unique, "#2" is added to the second one. The paths of a list are relative to
    `folder`.
    """
    path = _path(source)
    if path is not None and path.is_dir():
        return _of_folder(path)
    if path is not None and is_packed(path):
        return of_packed(path)
    paths, base = _paths(source)
    return _of_paths(paths, folder / base)


def check_any(source: Source) -> None:
    """Raise where there is no image; Parquet files and tars are not read, and may have no rows."""
    if isinstance(source, bytes) or not isinstance(source, (str, os.PathLike, Sequence)):
        raise BatchError(f"{source!r} is neither a path nor a list of paths: give {WANTED}")
    path = _path(source)
    if path is not None and not path.is_dir() and is_packed(path):
        return
    if next(left_in(source, ()), None) is None:
        raise BatchError(f"there are no images in {source or 'an empty list'}: give {_instead_of(path)}")


def _instead_of(path: Path | None) -> str:
    """What to give in place of a source without images, which may be a folder of files that have them."""
    packed = filter(is_packed, path.iterdir()) if path is not None and path.is_dir() else iter(())
    first = next(packed, None)
    return WANTED if first is None else f"'{path}/*{first.suffix}' for the files that have them"


def left_in(source: Source, done: Collection[str], folder: Path = Path()) -> Iterator[Item]:
    """The images whose ids are not among those that are done."""
    try:
        for item in items_of(source, folder):
            if item.id not in done:
                yield item
    except OSError as error:
        raise BatchError(f"the source cannot be read: {error}") from error


def named(source: Source) -> str:
    """A source as a job is recorded with it."""
    if isinstance(source, (str, os.PathLike)):
        return os.path.abspath(source)
    digest = hashlib.sha256("\n".join(map(str, source)).encode("utf-8", "surrogateescape")).hexdigest()
    return f"a list of {len(source)} files, of the digest {digest[:16]}"


def numbered_rows(source: Source) -> str:
    """A digest of the Parquet files whose rows have numbers as ids, which are other images in other files.

    "" if there are none.
    """
    path = _path(source)
    if path is not None and path.is_dir():
        return ""
    paths, base = (iter([str(path)]), Path()) if path is not None and is_packed(path) else _paths(source)
    found = [rows_of(base / each) for each in paths if Path(each).suffix.lower() == PARQUET]
    return hashlib.sha256(" ".join(found).encode()).hexdigest() if any(found) else ""


def count(source: Source) -> int | None:
    """How many images there are, as far as that is known without reading them."""
    path = _path(source)
    if path is not None and path.is_dir():
        return sum(1 for _ in _of_folder(path))
    if path is not None and path.suffix.lower() == PARQUET:
        return int(pyarrow("parquet").ParquetFile(path).metadata.num_rows)
    if path is not None and is_packed(path):
        return None
    number = 0
    for text in _paths(source)[0]:
        if is_packed(Path(text)):
            return None
        number += 1
    return number


def _path(source: Source) -> Path | None:
    """A source that is there under its own name; no name, as of an unset variable, is not the folder here."""
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
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
            names = sorted((entry.name, _is_folder(entry)) for entry in entries)
    except OSError as error:
        if not at:
            raise BatchError(f"{folder} cannot be read: {error.strerror}") from error
        reason = BadImage(f"is a folder that cannot be read: {error.strerror}")
        yield Item(as_text(at), partial(_raise, reason))
        return
    if (here.st_dev, here.st_ino) in above:
        return  # a link to a folder that it is in
    above |= {(here.st_dev, here.st_ino)}
    for name, is_folder in names:
        if is_folder:
            yield from _of_folder(folder / name, f"{at}{name}/", above)
        elif os.path.splitext(name)[1].lower() in SUFFIXES:
            yield _item(f"{at}{name}", folder / name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that cannot be followed, such as one to itself, is a file, which cannot be read."""
    try:
        return entry.is_dir()
    except OSError:
        return False


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
        raise BatchError(f"there is no {source or 'source without a name'}: give {WANTED}")
    raise BatchError(
        f"{source} is one file: give a folder, a glob, a text file of paths (.txt), a Parquet file "
        f"({PARQUET}), or a tar ({', '.join(TARS)})"
    )


def _lines(path: Path) -> Iterator[str]:
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BatchError(f"{path} is text in UTF-16, as Windows writes it: save it as UTF-8")
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        yield from (line.rstrip("\r\n") for line in lines if line.strip())


def _found(pattern: str) -> tuple[Iterator[str], Path]:
    """What a glob finds."""
    parts = Path(pattern).parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    base = Path(*parts[:fixed])
    files = (path for path in sorted(set(_matches(pattern))) if not os.path.isdir(path))
    return (os.path.relpath(path, base) for path in files), base


def _matches(pattern: str) -> Iterator[str]:
    """What `glob` finds, which by itself follows `**` around links to folders above, again and again."""
    parts = Path(pattern).parts
    if RECURSIVE not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index(RECURSIVE)
    for folder in glob.iglob(os.path.join(*parts[:at])) if at else [""]:
        for each in _folders(folder):
            yield from _matches(os.path.join(glob.escape(each), *(parts[at + 1 :] or "*")))


def _folders(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """A folder and those inside, without hidden ones, and without links to one that they are in."""
    try:
        here = os.stat(folder or os.curdir)
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.name for entry in entries if _is_folder(entry) and not entry.name.startswith(".")]
    except OSError:
        return
    if (here.st_dev, here.st_ino) in above:
        return
    yield folder
    for name in names:
        yield from _folders(os.path.join(folder, name), above | {(here.st_dev, here.st_ino)})


def _of_paths(paths: Iterable[str], base: Path) -> Iterator[Item]:
    """Files by their paths, each once; the images inside those that are Parquet files or tars."""
    seen: set[str] = set()
    for text in paths:
        if text in seen:
            continue
        seen.add(text)
        path = base / text
        if is_packed(path):
            yield from (item._replace(id=f"{as_text(text)}/{item.id}") for item in of_packed(path))
        else:
            yield _item(text, path)


def _item(name: str, path: Path) -> Item:
    return Item(as_text(name), partial(_read, path))


def _read(path: Path) -> bytes:
    try:
        # Opening anything else may wait for ever, as a pipe does.
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise BadImage("is not a file")
        check_bytes(found.st_size)
        return path.read_bytes()
    except FileNotFoundError:
        raise BadImage("does not exist") from None
    except (OSError, ValueError) as error:
        raise BadImage(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _raise(reason: BadImage) -> bytes:
    raise reason
