"""The folder of what is made once per machine: TVM's compiled interface, compiled kernels, chosen plans.

It is `tvm-vision-passes` in `$XDG_CACHE_HOME`, by default in `~/.cache`, or what `TVM_PASSES_CACHE` names.
All of it may be deleted at any time. `TVM_PASSES_CACHE=0` keeps no kernels.

Several processes may use it at once: an entry appears complete or not at all, and carries a digest, so that
one that a full disk or a crash has cut is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SWITCH = "TVM_PASSES_CACHE"
OFF = ("", "0")
SUFFIX = ".kernels"
MAX_BYTES = 512 << 20  # hundreds of networks; what was used least recently goes first
DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where everything lies, whether it exists or not; RuntimeError if the user has no home directory."""
    chosen = os.environ.get(SWITCH, "")
    if chosen not in OFF:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tvm-vision-passes")


def described() -> str:
    """What there is, in words."""
    if not keeps_kernels():
        return f"off, by {SWITCH}"
    entries = sizes()
    used = f"{sum(entries.values()) >> 20} of at most {MAX_BYTES >> 20} MB"
    return f"{folder()}: {len(entries)} files, {used}; {SWITCH} names another folder, or 0 for none"


def keeps_kernels() -> bool:
    """Whether compiled kernels are kept."""
    return os.environ.get(SWITCH) not in OFF


def load(key: str) -> bytes | None:
    """What was stored under a key, if it is there and undamaged."""
    if not keeps_kernels():
        return None
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(key)
        content = path.read_bytes()
        if hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
            _used_now(path)
            return content[DIGEST:]
    return None


def store(key: str, value: bytes) -> None:
    """Keep a value, if the folder can be written to."""
    if not keeps_kernels():
        return
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder, path.name)
            new.write_bytes(hashlib.sha256(value).digest() + value)
            _used_now(new)
            new.replace(path)
        _make_room()


@contextlib.contextmanager
def alone_in(what: str) -> Iterator[None]:
    """While it lasts, no other process that uses this folder is inside, for the same `what`."""
    folder().mkdir(parents=True, exist_ok=True)
    with Path(folder(), f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing it, or the end of the process, gives it back
        yield


def sizes() -> dict[Path, int]:
    """The bytes of each entry, the one used least recently first."""
    found = []
    for path in folder().glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
            status = path.stat()
            found.append((status.st_mtime_ns, path, status.st_size))
    return {path: size for _, path, size in sorted(found)}


def _path(key: str) -> Path:
    return folder() / f"{key}{SUFFIX}"


def _used_now(path: Path) -> None:
    now = time.time_ns()  # a file system's own clock stands still for milliseconds, and entries tie
    os.utime(path, ns=(now, now))


def _make_room() -> None:
    entries = sizes()
    excess = sum(entries.values()) - MAX_BYTES
    for path, size in entries.items():
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= size
