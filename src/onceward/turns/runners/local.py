"""Runs turns in this process, several at a time, and sweeps the database for those that nobody runs.

A turn that was received here is woken at once. What was received elsewhere, what waited for another turn, and what a
process that died left behind is found by the sweep; the claim on its beat decides who of several processes runs it.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
from collections.abc import Awaitable, Callable

from onceward.db.clock import time_text
from onceward.errors import StoreUnavailable
from onceward.turns import sweep
from onceward.turns.engine import Ending, Engine, Ran, Through, directly
from onceward.turns.threads import in_thread

WORKERS = 16
# How soon others notice that a process died. A look costs one read and a ledger batch.
SWEEP_SECONDS = 1.0
# How long a response rests that a channel did not take: doubled each time, up to the second.
_REST_SECONDS = (1.0, 60.0)
# A timer for what is due later than the next few sweeps would be one too many.
_TIMER_SECONDS_MAX = 60.0

_log = logging.getLogger("onceward.turns")


class LocalRunner:
    """`workers` turns run at a time; the others wait. Attempts are made `through` something."""

    def __init__(
        self,
        engine: Engine,
        *,
        workers: int = WORKERS,
        sweep_seconds: float = SWEEP_SECONDS,
        through: Through = directly,
    ) -> None:
        self._engine = engine
        self._through = through
        self._sweep_seconds = sweep_seconds
        self._free = asyncio.Semaphore(workers)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._rests: dict[str, float] = {}
        self._place = sweep.Place()
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begin, with what others left unfinished."""
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep of turns")

    def wake(self, turn_id: str) -> None:
        """There may be something to do for this turn."""
        if self._stopping:
            return
        timer = self._timers.pop(turn_id, None)
        if timer is not None:
            timer.cancel()
        if turn_id in self._tasks:
            self._again.add(turn_id)
            return
        self._begin(turn_id, functools.partial(self._engine.run, turn_id, self._through))

    def interrupt(self, turn_id: str) -> None:
        self._engine.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        if self._tasks and grace_seconds > 0:
            await asyncio.wait(self._tasks.values(), timeout=grace_seconds)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def idle(self) -> None:
        """Returns when no run goes on here."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def sweep_once(self) -> None:
        """Look once for what nobody runs, and for what is superseded here."""
        found = await in_thread(self._look)
        self._place = found.place
        for turn_id in found.superseded:
            self.interrupt(turn_id)
        for turn_id in found.due:
            # What has a timer rests, and is woken by it.
            if turn_id not in self._tasks and turn_id not in self._timers:
                self.wake(turn_id)
        for seen in found.held:
            if seen.turn.id not in self._tasks and not self._stopping:
                self._begin(seen.turn.id, functools.partial(self._engine.take_over, seen, self._through))

    def _look(self) -> sweep.Found:
        with self._engine.database.read() as tx:
            return sweep.look(tx, time_text(self._engine.now()), self._engine.running, self._place)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.sweep_once()
            except StoreUnavailable as error:
                _log.warning("turns are not swept while the database does not answer: %s", error)
            except Exception:  # noqa: BLE001  # a bug must not end the only one who looks after crashed turns
                _log.exception("the sweep of turns failed")
            await asyncio.sleep(self._sweep_seconds)

    def _begin(self, turn_id: str, first: Callable[[], Awaitable[Ran]]) -> None:
        self._tasks[turn_id] = asyncio.create_task(self._work(turn_id, first), name=f"run of {turn_id}")

    async def _work(self, turn_id: str, act: Callable[[], Awaitable[Ran]]) -> None:
        try:
            while True:
                self._again.discard(turn_id)
                async with self._free:
                    if self._stopping:
                        return
                    await self._run(turn_id, act)
                if turn_id not in self._again:
                    return
                act = functools.partial(self._engine.run, turn_id, self._through)
        finally:
            del self._tasks[turn_id]
            self._again.discard(turn_id)

    async def _run(self, turn_id: str, act: Callable[[], Awaitable[Ran]]) -> None:
        try:
            ran = await act()
        except StoreUnavailable as error:
            _log.warning("a turn is left for the next sweep: %s", error, extra={"turn_id": turn_id})
            return
        except Exception:  # noqa: BLE001  # what one turn does must not end the others
            _log.exception("a run of a turn broke off", extra={"turn_id": turn_id})
            return
        rest = self._rests.pop(turn_id, 0.0)
        if ran.ending is Ending.UNDELIVERED:
            self._rests[turn_id] = min(max(rest * 2, _REST_SECONDS[0]), _REST_SECONDS[1])
            self._wake_in(turn_id, self._rests[turn_id])
        elif ran.ending is Ending.LATER and ran.at is not None:
            self._wake_in(turn_id, (datetime.datetime.fromisoformat(ran.at) - self._engine.now()).total_seconds())
        if ran.next_turn is not None and ran.next_turn != turn_id:
            self.wake(ran.next_turn)

    def _wake_in(self, turn_id: str, seconds: float) -> None:
        if not self._stopping and seconds <= _TIMER_SECONDS_MAX:
            self._timers[turn_id] = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._due, turn_id)

    def _due(self, turn_id: str) -> None:
        self._timers.pop(turn_id, None)
        self.wake(turn_id)
