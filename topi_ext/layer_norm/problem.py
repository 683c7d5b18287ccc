"""What the kernels of every target have to know."""

from __future__ import annotations

from dataclasses import dataclass

from .._rows import Rows


@dataclass(frozen=True)
class Problem:
    """Rows that are normalized."""

    rows: Rows
    epsilon: float
