"""What `/metrics` tells, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from .line import Line

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

PREFIX = "tvm_passes"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
BATCHES = (1, 2, 4, 8, 16, 32)


class Metrics:
    def __init__(self, line: Line) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests", "Answers to /detect, by status of HTTP", ["status"], registry=registry
        )
        self._seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "From the head of a request to its answer, of those with status 200",
            buckets=SECONDS,
            registry=registry,
        )
        self._batch = Histogram(
            f"{PREFIX}_batch_size",
            "With how many images each one was computed, itself included",
            buckets=BATCHES,
            registry=registry,
        )
        self.retries = Counter(
            f"{PREFIX}_retries", "Requests given to another replica, as theirs died", registry=registry
        )
        for name, about in (("waiting", "Requests that wait"), ("computing", "Requests that are computed")):
            gauge = Gauge(f"{PREFIX}_{name}_requests", about, registry=registry)
            gauge.set_function(lambda name=name: getattr(line, name))

    def answered(self, status: int, seconds: float, batch: int = 0) -> None:
        self._requests.labels(str(status)).inc()
        if status == 200:
            self._seconds.observe(seconds)
            self._batch.observe(batch)

    def text(self) -> bytes:
        return bytes(generate_latest(self._registry))
