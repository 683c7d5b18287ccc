"""Clients of the service: many that are well-behaved, and some that are not."""

import http.client
import socket
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.serve.client import Reply, ask, head, say

SECONDS = 60  # for an answer
LOST = "no answer"


class Outcome(NamedTuple):
    status: object  # of HTTP, or LOST
    seconds: float


def crowd(url, images, clients, seconds, at_half=lambda: None):
    """The outcomes of clients that post images one after the other, on connections that they keep."""
    begin = time.monotonic()
    end = begin + seconds
    threading.Timer(seconds / 2, at_half).start()

    def client(number):
        outcomes, connection = [], None
        while time.monotonic() < end:
            image = images[(number + len(outcomes)) % len(images)]
            connection = connection or http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
            start = time.monotonic()
            try:
                connection.request("POST", "/detect", image, {"content-type": "image/jpeg"})
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                outcomes.append(Outcome(LOST, time.monotonic() - start))
                connection.close()
                connection = None
                continue
            outcomes.append(Outcome(response.status, time.monotonic() - start))
            if response.will_close:
                connection = None
            time.sleep(int(response.getheader("retry-after", 0)))
        return outcomes

    with ThreadPoolExecutor(clients) as pool:
        found = [outcome for each in pool.map(client, range(clients)) for outcome in each]
    return found, time.monotonic() - begin


def misbehaving(url, image, max_bytes):
    """What clients are answered that do what they should not: {who: Outcome}."""

    def drip():
        """A byte each second."""
        parsed = urlsplit(url)
        with socket.create_connection((parsed.hostname, parsed.port), timeout=1) as connection:
            connection.sendall(head(len(image), "image/jpeg"))
            while True:
                connection.sendall(image[:1])
                try:
                    status = connection.recv(100)
                except TimeoutError:
                    continue
                return Reply(int(status.split()[1]), {}, b"")

    chunks = [bytes(2**16)] * (max_bytes // 2**14)
    cases = {
        "sends a byte a second": drip,
        "says that it sends too much": lambda: say(url, head(100 * max_bytes)),
        "sends too much, and then reads": lambda: ask(url, "/detect", bytes(4 * max_bytes)),
        "sends too much without a length": lambda: ask(url, "/detect", iter(chunks)),
        "sends half of an image": lambda: ask(url, "/detect", image[: len(image) // 2]),
        "sends noise as an image": lambda: ask(url, "/detect", image[::-1]),
        "sends text": lambda: ask(url, "/detect", b"Dear all,", "text/plain"),
        "does not speak HTTP": lambda: say(url, image[:1000] + b"\r\n\r\n"),
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {who: pool.submit(_timed, act) for who, act in cases.items()}
        return {who: future.result() for who, future in running.items()}


def _timed(act):
    start = time.monotonic()
    try:
        status = act().status
    except (OSError, http.client.HTTPException):
        status = LOST
    return Outcome(status, time.monotonic() - start)


def by_status(outcomes):
    """Such as "200: 512, 503: 7"."""
    counts = Counter(str(outcome.status) for outcome in outcomes)
    return ", ".join(f"{status}: {counts[status]}" for status in sorted(counts))


def quantiles(outcomes, status=200):
    """Of the milliseconds until an answer with this status: 50, 95 and 99%."""
    times = [outcome.seconds * 1e3 for outcome in outcomes if outcome.status == status]
    if len(times) < 2:
        return ["-"] * 3
    cuts = statistics.quantiles(times, n=100)
    return [f"{cuts[percent - 1]:.0f}" for percent in (50, 95, 99)]
