"""A run that breaks off after any step: no message is lost, there is one response, and it is delivered once.

In three ways: an exception, a run that stands still until others have gone on without it, and a process that is killed.
And for turns that were started after they had waited, and for those that were stored as started.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.fork_server import ForkServer
from tests.hub.turns.turn_harness import RecordingChannel, TurnHarness, echo, opened
from tests.hub.turns.turn_process import ANSWER, WAYS, FileChannel, killed_after, say_all
from tests.waiting import SECONDS_MAX, soon

from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.beat_claims import LEASE_SECONDS
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.store.open import open_store
from onceward.testing import PinnedClock
from onceward.turns import Brain, State, Turn

STEPS = ("started", "claimed", "undone", "answered", "responded", "sent", "delivered", "settled")
UNFINISHED = "SELECT 1 FROM turns WHERE state <> 'complete' OR delivered_at IS NULL"


class Broken(Exception):
    pass


class Interruption:
    """Interrupts a run when it first reaches the step: by an exception, or by freezing it."""

    def __init__(self, name: str, *, frozen: bool) -> None:
        self._name = name
        self._frozen = frozen
        self.reached = asyncio.Event()
        self.thaw = asyncio.Event()

    async def __call__(self, name: str, _turn: Turn) -> None:
        if name != self._name or self.reached.is_set():
            return
        self.reached.set()
        if not self._frozen:
            raise Broken(name)
        await self.thaw.wait()


def check(harness: TurnHarness, turn_id: str, channel: RecordingChannel | FileChannel, step: str, way: str) -> None:
    turn = harness.turn(turn_id)
    assert (turn.state, turn.answer) == (State.COMPLETE, ANSWER), step
    assert harness.message_texts(turn_id) == list(WAYS[way]), step
    assert [sent for sent in channel.sent if sent[0] == turn_id] == [(turn_id, ANSWER)], step
    assert turn.delivered_at is not None, step
    completed = [event for event in harness.events() if event.name == "turn.completed"]
    assert [event.entity_id for event in completed].count(turn_id) == 1, step


def test_an_exception_after_any_step_loses_nothing_and_sends_nothing_twice(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(step: str, way: str) -> None:
        channel = RecordingChannel()
        breaking = Interruption(step, frozen=False)
        async with opened(TurnHarness(database, ledger, Brain(echo), adapter=channel, step=breaking)) as harness:
            turn_id = await say_all(harness, step, way)
            harness.runner.wake(turn_id)
            await harness.idle()
            assert breaking.reached.is_set(), step
            await harness.sweep()

            check(harness, turn_id, channel, step, way)

    for step, way in itertools.product(STEPS, WAYS):
        asyncio.run(story(step, way))
    assert "Broken" in caplog.text


def test_a_run_that_stalled_after_any_step_can_do_nothing_once_another_has_continued(
    database: Database, ledger_url: str
) -> None:
    """Its lease lapses, another process takes over, and then it continues."""
    clock = PinnedClock()

    async def story(step: str, way: str, ledger: Ledger) -> None:
        channel, breaking = RecordingChannel(), Interruption(step, frozen=True)
        first = TurnHarness(database, ledger, Brain(echo), adapter=channel, step=breaking)
        second = TurnHarness(database, ledger, Brain(echo), first.now, adapter=channel)
        async with opened(first), opened(second):
            turn_id = await say_all(first, step, way)
            first.runner.wake(turn_id)
            await asyncio.wait_for(breaking.reached.wait(), SECONDS_MAX)
            if step != "started":
                # While its lease lasts, no other process takes it over.
                before = first.turn(turn_id)
                await second.sweep()
                assert first.turn(turn_id) == before, step
            clock.advance(LEASE_SECONDS + 1)
            await second.sweep()
            check(second, turn_id, channel, step, way)
            breaking.thaw.set()
            await first.idle()

            check(first, turn_id, channel, step, way)

    with closing(Ledger(open_store(ledger_url, clock=clock))) as ledger:
        for step, way in itertools.product(STEPS, WAYS):
            asyncio.run(story(step, way, ledger))


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer("tests.hub.turns.turn_process")) as fork_server:
        yield fork_server


def test_a_process_killed_after_any_step_loses_nothing_and_sends_nothing_twice(
    database: Database, database_url: str, durable_url: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    """The next process proves at once that it is dead."""
    channel = FileChannel(tmp_path / "post")
    places = list(itertools.product(("acknowledged", *STEPS), WAYS))
    turns = {one: killed_after(fork_server, *one, database_url, durable_url, tmp_path / "post") for one in places}

    async def resume() -> None:
        with open_ledger(durable_url) as ledger:
            harness = TurnHarness(database, ledger, Brain(echo), adapter=channel)
            harness.now.advance(60)
            async with opened(harness):
                await harness.runner.start()
                await soon(lambda: not harness.rows(UNFINISHED) or None, "something stays unfinished")
                await harness.idle()
                for (step, way), turn_id in turns.items():
                    check(harness, turn_id, channel, step, way)

    asyncio.run(resume())
    assert len(set(turns.values())) == len(places)
