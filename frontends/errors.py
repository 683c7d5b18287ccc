"""What a frontend raises when a model cannot be imported."""

from __future__ import annotations

import builtins
import re

MAX_CHARACTERS = 2000  # characters: names come from the model and may be of any length


class ImportFailure(ValueError):
    """One sentence that says what in the model cannot be imported, and what to do about it.

    It is one line, whatever is quoted in it. The error of TVM or ONNX, if there was one, is the
    `__cause__`.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + " …")


# Text that only someone who knows the sources of Python, TVM and the converters can understand.
INTERNALS = re.compile(
    r"Check failed|Traceback|NoneType|object at|0x[0-9a-f]{6}|\.(cc|h|py)\b|\w+Error\b|has no attribute"
    r"|keyword argument|positional argument|unsupported operand|subscriptable|object is not|has no len"
    r"|values to unpack|is not in list|not in (list|deque|tuple)$|substring not found|invalid literal"
    r"|could not convert string|empty sequence|argument is empty|zip\(\)|must be str|unhashable|<class"
    r"|truth value of|inhomogeneous|array element with|Python scalar|division by zero|math domain"
)
# These are slips of a converter that does not handle what it was given, whatever they say.
SLIPS = ArithmeticError, AttributeError, LookupError, NameError, RecursionError, StopIteration, TypeError
NO_REASON = "it is not supported with these inputs and attributes"


def gist(error: BaseException) -> str:
    """What an error says to someone who knows the model, without the stack that TVM puts into its message."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, UnicodeDecodeError):
        return "some text in it is not UTF-8: the file is damaged"
    if "All inputs to infer must be available in params" in str(error):
        return "it needs the value of an input at import, which is known only at run time"
    message, _, _ = str(error).partition("\nWhile executing %")  # behind which torch writes where
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("note:", "Stack trace", "[bt]"))]
    last = lines[-1] if lines else ""
    said = re.sub(r"^(\w+Error: )+", "", last)
    # An error of Python that passed through TVM is quoted, with its class.
    quoted = [getattr(builtins, name, Exception) for name in re.findall(r"\w+Error", last.removesuffix(said))]
    said = re.sub(r"^.*Check failed: .* is false:\s*", "", said)
    is_slip = isinstance(error, SLIPS) or any(issubclass(class_, SLIPS) for class_ in quoted)
    return NO_REASON if is_slip or not said or INTERNALS.search(said) else said
