"""What a frontend raises when a model cannot be imported."""

from __future__ import annotations

import re

LONGEST = 2000  # characters: names come from the model and may be of any length


class ImportFailure(ValueError):
    """One sentence that names what in the model stands in the way, and what to do about it.

    It is one line, whatever is quoted in it. What TVM or ONNX said, if they said anything, is the
    `__cause__`.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= LONGEST else line[:LONGEST] + " …")


# What only someone who knows the sources of TVM and of its converters can read.
INTERNALS = re.compile(
    r"Check failed|Traceback|NoneType|object at|0x[0-9a-f]{6}|\.(cc|h|py)\b|\w+Error\b|has no attribute"
    r"|keyword argument|positional argument|unsupported operand|subscriptable|object is not|has no len"
)
NO_REASON = "it is not supported with these inputs and attributes"


def gist(error: BaseException) -> str:
    """What an error says to who knows the model, without the stack that TVM puts into its message."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("note:", "Stack trace", "[bt]"))]
    said = re.sub(r"^(\w+Error: )+", "", lines[-1]) if lines else ""
    said = re.sub(r"^.*Check failed: .* is false:\s*", "", said)
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    # These are slips of a converter that was not made for what it was given.
    is_slip = isinstance(error, (AttributeError, LookupError, NameError, RecursionError, TypeError))
    return NO_REASON if is_slip or not said or INTERNALS.search(said) else said
