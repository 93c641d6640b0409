"""Single-flight reads: concurrent callers with the same question share one query."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from onceward.hub.db_threads import in_thread

T = TypeVar("T")


class SharedReads:
    """Single-flight reads of one event loop. No caller joins a read that began before the last `invalidate`."""

    def __init__(self) -> None:
        self._generation = 0
        self._running: dict[tuple[Hashable, int], asyncio.Task[Any]] = {}

    def invalidate(self) -> None:
        """Make later callers start new reads, which see everything committed so far."""
        self._generation += 1

    async def read(self, question: Hashable, query: Callable[[], T]) -> T:
        """Return the result of `query`, called in a thread. Equal questions must have the same query."""
        key = question, self._generation
        task: asyncio.Task[T] | None = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(in_thread(query))
            task.add_done_callback(functools.partial(self._finished, key))
        # Other callers may wait for the task, so cancelling this one must not cancel it.
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Wait for the running reads, so that the database can be closed."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _finished(self, key: tuple[Hashable, int], task: asyncio.Task[object]) -> None:
        del self._running[key]
        if not task.cancelled():
            # Mark the exception as retrieved: the waiters raise it, but there may be none left.
            task.exception()
