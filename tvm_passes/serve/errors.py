"""What goes wrong: with one request, which is answered with the reason, and with the whole service."""

from __future__ import annotations

SECONDS_TO_RETRY = 1  # what a client is told to wait


class ServeError(RuntimeError):
    """One sentence that says why there is no service, and what to do about it."""


class Refused(Exception):
    """A request that is answered with this status, and a sentence that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(SECONDS_TO_RETRY)} if self.status == 503 else {}
