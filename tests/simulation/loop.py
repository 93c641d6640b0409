"""An event loop whose time is the world's. Real asyncio tasks run on it, one callback for each event."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from onceward.core.claim import SECOND

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Handle:
    """The return value of `call_soon` and `call_later`."""

    __slots__ = ("args", "callback", "cancelled", "context")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that tasks, futures and the ledger's futures need."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._busy_until = 0

    def time(self) -> float:
        return self._process.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self._process.dead

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, main: Coroutine[Any, Any, Any], *, context: contextvars.Context | None = None, **_: object
    ) -> asyncio.Task[Any]:
        """A task that a caller starts beside itself. It dies with its process."""
        context = contextvars.copy_context() if context is None else context
        task = asyncio.Task(main, loop=self, context=context)
        self._process.beside.append((task, main, context))
        return task

    def call_soon(  # type: ignore[override]  # a handle is all that anyone needs
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._process.at(0, self._run, handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._process.at(self._process.span(delay), self._run, handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: these are exceptions of tasks of a crashed process."""

    def _run(self, handle: Handle) -> None:
        if handle.cancelled:
            return
        world = self._process.world
        if self._busy_until > world.now:
            world.at(self._busy_until - world.now, self._process, self._run, handle)
            return
        asyncio._set_running_loop(self)
        try:
            handle.context.run(handle.callback, *handle.args)
        finally:
            asyncio._set_running_loop(None)
        if world.lag:
            # A plain function blocked the loop's thread: nothing else of this loop runs until it ends.
            self._busy_until = world.now + world.lag


def span(seconds: float) -> int:
    """Seconds as whole microseconds, never none at all."""
    return max(1, round(seconds * SECOND))
