"""The command's errors: one line that says what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

from ..errors import one_line

__all__ = ["CommandError", "StepFailed", "check_can_write", "one_line", "require_relay"]


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


def require_relay(what: str) -> None:
    """Refuse it where this process has a TVM with Relax."""
    from topi_ext.bootstrap import tvm_in_use  # not above: the doctor runs without TVM

    try:
        tvm_in_use.require_relay(what)
    except ImportError as reason:
        raise CommandError(one_line(reason)) from reason
