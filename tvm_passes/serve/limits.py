"""What the service takes before it says no."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ServeError


@dataclass(frozen=True)
class Limits:
    """Limits of a service.

    Parameters
    ----------
    max_queued : int
        Requests that may wait for those that are being computed; others are answered with 503 at once.
    timeout : float
        Seconds that a body may take to arrive (408), and then the answer to be computed (504).
    max_bytes : int
        Bytes of a body (413).
    """

    max_queued: int = 128
    timeout: float = 30.0
    max_bytes: int = 20 * 2**20

    def __post_init__(self) -> None:
        for name, value, least in (("max_queued", self.max_queued, 0), ("max_bytes", self.max_bytes, 1)):
            if value < least:
                raise ServeError(f"{name} must be at least {least}, not {value}")
        if not 0 < self.timeout < float("inf"):
            raise ServeError(f"timeout must be a positive number of seconds, not {self.timeout}")
