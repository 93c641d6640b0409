"""A process whose turns are run by DBOS, and one that begins a turn and then hangs until it is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
from tests.turns.core.house import NEVER_SECONDS
from tests.turns.core.worker import FilePost
from tests.waiting import SECONDS_MAX

from onceward.db.engine import Database, open_database
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.turns import Brain, Context, Engine, Received, Turn, TurnGateway, UserMessage
from onceward.turns.runners.dbos import DbosRunner
from onceward.turns.turn import find_turn

_WORKFLOWS = """
    SELECT workflow_uuid, status, executor_id FROM dbos.workflow_status
    WHERE workflow_uuid LIKE %s AND application_version = '1' ORDER BY workflow_uuid
"""


class Desk:
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
        """What DBOS knows of the turn: the attempts, how they stand, and who made them."""
        with psycopg.connect(self._url) as connection:
            found = connection.execute(_WORKFLOWS, [f"{turn_id}:%"]).fetchall()
        return [(name.removeprefix(turn_id), status, executor) for name, status, executor in found]


@asynccontextmanager
async def at_desk(url: str, brain: Brain, **options: Any) -> AsyncIterator[Desk]:
    with closing(open_database(url)) as database, open_ledger(url) as ledger:
        desk = Desk(url, database, ledger, brain, **options)
        await desk.runner.start()
        try:
            yield desk
        finally:
            await desk.runner.stop()


def main(url: str, post: str, session: str) -> None:
    """Receive a message, begin to answer it, say so on standard output, and go on for ever."""

    async def hang(context: Context) -> str:
        os.write(1, context.turn.id.encode() + b"\n")
        await asyncio.Event().wait()
        return "never"

    async def live() -> None:
        async with at_desk(url, Brain(hang), adapter=FilePost(Path(post))) as desk:
            await desk.say("hello", session)
            await desk.idle()

    asyncio.run(live())
