"""Batches of whatever waits, taken when there is time to compute them.

Serve's own `@serve.batch` closes a batch a few milliseconds after its first image came, also when the network
is busy for longer: many small batches wait then, where few full ones could. It is also in a replica, so that
each image is a call of its own, which takes more of the server's time than HTTP does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any


class Gather:
    """Calls `compute` with up to `size` items, and for up to `at_once` batches at the same time.

    An item is not kept waiting where nothing is computed: then it is a batch. `compute` returns a result for
    each item, which may be an exception to raise.
    """

    def __init__(self, compute: Callable[[list[Any]], Awaitable[list[Any]]], size: int, at_once: int) -> None:
        self._compute, self._size, self._at_once = compute, size, at_once
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, item: Any) -> Any:
        """What `compute` returns for this item."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._begin()
        return await future

    def _begin(self) -> None:
        while len(self._running) < self._at_once:
            batch = self._next()
            if not batch:
                return
            task = asyncio.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._end)

    def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        batch: list[tuple[Any, asyncio.Future[Any]]] = []
        while self._waiting and len(batch) < self._size:
            item, future = self._waiting.popleft()
            if not future.done():  # else nobody waits for it any more
                batch.append((item, future))
        return batch

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin()

    async def _run(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            results = await self._compute([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), result in zip(batch, results):
                if not future.done():
                    (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
