"""Turns in a hub process: the brain, the runner of its turns, and turns as JSON for clients."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from onceward.http.observer import HttpObserver
from onceward.hub.blobs import BlobStore
from onceward.hub.chat.single_flight import SharedReads
from onceward.hub.chat.turn_view import TurnView
from onceward.hub.chat.watch import Watches
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.execution.brain import load_brain
from onceward.hub.turns.execution.engine import Engine
from onceward.hub.turns.intake.gateway import TurnGateway
from onceward.hub.turns.intake.receive import Intake
from onceward.hub.turns.model.turn import (
    UNFINISHED,
    Message,
    State,
    Turn,
    TurnStatus,
    get_turn,
    messages_of,
    read_turn_status,
    tools_of,
)
from onceward.hub.turns.runners.local import LocalRunner
from onceward.ledger.ledger import Ledger

# The longest chain of superseded turns that a wait follows.
_FOLLOWED_MAX = 100


def _allow_local_module(brain: str) -> None:
    """Put the current folder at the end of `sys.path` if the brain's module is there and nowhere else."""
    module = brain.partition(":")[0].partition(".")[0]
    here = Path.cwd()
    if (here / f"{module}.py").is_file() or (here / module).is_dir():
        known = any(entry and Path(entry).resolve() == here for entry in sys.path)
        if not known and importlib.util.find_spec(module) is None:
            sys.path.append(str(here))


class Turns:
    """Turns of one hub process. Belongs to one event loop, and starts and stops with the hub."""

    def __init__(self, config: Config, database: Database, ledger: Ledger, blobs: BlobStore) -> None:
        settings, checks = config.turns, config.idempotency
        _allow_local_module(settings.brain)
        self.brain = brain = load_brain(settings.brain)
        self._database = database
        self._grace_seconds = config.hub.grace_seconds
        self.reads = SharedReads()
        self.watches = Watches(database, self.reads, self._runs_here)
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self.observer = HttpObserver()
        engine = Engine(
            database,
            ledger,
            brain,
            max_attempts=settings.max_attempts,
            beat_ttl_seconds=settings.beat_ttl_seconds,
            observer=self.observer,
            blobs=blobs,
            told=self._notify,
            ended=self._hand_over,
        )
        self._runner = LocalRunner(engine, workers=settings.workers, sweep_seconds=settings.sweep_seconds)
        intake = Intake(
            api_ttl_seconds=settings.api_ttl_seconds,
            content_window_seconds=checks.timestamp_bucket_seconds,
            auto_generate_keys=checks.auto_generate_keys,
            checks=checks.enabled,
            max_message_bytes=settings.max_message_bytes,
            max_messages=settings.max_messages,
            max_bytes=settings.max_bytes,
            max_queued=settings.max_queued,
        )
        self.gateway = TurnGateway(database, brain, self._runner, intake=intake, told=self._notify)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        await self._runner.start()

    def stop_streams(self) -> None:
        """Wake all waiters and end their streams; the turns themselves continue."""
        self._stopped.set()
        self.watches.wake_all()

    async def stop(self) -> None:
        """Wait for running turns until the grace period ends; another process continues the rest."""
        self.stop_streams()
        await self._runner.stop(self._grace_seconds)
        await self.watches.stop()
        await self.reads.drain()

    @property
    def is_stopping(self) -> bool:
        return self._stopped.is_set()

    async def read_turn(self, principal: str, turn_id: str) -> TurnView:
        """Return a turn of this principal, or raise `NotFound`."""
        return await in_thread(self._read_turn, principal, turn_id)

    def _read_turn(self, principal: str, turn_id: str) -> TurnView:
        with self._database.read() as tx:
            turn = get_turn(tx, principal, turn_id)
            return TurnView(turn, messages_of(tx, turn), tools_of(tx, turn))

    async def finished(self, principal: str, turn_id: str, seconds: float, stored: Turn | None = None) -> TurnView:
        """Wait up to `seconds` for a turn to end, and return it as it is then, or the turn that superseded it.

        A turn that this process finishes is handed over without a read. `stored` is the turn as the caller has just
        stored it, if it has; nothing may have been awaited since.
        """
        deadline = time.monotonic() + seconds
        status = None if stored is None else TurnStatus(stored.state, stored.superseded_by)
        with self.watches.watching(turn_id, to_end=True) as watch:
            for _ in range(_FOLLOWED_MAX):
                status = status or await self._read_status(turn_id)
                while status.state in UNFINISHED and not self.is_stopping and time.monotonic() < deadline:
                    if await watch.wait(deadline - time.monotonic()):
                        if watch.ended is not None:
                            return watch.ended
                        status = await self._read_status(turn_id)
                if status.state is not State.SUPERSEDED or status.superseded_by is None:
                    break
                turn_id, status = status.superseded_by, None
                watch.follow(turn_id)
        # The status is part of the question: a caller that saw the end never joins a read that started before it.
        return await self.reads.read(
            (principal, turn_id, status), functools.partial(self._read_turn, principal, turn_id)
        )

    async def _read_status(self, turn_id: str) -> TurnStatus:
        return await self.reads.read(turn_id, functools.partial(self._query_status, turn_id))

    def _query_status(self, turn_id: str) -> TurnStatus:
        with self._database.read() as tx:
            return read_turn_status(tx, turn_id)

    def _runs_here(self, turn_id: str) -> bool:
        return self._runner.is_running(turn_id)

    def _hand_over(self, turn: Turn, messages: Sequence[Message]) -> None:
        # Each recorded tool call has increased `effects_started`: without one, the turn has no tool calls to read.
        if turn.effects_started == 0:
            self.watches.end(TurnView(turn, messages, []))

    def _notify(self, turn_id: str) -> None:
        loop = self._loop
        if threading.get_ident() == self._thread_id:
            self.watches.wake(turn_id)
        elif loop is not None and not loop.is_closed():
            # A brain may have an event loop of its own, in another thread.
            loop.call_soon_threadsafe(self.watches.wake, turn_id)
