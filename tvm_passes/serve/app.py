"""The service as an ASGI application: what is answered to whom. It knows nothing of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from . import answers
from .answers import Answer
from .bodies import Bodies
from .errors import Refused
from .limits import Limits
from .line import Line
from .metrics import CONTENT_TYPE_LATEST, Metrics
from .multipart import check_type, image_in

Detect = Callable[[bytes, float], Awaitable[Answer]]  # of an encoded image and a threshold of scores
Health = Callable[[], Awaitable["dict[str, int]"]]  # how many replicas are in which state

LOGGER = logging.getLogger(__name__)
PAGE = Path(__file__).with_name("page")
JSON = "application/json"
LINGER = 5.0  # seconds that a body which is of no use is still read
GONE = 499  # in the metrics: a client that did not wait for its answer
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Service:
    """`detect` may raise Refused; a client never chooses what is opened, as only bytes are taken."""

    def __init__(self, detect: Detect, health: Health, limits: Limits, line: Line, metrics: Metrics) -> None:
        self._detect, self._health, self._limits = detect, health, limits
        self._line, self._metrics = line, metrics
        self._bodies = Bodies(limits)
        self.app = Starlette(
            routes=[
                Route("/", self.page),
                Route("/detect", self.detect, methods=["POST"]),
                Route("/healthz", self.healthz),
                Route("/metrics", self.metrics),
                Mount("/page", _PageFiles(directory=PAGE)),
            ],
            exception_handlers={HTTPException: _elsewhere},
        )

    async def detect(self, request: Request) -> Response:
        start = time.perf_counter()
        is_read, headers = False, {}
        try:
            image, threshold = await self._image_of(request)
            is_read = True
            answer = await self._answer(image, threshold)
        except Refused as refused:
            answer, headers = Answer(refused.status, answers.error(refused.reason)), refused.headers
        except ClientDisconnect:
            answer = Answer(GONE, b"")
        except Exception:
            LOGGER.exception("a request failed")
            answer = Answer(500, answers.error("the service failed: its log says why"))
        self._metrics.answered(answer.status, time.perf_counter() - start, answer.batch)
        return (Response if is_read else _LastAnswer)(answer.body, answer.status, headers, JSON)

    async def _image_of(self, request: Request) -> tuple[bytes, float]:
        """What has to be refused is refused as soon as that is known, before the body is read if possible."""
        self._line.check()
        content_type = request.headers.get("content-type", "")
        check_type(content_type)
        threshold = _threshold(request.query_params.multi_items())
        body = await self._bodies.read(request.stream(), request.headers.get("content-length"))
        return image_in(body, content_type), threshold

    async def _answer(self, image: bytes, threshold: float) -> Answer:
        with self._line.place():
            try:
                return await asyncio.wait_for(self._detect(image, threshold), self._limits.timeout)
            except asyncio.TimeoutError:
                reason = f"the image was not computed in {self._limits.timeout:g} seconds"
                raise Refused(504, reason) from None

    async def healthz(self, _: Request) -> Response:
        replicas = await self._health()
        is_healthy = replicas.get("RUNNING", 0) > 0
        content = {"status": "ok" if is_healthy else "no replica is running", "replicas": replicas}
        return Response(answers.as_json(content), 200 if is_healthy else 503, media_type=JSON)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def page(self, _: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=HEADERS)


async def _elsewhere(request: Request, error: Exception) -> Response:
    """What Starlette refuses: a path that there is none of, and a method that its path does not take."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path, method = request.url.path, request.method
    reason = f"there is no {path}: post an image to /detect" if error.status_code == 404 else error.detail
    if error.status_code == 405:
        reason = f"{path} does not take {method}, but {headers.get('Allow', 'GET')}"
    return Response(answers.error(reason), error.status_code, headers, JSON)


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


class _LastAnswer(Response):
    """The answer to a request whose body was not read to its end.

    A connection that is closed while its client still sends is reset, and then the client may never see the
    answer. So what it sends is read and dropped, for a while.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_drop(receive), LINGER)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def _threshold(parameters: Sequence[tuple[str, str]]) -> float:
    """A parameter that is misspelled, or one of two, is not left out in silence."""
    for name, _ in parameters:
        if name != "threshold":
            raise Refused(400, f"there is no parameter {name!r}: give threshold, or none")
    if len(parameters) > 1:
        raise Refused(400, f"threshold is there {len(parameters)} times: give it once")
    text = parameters[0][1] if parameters else "0"
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise Refused(400, f"threshold must be a number from 0 to 1, not {text!r}")
    return value
