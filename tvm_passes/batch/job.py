"""A job: every image of a source ends in one of two tables, whatever interrupts it and however often."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topi_ext.bootstrap.threads import cores  # topi_ext comes before tvm

import tvm

from .. import runtime
from ..analysis.targets import is_for_gpu
from .coco import write_coco
from .decode import MAX_PIXELS
from .detector import Batch, Detector, labels_of
from .errors import BatchError
from .figures import Figures, Progress, Trace
from .local import run_in_threads
from .network import check_detects, images_of
from .on_ray import Model, run_on_ray
from .optional import pyarrow, ray
from .output import Tables, check_same, errors_of_the_disk, is_begun, locked, paths_of
from .process import Options
from .processes import run_in_processes
from .results import Failed, Result, number_of
from .sources import Source, check_any, count, left_in, named, numbered_rows
from .table import ROWS, ids_of, parts

# From the ids that are done to all other results.
Engine = Callable[[set[str], Figures, Callable[[], None]], Generator[Result, None, None]]

FORMATS = ("parquet", "coco")
ENGINES = ("local", "ray")
MAX_DECODERS = 16  # for each device
OF_PROCESS, MAX_PROCESSES = 8 * 2**30, 6  # bytes that a process may need of a GPU, and how many are of use


@dataclass(frozen=True)
class Summary:
    """What a job did; `done_before` counts the images that were in the tables already."""

    images: int
    errors: int
    done_before: int
    seconds: float
    images_per_second: float
    bound: str | None  # what the job waited for: decode, fit, run, map back, or write
    detections: Path
    error_table: Path


def detect(
    source: Source,
    output: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    gpus: int | None = None,
    processes: int | None = None,
    batch: Batch = "auto",
    resume: bool = False,
    format: str = "parquet",
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
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
    processes : int, optional
        Of each GPU: each has the network in memory. One cannot keep a fast GPU busy. By default one for each
        8 GiB of its memory, and at most 6; on Ray, of the memory of the first GPU of this machine. Those that
        the job starts on this machine share it by NVIDIA's MPS, which runs while they do, unless
        CUDA_MPS_PIPE_DIRECTORY is set, or with Ray CUDA_VISIBLE_DEVICES.
    batch : int or "auto"
        See `Detector`.
    resume : bool
        Whether to go on with a job that was interrupted.
    format : "parquet" or "coco"
        "coco" writes the detections also as one file, NAME.json, with COCO's fields, when the job is done.
    engine : "local" or "ray"
        "local" is threads, of this process or of several, as `processes` says. "ray" is tasks and actors of
        Ray, on one machine or on several, which all have the source and the model under the same paths.
    address : str, optional
        Of a Ray cluster, or "auto"; by default, Ray is started on this machine for the job.
    workers : int, optional
        With Ray and without GPUs: how many processes run the network; by default one on each machine.
    trace : path, optional
        A JSON file for chrome://tracing or Perfetto, with what each thread did when.
    max_pixels : int
        Larger images are errors.
    decoders : int, optional
        Threads that decode and resize images, or Ray's tasks.
    rows_per_part : int
        Images of a Parquet file, at most.
    on_progress : function, optional
        Is called several times a second.
    """
    _check(source, format, engine, rows_per_part, decoders=decoders, workers=workers, processes=processes)
    if engine != "ray" and (address is not None or workers is not None):
        raise BatchError('address and workers are for the engine "ray": give --engine ray, too')
    table, errors = paths_of(Path(output))
    _check_output(table, errors, resume)
    manifest = _manifest(model, gpus=gpus, processes=processes)
    run: Engine
    if engine == "ray":
        for_ray = {"gpus": gpus, "workers": workers, "decoders": decoders, "address": address}
        if _is_for_gpus(manifest):
            for_ray["processes"] = processes or processes_of("cuda:0")
        run = _on_ray(source, Path(model), manifest, batch, max_pixels, **for_ray)
    else:
        run = _locally(
            source, Path(model), manifest, batch, max_pixels, gpus, processes, decoders, trace is not None
        )
    with errors_of_the_disk(table), locked(table), contextlib.ExitStack() as stack:
        job = {"source": named(source), "rows": numbered_rows(source), "manifest": manifest["sha256"]}
        check_same(table, errors, job)
        tables = Tables(table, errors, rows_per_part)
        done = {*ids_of(table), *ids_of(errors)}
        done_before = len(done)
        figures = Figures(stack.enter_context(Trace(trace)) if trace else None)
        _count_meanwhile(source, figures, done_before)
        _write(run(done, figures, lambda: on_progress(figures.progress())), tables, figures)
        with figures.working("write"):
            tables.flush()
            if format == "coco":
                write_coco(table, table.with_suffix(".json"), labels_of(manifest))
        figures.end_trace()
        ended = figures.progress()
    return Summary(
        ended.images,
        ended.errors,
        done_before,
        ended.seconds,
        ended.images_per_second,
        ended.bound,
        table,
        errors,
    )


