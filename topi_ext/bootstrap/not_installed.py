"""Errors for missing requirements of TVM or this project, which say what to run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IS_CLONE = (ROOT / "pyproject.toml").is_file()
OURS = ("topi_ext", "tvm_passes", "frontends")
LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")


class NotInstalled(ImportError):
    """One sentence that names what is missing and what to run."""


def remedy() -> str:
    if IS_CLONE:
        return f'this clone is not installed: run `pip install -e ".[relay]"` in {ROOT}'
    # Without --force-reinstall: pip takes this package for what is asked for, wherever it was installed from.
    return 'the installation is not complete: run `pip install "tvm-vision-passes[relay]"`'


@contextlib.contextmanager
def says_what_to_do() -> Iterator[None]:
    """Raise NotInstalled for a package or library that an import inside the block does not find."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OURS or package == "tvm":  # a bug, not an incomplete installation
            raise
        raise NotInstalled(f"{package} is missing: {remedy()}", name=error.name) from error
    except OSError as error:
        missing = LIBRARY.search(str(error))
        if missing is None:
            raise
        raise NotInstalled(f"{Path(missing[1]).name}, to which TVM links, is missing: {remedy()}") from error
