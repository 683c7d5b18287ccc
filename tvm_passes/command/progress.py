"""Report progress on standard error; results go to standard output.

Nothing here imports rich at the top: the doctor runs without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from unittest import mock

from ..progress import only_display
from .errors import CommandError, StepFailed, one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["busy", "quiet", "say", "step"]

SWITCH = "TVM_PASSES_VERBOSE"  # of `topi_ext.quiet`, which the doctor must not import: it needs TVM
OURS = r"(tvm_passes|topi_ext|frontends)(\.|$)"  # where a warning is attributed to, by its stack level


def _console() -> Console:
    """A console on what is standard error now."""
    from rich.console import Console

    return Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line on standard error, also without rich."""
    try:
        from rich.markup import escape
    except ModuleNotFoundError:  # the text may say that rich is missing
        print(text, file=sys.stderr)
    else:
        _console().print(escape(text))


@contextlib.contextmanager
def busy(name: str) -> Iterator[None]:
    """Show on a terminal that something is running, and leave nothing there; also without rich."""
    try:
        console = _console()
    except ModuleNotFoundError:
        yield
        return
    if not console.is_terminal:
        yield
        return
    with console.status(name):
        yield


@contextlib.contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Show that a step is running, and at the end print its time or raise that it failed.

    Yields a function that shows which part of the step is running.
    """
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    start = time.perf_counter()
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    to = _console()
    # Meanwhile the importers show no progress bars: a terminal has room for one live display.
    with (
        only_display(),
        Progress(*columns, console=to, transient=True, disable=not to.is_terminal) as progress,
    ):
        task = progress.add_task(escape(name))
        try:
            yield lambda part: progress.update(task, description=escape(f"{name}: {part}"))
        except (CommandError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise StepFailed(f"{name}: {one_line(error)}") from error
    seconds = time.perf_counter() - start
    if seconds >= 0.1:
        say(f"{name}: {seconds:.1f} s")


@contextlib.contextmanager
def quiet(wanted: bool = True) -> Iterator[None]:
    """Print this project's own warnings as one line each, and no others; unless `wanted`, print everything.

    TVM's notes on standard error are held back wherever this project calls TVM, by `topi_ext.quiet`.
    """
    if not wanted:
        with mock.patch.dict(os.environ, {SWITCH: "1"}):
            yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", module=OURS)
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}")
        yield
