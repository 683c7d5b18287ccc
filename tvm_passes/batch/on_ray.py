"""The engine `ray`: Ray Data's tasks and actors, on one machine or on many.

    sources (a task) -> decode (tasks) -> run and map back (actors, a network in each) -> whoever calls

What moves between them are chunks of images. Ray starts killed tasks and actors again, and holds back those
whose results nobody takes, so memory is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from topi_ext.bootstrap.threads import cores
from topi_ext.quiet import is_verbose

from ..errors import one_line
from .channel import Channel, Stopped
from .chunks import packed, unpacked
from .decode import decode
from .detector import Batch, Detector
from .errors import BadImage, BatchError
from .failing import NetworkFailed
from .figures import Figures, Work, measured
from .found import Found
from .item import Item
from .letterbox import Fitted, Placed, letterbox
from .mps import shared_gpus
from .network import Images
from .optional import ray
from .results import Failed, OfOneImage, Result, Rows, in_a_table, taken_from
from .sources import Source, left_in

IMAGES, BYTES = 16, 2**25  # of a chunk, at most; one image may have more bytes
BYTES_PREPARED = 2**26  # of a chunk, at most, unless a batch has more
CHUNKS_TO_WRITE = 2  # that wait
SECONDS_TO_ANSWER, SECONDS_TO_STOP = 5, 10
RETRIES = 5  # of a chunk by whose call a process ended, which other processes may have caused, or memory
CALLS = 2  # of an actor at the same time: a GPU works for one, while the other one prepares or maps back
SMALLEST = 1e-4  # part of a GPU that Ray knows
DECODING = 4  # of so many processors, one is not for the networks, where these are on processors, too


class _Chunk(NamedTuple):
    """What became of some images until now."""

    images: list[Fitted]
    results: list[Any]  # in the end, rows are in a table
    works: list[Work]


@dataclass(frozen=True)
class Model:
    """What the processes need to know of a network."""

    folder: Path
    images: Images
    batch: Batch
    max_pixels: int
    is_on_gpu: bool

    def prepared(self, image: np.ndarray) -> tuple[np.ndarray, Placed]:
        """For the actor: a GPU itself fits images in, of which fewer bytes move as they are."""
        if self.is_on_gpu:
            image = np.ascontiguousarray(image)  # only such an array is a buffer of its own in a chunk
            return image, Placed.of((image.shape[0], image.shape[1]), self.images.taken)
        return letterbox(image, self.images.taken, self.images.channels)

    def detector(self) -> Detector:
        return Detector(self.folder, batch=self.batch, max_pixels=self.max_pixels)

    @property
    def chunk(self) -> int:
        """How many images: full batches, as far as they have no more bytes than are moved quickly."""
        taken, batch = self.images.taken, self.images.number if self.batch == "auto" else int(self.batch)
        pixels = (taken.height or 1) * (taken.width or 1)
        number = min(IMAGES, BYTES_PREPARED // (pixels * taken.channels * np.dtype(taken.dtype).itemsize))
        return max(1, number // batch) * batch


def run_on_ray(
    source: Source,
    done: set[str],
    model: Model,
    figures: Figures,
    *,
    gpus: int | None = None,
    processes: int = 1,
    workers: int | None = None,
    decoders: int | None = None,
    address: str | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """The row of each image that is not done, or why there is none, in any order; these are done then.

    `tick` is called again and again. Closing the iterator, and an exception in it, ends all tasks.
    """
    chunks = Channel(CHUNKS_TO_WRITE)
    errors: list[BaseException] = []
    with _connected(address, are_shared=model.is_on_gpu and processes > 1):
        size, each = _actors(model.is_on_gpu, gpus, processes, workers)
        data = _planned(source, done, model, figures, size, each, decoders)
        thread = threading.Thread(target=_pass_on, args=[data, chunks, errors], name="ray", daemon=True)
        thread.start()
        try:
            for chunk in taken_from(chunks, tick):
                for work in chunk.works:
                    figures.add(work)
                for result in chunk.results:
                    yield from _new(result, done)
        finally:
            chunks.stop()
            thread.join(SECONDS_TO_STOP)  # or when Ray gives it something, or ends
    for error in errors:
        raise _in_one_sentence(error) from error


@contextlib.contextmanager
def _connected(address: str | None, are_shared: bool = False) -> Iterator[None]:
    """To a cluster, to the Ray of this process, or else to one that ends with the job.

    For the last one, GPUs that are shared are so by MPS, unless only some are visible: Ray names those to its
    processes by other numbers than MPS does.
    """
    if address is not None:
        _check_answers(address)
    if ray().is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {"num_cpus": max(2, cores()), "include_dashboard": False}
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] | None = None
        if are_shared and not address and "CUDA_VISIBLE_DEVICES" not in os.environ:
            environment = stack.enter_context(shared_gpus())
        try:
            with _silent(), mock.patch.dict(os.environ, environment or {}):
                ray().init(
                    address or "local",
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    **({} if address else here),
                )
        except (OSError, RuntimeError, ValueError) as error:
            what = f"there is no Ray at {address}" if address else "Ray does not start"
            raise BatchError(f"{what} ({one_line(error)}): see `ray status`") from error
        stack.callback(ray().shutdown)
        # What became of killed tasks is printed on standard output, for which Ray has no switch.
        stack.enter_context(mock.patch.object(ray("_private.worker"), "print_to_stdstream", create=True))
        yield


def _check_answers(address: str) -> None:
    """Before Ray, which would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise BatchError(f"nothing answers at {address} ({one_line(error)}): see `ray status`") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Ray's C++ prints errors that are none, unless it is told not to, which it then prints itself."""
    if is_verbose():
        yield
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _new(result: Rows | Failed, done: set[str]) -> Iterator[Result]:
    """What is not done yet, and is then: a source may change while a task is started again."""
    if isinstance(result, Failed):
        if result.id not in done:
            yield result
        done.add(result.id)
        return
    ids = result.table.column("image_id").to_pylist()
    new = [place for place, image_id in enumerate(ids) if image_id not in done]
    if new:
        yield result if len(new) == len(ids) else Rows(result.table.take(new))
    done.update(ids)


