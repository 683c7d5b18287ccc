"""The replicas of a detector, in a Ray of this process's own, which ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException

from topi_ext.bootstrap.threads import cores  # topi_ext comes before tvm

import tvm

from .. import runtime
from ..batch.errors import BatchError
from ..batch.network import check_detects
from ..errors import one_line
from .answers import Answer
from .errors import Refused, ServeError
from .gather import Gather
from .replica import Replica

NAME = "detector"
RETRIES = 2  # of a request whose replica died; it may be the one that kills them
BATCHES = 3  # of a replica: one is decoded, one is run, and one is encoded
OBJECTS = 2**29  # bytes of shared memory, in which images go to the replicas
SECONDS_TO_ASK = 5.0  # for the state of the replicas

Item = tuple[bytes, float]  # an encoded image, and a threshold of scores


class Replicas:
    def __init__(self, handle: Any, number: int, batch: int) -> None:
        self._handle = handle
        self._gather = Gather(self._compute, batch, number * BATCHES)
        self.at_once = number * BATCHES * batch  # images
        self.on_retry: Callable[[int], None] = lambda _: None

    async def detect(self, image: bytes, threshold: float) -> Answer:
        """What a replica answers; where it dies, what another one does."""
        answer: Answer = await self._gather((image, threshold))
        return answer

    async def _compute(self, items: list[Item]) -> list[Any]:
        """The answers to items, or exceptions: together or, if their replica dies, one after the other.

        It may be one of them that kills replicas, and the others shall not be lost with it.
        """
        try:
            return await self._call(items)
        except RayActorError:
            return [await self._again(item) for item in items]

    async def _again(self, item: Item) -> Answer | Refused:
        for _ in range(RETRIES):
            self.on_retry(1)
            try:
                (answer,) = await self._call([item])
                return answer
            except RayActorError:
                pass
            except Refused as refused:
                return refused
        return Refused(503, "workers died while they computed this image: try again later")

    async def _call(self, items: list[Item]) -> list[Answer]:
        try:
            return [Answer(*answer) for answer in await self._handle.detect.remote(items)]
        except RayActorError:
            raise
        except RayError as error:
            raise Refused(500, f"the worker failed: {one_line(error)}") from error
        except RayServeException as error:
            raise Refused(503, f"there is no worker ({one_line(error)}): try again later") from error

    async def health(self) -> dict[str, int]:
        """How many replicas are in which state; nothing where that cannot be known."""
        with contextlib.suppress(Exception):
            status = await asyncio.wait_for(asyncio.to_thread(serve.status), SECONDS_TO_ASK)
            (deployment,) = status.applications[NAME].deployments.values()
            return {getattr(state, "value", state): n for state, n in deployment.replica_states.items()}
        return {}


@contextlib.contextmanager
def started(folder: str, number: int | None, timeout: float, is_verbose: bool) -> Iterator[Replicas]:
    """Replicas that have loaded the network; None means one for each GPU."""
    kind = _kind_of(folder)
    with _ray(is_verbose):
        gpus = int(ray.cluster_resources().get("GPU", 0)) if kind == "cuda" else 0
        if kind == "cuda" and not gpus:
            raise ServeError(f"{folder} was compiled for CUDA, and there is no GPU here: compile for llvm")
        if kind == "cuda" and number is not None and number > gpus:
            raise ServeError(f"there are {gpus} GPUs here: give --replicas from 1 to {gpus}, not {number}")
        number = number or max(gpus, 1)
        threads = max(1, cores() // number)
        deployment = serve.deployment(
            Replica,
            name=NAME,
            num_replicas=number,
            max_ongoing_requests=2 * BATCHES,
            ray_actor_options={
                "num_cpus": 0,
                "num_gpus": int(kind == "cuda"),
                "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}},
            },
            health_check_period_s=2,
            health_check_timeout_s=10,
            graceful_shutdown_timeout_s=5,
        )
        serve.start(proxy_location="Disabled")
        try:
            application = deployment.bind(os.path.abspath(folder), threads, max(60.0, 2 * timeout))
            handle = serve.run(application, name=NAME, route_prefix=None)
            about = handle.about.remote().result(timeout_s=timeout)
        except (RayError, RayServeException, RuntimeError, TimeoutError) as error:
            raise ServeError(f"the workers cannot be started: {one_line(error)}") from error
        if "problem" in about:
            raise ServeError(about["problem"])
        yield Replicas(handle, number, about["batch"])


def _kind_of(folder: str) -> str:
    """The kind of device of a detector; what is none is refused before Ray starts, which takes long."""
    try:
        manifest = runtime.read_manifest(folder)
        check_detects(manifest, folder)
    except (runtime.FolderError, BatchError) as error:
        raise ServeError(str(error)) from error
    return str(tvm.target.Target(manifest["target"]).kind.name)


@contextlib.contextmanager
def _ray(is_verbose: bool) -> Iterator[None]:
    """A Ray of our own; its logs are in /tmp/ray."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    level = logging.INFO if is_verbose else logging.ERROR
    logging.getLogger("ray.serve").setLevel(level)
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=OBJECTS,
        log_to_driver=is_verbose,
        logging_level=level,
    )
    try:
        yield
    finally:
        ray.shutdown()  # which ends all its processes
