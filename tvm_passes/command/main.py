"""Run a subcommand of the command line; errors are printed as one line each."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from .errors import CommandError, one_line, require_relay
from .progress import busy, quiet, say

FOR_BOTH_TVMS = ("compile", "inspect", "profile", "run")  # the others need Relay


def run_subcommand(args: argparse.Namespace, interrupts: Sequence[int]) -> int:
    """Run it and return the exit status; `interrupts` are the signals by Ctrl-C so far.

    Raises KeyboardInterrupt where it was interrupted, with what else is to be said.
    """
    if interrupts:  # and an import has lost the exception
        raise KeyboardInterrupt
    if hasattr(sys.stdout, "reconfigure"):  # an ASCII terminal gets "?" for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    with quiet(not args.verbose):
        try:
            return _run(args) or 0
        except SystemExit as stop:
            if isinstance(stop.__context__, BrokenPipeError):  # rich's answer to it, as below
                return 128 + signal.SIGPIPE
            if stop.code == signal.SIGTERM:  # by Ray's handler of the signal, as `docker stop` sends it
                say("Stopped.")
                return 128 + signal.SIGTERM
            # else of a module:function
            say(f"tvm-passes {args.command}: a function that it called ended with sys.exit({stop.code!r})")
            return 1
        except BrokenPipeError:  # `| head` has read enough and exited
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        except Exception as error:
            if args.verbose:
                traceback.print_exc()
            if interrupts:  # TVM may lose the exception of one in a callback, and raise an older error
                raise KeyboardInterrupt from None
            hint = "" if args.verbose or type(error) is CommandError else " (--verbose shows where)"
            say(f"tvm-passes {args.command}: {one_line(error)}{hint}")
            return 1


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
