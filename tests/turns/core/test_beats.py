"""A beat has one answer: whoever delivers its messages again gets the first one, under whatever turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from tests.turns.core.house import House, Post, opened

from onceward.db.engine import Database
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.store.open import open_store
from onceward.testing import PinnedClock
from onceward.turns import Brain, Context, State, Turn
from onceward.turns.held import BEAT_TTL_SECONDS


class Counting:
    """A brain that never says the same thing twice."""

    def __init__(self) -> None:
        self.runs = 0
        self.size = 1
        self.brain = Brain(self._run)

    async def _run(self, context: Context) -> str:
        self.runs += 1
        return f"{self.runs}: {context.text}" * self.size


def told(database: Database, url: str, story: Callable[[House, Counting, Post, PinnedClock], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock, counting, post = PinnedClock(), Counting(), Post()
        with closing(Ledger(open_store(url, clock=clock))) as ledger:
            async with opened(House(database, ledger, counting.brain, adapter=post)) as house:
                await story(house, counting, post, clock)

    asyncio.run(whole())


async def said(house: House, content: str, message_id: str) -> str:
    received = await house.say(content, message_id=message_id)
    assert received.status == "new"
    await house.idle()
    return received.turn_id


def forget(house: House) -> None:
    """What a database is like that was brought back from a copy: it does not know the message any more."""
    house.write("DELETE FROM turns")


def test_a_beat_that_is_delivered_again_under_a_new_turn_gets_the_first_response_and_is_not_sent_again(
    database: Database, ledger_url: str
) -> None:
    async def story(house: House, counting: Counting, post: Post, clock: PinnedClock) -> None:
        first = await said(house, "hello", "m")
        forget(house)
        clock.advance(BEAT_TTL_SECONDS - 1)
        second = await said(house, "hello", "m")

        turn = house.turn(second)
        assert first != second
        assert (turn.state, turn.answer, turn.reason) == (State.COMPLETE, "1: hello", f"answered as {first}")
        assert turn.delivered_at is not None
        assert counting.runs == 1
        assert post.sent == [(first, "1: hello")]

    told(database, ledger_url, story)


def test_a_beat_is_remembered_for_its_time_and_no_longer(database: Database) -> None:
    async def story(house: House, counting: Counting, post: Post, clock: PinnedClock) -> None:
        first = await said(house, "hello", "m")
        forget(house)
        clock.advance(BEAT_TTL_SECONDS)
        second = await said(house, "hello", "m")

        assert counting.runs == 2
        assert post.sent == [(first, "1: hello"), (second, "2: hello")]

    told(database, "memory:", story)


def test_the_ids_of_an_answered_beat_with_other_words_are_not_answered_with_its_response(database: Database) -> None:
    async def story(house: House, counting: Counting, post: Post, _clock: PinnedClock) -> None:
        await said(house, "hello", "m")
        forget(house)
        second = house.turn(await said(house, "goodbye", "m"))

        assert second.state is State.FAILED
        assert "said something else" in (second.failure or "")
        assert (counting.runs, len(post.sent)) == (1, 1)

    told(database, "memory:", story)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_a_response_too_large_for_the_ledger_is_read_from_the_turn_that_gave_it(database: Database, kept: bool) -> None:
    async def story(house: House, counting: Counting, post: Post, _clock: PinnedClock) -> None:
        counting.size = 20_000
        first = await said(house, "hello", "m")
        if kept:
            house.write("UPDATE turn_messages SET message_id = 'another'")
        else:
            forget(house)
        second = house.turn(await said(house, "hello", "m"))

        assert (counting.runs, len(post.sent)) == (1, 1)
        if kept:
            assert (second.state, second.response) == (State.COMPLETE, house.turn(first).response)
        else:
            assert (second.state, second.response) == (State.FAILED, None)

    told(database, "memory:", story)


def test_a_beat_whose_answer_was_recorded_before_a_crash_is_answered_all_the_same(
    database: Database, ledger_url: str
) -> None:
    """Whoever delivers it afterwards also settles it."""
    broken: list[str] = []

    async def break_off(name: str, _turn: Turn) -> None:
        if name == "responded" and not broken:
            broken.append(name)
            raise RuntimeError(name)

    async def whole() -> None:
        counting, post = Counting(), Post()
        with open_ledger(ledger_url) as ledger:
            async with opened(House(database, ledger, counting.brain, adapter=post, step=break_off)) as house:
                await said(house, "hello", "m")
                assert post.sent == []
                await house.sweep()
                forget(house)
                second = await said(house, "hello", "m")

                assert house.turn(second).answer == "1: hello"
                assert (counting.runs, len(post.sent)) == (1, 1)

    asyncio.run(whole())
