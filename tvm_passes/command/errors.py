"""The command's errors: one line that says what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

from ..errors import one_line

__all__ = ["CommandError", "StepFailed", "check_can_write", "one_line"]


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
