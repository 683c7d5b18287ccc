"""Options that are whole numbers."""

from __future__ import annotations

import numbers
from typing import Any


def whole(what: str, value: Any) -> int:
    """The number as an int; `int` itself would drop what is behind its point, in silence."""
    if isinstance(value, numbers.Real) and value != value // 1:  # and so are infinity and NaN
        raise ValueError(f"{what} must be a whole number, not {value}")
    return int(value)
