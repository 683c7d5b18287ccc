"""`tvm-passes detect`: run a compiled detector on many images, and write a table of what it finds."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .. import batch
from ..batch.figures import Progress
from .errors import CommandError, check_can_write
from .progress import say, step


def run(args: argparse.Namespace) -> None:
    if args.trace:
        check_can_write(args.trace)
    try:
        with step("Detect") as show:
            summary = _detected(args, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Stopped: what is in {args.output} is whole; --resume does the rest."
        ) from None
    before = f"; {summary.done_before} were done before" if summary.done_before else ""
    bound = f", bound by: {summary.bound}" if summary.bound else ""
    say(
        f"{summary.images} images and {summary.errors} errors{before}; "
        f"{summary.images_per_second:.1f} a second{bound}."
    )
    say(f"The detections: {summary.detections}")
    if args.format == "coco":
        say(f"The same for COCO's tools: {summary.detections.with_suffix('.json')}")
    if summary.errors:
        say(f"The errors, with their reasons: {summary.error_table}")


def _detected(args: argparse.Namespace, show: Callable[[str], None]) -> batch.Summary:
    try:
        return batch.detect(
            args.source,
            args.output,
            args.model,
            gpus=args.gpus,
            processes=args.processes,
            engine=args.engine,
            address=args.address,
            workers=args.workers,
            batch=args.batch,
            resume=args.resume,
            format=args.format,
            trace=args.trace,
            on_progress=lambda progress: show(described(progress)),
        )
    except batch.BatchError as error:
        raise CommandError(str(error)) from error


def described(progress: Progress) -> str:
    """One line, such as "120 of 2000 images, 3 errors, 45.2 a second, 0:42 left, bound by: run"."""
    of = "" if progress.total is None else f" of {progress.total}"
    parts = [f"{progress.images + progress.errors}{of} images", f"{progress.errors} errors"]
    parts.append(f"{progress.images_per_second:.1f} a second")
    left = progress.seconds_left
    if left is not None:
        minutes, seconds = divmod(round(left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left")
    if progress.bound:
        parts.append(f"bound by: {progress.bound}")
    return ", ".join(parts)
