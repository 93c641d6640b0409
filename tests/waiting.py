"""Waiting by polling, for another process, a file or a table: one place, one timeout, one way to fail.

Inside this process, wait for an event instead. A check is cheap, and the pause between two checks means nothing: a test
that needs a certain pause is wrong.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# Far longer than anything takes that works, even on a busy machine.
SECONDS_MAX = 30.0
_POLL_SECONDS = 0.005

# Never set: to wait for it is to let the others run.
_never = threading.Event()


def until(check: Callable[[], T | None], what: str = "", *, seconds: float = SECONDS_MAX) -> T:
    """Return the first true result of `check`; fail with `what` if none comes in time."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, what or "the wait timed out"
        _never.wait(_POLL_SECONDS)
    return found


async def soon(
    check: Callable[[], T | None] | Callable[[], Awaitable[T | None]], what: str = "", *, seconds: float = SECONDS_MAX
) -> T:
    """Like `until`, for tests on a loop: other tasks run in the meantime, and the check may be awaitable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = check()
        found = await seen if isinstance(seen, Awaitable) else seen
        if found:
            return found
        assert loop.time() < deadline, what or "the wait timed out"
        turn = loop.create_future()
        loop.call_later(_POLL_SECONDS, turn.set_result, None)
        await turn
