"""Turns in a hub process: the brain, the runner of its turns, and turns as JSON for clients."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onceward.core.canonical import Json
from onceward.http.observer import HttpObserver
from onceward.hub.blobs import BlobStore
from onceward.hub.chat.single_flight import SharedReads
from onceward.hub.chat.watch import Watches
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.brain import load_brain
from onceward.hub.turns.execution.engine import Engine
from onceward.hub.turns.intake.gateway import TurnGateway
from onceward.hub.turns.intake.limits import Intake
from onceward.hub.turns.model.db_threads import in_thread
from onceward.hub.turns.model.turn import (
    UNFINISHED,
    Message,
    State,
    ToolCall,
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


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn with its messages and its recorded tool calls."""

    turn: Turn
    messages: list[Message]
    tools: list[ToolCall]

    @property
    def is_over(self) -> bool:
        return self.turn.state not in UNFINISHED

    def chat_response(self) -> dict[str, Json]:
        """Return the body of the response to `/chat`."""
        turn = self.turn
        if turn.state in UNFINISHED:
            return {"status": "processing", "turn_id": turn.id}
        content: dict[str, Json] = {"status": turn.state.value, "turn_id": turn.id, "response": turn.answer}
        content["messages"] = [*map(_message, self.messages)]
        if turn.state is State.SUPERSEDED:
            content["superseded_by"] = turn.superseded_by
        if turn.state is State.FAILED:
            content["error"] = turn.failure
        return content

    def shown(self) -> dict[str, Json]:
        """Return the body of the response to `/turns/{id}`."""
        turn = self.turn
        return {
            "turn_id": turn.id,
            "turn_group_id": turn.turn_group_id,
            "session_key": turn.session_key,
            "status": turn.state.value,
            "messages": [*map(_message, self.messages)],
            "response": turn.answer,
            "superseded_by": turn.superseded_by,
            "tools": [*map(_tool, self.tools)],
            "reason": turn.reason,
            "error": turn.failure,
            "attempts": turn.attempts,
            "created_at": turn.created_at,
            "completed_at": turn.completed_at,
        }


def _message(message: Message) -> dict[str, Json]:
    return {
        "message_id": message.message_id,
        "content": message.content,
        "metadata": message.metadata,
        "created_at": message.created_at,
    }


def _tool(call: ToolCall) -> dict[str, Json]:
    return {
        "tool": call.tool,
        "key": call.key,
        "effect": call.effect,
        "status": call.status,
        "arguments": {**call.arguments},
        "receipt": call.receipt,
        "created_at": call.created_at,
    }


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

    def __init__(
        self, config: Config, database: Database, ledger: Ledger, blobs: BlobStore, hint: Callable[[], None]
    ) -> None:
        settings, checks = config.turns, config.idempotency
        _allow_local_module(settings.brain)
        brain = load_brain(settings.brain)
        self._database = database
        self._grace_seconds = config.hub.grace_seconds
        self.reads = SharedReads()
        self.watches = Watches(database, self.reads)
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.observer = HttpObserver()
        engine = Engine(
            database,
            ledger,
            brain,
            max_attempts=settings.max_attempts,
            beat_ttl_seconds=settings.beat_ttl_seconds,
            observer=self.observer,
            blobs=blobs,
            hint=hint,
            told=self._notify,
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
        self.gateway = TurnGateway(database, brain, self._runner, intake=intake, hint=hint, told=self._notify)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
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

    async def finished(self, principal: str, turn_id: str, seconds: float) -> TurnView:
        """Wait up to `seconds` for a turn to end, and return it as it is then, or the turn that superseded it."""
        deadline = time.monotonic() + seconds
        with self.watches.watching(turn_id) as watch:
            for _ in range(_FOLLOWED_MAX):
                status = await self._read_status(turn_id)
                while status.state in UNFINISHED and not self.is_stopping and time.monotonic() < deadline:
                    if await watch.wait(deadline - time.monotonic()):
                        status = await self._read_status(turn_id)
                if status.state is not State.SUPERSEDED or status.superseded_by is None:
                    break
                turn_id = status.superseded_by
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

    def _notify(self, turn_id: str) -> None:
        # Called from threads, too: they record the chunks.
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.watches.wake, turn_id)
