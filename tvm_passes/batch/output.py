"""Where a job writes: its two tables, and what it takes to go on with them later."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import BatchError
from .results import Failed, Result, Rows
from .table import Table, detections_schema, errors_schema, parts, whole_file

JOB = ".job.json"  # in the table of detections: what the job is, which --resume has to find the same
LOCK = ".lock"
SUFFIXES = (".parquet", ".json")  # of an output that are no part of its name
SECONDS_OF_WORK = 60  # after which rows are written, however few


def paths_of(output: Path) -> tuple[Path, Path]:
    """Of the tables of detections and of errors."""
    name = output.stem if output.suffix in SUFFIXES else output.name
    if name in ("", ".."):
        raise BatchError(f"{output} names no new folder: give an output such as detections.parquet")
    table, own = output.with_name(f"{name}.parquet"), "" if name == "detections" else f"{name}."
    if table.is_file():
        raise BatchError(f"{table} is a file: give a folder to write to, or the name of a new one")
    return table, table.with_name(f"{own}errors.parquet")


class Tables:
    """The two tables of a job."""

    def __init__(self, detections: Path, errors: Path, rows: int) -> None:
        self._detections = Table(detections, detections_schema(), rows)
        self._errors = Table(errors, errors_schema(), rows)
        self._flushed = time.monotonic()

    def write(self, result: Result) -> None:
        if isinstance(result, Failed):
            self._errors.append({"image_id": result.id, "reason": result.reason})
        elif isinstance(result, Rows):
            self._detections.append_all(result.table)
        else:
            self._detections.append(result)
        if time.monotonic() - self._flushed > SECONDS_OF_WORK:
            self.flush()

    def flush(self) -> None:
        self._detections.flush()
        self._errors.flush()
        self._flushed = time.monotonic()


def is_begun(table: Path, errors: Path) -> bool:
    """Whether a job has written anything; one that could not start leaves only its marks."""
    return bool(parts(errors)) or any(path.name not in (JOB, LOCK) for path in table.glob("*"))


def check_same(table: Path, errors: Path, job: Mapping[str, Any]) -> None:
    """Record what the job is, or compare it with what was recorded."""
    path = table / JOB
    if not path.exists() or not is_begun(table, errors):
        with whole_file(path) as file:
            file.write(json.dumps(job, indent=1).encode())
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        is_known = isinstance(before, dict)
    except (ValueError, RecursionError):
        is_known = False
    if not is_known:
        raise BatchError(f"{path}, which says what job {table} is of, is damaged: give another output")
    if before.get("manifest") != job["manifest"]:
        raise BatchError(f"{table} was begun with another model: give that one, or another output")
    if before.get("source") != job["source"]:
        raise BatchError(
            f"{table} was begun with the source {before.get('source')}, not {job['source']}: give that one, "
            "or another output"
        )
    if before.get("rows", job["rows"]) != job["rows"]:
        raise BatchError(
            f"{job['source']} is not as it was when {table} was begun, and its rows have only their numbers "
            "as ids: give the same file, or another output"
        )


@contextlib.contextmanager
def locked(table: Path) -> Iterator[None]:
    """Two jobs do not write into one table; the lock of one that was killed is gone."""
    try:
        table.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BatchError(f"{table} cannot be made ({error.strerror}): give another output") from error
    with open(table / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"another job is writing {table}: wait for it, or give another output") from None
        yield


@contextlib.contextmanager
def errors_of_the_disk(table: Path) -> Iterator[None]:
    resume = "what was written is whole; give --resume (resume=True) then"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BatchError(f"the disk of {table} is full: free some of it; {resume}") from error
        raise BatchError(f"{error.filename or table} cannot be written ({error}): {resume}") from error
