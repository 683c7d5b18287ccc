"""What comes of a case: right, refused in a clear line, or one of what must not be."""

import re
import warnings
from dataclasses import dataclass

import numpy as np

from frontends.errors import ImportFailure

# Words of Python, C++ or TVM's internals: a message with one of them tells a user nothing.
UNCLEAR = re.compile(
    r"\b(\w+Error|Exception|Traceback)\b|Check failed|\.(cc|h|py):\d|NoneType|0x[0-9a-f]{6}|object at"
)
ROUNDINGS = 4  # of the greatest element of a result, which its smaller ones may be off by


@dataclass(frozen=True)
class Outcome:
    """`kind` is "right", "refused", "unclear", "wrong" or "crash"; `reason` says why it is not right."""

    kind: str
    reason: str = ""


def outcome(import_, compiled, data_sets, rtol, atol):
    """Import with `import_()`, which gives a module, and compare what `compiled` makes of it, a function of
    arrays, on [(inputs, expected outputs)].
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mod = import_()
    except ImportFailure as failure:
        return refusal(str(failure))
    except Exception as error:
        return Outcome("crash", f"import: {last_line(error)}")
    try:
        compute = compiled(mod)
    except Exception as error:
        return Outcome("crash", f"compile: {last_line(error)}")
    for inputs, expected in data_sets:
        try:
            found = compute(*inputs)
        except Exception as error:
            return Outcome("crash", f"run: {last_line(error)}")
        difference = differs(found, expected, rtol, atol)
        if difference:
            return Outcome("wrong", difference)
    return Outcome("right")


def refusal(message):
    is_clear = "\n" not in message and not UNCLEAR.search(message)
    return Outcome("refused" if is_clear else "unclear", message)


def differs(found, expected, rtol, atol):
    """How arrays differ from those that are expected, or None."""
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for place, (mine, right) in enumerate(zip(found, expected)):
        right = np.asarray(right)
        if (mine.dtype, mine.shape) != (right.dtype, right.shape):
            return f"output {place} is {mine.dtype}{mine.shape} instead of {right.dtype}{right.shape}"
        if not np.allclose(mine, right, rtol, max(atol, _rounding(right)), equal_nan=True):
            return f"output {place} has other numbers"
    return None


def _rounding(right):
    """What sums in another order may differ by: next to 350, an element that cancels to 0 is off by 4e-5."""
    finite = right[np.isfinite(right)] if right.dtype.kind == "f" else np.zeros(0)
    return ROUNDINGS * np.finfo(right.dtype).eps * np.abs(finite).max() if finite.size else 0


def last_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
