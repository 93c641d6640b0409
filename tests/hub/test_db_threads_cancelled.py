"""A run that is superseded is cancelled by every sweep until it has gone, also while a thread works for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onceward.errors import Superseded
from onceward.hub.db_threads import in_thread


def test_a_call_cancelled_twice_ends_with_its_thread_and_leaves_no_exception() -> None:
    """Otherwise its caller would continue while the thread uses the database, and its exception would go to the log."""
    may_end, reported = threading.Event(), []

    def work() -> None:
        assert may_end.wait(30)
        raise Superseded("the turn goes on without this run")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        task = asyncio.create_task(in_thread(work))
        for _ in range(3):
            await _a_few_rounds()
            task.cancel()
        await _a_few_rounds()
        waits = not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _a_few_rounds()

        assert waits

    asyncio.run(main())

    assert reported == []


async def _a_few_rounds() -> None:
    """Let every other task run."""
    loop = asyncio.get_running_loop()
    for _ in range(5):
        passed: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(passed.set_result, None)
        await passed
