"""A job: every image of a source ends in one of two tables, whatever interrupts it and however often."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from .. import runtime
from .coco import write_coco
from .decode import MAX_PIXELS
from .detector import Batch, Detector, Row
from .errors import BatchError
from .figures import Figures, Progress
from .local import Failed, run_in_threads
from .optional import pyarrow
from .sources import Item, Source, count, items_of, named
from .table import ROWS, Table, detections_schema, errors_schema, ids_of, whole_file

JOB = ".job.json"  # in the table of detections: what the job is, which --resume has to find the same
FORMATS = ("parquet", "coco")
ENGINES = ("local",)
SECONDS_OF_WORK = 60  # after which rows are written, however few
MAX_DECODERS = 16  # for each device


@dataclass(frozen=True)
class Summary:
    """What a job did; `done_before` counts the images that were in the tables already."""

    images: int
    errors: int
    done_before: int
    seconds: float
    images_per_second: float
    bound: str | None  # what the job waited for: decode, run, map back, or write
    detections: Path
    error_table: Path


def detect(
    source: Source,
    output: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    gpus: int | None = None,
    batch: Batch = "auto",
    resume: bool = False,
    format: str = "parquet",
    engine: str = "local",
    trace: str | os.PathLike[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    decoders: int | None = None,
    rows_per_part: int = ROWS,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Run a compiled detector on many images, and write what it finds in each into a table.

    Every image of the source is in exactly one of two tables in the end: with its detections in `output`, or
    with the reason why it cannot be used in a table of errors beside it. Both are folders of Parquet files,
    whose columns `table.py` has; each file is there only when it is whole. After whatever interruption,
    `resume=True` does what is left, and nothing twice.

    Parameters
    ----------
    source : path, or list of paths
        A folder, in which all image files are taken; a glob; a text file of paths; a Parquet file with a
        column of encoded images; a tar, as WebDataset writes it; or a list of such files.
    output : path
        The folder to write, such as "detections.parquet"; the errors are in "errors.parquet" then, and in
        "NAME.errors.parquet" beside any other "NAME.parquet".
    model : path
        The folder of a compiled detector.
    gpus : int, optional
        How many GPUs to use; by default all.
    batch : int or "auto"
        See `Detector`.
    resume : bool
        Whether to go on with a job that was interrupted.
    format : "parquet" or "coco"
        "coco" writes the detections also as one file, NAME.json, with COCO's fields, when the job is done.
    engine : "local"
        Threads of this process.
    trace : path, optional
        A JSON file for chrome://tracing or Perfetto, with what each thread did when.
    max_pixels : int
        Larger images are errors.
    decoders : int, optional
        Threads that decode and resize images.
    rows_per_part : int
        Images of a Parquet file, at most.
    on_progress : function, optional
        Is called several times a second.
    """
    _check(source, format, engine, rows_per_part, decoders)
    table, errors = _paths(Path(output))
    is_new = not table.exists()
    if not is_new and not resume:
        raise BatchError(f"{table} exists: give --resume (resume=True) to go on with it, or another output")
    detectors = [
        Detector(model, device, batch=batch, max_pixels=max_pixels) for device in _devices(model, gpus)
    ]
    cores = len(os.sched_getaffinity(0))
    decoders = decoders or max(1, min(cores - 1, MAX_DECODERS * len(detectors)))
    with _errors_of_the_disk(table), _locked(table), contextlib.ExitStack() as stack:
        _check_same(table, {"source": named(source), "manifest": detectors[0].manifest})
        tables = _Tables(table, errors, rows_per_part)
        done = {*ids_of(table), *ids_of(errors)}
        file = stack.enter_context(open(trace, "w", encoding="utf-8")) if trace else None
        figures = Figures(file)
        _count_meanwhile(source, figures, len(done))
        results = run_in_threads(
            _but(items_of(source), done),
            detectors,
            figures,
            decoders,
            lambda: on_progress(figures.progress()),
        )
        try:
            with contextlib.closing(results):
                for result in results:
                    with figures.working("write"):
                        tables.write(result)
                    figures.errors += isinstance(result, Failed)
                    figures.images += not isinstance(result, Failed)
        except OSError:
            raise  # the disk is full: another part would be lost, too
        except BaseException:
            tables.flush()
            raise
        with figures.working("write"):
            tables.flush()
            if format == "coco":
                write_coco(table, table.with_suffix(".json"), detectors[0].labels)
        figures.end_trace()
        ended = figures.progress()
    return Summary(
        ended.images,
        ended.errors,
        len(done),
        ended.seconds,
        ended.images_per_second,
        ended.bound,
        table,
        errors,
    )


