"""Work in a thread has ended before its cancelled caller returns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onceward.hub.db_threads import in_thread


def test_a_cancelled_call_returns_when_its_thread_has_ended() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go_on.wait(10)
        ended.set()
        raise ValueError("nobody hears of it")

    async def main() -> bool:
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    assert asyncio.run(main())
