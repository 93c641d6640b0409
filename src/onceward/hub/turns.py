"""Turns in a hub process: the brain, the runner of its turns, and whoever waits for one of them.

What happens to a turn in this process is told at once. What happens to it elsewhere is found by looking, every few
hundredths of a second at first and then four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onceward.blobs import BlobStore
from onceward.core.canonical import Json
from onceward.db.engine import Database
from onceward.http.observe import Observer
from onceward.hub.config import Config
from onceward.hub.looks import Looks
from onceward.ledger import Ledger
from onceward.turns.brain import load_brain
from onceward.turns.engine import Engine
from onceward.turns.gateway import TurnGateway
from onceward.turns.receive import Intake
from onceward.turns.runners.local import LocalRunner
from onceward.turns.threads import in_thread
from onceward.turns.turn import UNFINISHED, Message, State, ToolCall, Turn, get_turn, messages_of, tools_of

_LOOK_SECONDS_MIN = 0.02
_LOOK_SECONDS_MAX = 0.25
_LOOK_GROWTH = 1.5
# A turn that took another one's place may have been taken the place of in turn; not for ever.
_FOLLOWED_MAX = 100


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """A turn as it is shown: with its messages, and the calls of tools that were allowed to have an effect."""

    turn: Turn
    messages: list[Message]
    tools: list[ToolCall]

    @property
    def is_over(self) -> bool:
        return self.turn.state not in UNFINISHED

    def answer(self) -> dict[str, Json]:
        """What `/chat` says of it."""
        turn = self.turn
        if turn.state in UNFINISHED:
            return {"status": "processing", "turn_id": turn.id}
        told: dict[str, Json] = {"status": turn.state.value, "turn_id": turn.id, "response": turn.answer}
        told["messages"] = [*map(_message, self.messages)]
        if turn.state is State.SUPERSEDED:
            told["superseded_by"] = turn.superseded_by
        if turn.state is State.FAILED:
            told["error"] = turn.failure
        return told

    def shown(self) -> dict[str, Json]:
        """What `/turns/{id}` says of it."""
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
    """Made with the hub; starts and stops with it. Belongs to one event loop."""

    def __init__(
        self, config: Config, database: Database, ledger: Ledger, blobs: BlobStore, hint: Callable[[], None]
    ) -> None:
        settings, checks = config.turns, config.idempotency
        _allow_local_module(settings.brain)
        brain = load_brain(settings.brain)
        self._database = database
        self._grace_seconds = config.hub.grace_seconds
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.looks = Looks()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.observer = Observer()
        engine = Engine(
            database,
            ledger,
            brain,
            max_attempts=settings.max_attempts,
            beat_ttl_seconds=settings.beat_ttl_seconds,
            observer=self.observer,
            blobs=blobs,
            hint=hint,
            told=self._tell,
        )
        self._runner = LocalRunner(engine, workers=settings.workers, sweep_seconds=settings.sweep_seconds)
        intake = Intake(
            api_ttl_seconds=settings.api_ttl_seconds,
            content_window_seconds=checks.timestamp_bucket_seconds,
            auto_generate_keys=checks.auto_generate_keys,
            checks=checks.enabled,
        )
        self.gateway = TurnGateway(database, brain, self._runner, intake=intake, hint=hint, told=self._tell)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._runner.start()

    def stop_streams(self) -> None:
        """Whoever waits for a turn is told that it goes on without them."""
        self._stopped.set()
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def stop(self) -> None:
        """Let the runs that are going on end; what does not end in time goes on elsewhere."""
        self.stop_streams()
        await self._runner.stop(self._grace_seconds)
        await self.looks.end()

    @property
    def is_stopping(self) -> bool:
        return self._stopped.is_set()

    async def seen(self, principal: str, turn_id: str) -> TurnSeen:
        """The principal's own turn; `NotFound` when there is none."""
        return await in_thread(self._seen, principal, turn_id)

    def _seen(self, principal: str, turn_id: str) -> TurnSeen:
        with self._database.read() as tx:
            turn = get_turn(tx, principal, turn_id)
            return TurnSeen(turn, messages_of(tx, turn), tools_of(tx, turn))

    async def finished(self, principal: str, turn_id: str, seconds: float) -> TurnSeen:
        """The turn when it is over, or the one that took its place; as it is after so many seconds."""
        deadline = time.monotonic() + seconds
        with self.watching(turn_id) as watch:
            for _ in range(_FOLLOWED_MAX):
                seen = await self.seen(principal, turn_id)
                while not seen.is_over and not self.is_stopping and time.monotonic() < deadline:
                    await watch.wait(deadline - time.monotonic())
                    seen = await self.seen(principal, turn_id)
                if seen.turn.state is not State.SUPERSEDED or seen.turn.superseded_by is None:
                    break
                turn_id = seen.turn.superseded_by
                watch.follow(turn_id)
        return seen

    @contextlib.contextmanager
    def watching(self, turn_id: str) -> Iterator[Watch]:
        """Waits for news of this turn, from here and from elsewhere."""
        event = asyncio.Event()
        watch = Watch(self._waiting, event, turn_id)
        try:
            yield watch
        finally:
            watch.leave()

    def _tell(self, turn_id: str) -> None:
        # Chunks are recorded by threads.
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, turn_id)

    def _wake(self, turn_id: str) -> None:
        self.looks.news()
        for event in self._waiting.get(turn_id, ()):
            event.set()


class Watch:
    """One who waits for a turn. The pause between two looks grows while nothing happens."""

    def __init__(self, waiting: defaultdict[str, set[asyncio.Event]], event: asyncio.Event, turn_id: str) -> None:
        self._waiting = waiting
        self._event = event
        self._turn_id = turn_id
        self._pause = _LOOK_SECONDS_MIN
        waiting[turn_id].add(event)

    def follow(self, turn_id: str) -> None:
        """From now on it is about the turn that took the other one's place."""
        self.leave()
        self._turn_id = turn_id
        self._waiting[turn_id].add(self._event)

    def leave(self) -> None:
        waiting = self._waiting[self._turn_id]
        waiting.discard(self._event)
        if not waiting:
            del self._waiting[self._turn_id]

    def news(self) -> None:
        """There was something: look soon again."""
        self._pause = _LOOK_SECONDS_MIN

    async def wait(self, seconds: float) -> float:
        """Until there may be something new to see, at most so long; gives how long nothing was."""
        pause = max(0.0, min(self._pause, seconds))
        self._pause = min(self._pause * _LOOK_GROWTH, _LOOK_SECONDS_MAX)
        try:
            await asyncio.wait_for(self._event.wait(), pause)
        except TimeoutError:
            return pause
        self._event.clear()
        self.news()
        return 0.0