class _Tables:
    """The two tables of a job."""

    def __init__(self, detections: Path, errors: Path, rows: int) -> None:
        self._detections = Table(detections, detections_schema(), rows)
        self._errors = Table(errors, errors_schema(), rows)
        self._flushed = time.monotonic()

    def write(self, result: Row | Failed) -> None:
        if isinstance(result, Failed):
            self._errors.append({"image_id": result.id, "reason": result.reason})
        else:
            self._detections.append(result)
        if time.monotonic() - self._flushed > SECONDS_OF_WORK:
            self.flush()

    def flush(self) -> None:
        self._detections.flush()
        self._errors.flush()
        self._flushed = time.monotonic()


def _check(source: Source, format: str, engine: str, rows_per_part: int, decoders: int | None) -> None:
    """Before anything that takes time."""
    for name, given, known in (("format", format, FORMATS), ("engine", engine, ENGINES)):
        if given not in known:
            raise BatchError(f"{name} must be {' or '.join(known)}, not {given!r}")
    for name, number in (("rows_per_part", rows_per_part), ("decoders", decoders)):
        if number is not None and number < 1:
            raise BatchError(f"{name} must be at least 1, not {number}")
    pyarrow("parquet")  # raises where it is not installed
    items_of(source)  # raises where there is nothing


def _paths(output: Path) -> tuple[Path, Path]:
    """Of the tables of detections and of errors."""
    table = output if output.suffix == ".parquet" else output.with_suffix(".parquet")
    own = "" if table.stem == "detections" else f"{table.stem}."
    if table.is_file():
        raise BatchError(f"{table} is a file: give a folder to write to, or the name of a new one")
    return table, table.with_name(f"{own}errors.parquet")


def _devices(model: str | os.PathLike[str], gpus: int | None) -> list[str]:
    try:
        target = tvm.target.Target(runtime.read_manifest(model)["target"])
    except runtime.FolderError as error:
        raise BatchError(str(error)) from error
    kind = target.kind.name
    if kind != "cuda":
        if gpus:
            raise BatchError(f"{model} was compiled for {target}: leave out --gpus, or compile for a GPU")
        return ["cpu"]
    found = 0
    while tvm.cuda(found).exist:
        found += 1
    if gpus is not None and not 1 <= gpus <= found:
        raise BatchError(f"there are {found} GPUs here: give --gpus from 1 to {found}, not {gpus}")
    return [f"cuda:{index}" for index in range(gpus or max(found, 1))]


def _but(items: Iterator[Item], done: set[str]) -> Iterator[Item]:
    return (item for item in items if item.id not in done)


def _count_meanwhile(source: Source, figures: Figures, done: int) -> None:
    """Counting a million files takes a while, and so the job does not wait for it."""

    def run() -> None:
        with contextlib.suppress(Exception):  # the job itself reports it
            total = count(source)
            figures.total = None if total is None else max(total - done, 0)

    threading.Thread(target=run, daemon=True, name="count").start()


# --- what is on the disk


def _check_same(table: Path, job: Mapping[str, Any]) -> None:
    """Record what the job is, or compare it with what was recorded."""
    path = table / JOB
    if not path.exists():
        with whole_file(path) as file:
            file.write(json.dumps(job, indent=1).encode())
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if before.get("manifest") != job["manifest"]:
        raise BatchError(f"{table} was begun with another model: give that one, or another output")
    if before.get("source") != job["source"]:
        raise BatchError(
            f"{table} was begun with the source {before.get('source')}, not {job['source']}: give that one, "
            "or another output"
        )


@contextlib.contextmanager
def _locked(table: Path) -> Iterator[None]:
    """Two jobs do not write into one table; the lock of one that was killed is gone."""
    table.mkdir(parents=True, exist_ok=True)
    with open(table / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"another job is writing {table}: wait for it, or give another output") from None
        yield


@contextlib.contextmanager
def _errors_of_the_disk(table: Path) -> Iterator[None]:
    resume = "what was written is whole; give --resume (resume=True) then"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BatchError(f"the disk of {table} is full: free some of it; {resume}") from error
        raise BatchError(f"{error.filename or table} cannot be written ({error}): {resume}") from error
