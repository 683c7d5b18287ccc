"""The command's errors: one line that says what is wrong and what to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import one_line

__all__ = [
    "CommandError",
    "StepFailed",
    "check_can_write",
    "check_can_write_folder",
    "one_line",
    "require_relay",
    "writing",
]


class CommandError(Exception):
    """One sentence for the user: what is wrong, and what to do about it."""


class StepFailed(CommandError):
    """An unforeseen exception in a step; its traceback may help."""


def check_can_write(path: str | Path) -> None:
    """Check this before anything that takes time."""
    path = Path(path)
    if path.is_dir():
        raise CommandError(f"{path} is a folder: give the name of a file to write")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")
    _check_permission(path if path.exists() else path.parent)


def check_can_write_folder(path: str | Path) -> None:
    """The same for a folder, which is made with the folders that it is in."""
    if not os.fspath(path):  # as of a variable that is not set: it is not the folder here
        raise CommandError("the name of the folder to write is empty: give a name")
    path = Path(path)
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise CommandError(f"{there} is a file: give a folder to write to")
    _check_permission(there)


def _check_permission(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise CommandError(f"there is no permission to write to {path}: give another place")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What can go wrong all the same, such as a disk that is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise CommandError(
            f"cannot write {path} ({reason}): free some space, or give another place"
        ) from error


def require_relay(what: str) -> None:
    """Refuse it where this process has a TVM with Relax."""
    from topi_ext.bootstrap import tvm_in_use  # not above: the doctor runs without TVM

    try:
        tvm_in_use.require_relay(what)
    except ImportError as reason:
        raise CommandError(one_line(reason)) from reason
