"""The command line: parses arguments, runs a subcommand, and ends by one line where it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType

from .model_argument import why_there_is_no_model
from .options import parser

INTERRUPTED = 128 + signal.SIGINT


def console() -> int:
    """`main` for a process of its own: Ctrl-C while Python shuts down ends it without a traceback."""
    status = main()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status: 0, 1 for an error, 2 for an error in the command line."""
    with _interrupts() as interrupts:
        try:
            try:
                args = parser().parse_args(arguments)
            except SystemExit as stop:  # after --help, or one line about the command line
                return int(stop.code or 0)
            refusal = why_there_is_no_model(args)
            if refusal:
                print(f"tvm-passes {args.command}: {refusal}", file=sys.stderr)
                return 1
            with warnings.catch_warnings():
                # The subcommands say themselves what is missing here; the doctor runs without it.
                warnings.filterwarnings("ignore", "tvm_passes cannot be used", RuntimeWarning)
                from tvm_passes.command.main import run_subcommand
            return run_subcommand(args, interrupts)
        except KeyboardInterrupt as stop:
            said = str(stop)
        except BaseException:
            if not interrupts:
                raise
            said = ""
    print(said or "Stopped.", file=sys.stderr)
    return INTERRUPTED


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals by Ctrl-C: an import, or a callback of TVM, may lose the exception of one."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as by nohup
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
