"""The threads in which turns use the database. They are their own: tools and brains that block theirs keep nobody's
message from being stored.
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

# As many as a database has connections for; on SQLite the others wait for the one that writes.
THREADS = 16


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "onceward-turns")


async def in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in one of the threads. Who is cancelled meanwhile, once or often, goes when it has ended: whoever
    then closes the database finds no connection of it in use.
    """
    # A forked child has none of its parent's threads, and makes a pool of its own.
    call = functools.partial(function, *arguments, **options)
    called = asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), call)
    cancelled: asyncio.CancelledError | None = None
    while not called.done():
        try:
            await asyncio.wait({called})
        except asyncio.CancelledError as error:
            # A run that is superseded is told so by every sweep until it has gone.
            cancelled = error
    if cancelled is not None:
        called.exception()  # seen, so that nobody is told that it was not
        raise cancelled
    return called.result()
