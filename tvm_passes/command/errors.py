"""What the command says when something goes wrong: one line, and what to do."""

import re

LONGEST = 500  # characters; TVM may quote a whole module


class CommandError(Exception):
    """One sentence for the user: what is wrong, and what to do about it."""


def one_line(error):
    """What an exception says, without the stack that TVM writes into its messages."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        text = re.split(r'\n\s*File "[^"]*", line \d+.*\n', text)[-1]
        text = re.sub(r"^\s*\w+(\.\w+)*(Error|Exception): ", "", text)
    text = re.sub(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ", "", text)
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
