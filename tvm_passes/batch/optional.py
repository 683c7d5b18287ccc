"""Packages that only the extra `batch` installs."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import BatchError

INSTALL = "run `pip install tvm-vision-passes[batch]`"


def pyarrow(module: str = "") -> Any:
    """pyarrow, or a module of it."""
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ModuleNotFoundError:
        raise BatchError(f"pyarrow is missing: {INSTALL}") from None
    except ImportError as error:  # such as one for another NumPy
        raise BatchError(f"pyarrow cannot be used ({error}): {INSTALL}") from error
