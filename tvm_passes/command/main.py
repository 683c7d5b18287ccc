"""The command line: runs a subcommand; errors are printed as one line each. `options` has those of each."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from .errors import CommandError, one_line, require_relay
from .options import parser
from .progress import busy, quiet, say

FOR_BOTH_TVMS = ("compile", "inspect", "profile", "run")  # the others need Relay


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status: 0, 1 for an error, 2 for an error in the command line."""
    try:
        args = parser().parse_args(arguments)
    except SystemExit as stop:  # after --help, or one line about the command line
        return int(stop.code or 0)
    if hasattr(sys.stdout, "reconfigure"):  # an ASCII terminal gets "?" for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    with quiet(not args.verbose), _interrupts() as interrupts:
        try:
            return _run(args) or 0
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except SystemExit as stop:
            if isinstance(stop.__context__, BrokenPipeError):  # rich's answer to it, as below
                return 128 + signal.SIGPIPE
            # else of a module:function
            say(f"tvm-passes {args.command}: a function that it called ended with sys.exit({stop.code!r})")
            return 1
        except BrokenPipeError:  # `| head` has read enough and exited
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        except Exception as error:
            if args.verbose:
                traceback.print_exc()
            if interrupts:
                return 128 + signal.SIGINT
            hint = "" if args.verbose or type(error) is CommandError else " (--verbose shows where)"
            say(f"tvm-passes {args.command}: {one_line(error)}{hint}")
            return 1


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals by Ctrl-C: TVM may lose the exception of one in a callback, and raise an older error."""
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


def _run(args: argparse.Namespace) -> int | None:
    """Import and run the module of the subcommand; all but the doctor need TVM."""
    if args.command != "doctor":
        with busy("Loading TVM and torch"):  # which takes seconds
            _load(args.command)
    return importlib.import_module(f".{args.command}", __package__).run(args)


def _load(command: str) -> None:
    try:
        import topi_ext.bootstrap  # noqa: F401
    except ImportError as reason:
        raise CommandError(f"{one_line(reason)}; tvm-passes doctor says what is missing here") from reason
    if command not in FOR_BOTH_TVMS:
        require_relay(f"tvm-passes {command}")
    from topi_ext.bootstrap.not_installed import NotInstalled, says_what_to_do

    try:
        with says_what_to_do():
            importlib.import_module(f".{command}", __package__)
    except NotInstalled as reason:
        raise CommandError(one_line(reason)) from reason


if __name__ == "__main__":
    sys.exit(main())
