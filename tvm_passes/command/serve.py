"""`tvm-passes serve`: answer requests over HTTP with what a compiled detector finds in their images."""

from __future__ import annotations

import argparse
import contextlib

from .. import serve
from .errors import CommandError
from .progress import say, step


def run(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as starting:
        starting.enter_context(step(f"Start the workers of {args.folder}"))

        def ready(url: str) -> None:
            starting.close()
            say(f"Serving {args.folder} at {url} (Ctrl-C ends it)")

        try:
            serve.run(
                args.folder,
                host=args.host,
                port=args.port,
                replicas=None if args.replicas == "auto" else args.replicas,
                limits=serve.Limits(args.max_queued, args.timeout, args.max_bytes),
                is_verbose=args.verbose,
                on_ready=ready,
            )
        except serve.ServeError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            say("Stopped.")
            raise
