"""What goes on, told on standard error; results go to standard output.

Nothing here imports rich at the top: the doctor runs without it.
"""

from __future__ import annotations

import contextlib
import logging
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


def console() -> Console:
    """For what is told; made anew each time, since `quiet` changes what standard error is."""
    from rich.console import Console

    return Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    try:
        from rich.markup import escape
    except ModuleNotFoundError:  # of which the text may be
        print(text, file=sys.stderr)
    else:
        console().print(escape(text))


@contextlib.contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Show that something goes on, and say at the end how long it took, or that it failed.

    Gives a function that says how far it is.
    """
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    start = time.perf_counter()
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    to = console()
    # The importers' bars are not shown meanwhile: a terminal has room for one display.
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
    """Without the warnings of TVM and torch; those of TVM's C++ go past Python to file descriptor 2."""
    if not wanted:
        with mock.patch.dict(os.environ, TVM_PASSES_VERBOSE="1"):
            yield
        return
    with contextlib.ExitStack() as stack:
        for name in ("autotvm", "strategy", "te_compiler"):
            stack.callback(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(logging.ERROR)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        kept = os.dup(2)
        stack.callback(os.close, kept)
        stderr = stack.enter_context(os.fdopen(os.dup(kept), "w", buffering=1, errors="replace"))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        nowhere = stack.enter_context(open(os.devnull, "w"))
        os.dup2(nowhere.fileno(), 2)
        stack.callback(os.dup2, kept, 2)
        yield
