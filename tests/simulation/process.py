"""A simulated process: a ledger with its own dispatcher and clock, and callers on its loop and its threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

from tests.simulation.dispatcher import SimDispatcher
from tests.simulation.loop import SimLoop, span
from tests.simulation.violation import Crashed

from onceward.core.claim import SECOND
from onceward.ledger import Ledger
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.future import StoreFuture, driving

if TYPE_CHECKING:
    from tests.simulation.world import World


class Caller(Protocol):
    """A caller that can be interrupted or killed."""

    def interrupt(self) -> bool: ...
    def kill(self) -> None: ...


class Process:
    """End the process for good; a restart is another process."""

    def __init__(
        self, world: World, *, lease_seconds: float, retain_seconds: float, wait_seconds: float, exact_clock: bool
    ) -> None:
        self.world = world
        self.number = len(world.processes) + 1
        self.name = f"p{self.number}"
        # The host: a process can prove only processes of its own host dead.
        self.host = self.number % 2
        self.holder = f"host{self.host}/{self.name}"
        self.dead = False
        self.frozen_until = 0
        self.rate = 1.0 if exact_clock else world.rng.choice((0.95, 1.0, 1.0, 1.05))
        self.clock_offset = world.rng.choice((0, 1_000, 5_000_000))
        # The error of this machine's wall clock. Production code must not depend on it.
        self.wall_offset = world.rng.choice((-3_600, -20, 0, 20, 3_600)) * SECOND
        self.loop = SimLoop(self)  # type: ignore[abstract]  # what nobody here uses is left out
        self.dispatcher = SimDispatcher(world, self)
        self.ledger = Ledger(
            world.store,
            lease_seconds=lease_seconds,
            retain_seconds=retain_seconds,
            wait_seconds=wait_seconds,
            dispatcher=cast("Batcher", self.dispatcher),
        )
        self.callers: list[Caller] = []
        # Tasks that callers have started beside themselves, with what is needed to take them apart.
        self.beside: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any], contextvars.Context]] = []
        self.on_crash: Callable[[Process], None] | None = None
        world.processes.append(self)

    # Time as this process sees it.

    def monotonic(self) -> float:
        return (self.world.now + self.world.lag) * self.rate / SECOND + self.clock_offset

    def span(self, seconds: float) -> int:
        return span(seconds / self.rate)

    def at(self, delay: int, action: Callable[..., object], *args: object) -> None:
        self.world.at(delay, self, action, *args)

    # Callers.

    def start(self, main: Coroutine[Any, Any, None], *, blocking: bool) -> None:
        """Run a caller: as a task on this process's loop, or on a thread of its own."""
        caller = BlockingCaller(self, main) if blocking else LoopCaller(self, main)
        self.callers.append(caller)
        self.world.open_callers += 1

    def ended(self, caller: Caller) -> None:
        if caller in self.callers:
            self.callers.remove(caller)
            self.world.open_callers -= 1

    def cancel_someone(self, rng: random.Random) -> None:
        if self.callers:
            rng.choice(self.callers).interrupt()

    def crash(self) -> None:
        if self.dead:
            return
        self.dead = True
        for caller in list(self.callers):
            caller.kill()
            self.ended(caller)
        for task, main, context in self.beside:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done() and asyncio.current_task(self.loop) is not task:
                unwind(main, context)
        if self.on_crash is not None:
            self.on_crash(self)

    def point(self) -> None:
        """A boundary inside code that does not wait: before, within and after an effect."""
        fault = self.world.faults.next(sending=None)
        if fault is None:
            return
        self.world.strike(fault, self)
        if self.dead:
            raise Crashed


class LoopCaller:
    """A caller in a real asyncio task."""

    def __init__(self, process: Process, main: Coroutine[Any, Any, None]) -> None:
        self._process = process
        self._context = contextvars.copy_context()
        self._main = main
        self._task: asyncio.Task[None] = asyncio.Task(main, loop=process.loop, context=self._context)
        self._task.add_done_callback(self._done, context=self._context)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._process.ended(self)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Crashed):
            self._process.world.fail(f"a caller ended with {error!r}")

    def interrupt(self) -> bool:
        self._process.world.note(self._process, "cancels a task")
        return self._task.cancel()

    def kill(self) -> None:
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]
        if asyncio.current_task(self._process.loop) is not self._task:
            unwind(self._main, self._context)


class BlockingCaller:
    """Steps the ledger's coroutine as `blocking.wait` does, on a thread that waits in simulated time."""

    def __init__(self, process: Process, main: Coroutine[Any, Any, None]) -> None:
        self._process = process
        self._context = contextvars.copy_context()
        self._main = main
        self._waiting: StoreFuture[object] | None = None
        self._running = False
        process.at(0, self._step, None)

    def _step(self, error: BaseException | None) -> None:
        self._waiting = None
        self._running = True
        try:
            with driving():
                future = self._context.run(self._advance, error)
        except (StopIteration, KeyboardInterrupt):
            self._process.ended(self)
            return
        except Crashed:
            return
        except Exception as raised:  # noqa: BLE001  # whatever it is, nobody expected it
            self._process.world.fail(f"a caller ended with {raised!r}")
        finally:
            self._running = False
        self._waiting = future
        future.on_thread()
        if future.done:
            self._process.at(0, self._resume, future)
            return
        future._lock = SimLock(self, future)  # type: ignore[assignment]  # called where a lock would be released
        self._process.at(self._process.span(future.timeout), self._resume, future)

    def _advance(self, error: BaseException | None) -> StoreFuture[object]:
        future = self._main.send(None) if error is None else self._main.throw(error)
        return cast("StoreFuture[object]", future)

    def release_lock(self, future: StoreFuture[object]) -> None:
        self._process.at(0, self._resume, future)

    def _resume(self, future: StoreFuture[object]) -> None:
        if self._waiting is future:
            self._step(None)

    def _throw(self, future: StoreFuture[object]) -> None:
        if self._waiting is future:
            future.abandon()
            self._step(KeyboardInterrupt())

    def interrupt(self) -> bool:
        if self._waiting is None:
            return False
        self._process.world.note(self._process, "interrupts a thread")
        self._process.at(0, self._throw, self._waiting)
        return True

    def kill(self) -> None:
        if not self._running:
            unwind(self._main, self._context)


class SimLock:
    """Stands in for the lock on which a thread waits for its result."""

    __slots__ = ("_caller", "_future")

    def __init__(self, caller: BlockingCaller, future: StoreFuture[object]) -> None:
        self._caller = caller
        self._future = future

    def release(self) -> None:
        self._caller.release_lock(self._future)


def unwind(main: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
    """Take a dead caller's code apart now, so that the garbage collector never resumes it."""
    if inspect.getcoroutinestate(main) == inspect.CORO_CLOSED:
        return
    try:
        context.run(main.throw, Crashed())
    except (Crashed, StopIteration):
        return
    raise AssertionError("the code of a dead process goes on")
