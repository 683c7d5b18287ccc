"""The HTTP server: uvicorn, on a socket that is bound before anything that takes time."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ServeError

SECONDS_FOR_A_HEAD = 10.0
MAX_CONNECTIONS = 4096
BACKLOG = 1024


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket for this address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            here.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ServeError(
                f"cannot listen on {host}:{port} ({error}): give another --host or --port"
            ) from error
        yield here


def server_of(app: Any, seconds: float, on_ready: Callable[[], None]) -> Stoppable:
    """A server that stops at SIGINT or SIGTERM; requests that are in work then have some seconds left."""
    config = Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=round(seconds) + 1,
    )
    return Stoppable(config, on_ready)


class Stoppable(Server):
    """`is_interrupted` says whether SIGINT stopped it.

    uvicorn sends itself the signal again, which does nothing in a process that was started in the background
    of a shell script: there, SIGINT is ignored from the start.
    """

    def __init__(self, config: Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self.is_interrupted = False

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.is_interrupted = self.is_interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()


class _Connection(H11Protocol):
    """Closes a connection on which no request comes, or one whose head never ends: uvicorn waits for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_a_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_a_request()

    def _expect_a_request(self) -> None:
        self.loop.call_later(SECONDS_FOR_A_HEAD, self._close_unless_begun, self.cycle)

    def _close_unless_begun(self, last: Any) -> None:
        if self.cycle is last and not self.transport.is_closing():
            self.transport.close()
