"""`tvm-passes serve`: answer requests over HTTP with what a compiled detector finds in their images."""

from __future__ import annotations

import argparse
import contextlib

from .. import serve
from .errors import CommandError
from .progress import say, step

LIMITS = "max_queued", "timeout", "max_bytes"  # options that are fields of `serve.Limits`


def run(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as starting:
        starting.enter_context(step(f"Start the workers of {args.folder}"))

        def ready(url: str) -> None:
            starting.close()
            say(f"Serving {args.folder} at {url} (Ctrl-C ends it)")

        given = {name: getattr(args, name) for name in LIMITS}
        limits = {name: value for name, value in given.items() if value is not None}
        try:
            serve.run(
                args.folder,
                host=args.host,
                port=args.port,
                replicas=None if args.replicas == "auto" else args.replicas,
                limits=serve.Limits(**limits),
                is_verbose=args.verbose,
                on_ready=ready,
            )
        except serve.ServeError as error:
            raise CommandError(str(error)) from error
