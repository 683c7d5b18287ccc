"""`tvm-passes compile`: apply passes to a model, compile it, and save it to a folder for `tvm-passes run`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm

from .. import runtime
from ..runtime.libraries import Library
from ..runtime.manifest import MANIFEST
from .errors import CommandError, check_can_write_folder, writing
from .models import Model
from .progress import say, step
from .work import check_is_for_here, find, target_of

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .pipelines import prepare
else:
    from .relax_pipeline import prepare


def run(args: argparse.Namespace) -> None:
    check_can_write_folder(args.output)
    folder, target = Path(args.output), target_of(args.target)
    check_is_for_here(target)
    _check_free(folder)
    model = find(args)
    sizes = {size: _compiled(args, model.in_batches_of(size)) for size in args.batch}
    only = None if sizes else _compiled(args, model)
    pipeline, *_ = only or next(iter(sizes.values()))
    about = {
        "model": model.title,
        "pipeline": pipeline,
        **({"dtype": "int8"} if args.int8 else {}),
        "labels": list(model.labels),
        "channels": args.camera[2] if args.camera else "RGB",
    }
    with step(f"Write {folder}"), writing(folder):
        if only:
            runtime.save(folder, only.lib, only.mod, target, about)
        else:
            networks = {size: (each.lib, each.mod) for size, each in sizes.items()}
            runtime.save_sizes(folder, networks, target, about)
    written = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    quoted = shlex.quote(str(folder))
    if not sizes or 1 in sizes:
        by = f"tvm-passes run {quoted} --image image.png -o out.png"
    elif tvm_in_use.has_relay:
        by = f"tvm-passes detect photos -o detections.parquet --model {quoted}"
    else:
        by = "tvm_passes.runtime.load_sizes in Python"
    say(f"{folder}: {written:.1f} MB; run it by: {by}")


class Compiled(NamedTuple):
    pipeline: str
    lib: Library
    mod: tvm.IRModule


def _compiled(args: argparse.Namespace, model: Model) -> Compiled:
    work = prepare(args, model)
    whose = f"{model.title}: " if args.batch else ""
    with step(f"{whose}Apply the passes"):
        mod = work.passes(work.mod)
    with step(f"{whose}Compile for {args.target}"):
        return Compiled(work.pipeline, runtime.build_library(mod, work.target), mod)


def _check_free(folder: Path) -> None:
    """Check this before anything that takes time."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise CommandError(
            f"{folder} contains other files: give a new folder, or one that was compiled to before"
        )
