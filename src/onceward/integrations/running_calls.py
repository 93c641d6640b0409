"""Calls that continue after their caller has stopped waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from onceward.tools.envelope import Envelope


class RunningCalls:
    """Runs each call in a task of its own.

    A client that disconnects or stops waiting does not interrupt an effect. Its outcome is recorded, and a retry gets it.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Envelope]] = set()

    async def run(self, call: Coroutine[Any, Any, Envelope]) -> Envelope:
        """Run a call, and wait for it.

        Args:
            call: The call, as a coroutine.

        Returns:
            The envelope of the call.
        """
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._discard)
        return await asyncio.shield(task)

    def _discard(self, task: asyncio.Task[Envelope]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it: the ledger has the outcome
