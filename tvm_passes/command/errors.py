"""What the command says when something goes wrong: one line, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = 500  # characters; TVM may quote a whole module


class CommandError(Exception):
    """One sentence for the user: what is wrong, and what to do about it."""


class StepFailed(CommandError):
    """What an exception said that this command did not foresee; its trace may help."""


def check_can_write(path: str | Path) -> None:
    """Before anything takes time."""
    path = Path(path)
    if path.is_dir():
        raise CommandError(f"{path} is a folder: give the name of a file to write")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")


def one_line(error: BaseException) -> str:
    """What an exception says, without the stack that TVM writes into its messages."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        text = re.split(r'\n\s*File "[^"]*", line \d+.*\n', text)[-1]
        text = re.sub(r"^\s*\w+(\.\w+)*(Error|Exception): ", "", text)
    text = re.sub(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ", "", text)
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
