"""A beat has one response: a redelivery of its messages gets the first one, under any turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from tests.hub.turns.turn_harness import RecordingChannel, TurnHarness, opened

from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.beat_claims import BEAT_TTL_SECONDS
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.store.open import open_store
from onceward.testing import PinnedClock
from onceward.turns import Brain, Context, State, Turn


class CountingBrain:
    """A brain that gives a different answer in each run."""

    def __init__(self) -> None:
        self.runs = 0
        self.size = 1
        self.brain = Brain(self._run)

    async def _run(self, context: Context) -> str:
        self.runs += 1
        return f"{self.runs}: {context.text}" * self.size


def run_story(
    database: Database,
    url: str,
    story: Callable[[TurnHarness, CountingBrain, RecordingChannel, PinnedClock], Awaitable[None]],
) -> None:
    async def whole() -> None:
        clock, counting, channel = PinnedClock(), CountingBrain(), RecordingChannel()
        with closing(Ledger(open_store(url, clock=clock))) as ledger:
            async with opened(TurnHarness(database, ledger, counting.brain, adapter=channel)) as harness:
                await story(harness, counting, channel, clock)

    asyncio.run(whole())


async def send(harness: TurnHarness, content: str, message_id: str) -> str:
    received = await harness.say(content, message_id=message_id)
    assert received.status == "new"
    await harness.idle()
    return received.turn_id


def forget(harness: TurnHarness) -> None:
    """Make the database look like a restored backup, which does not contain the message any more."""
    harness.write("DELETE FROM turns")


def test_a_beat_redelivered_under_a_new_turn_gets_the_first_response_and_is_not_sent_again(
    database: Database, ledger_url: str
) -> None:
    async def story(
        harness: TurnHarness, counting: CountingBrain, channel: RecordingChannel, clock: PinnedClock
    ) -> None:
        first = await send(harness, "hello", "m")
        forget(harness)
        clock.advance(BEAT_TTL_SECONDS - 1)
        second = await send(harness, "hello", "m")

        turn = harness.turn(second)
        assert first != second
        assert (turn.state, turn.answer, turn.reason) == (State.COMPLETE, "1: hello", f"has the response of {first}")
        assert turn.delivered_at is not None
        assert counting.runs == 1
        assert channel.sent == [(first, "1: hello")]

    run_story(database, ledger_url, story)


def test_a_beat_is_remembered_for_its_retention_and_no_longer(database: Database) -> None:
    async def story(
        harness: TurnHarness, counting: CountingBrain, channel: RecordingChannel, clock: PinnedClock
    ) -> None:
        first = await send(harness, "hello", "m")
        forget(harness)
        clock.advance(BEAT_TTL_SECONDS)
        second = await send(harness, "hello", "m")

        assert counting.runs == 2
        assert channel.sent == [(first, "1: hello"), (second, "2: hello")]

    run_story(database, "memory:", story)


def test_an_answered_beat_with_other_words_does_not_get_its_response(database: Database) -> None:
    async def story(
        harness: TurnHarness, counting: CountingBrain, channel: RecordingChannel, _clock: PinnedClock
    ) -> None:
        await send(harness, "hello", "m")
        forget(harness)
        second = harness.turn(await send(harness, "goodbye", "m"))

        assert second.state is State.FAILED
        assert second.failure == "the message ids of this turn were used before, for messages with other contents"
        assert (counting.runs, len(channel.sent)) == (1, 1)

    run_story(database, "memory:", story)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_a_response_too_large_for_the_ledger_is_read_from_the_turn_that_gave_it(database: Database, kept: bool) -> None:
    async def story(
        harness: TurnHarness, counting: CountingBrain, channel: RecordingChannel, _clock: PinnedClock
    ) -> None:
        counting.size = 20_000
        first = await send(harness, "hello", "m")
        if kept:
            harness.write("UPDATE turn_messages SET message_id = 'another'")
        else:
            forget(harness)
        second = harness.turn(await send(harness, "hello", "m"))

        assert (counting.runs, len(channel.sent)) == (1, 1)
        if kept:
            assert (second.state, second.response) == (State.COMPLETE, harness.turn(first).response)
        else:
            assert (second.state, second.response) == (State.FAILED, None)

    run_story(database, "memory:", story)


def test_a_beat_whose_response_was_recorded_before_a_crash_is_still_answered(
    database: Database, ledger_url: str
) -> None:
    """The turn that delivers it later also settles it."""
    broken: list[str] = []

    async def break_off(name: str, _turn: Turn) -> None:
        if name == "responded" and not broken:
            broken.append(name)
            raise RuntimeError(name)

    async def whole() -> None:
        counting, channel = CountingBrain(), RecordingChannel()
        with open_ledger(ledger_url) as ledger:
            async with opened(
                TurnHarness(database, ledger, counting.brain, adapter=channel, step=break_off)
            ) as harness:
                await send(harness, "hello", "m")
                assert channel.sent == []
                await harness.sweep()
                forget(harness)
                second = await send(harness, "hello", "m")

                assert harness.turn(second).answer == "1: hello"
                assert (counting.runs, len(channel.sent)) == (1, 1)

    asyncio.run(whole())
