"""Requests that wait for a turn of their own process get it from the run that finished it, after its commit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.hub import scripted_brain
from tests.hub.turns.statement_trace import StatementTrace
from tests.waiting import SECONDS_MAX

from onceward.hub.chat.turn_view import TurnView
from onceward.hub.config.config import Config, HubSettings, TurnsSettings
from onceward.hub.state import HubState
from onceward.hub.turns.execution.repository import TurnRepository
from onceward.hub.turns.execution.responses import Finished, RunResponse
from onceward.hub.turns.model.turn import Turn
from onceward.turns import Received, UserMessage

# A sweep reads the database.
pytestmark = pytest.mark.usefixtures("no_sweep")

# How the reads begin of a waiter that is not given its turn: its state, the turn itself, its messages.
READS = ("SELECT state, superse", "SELECT turns.seq, turn", "SELECT seq, message_id")


@pytest.fixture
def config(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(scripted_brain, "OUTSIDE", tmp_path / "outside")
    shutil.copy(sqlite_template, tmp_path / "hub.db")
    turns = TurnsSettings(brain="tests.hub.scripted_brain:brain", max_attempts=1)
    return Config(HubSettings(data_dir=str(tmp_path), grace_seconds=0), turns=turns)


@contextlib.asynccontextmanager
async def opened(config: Config) -> AsyncIterator[HubState]:
    hub = HubState(config)
    await hub.open()
    try:
        yield hub
    finally:
        await hub.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def release(fifo: Path) -> None:
    opened = os.open(fifo, os.O_RDWR)
    os.write(opened, b".")


async def say(hub: HubState, text: str) -> Received:
    return await hub.turns.gateway.receive_message(UserMessage(content=text, principal="ada", session_key="s"))


async def chat(hub: HubState, text: str) -> TurnView:
    """Send a message and wait for its turn, as `/chat` with `Prefer: wait` does."""
    received = await say(hub, text)
    return await hub.turns.finished("ada", received.turn_id, SECONDS_MAX, received.turn)


@pytest.mark.parametrize("text", ["hello", "say something\nhello", "refund 12345", "fail"])
def test_a_waiter_gets_the_turn_as_it_is_stored(config: Config, tmp_path: Path, text: str) -> None:
    (tmp_path / "broken").touch()

    async def story() -> None:
        async with opened(config) as hub:
            view = await chat(hub, text)
            stored = await hub.turns.read_turn("ada", view.turn.id)

        assert view.is_over
        assert view.turn == stored.turn
        assert list(view.messages) == stored.messages
        assert list(view.tools) == stored.tools
        assert view.chat_response() == stored.chat_response()

    asyncio.run(story())


def test_a_waiter_for_a_turn_of_this_process_reads_nothing(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as hub:
            trace = StatementTrace(hub.database)
            await chat(hub, "open the connections")
            trace.clear()
            view = await chat(hub, "hello")

            assert view.turn.answer == "answered: hello"
            assert not [one for one in trace.statements if one.startswith(READS)]
            await hub.turns.finished("ada", view.turn.id, SECONDS_MAX)
            assert len({one[:20] for one in trace.statements if one.startswith(READS)}) == len(READS)

    asyncio.run(story())


def test_all_who_wait_for_one_turn_get_it(config: Config, fifo: Path) -> None:
    async def story() -> None:
        async with opened(config) as hub:
            received = await say(hub, f"hold {fifo}")
            waiting = [
                asyncio.create_task(hub.turns.finished("ada", received.turn_id, SECONDS_MAX, known))
                for known in (received.turn, None, None)
            ]
            await asyncio.sleep(0)
            release(fifo)
            views = await asyncio.wait_for(asyncio.gather(*waiting), SECONDS_MAX)

        assert {view.turn.answer for view in views} == {"answered: "}
        assert {view.turn.id for view in views} == {received.turn_id}

    asyncio.run(story())


def test_a_waiter_that_comes_after_the_end_reads_the_turn(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as hub:
            first = await chat(hub, "hello")
            assert await hub.turns.finished("ada", first.turn.id, SECONDS_MAX) == await hub.turns.read_turn(
                "ada", first.turn.id
            )

    asyncio.run(story())


def test_a_waiter_follows_a_turn_that_was_superseded_here(config: Config, fifo: Path) -> None:
    async def story() -> None:
        async with opened(config) as hub:
            received = await say(hub, f"hold {fifo}")
            waiting = asyncio.create_task(hub.turns.finished("ada", received.turn_id, SECONDS_MAX, received.turn))
            await asyncio.sleep(0)
            newer = await say(hub, "more")
            release(fifo)
            release(fifo)
            view = await asyncio.wait_for(waiting, SECONDS_MAX)

        assert (view.turn.id, len(view.messages)) == (newer.turn_id, 2)

    asyncio.run(story())


async def wait_for_a_response_that_is_not_committed(
    config: Config, fifo: Path, monkeypatch: pytest.MonkeyPatch, *, planted_bug: bool
) -> None:
    """Check that no waiter gets a response before its commit, because the process could still die before it."""
    respond, responding = TurnRepository.respond, asyncio.Event()

    async def noted(self: TurnRepository, turn: Turn, response: str, reason: str | None = None) -> Finished | None:
        if planted_bug:
            early = RunResponse(turn, response, reason, turn.updated_at, delivered=True).finished(False, 0, None, None)
            hub.turns._hand_over(early.turn, ())
        responding.set()
        return await respond(self, turn, response, reason)

    monkeypatch.setattr(TurnRepository, "respond", noted)
    async with opened(config) as hub:
        received = await say(hub, f"hold {fifo}")
        waiting = asyncio.create_task(hub.turns.finished("ada", received.turn_id, SECONDS_MAX, received.turn))
        with contextlib.closing(sqlite3.connect(f"{config.hub.data_dir}/hub.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            release(fifo)
            await asyncio.wait_for(responding.wait(), SECONDS_MAX)
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            other.execute("ROLLBACK")
        assert not done, "the response was handed over before its commit"
        assert (await asyncio.wait_for(waiting, SECONDS_MAX)).turn.answer == "answered: "


def test_a_response_is_handed_over_after_its_commit(
    config: Config, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(wait_for_a_response_that_is_not_committed(config, fifo, monkeypatch, planted_bug=False))


def test_a_response_that_is_handed_over_before_its_commit_is_noticed(
    config: Config, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="before its commit"):
        asyncio.run(wait_for_a_response_that_is_not_committed(config, fifo, monkeypatch, planted_bug=True))
