"""A harness for turns: a database, a ledger, a brain and a runner, and short ways to use them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from tests.waiting import SECONDS_MAX

from onceward.core.canonical import Json
from onceward.hub.db.engine import Database
from onceward.hub.events import log
from onceward.hub.turns.model.turn import find_turn, now_utc
from onceward.ledger import Ledger
from onceward.tools.toolbox import Toolbox
from onceward.turns import (
    Brain,
    Context,
    Decision,
    Engine,
    Intake,
    LocalRunner,
    Message,
    Received,
    Turn,
    TurnGateway,
    UserMessage,
    messages_of,
)

# Nothing is found by sweeping unless a test sweeps.
NEVER_SECONDS = 3600.0


async def echo(context: Context) -> str:
    return f"You said: {context.text}"


class ManualClock:
    """The hub's clock, which only the test moves."""

    def __init__(self) -> None:
        self.time = datetime.datetime(2026, 11, 16, 3, 26, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += datetime.timedelta(seconds=seconds)


class BlockingBrain:
    """A brain whose runs wait for an answer from the test, or run the function `act`."""

    def __init__(
        self,
        decide: Callable[..., Any] | None = None,
        act: Callable[[BlockedRun], Awaitable[Json]] | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self._act = act
        self.runs: list[BlockedRun] = []
        self._began: asyncio.Queue[BlockedRun] = asyncio.Queue()
        self.brain = Brain(self._run, toolbox, decide=decide)

    async def _run(self, context: Context) -> Json:
        run = BlockedRun(context)
        self.runs.append(run)
        self._began.put_nowait(run)
        try:
            return await (run.answer if self._act is None else self._act(run))
        except asyncio.CancelledError:
            run.cancelled.set()
            raise

    async def began(self) -> BlockedRun:
        """Wait for the next run to begin, and return it."""
        return await asyncio.wait_for(self._began.get(), SECONDS_MAX)


class BlockedRun:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.turn = context.turn
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.cancelled = asyncio.Event()

    @property
    def message_texts(self) -> list[str]:
        return [message.content for message in self.context.messages]


class RecordingChannel:
    """A channel that records what it is asked to send."""

    effect: Any = "irreversible"

    def __init__(self, before: Callable[[Turn], Awaitable[None]] | None = None) -> None:
        self.sent: list[tuple[str, Json]] = []
        self._before = before

    async def send_response(self, turn: Turn, response: Json) -> None:
        if self._before is not None:
            await self._before(turn)
        self.sent.append((turn.id, response))


class TurnHarness:
    """One process of a hub, as far as turns need it."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        brain: Brain,
        now: ManualClock | None = None,
        *,
        intake: Intake | None = None,
        real_time: bool = False,
        workers: int = 16,
        **options: Any,
    ) -> None:
        self.database = database
        self.now = now or ManualClock()
        clock = now_utc if real_time else self.now
        self.engine = Engine(database, ledger, brain, now=clock, **{"retry_seconds": (0.0,), **options})
        self.runner = LocalRunner(self.engine, workers=workers, sweep_seconds=NEVER_SECONDS)
        self.gateway = TurnGateway(database, brain, self.runner, intake=intake, now=clock)

    async def say(self, content: str, **fields: Any) -> Received:
        return await self.gateway.receive_message(UserMessage(content=content, **fields))

    async def idle(self) -> None:
        await asyncio.wait_for(self.runner.idle(), SECONDS_MAX)

    async def sweep(self) -> None:
        """Find the turns that are due, and run them."""
        await self.runner.sweep_once()
        await self.idle()

    def turn(self, turn_id: str) -> Turn:
        with self.database.read() as tx:
            found = find_turn(tx, turn_id)
        assert found is not None
        return found

    def messages(self, turn_id: str) -> list[Message]:
        with self.database.read() as tx:
            return messages_of(tx, self.turn(turn_id))

    def message_texts(self, turn_id: str) -> list[str]:
        return [message.content for message in self.messages(turn_id)]

    def rows(self, statement: str, **values: object) -> list[Any]:
        with self.database.read() as tx:
            return list(tx.execute(text(statement), values))

    def write(self, statement: str, **values: object) -> None:
        with self.database.write() as tx:
            tx.execute(text(statement), values)

    def events(self) -> list[log.Event]:
        """Return the events of the turns in the database; others belong to other tests."""
        with self.database.read() as tx:
            here = {row[0] for row in tx.execute(text("SELECT id FROM turns"))}
            last = log.extent(tx).last_event_id
            found = [log.page(tx, after, last, log.PAGE_MAX) for after in range(0, last, log.PAGE_MAX)]
        return [event for page in found for event in page if event.entity_id in here]


@asynccontextmanager
async def opened(harness: TurnHarness) -> AsyncIterator[TurnHarness]:
    try:
        yield harness
    finally:
        await harness.runner.stop()


def decides(decision: Decision | None) -> Callable[..., Decision | None]:
    return lambda _turn, _messages, _new: decision
