"""The whole service, from a compiled folder until it is stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ..extras import imported
from .errors import ServeError
from .limits import Limits


def run(
    folder: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int | None = None,
    limits: Limits | None = None,
    is_verbose: bool = False,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a compiled detector, until SIGINT or SIGTERM.

    Parameters
    ----------
    folder : path
        What `tvm_passes.runtime.save` or `tvm-passes compile` wrote.
    host, port
        Where to listen; by default, only this machine can connect. Port 0 is any that is free.
    replicas : int, optional
        How many processes compute; by default one for each GPU, or one on a CPU.
    limits : Limits, optional
        What is refused.
    is_verbose : bool
        Whether to show what Ray logs.
    on_ready : function, optional
        Is called with the URL, when it can be used.
    """
    if replicas is not None and replicas < 1:
        raise ServeError(f"replicas must be at least 1, not {replicas}")
    _check_installed()
    from .app import Service
    from .line import Line
    from .metrics import Metrics
    from .replicas import started
    from .server import bound, server_of

    limits = limits or Limits()
    with bound(host, port) as here, started(str(folder), replicas, limits.timeout, is_verbose) as workers:
        line = Line(workers.at_once, limits.max_queued)
        metrics = Metrics(line)
        workers.on_retry = metrics.retries.inc
        service = Service(workers.detect, workers.health, limits, line, metrics)
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{here.getsockname()[1]}/"
        server = server_of(service.app, limits.timeout, lambda: on_ready(url))
        asyncio.run(server.serve(sockets=[here]))
        if server.is_interrupted:
            raise KeyboardInterrupt


def _check_installed() -> None:
    for name in ("ray.serve", "starlette", "uvicorn", "prometheus_client"):
        imported(name, "ray", ServeError)
