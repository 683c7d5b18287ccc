"""The manifest of a compiled folder: what it describes, for whom, and the digests of the files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .arrays import type_of

ONE, SIZES = FORMATS = 1, 2  # one network, or networks of several batch sizes, which share weights
MANIFEST, PARAMETERS = "manifest.json", "parameters.bin"


class FolderError(ValueError):
    """One sentence that says why a folder cannot be run here, and what to do about it."""


def read_manifest(folder: str | os.PathLike[str], batch: int | None = None) -> dict[str, Any]:
    """The manifest of a folder that `save` wrote, if this version can read it; `sha256` identifies it.

    Of a folder of several batch sizes, what is the same for all, and `sizes`, or with `batch` what holds for
    this one.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: give a folder that was compiled to") from None
    except NotADirectoryError:
        raise FolderError(f"{folder} is a file: give a folder that was compiled to") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{path} cannot be read ({error}): compile again") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FolderError(f"{path} is not the manifest of a compiled folder: compile again")
    if manifest["format"] not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise FolderError(
            f"{folder} has the format {manifest['format']}, and this version reads {known}: compile again"
        )
    digest = manifest.pop("sha256", None)
    if digest != digest_of(manifest):
        raise FolderError(f"{path} was changed after it was written: compile again")
    manifest["sha256"] = digest
    if batch is None:
        return manifest
    return networks_of(manifest)[size_of(Path(folder), manifest, batch)]


def networks_of(manifest: dict[str, Any]) -> dict[int | None, dict[str, Any]]:
    """What a manifest says of each network, by batch size. The one of a folder without sizes is at None."""
    sizes = manifest.get("sizes", {})
    common = {name: value for name, value in manifest.items() if name != "sizes"}
    return {size: {**common, **sizes[str(size)]} for size in sorted(map(int, sizes))} or {None: manifest}


def size_of(folder: Path, manifest: dict[str, Any], batch: int | None) -> int | None:
    """A batch size of the folder: `batch`, which may be left out where there is only one."""
    sizes = list(networks_of(manifest))
    if batch in sizes or (batch is None and len(sizes) == 1):
        return sizes[0] if batch is None else batch
    if sizes == [None]:
        raise FolderError(f"{folder} was not compiled for batch sizes: leave out batch={batch}")
    compiled = f"{folder} was compiled for batches of {', '.join(map(str, sizes))}"
    if batch is None:
        raise FolderError(f"{compiled}: give batch=, or use load_sizes")
    raise FolderError(f"{compiled}, not {batch}: give one of these")


def library_of(size: int | None) -> str:
    return "library.so" if size is None else f"library-{size}.so"


def described(name: str, type_: object) -> dict[str, Any]:
    known = type_of(type_)
    if known is None:
        raise FolderError(f"{name} is of type {type_}, and only tensors can be saved")
    return {"name": name, "shape": list(known.shape), "dtype": known.dtype}


def digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def digest_of(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