def _check(source: Source, format: str, engine: str, rows_per_part: int, **numbers: int | None) -> None:
    """Before anything that takes time."""
    for name, given, known in (("format", format, FORMATS), ("engine", engine, ENGINES)):
        if given not in known:
            raise BatchError(f"{name} must be {' or '.join(known)}, not {given!r}")
    for name, number in {"rows_per_part": rows_per_part, **numbers}.items():
        if number is not None and number < 1:
            raise BatchError(f"{name} must be at least 1, not {number}")
    if engine == "ray":  # these raise where it is not installed; the extra of Ray brings both
        ray("data")
    pyarrow("parquet")
    check_any(source)


def _check_output(table: Path, errors: Path, resume: bool) -> None:
    if is_begun(table, errors) and table.exists() and not resume:
        raise BatchError(f"{table} exists: give --resume (resume=True) to go on with it, or another output")
    if not table.exists() and parts(errors):  # whose images would count as done
        raise BatchError(
            f"{errors} is of another job, as there is no {table}: remove it, or give another output"
        )


def _write(results: Generator[Result, None, None], tables: Tables, figures: Figures) -> None:
    """Write results as they come; of a job that is interrupted, those that are there."""
    try:
        with contextlib.closing(results):
            for result in results:
                with figures.working("write"):
                    tables.write(result)
                if isinstance(result, Failed):
                    figures.errors += 1
                else:
                    figures.images += number_of(result)
    except OSError:
        raise  # the disk is full: another part would be lost, too
    except BaseException:
        tables.flush()
        raise


def _manifest(model: str | os.PathLike[str], **of_gpus: int | None) -> dict[str, Any]:
    try:
        manifest = runtime.read_manifest(model)
    except runtime.FolderError as error:
        raise BatchError(str(error)) from error
    check_detects(manifest, model)
    given = [f"--{name}" for name, number in of_gpus.items() if number]
    if given and not _is_for_gpus(manifest):
        target, options = tvm.target.Target(manifest["target"]), " and ".join(given)
        raise BatchError(f"{model} was compiled for {target}: leave out {options}, or compile for a GPU")
    return manifest


def _is_for_gpus(manifest: Mapping[str, Any]) -> bool:
    return is_for_gpu(tvm.target.Target(manifest["target"]))


def _locally(
    source: Source,
    model: Path,
    manifest: dict[str, Any],
    batch: Batch,
    max_pixels: int,
    gpus: int | None,
    processes: int | None,
    decoders: int | None,
    is_traced: bool,
) -> Engine:
    devices = _gpus_here(gpus) if _is_for_gpus(manifest) else ["cpu"]
    number = decoders or max(1, min(cores() - 1, MAX_DECODERS * len(devices)))
    devices = [device for device in devices for _ in range(processes or processes_of(device))]
    if len(devices) > 1:
        share = -(-number // len(devices))
        options = [Options(model, device, batch, max_pixels, share, is_traced) for device in devices]
        return lambda done, figures, tick: run_in_processes(left_in(source, done), options, figures, tick)
    detector = Detector(model, devices[0], batch=batch, max_pixels=max_pixels)
    return lambda done, figures, tick: run_in_threads(left_in(source, done), detector, figures, number, tick)


def _gpus_here(wanted: int | None) -> list[str]:
    found = 0
    while tvm.cuda(found).exist:
        found += 1
    if wanted is not None and not 1 <= wanted <= found:
        raise BatchError(f"there are {found} GPUs here: give --gpus from 1 to {found}, not {wanted}")
    return [f"cuda:{index}" for index in range(wanted or max(found, 1))]


def processes_of(device: str) -> int:
    """How many processes a job has for a device, where nobody says it."""
    gpu = None if device == "cpu" else tvm.device(device)
    # Older TVMs do not tell the memory. That there is no such GPU is for the detector to say.
    memory = getattr(gpu, "total_global_memory", None) if gpu and gpu.exist else None
    return min(max((memory or 0) // OF_PROCESS, 1), MAX_PROCESSES)


def _on_ray(
    source: Source,
    model: Path,
    manifest: dict[str, Any],
    batch: Batch,
    max_pixels: int,
    **options: Any,
) -> Engine:
    images = images_of(manifest, model)
    described = Model(model.resolve(), images, batch, max_pixels, _is_for_gpus(manifest))
    return lambda done, figures, tick: run_on_ray(source, done, described, figures, tick=tick, **options)


def _count_meanwhile(source: Source, figures: Figures, done: int) -> None:
    """Counting a million files takes a while, and so the job does not wait for it."""

    def run() -> None:
        with contextlib.suppress(Exception):  # the job itself reports it
            total = count(source)
            figures.total = None if total is None else max(total - done, 0)

    threading.Thread(target=run, daemon=True, name="count").start()
