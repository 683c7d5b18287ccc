"""The message of an exception, in one line."""

from __future__ import annotations

import re

MAX_CHARACTERS = 500  # characters; TVM may quote a whole module


def one_line(error: BaseException) -> str:
    """The message of an exception, without the stack trace that TVM writes into its messages."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        text = re.split(r'\n\s*File "[^"]*", line \d+.*\n', text)[-1]
        text = re.sub(r"^\s*\w+(\.\w+)*(Error|Exception): ", "", text)
    text = re.sub(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ", "", text)
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " …"
