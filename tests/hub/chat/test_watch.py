"""Requests that wait for turns: they cost next to nothing while nothing happens, and see changes of any process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from tests.waiting import SECONDS_MAX, soon

from onceward.hub.chat.single_flight import SharedReads
from onceward.hub.chat.stream import events_of
from onceward.hub.chat.watch import Watches
from onceward.hub.config.config import Config, HubSettings, TurnsSettings
from onceward.hub.state import HubState
from onceward.turns import UserMessage

# A sweep reads the database, and takes over what another hub runs.
pytestmark = pytest.mark.usefixtures("no_sweep")

WAITERS = 40
# Longer than any test: a caller that returns earlier was woken.
LONG_SECONDS = 10 * SECONDS_MAX


@pytest.fixture
def config(tmp_path: Path, sqlite_template: Path) -> Config:
    shutil.copy(sqlite_template, tmp_path / "hub.db")
    turns = TurnsSettings(brain="tests.hub.scripted_brain:brain", workers=WAITERS + 1)
    return Config(HubSettings(data_dir=str(tmp_path), grace_seconds=0), turns=turns)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    opened = os.open(path, os.O_RDWR)
    yield path
    os.close(opened)


def release(fifo: Path) -> None:
    """Let all waiting brains continue."""
    opened = os.open(fifo, os.O_RDWR)
    os.write(opened, b"." * 1000)


@contextlib.asynccontextmanager
async def opened(config: Config, fifo: Path) -> AsyncIterator[HubState]:
    hub = HubState(config)
    await hub.open()
    try:
        yield hub
    finally:
        # Else a test that has failed would never end.
        release(fifo)
        await hub.close()


async def say(hub: HubState, text: str, session: str = "s") -> str:
    message = UserMessage(content=text, principal="ada", session_key=session)
    return (await hub.turns.gateway.receive_message(message)).turn_id


async def running(hub: HubState, text: str, session: str = "s") -> str:
    """Return the id of a turn whose brain runs."""
    turn_id = await say(hub, text, session)

    async def is_running() -> str | None:
        return turn_id if (await hub.turns.read_turn("ada", turn_id)).turn.state == "processing" else None

    return await soon(is_running)


class Statements:
    """Records the statements that a database gets, in order."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.texts: list[str] = []
        sqlalchemy.event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement != "BEGIN":
            self.texts.append(statement)


async def read_stream(hub: HubState, turn_id: str) -> bytes:
    """Return a whole stream."""
    return b"".join([part async for part in events_of(hub.turns, hub.database, "ada", turn_id, None)])


def test_all_waiting_callers_share_one_read_of_their_turns(config: Config, fifo: Path) -> None:
    async def story() -> None:
        async with opened(config, fifo) as hub:
            turns = [await running(hub, f"hold {fifo}", f"{number}") for number in range(WAITERS // 2)]
            waiting = [asyncio.create_task(hub.turns.finished("ada", one, LONG_SECONDS)) for one in turns]
            streams = [asyncio.create_task(read_stream(hub, one)) for one in turns]
            statements = Statements(hub.database.engine)
            # They have begun when there is nothing left to see but how each of them stands.
            await soon(lambda: len(statements.texts) >= 10 and len(set(statements.texts[-10:])) == 1)
            statements.texts.clear()
            await soon(lambda: len(statements.texts) >= 5)
            idle = list(statements.texts)
            release(fifo)
            found = await asyncio.wait_for(asyncio.gather(*waiting), SECONDS_MAX)
            streamed = await asyncio.wait_for(asyncio.gather(*streams), SECONDS_MAX)

        assert {view.turn.state for view in found} == {"complete"}
        assert [b"event: done" in one for one in streamed] == [True] * len(turns)
        (statement,) = set(idle)
        assert "FROM turns WHERE id IN" in statement
        assert statement.count("?") == len(turns)
        assert "turn_messages" not in statement

    asyncio.run(story())


def test_waiting_callers_learn_what_happens_on_another_hub(config: Config, fifo: Path) -> None:
    async def story() -> None:
        async with opened(config, fifo) as one, opened(config, fifo) as other:
            turn_id = await say(one, f"say hello\nhold {fifo}")
            waiting = asyncio.create_task(other.turns.finished("ada", turn_id, LONG_SECONDS))
            stream = asyncio.create_task(read_stream(other, turn_id))
            # Another message supersedes the turn, so that the waiting caller has to follow.
            newer = await say(one, "more")
            release(fifo)
            view = await asyncio.wait_for(waiting, SECONDS_MAX)

            assert (view.turn.id, view.turn.state, len(view.messages)) == (newer, "complete", 2)
            assert b"event: superseded" in await asyncio.wait_for(stream, SECONDS_MAX)
            assert b"event: done" in await asyncio.wait_for(read_stream(other, newer), SECONDS_MAX)

    asyncio.run(story())


def test_a_woken_caller_does_not_share_an_earlier_read(config: Config, fifo: Path) -> None:
    """Otherwise it would see nothing new, and would not be woken again."""
    let_go = threading.Event()

    async def story() -> None:
        async with opened(config, fifo) as hub:
            turn_id = await running(hub, f"hold {fifo}")
            # Like another process, it is not notified of changes by the hub.
            reads = SharedReads()
            watches = Watches(hub.database, reads)
            with watches.watching(turn_id) as watch:
                assert await watch.wait(SECONDS_MAX), "how it stands is news at first"
                old = asyncio.create_task(reads.read("turn", lambda: let_go.wait(SECONDS_MAX) and "old"))
                await asyncio.sleep(0)
                release(fifo)
                assert await watch.wait(SECONDS_MAX)
                assert await reads.read("turn", lambda: "new") == "new"
            let_go.set()
            assert await old == "old"
            await watches.stop()

    asyncio.run(story())


def test_nothing_is_read_while_no_caller_waits(config: Config, fifo: Path) -> None:
    async def story() -> None:
        async with opened(config, fifo) as hub:
            watches = Watches(hub.database, SharedReads())
            with watches.watching("turn_none") as watch:
                assert await watch.wait(SECONDS_MAX), "that it is not there is news, too"
            await soon(lambda: watches.is_idle)
            with watches.watching("turn_none") as watch:
                assert await watch.wait(SECONDS_MAX)
            await watches.stop()

    asyncio.run(story())
