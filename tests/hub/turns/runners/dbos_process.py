"""A process whose turns run on DBOS, and one that begins a turn and then hangs until it is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
from tests.hub.turns.turn_harness import NEVER_SECONDS
from tests.hub.turns.turn_process import FileChannel
from tests.waiting import SECONDS_MAX

from onceward.hub.db.engine import Database, open_database
from onceward.hub.turns.model.turn import find_turn
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Context, Engine, Received, Turn, TurnGateway, UserMessage
from onceward.turns.runners.dbos import DbosRunner

_WORKFLOWS = """
    SELECT workflow_uuid, status, executor_id FROM dbos.workflow_status
    WHERE workflow_uuid LIKE %s AND application_version = '1' ORDER BY workflow_uuid
"""


def workflows(url: str, turn_id: str) -> list[tuple[str, str, str]]:
    """Return the workflows of the turn in DBOS: attempt, status and executor."""
    with psycopg.connect(url) as connection:
        found = connection.execute(_WORKFLOWS, [f"{turn_id}:%"]).fetchall()
    return [(name.removeprefix(turn_id), status, executor) for name, status, executor in found]


class DbosHarness:
    """One process of a hub whose turns are DBOS workflows."""

    def __init__(self, url: str, database: Database, ledger: Ledger, brain: Brain, **options: Any) -> None:
        self._url = url
        self._database = database
        self.engine = Engine(database, ledger, brain, **{"retry_seconds": (0.0,), **options})
        self.runner = DbosRunner(self.engine, url, sweep_seconds=NEVER_SECONDS)
        self.gateway = TurnGateway(database, brain, self.runner)

    async def say(self, content: str, session: str) -> Received:
        return await self.gateway.receive_message(UserMessage(content=content, session_key=session))

    async def idle(self) -> None:
        await asyncio.wait_for(self.runner.idle(), SECONDS_MAX)

    def turn(self, turn_id: str) -> Turn:
        with self._database.read() as tx:
            found = find_turn(tx, turn_id)
        assert found is not None
        return found

    def workflows(self, turn_id: str) -> list[tuple[str, str, str]]:
        return workflows(self._url, turn_id)


@asynccontextmanager
async def running_harness(url: str, brain: Brain, **options: Any) -> AsyncIterator[DbosHarness]:
    with closing(open_database(url)) as database, open_ledger(url) as ledger:
        harness = DbosHarness(url, database, ledger, brain, **options)
        await harness.runner.start()
        try:
            yield harness
        finally:
            await harness.runner.stop()


def main(url: str, channel: str, session: str) -> None:
    """Receive a message, begin to answer it, print a line, and hang."""

    async def hang(context: Context) -> str:
        os.write(1, context.turn.id.encode() + b"\n")
        await asyncio.Event().wait()
        return "never"

    async def live() -> None:
        async with running_harness(url, Brain(hang), adapter=FileChannel(Path(channel))) as harness:
            await harness.say("hello", session)
            await harness.idle()

    asyncio.run(live())
