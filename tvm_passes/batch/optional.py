"""Packages that only the extras `batch` and `ray` install."""

from __future__ import annotations

from typing import Any

from ..extras import imported
from .errors import BatchError


def pyarrow(module: str = "") -> Any:
    """pyarrow, or a module of it."""
    return imported(f"pyarrow.{module}" if module else "pyarrow", "batch", BatchError)


def ray(module: str = "") -> Any:
    """Ray, or a module of it."""
    return imported(f"ray.{module}" if module else "ray", "ray", BatchError)
