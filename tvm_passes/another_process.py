"""Python in another process, for what threads cannot share."""

from __future__ import annotations

import sys


def python(statement: str) -> list[str]:
    """The command of a Python that imports the same packages as this one, without the user's script."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {list(map(str, sys.path))}; {statement}"]
