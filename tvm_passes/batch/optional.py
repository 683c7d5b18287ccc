"""Packages that only the extras `batch` and `ray` install."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import BatchError

INSTALL = "run `pip install tvm-vision-passes[{}]`"


def pyarrow(module: str = "") -> Any:
    """pyarrow, or a module of it."""
    return _imported(f"pyarrow.{module}" if module else "pyarrow", "batch")


def ray(module: str = "") -> Any:
    """Ray, or a module of it."""
    return _imported(f"ray.{module}" if module else "ray", "ray")


def _imported(name: str, extra: str) -> Any:
    package, install = name.partition(".")[0], INSTALL.format(extra)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise BatchError(f"{package} is missing: {install}") from None
    except ImportError as error:  # such as one for another NumPy
        raise BatchError(f"{package} cannot be used ({error}): {install}") from error