def _pass_on(data: Any, chunks: Channel, errors: list[BaseException]) -> None:
    try:
        for table in data.iter_batches(batch_size=None, batch_format="pyarrow"):
            for chunk in unpacked(table):
                chunks.put(chunk)
    except Stopped:
        pass
    except BaseException as error:
        errors.append(error)
    chunks.close()


def _in_one_sentence(error: BaseException) -> BatchError:
    """The task's own, if it is meant for the user."""
    causes = [error]
    while (cause := getattr(causes[-1], "cause", None) or causes[-1].__cause__) is not None:
        causes.append(cause)
        if isinstance(cause, BatchError):
            return BatchError(str(cause).partition("\n")[0])  # Ray adds lines
    return BatchError(
        f"Ray has ended the job ({one_line(causes[-1])}): what was written is whole; give --resume "
        "(resume=True) to try again"
    )


def _planned(
    source: Source,
    done: set[str],
    model: Model,
    figures: Figures,
    size: int,
    each: dict[str, float],
    decoders: int | None,
) -> Any:
    """A data set that is computed when it is read, by so many networks, each of which takes so much."""
    data = ray("data")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    free = ray().cluster_resources().get("CPU", 1) - size * each.get("num_cpus", 1)
    figures.threads.update({"decode": decoders or max(1, int(free)), "run": size, "map back": size * CALLS})
    # Ray makes one task of two stages unless they need different things. The one that reads would leave a
    # processor idle most of the time; the byte of the actors only makes them different from what is before.
    images = data.read_datasource(
        _datasource(partial(_read, ray().put((_absolute(source), Path.cwd(), done)), model.chunk)),
        override_num_blocks=1,
        num_cpus=0,
    )
    images.context.target_max_block_size = 1  # byte: a chunk goes on at once, not joined to others
    images.context.enable_progress_bars = False
    whole_chunks = {"batch_size": 1, "batch_format": "pyarrow"}
    prepared = images.map_batches(
        _prepare,
        fn_kwargs={"model": model},
        num_cpus=1,
        max_retries=RETRIES,
        compute=data.TaskPoolStrategy(size=decoders),
        **whole_chunks,
    )
    actors = data.ActorPoolStrategy(
        size=size, max_concurrent_calls_per_actor=CALLS, enable_true_multi_threading=True
    )
    options = {**whole_chunks, **each, "memory": 1, "max_task_retries": RETRIES}
    return prepared.map_batches(_Network, fn_constructor_args=[model], compute=actors, **options)


def _absolute(source: Source) -> Source:
    """For processes that are in other folders; the ids of a list's files are its paths as they are."""
    return os.path.abspath(source) if isinstance(source, (str, os.PathLike)) else source


