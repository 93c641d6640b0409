"""Waiting for what nothing tells us of: another process, a file, a table. One place, one bound, one way to fail.

What happens in this process is waited for by its own event; these are for the rest. A check costs little, and the pause
between two checks is no measure of anything: a test that needs a certain pause is wrong.
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
    """The first answer of `check` that is true; fails, with `what` was waited for, when none comes in time."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, what or "what was waited for never came"
        _never.wait(_POLL_SECONDS)
    return found


async def soon(
    check: Callable[[], T | None] | Callable[[], Awaitable[T | None]], what: str = "", *, seconds: float = SECONDS_MAX
) -> T:
    """As `until`, for tests on a loop: everything else there goes on meanwhile, and the check may be awaited."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = check()
        found = await seen if isinstance(seen, Awaitable) else seen
        if found:
            return found
        assert loop.time() < deadline, what or "what was waited for never came"
        turn = loop.create_future()
        loop.call_later(_POLL_SECONDS, turn.set_result, None)
        await turn
