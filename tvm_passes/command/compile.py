"""`tvm-passes compile`: apply passes to a model, compile it, and save it to a folder for `tvm-passes run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import runtime
from ..runtime.manifest import MANIFEST
from .errors import CommandError
from .pipelines import prepare
from .progress import say, step


def run(args: argparse.Namespace) -> None:
    folder = Path(args.output)
    _check_free(folder)
    work = prepare(args)
    with step("Apply the passes"):
        mod = work.passes(work.mod)
    with step(f"Compile for {args.target}"):
        lib = runtime.build_library(mod, work.target)
    about = {
        "model": work.model.title,
        "pipeline": work.pipeline,
        "labels": list(work.model.labels),
        "channels": args.camera[2] if args.camera else "RGB",
    }
    with step(f"Write {folder}"):
        runtime.save(folder, lib, mod, work.target, about)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    say(f"{folder}: {size:.1f} MB; run it by: tvm-passes run {folder} --image image.png -o out.png")


def _check_free(folder: Path) -> None:
    """Check this before anything that takes time."""
    if folder.is_file():
        raise CommandError(f"{folder} is a file: give a folder to write to")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise CommandError(
            f"{folder} contains other files: give a new folder, or one that was compiled to before"
        )
