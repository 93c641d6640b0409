"""Threads in which coroutines use the database, separate from the event loop's default pool.

Tools and brains run in the default pool. If they block all of its threads, turns and the console can still be read.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# As many as a database has connections.
THREADS = 16


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "onceward-turns")


async def in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in one of these threads and return its result.

    A caller that is cancelled, even repeatedly, waits until the function has ended. The database can then be closed
    without a connection in use.
    """
    # Keyed by process id: a forked child does not inherit its parent's threads and needs its own pool.
    call = functools.partial(function, *arguments, **options)
    called = asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), call)
    cancelled: asyncio.CancelledError | None = None
    while not called.done():
        try:
            await asyncio.wait({called})
        except asyncio.CancelledError as error:
            # This can happen more than once: every sweep cancels a superseded run until it has ended.
            cancelled = error
    if cancelled is not None:
        called.exception()  # mark it as retrieved, so that asyncio does not log it
        raise cancelled
    return called.result()
