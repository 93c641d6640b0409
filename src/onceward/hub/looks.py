"""Looks at the database that are shared by everybody who wants to see the same at the same time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from onceward.turns.threads import in_thread

T = TypeVar("T")


class Looks:
    """Belongs to one event loop. Nobody joins a look that began before the last news."""

    def __init__(self) -> None:
        self._news = 0
        self._going_on: dict[tuple[Hashable, int], asyncio.Task[Any]] = {}

    def news(self) -> None:
        """Something was committed: whoever looks from now on shall see it."""
        self._news += 1

    async def see(self, what: Hashable, look: Callable[[], T]) -> T:
        """What the look shows, which is called in a thread. The same `what` is always looked at in the same way."""
        key = what, self._news
        task: asyncio.Task[T] | None = self._going_on.get(key)
        if task is None:
            task = self._going_on[key] = asyncio.create_task(in_thread(look))
            task.add_done_callback(functools.partial(self._seen, key))
        # The others wait for it even if this one leaves.
        return await asyncio.shield(task)

    async def end(self) -> None:
        """Wait for those that are going on, so that the database can be closed."""
        await asyncio.gather(*self._going_on.values(), return_exceptions=True)

    def _seen(self, key: tuple[Hashable, int], task: asyncio.Task[object]) -> None:
        del self._going_on[key]
        if not task.cancelled():
            # Known to those who wait for it, if anybody still does.
            task.exception()