def _actors(
    is_on_gpu: bool, gpus: int | None, processes: int, workers: int | None
) -> tuple[int, dict[str, float]]:
    """How many networks there are, and what each takes."""
    resources = ray().cluster_resources()
    processors = int(resources.get("CPU", 1))
    if is_on_gpu:
        found = int(resources.get("GPU", 0))
        if not 1 <= (gpus or found) <= found:
            raise BatchError(f"Ray has {found} GPUs: give --gpus from 1 to {found}, not {gpus or 'all'}")
        number = (gpus or found) * processes
        share = 1 // (SMALLEST * processes) * SMALLEST
        return number, {"num_gpus": share, **({} if number < processors else {"num_cpus": 0})}
    nodes = sum(node["Alive"] for node in ray().nodes())
    number = workers or nodes
    share = (processors - max(1, processors // DECODING)) / number
    return number, {"num_cpus": int(share) if share >= 1 else round(share, 3)}


def _datasource(read: Callable[[], Iterator[Any]]) -> Any:
    """For Ray Data: one task, which reads while the others work."""
    block, datasource = ray("data.block"), ray("data.datasource")
    unknown = block.BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)

    class Images(datasource.Datasource):  # type: ignore[name-defined]
        def estimate_inmemory_data_size(self) -> None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            return [datasource.ReadTask(read, unknown)]

    return Images()


# --- what tasks and actors do


def _read(job: Any, number: int) -> Iterator[Any]:
    """Chunks of items, the same ones when it is started again."""
    source, folder, done = ray().get(job)
    chunk: list[Item] = []
    for item in left_in(source, done, folder):
        chunk.append(item)
        if len(chunk) == number or sum(item.size for item in chunk) >= BYTES:
            yield packed(chunk)
            chunk = []
    if chunk:
        yield packed(chunk)


def _prepare(table: Any, model: Model) -> Iterator[Any]:
    torch.set_num_threads(1)
    for items in unpacked(table):
        chunk = _Chunk([], [], [])
        for item in items:
            try:
                with measured(chunk.works.append, "decode", image=item.id):
                    pixels = decode(item.read(), model.max_pixels)
                with measured(chunk.works.append, "fit", image=item.id):
                    array, placed = model.prepared(pixels)
            except BadImage as reason:
                chunk.results.append(Failed(item.id, str(reason)))
            else:
                chunk.images.append(Fitted(item.id, array, placed))
        yield packed(chunk)


class _Network:
    """What an actor does."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._turn = threading.Lock()  # of the call that runs the network
        self._detector: Detector | None = None
        self._has_worked = False

    def __call__(self, table: Any) -> Iterator[Any]:
        for chunk in unpacked(table):
            images, results, works = chunk
            with self._turn:
                detector = self._loaded()
            if self._model.is_on_gpu:
                images = [image._replace(array=detector.prepare(image.array)[0]) for image in images]
            for begin in range(0, len(images), detector.batch):
                part = images[begin : begin + detector.batch]
                found = self._run(detector, part, works)  # in the stream of all calls
                with detector.own_stream():
                    results += _mapped_back(detector, part, found, works)
            yield packed(_Chunk([], in_a_table(results), works))

    def _loaded(self) -> Detector:
        """Not before the first call, whose error ends the job: an actor that cannot begin is tried again."""
        if self._detector is None:
            self._detector = self._model.detector()
        return self._detector

    def _run(self, detector: Detector, images: list[Fitted], works: list[Work]) -> list[Found | BadImage]:
        """In turn; but a GPU is waited for beside the other calls, which begin the next batch meanwhile."""
        try:
            with self._turn, measured(works.append, "run", begun=len(images)):
                begun = detector.start_each([image.array for image in images], [image.id for image in images])
            with measured(works.append, "run", images=len(images)):
                found = begun()
        except NetworkFailed:
            if self._model.is_on_gpu and self._has_worked:
                # After some errors, no call of CUDA works in this process any more. Ray starts another one
                # and tries this call again; if it fails there as the first one, the job ends with the reason.
                os._exit(1)
            raise
        self._has_worked = True
        return found


def _mapped_back(
    detector: Detector, images: list[Fitted], found: list[Found | BadImage], works: list[Work]
) -> Iterator[OfOneImage]:
    with measured(works.append, "map back"):
        begun = detector.start_finish(
            [image.id for image in images], found, [image.placed for image in images]
        )
    for image, finish in zip(images, begun):
        try:
            with measured(works.append, "map back", image=image.id):
                yield finish()
        except BadImage as reason:
            yield Failed(image.id, str(reason))
