"""Bodies of requests: not too long, not too slow, and together not more than fits into memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from .errors import Refused
from .limits import Limits

MEMORY = 2**30  # bytes of bodies that are arriving


class Bodies:
    def __init__(self, limits: Limits, memory: int = MEMORY) -> None:
        self._limits, self._memory = limits, memory
        self._arriving = 0  # bytes

    async def read(self, chunks: AsyncIterator[bytes], length: str | None) -> bytes:
        """All of a body, whose length is known if the client has said it."""
        if length is not None:
            if not (length.isascii() and length.isdecimal()):
                raise Refused(400, "Content-Length is not a number")
            self._check_length(int(length))
        parts: list[bytes] = []
        try:
            await asyncio.wait_for(self._collect(chunks, parts), self._limits.timeout)
        except asyncio.TimeoutError:
            raise Refused(408, f"the image has not arrived in {self._limits.timeout:g} seconds") from None
        finally:
            self._arriving -= sum(map(len, parts))
        return b"".join(parts)

    async def _collect(self, chunks: AsyncIterator[bytes], parts: list[bytes]) -> None:
        length = 0
        async for chunk in chunks:
            parts.append(chunk)
            length += len(chunk)
            self._arriving += len(chunk)
            self._check_length(length)
            if self._arriving > self._memory:
                raise Refused(503, "too many images are arriving at once: try again later")

    def _check_length(self, length: int) -> None:
        if length > self._limits.max_bytes:
            raise Refused(413, f"a body may have {self._limits.max_bytes} bytes, and this one has more")
