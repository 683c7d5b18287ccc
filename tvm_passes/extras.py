"""Packages that only an extra of this project installs."""

from __future__ import annotations

import importlib
from typing import Any


def imported(name: str, extra: str, failure: type[Exception]) -> Any:
    """A module of such a package; where it is missing, or cannot be used, a `failure` says what to run."""
    install = f'run `pip install "tvm-vision-passes[{extra}]"`'
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise failure(f"{package} is missing: {install}") from None
    except ImportError as error:  # such as one for another NumPy
        raise failure(f"{name.partition('.')[0]} cannot be used ({error}): {install}") from error
