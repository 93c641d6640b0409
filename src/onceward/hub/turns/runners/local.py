"""Local runner: run turns in this process, several at a time, and sweep the database for turns that nobody runs.

A turn whose message was received in this process is woken at once. The sweep finds turns that were received by another
process, that waited for another turn, or that a dead process left behind. The claim on the beat decides which process
runs such a turn.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
from collections.abc import Awaitable, Callable

from onceward.core.log_event import log_event
from onceward.errors import StoreUnavailable
from onceward.hub.db.timestamps import time_text
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.execution import sweep
from onceward.hub.turns.execution.engine import AttemptRunner, Engine, RunResult, RunStatus, directly
from onceward.hub.turns.execution.repository import LoadedTurn
from onceward.store.failure_streak import FailureStreak

WORKERS = 16
# How soon other processes notice a dead one. A sweep costs one read and one ledger batch.
SWEEP_SECONDS = 1.0
# Pauses before an undelivered response is sent again: from the first value, doubled each time, up to the second.
_RETRY_DELAY_SECONDS = (1.0, 60.0)
# Turns per worker that are stored as started and wait. A turn behind more of them is started when its time comes.
_AHEAD_MAX = 2
# Turns that are due later than this need no timer: the sweep finds them.
_TIMER_SECONDS_MAX = 60.0

_log = logging.getLogger("onceward.turns")


class LocalRunner:
    """Runs turns in this process.

    Args:
        engine: The engine.
        workers: The number of turns that run at the same time; others wait.
        sweep_seconds: The pause between two sweeps of the database.
        through: Runs each attempt, see `Engine.run`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        workers: int = WORKERS,
        sweep_seconds: float = SWEEP_SECONDS,
        through: AttemptRunner = directly,
    ) -> None:
        self._engine = engine
        self._through = through
        self._sweep_seconds = sweep_seconds
        self._workers = workers
        self._slots = asyncio.Semaphore(workers)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # The work of each task that waits for a slot.
        self._waiting: dict[str, Callable[[], Awaitable[RunResult]]] = {}
        # Turns that are being stored as started. The sweep may see them before they are given to this runner.
        self._reserved: set[str] = set()
        self._rerun: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._retry_delays: dict[str, float] = {}
        self._cursor = sweep.SweepCursor()
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start to sweep the database, and run what the sweeps find."""
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep of turns")

    def wake(self, turn_id: str) -> None:
        """Run this turn soon, if it can run.

        Args:
            turn_id: The turn.
        """
        if self._stopping:
            return
        timer = self._timers.pop(turn_id, None)
        if timer is not None:
            timer.cancel()
        if turn_id in self._tasks:
            self._rerun.add(turn_id)
            return
        self._begin(turn_id, self._reload(turn_id))

    def reserve(self, turn_id: str) -> bool:
        """Return whether this turn would run soon if it were started now. Then `run_started` or `give_up` must follow.

        Args:
            turn_id: The turn, which is about to be stored.
        """
        if self._stopping or len(self._waiting) + len(self._reserved) >= self._workers * _AHEAD_MAX:
            return False
        self._reserved.add(turn_id)
        return True

    def run_started(self, loaded: LoadedTurn) -> None:
        """Run a turn whose first attempt was started in the transaction that stored it.

        Args:
            loaded: The turn with its messages.
        """
        self._reserved.discard(loaded.turn.id)
        if not self._stopping:
            self._begin(loaded.turn.id, functools.partial(self._engine.run_started, loaded, self._through))

    def give_up(self, turn_id: str) -> None:
        """Forget a reserved turn, because it was not stored.

        Args:
            turn_id: The turn.
        """
        self._reserved.discard(turn_id)

    def is_running(self, turn_id: str) -> bool:
        """Return whether an attempt at this turn runs in this process, or begins to.

        Args:
            turn_id: The turn.
        """
        return turn_id in self._tasks and turn_id not in self._waiting

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed.

        Args:
            turn_id: The turn.
        """
        if turn_id in self._waiting:
            # It has not begun, and its view of the turn is out of date.
            self._waiting[turn_id] = self._reload(turn_id)
        self._engine.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Start no more runs, let those in progress finish, and cancel the rest. Other processes take them over.

        Args:
            grace_seconds: How long to wait for runs in progress.
        """
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
        """Wait until no turn runs in this process."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def sweep_once(self) -> None:
        """Sweep once: start turns that nobody runs, and interrupt runs of this process that were superseded.

        Raises:
            errors.StoreUnavailable: The database did not respond.
        """
        found = await in_thread(self._find_due)
        self._cursor = found.cursor
        for turn_id in found.superseded:
            self.interrupt(turn_id)
        for turn_id in found.due:
            # A turn with a timer is pausing; the timer wakes it.
            if turn_id not in self._tasks and turn_id not in self._timers:
                self.wake(turn_id)
        for loaded in found.running_elsewhere:
            is_ours = loaded.turn.id in self._tasks or loaded.turn.id in self._reserved
            if not is_ours and not self._stopping:
                self._begin(loaded.turn.id, functools.partial(self._engine.take_over, loaded, self._through))

    def _find_due(self) -> sweep.SweepResult:
        with self._engine.database.read() as tx:
            return sweep.find_due(tx, time_text(self._engine.now()), self._engine.running, self._cursor)

    async def _sweep(self) -> None:
        streak = FailureStreak()
        while True:
            try:
                await self.sweep_once()
            except Exception as error:  # noqa: BLE001  # a bug must not end the task that recovers crashed turns
                if (count := streak.failed(error)) is not None:
                    self._log_sweep_failure(error, count)
            else:
                if (ended := streak.succeeded()) is not None:
                    log_event(
                        _log.info, "turn_sweep_recovered", failure_count=ended.failure_count, seconds=ended.seconds
                    )
            await asyncio.sleep(self._sweep_seconds)

    def _log_sweep_failure(self, error: Exception, count: int) -> None:
        seconds, reason = self._sweep_seconds, str(error)
        if isinstance(error, StoreUnavailable):
            log_event(_log.warning, "turn_sweep_failed", retry_in_seconds=seconds, reason=reason, failure_count=count)
        else:
            log_event(
                _log.error, "turn_sweep_failed", error, retry_in_seconds=seconds, reason=reason, failure_count=count
            )

    def _reload(self, turn_id: str) -> Callable[[], Awaitable[RunResult]]:
        return functools.partial(self._engine.run, turn_id, self._through)

    def _begin(self, turn_id: str, first: Callable[[], Awaitable[RunResult]]) -> None:
        self._waiting[turn_id] = first
        self._tasks[turn_id] = asyncio.create_task(self._work(turn_id), name=f"run of {turn_id}")

    async def _work(self, turn_id: str) -> None:
        try:
            while True:
                self._rerun.discard(turn_id)
                async with self._slots:
                    if self._stopping:
                        return
                    await self._run(turn_id, self._waiting.pop(turn_id))
                if turn_id not in self._rerun:
                    return
                self._waiting[turn_id] = self._reload(turn_id)
        finally:
            del self._tasks[turn_id]
            self._waiting.pop(turn_id, None)
            self._rerun.discard(turn_id)

    async def _run(self, turn_id: str, act: Callable[[], Awaitable[RunResult]]) -> None:
        try:
            ran = await act()
        except StoreUnavailable as error:
            log_event(
                _log.warning, "turn_run_failed", turn_id=turn_id, reason=str(error), hint="the next sweep runs it again"
            )
            return
        except Exception as error:  # noqa: BLE001  # one turn must not affect the others
            log_event(_log.error, "turn_run_failed", error, turn_id=turn_id, reason=str(error))
            return
        rest = self._retry_delays.pop(turn_id, 0.0)
        if ran.ending is RunStatus.UNDELIVERED:
            self._retry_delays[turn_id] = min(max(rest * 2, _RETRY_DELAY_SECONDS[0]), _RETRY_DELAY_SECONDS[1])
            self._wake_in(turn_id, self._retry_delays[turn_id])
        elif ran.ending is RunStatus.LATER and ran.at is not None:
            self._wake_in(turn_id, (datetime.datetime.fromisoformat(ran.at) - self._engine.now()).total_seconds())
        if ran.next_turn is not None and ran.next_turn != turn_id:
            self.wake(ran.next_turn)

    def _wake_in(self, turn_id: str, seconds: float) -> None:
        if not self._stopping and seconds <= _TIMER_SECONDS_MAX:
            self._timers[turn_id] = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._due, turn_id)

    def _due(self, turn_id: str) -> None:
        self._timers.pop(turn_id, None)
        self.wake(turn_id)
