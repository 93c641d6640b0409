"""Limits of a message, a turn and the queue of a session. A refused message leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.hub.turns.intake.test_receive_duplicates import count
from tests.hub.turns.turn_harness import BlockingBrain, ManualClock, TurnHarness, decides, echo, opened

from onceward.errors import TooLarge, TooManyRequests
from onceward.hub.db.engine import Database, open_database
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Decision, Intake, Received, State, TurnGateway, UserMessage

SESSION = "s"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger("memory:") as ledger:
        yield ledger


def run_story(
    database: Database,
    ledger: Ledger,
    brain: Brain,
    story: Callable[[TurnHarness], Awaitable[None]],
    **limits: Any,
) -> None:
    async def whole() -> None:
        async with opened(TurnHarness(database, ledger, brain, ManualClock(), intake=Intake(**limits))) as harness:
            await story(harness)

    asyncio.run(whole())


def texts(harness: TurnHarness, received: Received) -> list[str]:
    return harness.message_texts(received.turn_id)


async def running(harness: TurnHarness, blocking: BlockingBrain, content: str = "one", **fields: Any) -> Received:
    """The first message of the session, whose turn runs."""
    first = await harness.say(content, session_key=SESSION, **fields)
    await blocking.began()
    return first


def test_the_size_of_a_message_includes_its_metadata(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        await harness.say("é" * 8)  # 16 bytes
        await harness.say("x" * 9, metadata={"a": 1})  # {"a":1} is 7 bytes
        for content, metadata in (("é" * 8 + "x", {}), ("x" * 10, {"a": 1}), ("x", {"a": "é" * 8})):
            with pytest.raises(
                TooLarge, match=r"at most 16 bytes of text and metadata per message .*max_message_bytes"
            ):
                await harness.say(content, metadata=metadata, idempotency_key="k")
        assert count(harness)[1] == 2
        assert (await harness.say("small", idempotency_key="k")).status == "new"

    run_story(database, ledger, Brain(echo), story, max_message_bytes=16)


def test_a_message_of_the_default_maximum_size_is_accepted(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        assert (await harness.say("x" * 256 * 1024)).status == "new"
        with pytest.raises(TooLarge):
            await harness.say("x" * (256 * 1024 + 1))

    run_story(database, ledger, Brain(echo), story)


@pytest.mark.parametrize("limits", [{"max_messages": 3}, {"max_bytes": 3}], ids=["messages", "bytes"])
def test_an_accumulating_turn_closes_when_it_is_full(
    database: Database, ledger: Ledger, limits: dict[str, int]
) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first, *others = [await harness.say(one, session_key=SESSION, channel="web") for one in "abcde"]

        assert [one.turn_id == first.turn_id for one in others] == [True, True, False, False]
        assert [(one.decision, one.reason) for one in others[2:]] == [(Decision.QUEUE, "turn_full"), (None, None)]
        queued = others[2]
        assert (harness.turn(queued.turn_id).reason, queued.turn_id) == ("turn_full", others[3].turn_id)
        assert (texts(harness, first), texts(harness, queued)) == (list("abc"), list("de"))
        # It is full, so it runs although the clock has not moved.
        assert (await blocking.began()).message_texts == list("abc")
        assert harness.turn(queued.turn_id).turn_group_id != first.turn.turn_group_id

    run_story(database, ledger, blocking.brain, story, **limits)


class WakeRecorder:
    """A runner that records which turns it is woken for."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    def wake(self, turn_id: str) -> None:
        self.turns.append(turn_id)

    def interrupt(self, turn_id: str) -> None:
        raise AssertionError(f"{turn_id} is interrupted")


def test_a_full_turn_is_woken_at_once_and_not_by_its_timer(database: Database) -> None:
    woken = WakeRecorder()
    gateway = TurnGateway(database, Brain(echo), woken, intake=Intake(max_messages=1), now=ManualClock())

    async def story() -> list[str]:
        messages = [UserMessage(content=one, channel="web") for one in "ab"]
        return [(await gateway.receive_message(one)).turn_id for one in messages]

    first, second = asyncio.run(story())
    assert woken.turns == [first, first, second]


@pytest.mark.parametrize("wanted", [None, *Decision])
def test_a_full_running_turn_takes_no_more_messages_whatever_was_decided(
    database: Database, ledger: Ledger, wanted: Decision | None
) -> None:
    blocking = BlockingBrain(decides(wanted))

    async def story(harness: TurnHarness) -> None:
        first = await running(harness, blocking, "abc")
        second = await harness.say("d", session_key=SESSION)

        assert (second.decision, second.reason, second.interrupted) == (Decision.QUEUE, "turn_full", None)
        assert (texts(harness, first), texts(harness, second)) == (["abc"], ["d"])
        assert harness.turn(first.turn_id).state is State.PROCESSING
        assert '"decision":"QUEUE","reason":"turn_full"' in harness.events()[-1].data

    run_story(database, ledger, blocking.brain, story, max_bytes=3)


@pytest.mark.parametrize("wanted", [Decision.SUPERSEDE, Decision.ABSORB])
def test_carried_over_messages_count_towards_the_limit(database: Database, ledger: Ledger, wanted: Decision) -> None:
    blocking = BlockingBrain(decides(wanted))

    async def story(harness: TurnHarness) -> None:
        await running(harness, blocking, "aa", metadata={"b": 1})
        second = await harness.say("c", session_key=SESSION)
        await blocking.began()
        # 2 + 7 + 1 bytes are stored; 3 more exceed the limit of 12 by one.
        third = await harness.say("ddd", session_key=SESSION)

        assert (second.decision, texts(harness, second)) == (wanted, ["aa", "c"])
        assert (third.decision, third.reason, texts(harness, third)) == (Decision.QUEUE, "turn_full", ["ddd"])
        assert texts(harness, second) == ["aa", "c"]

    run_story(database, ledger, blocking.brain, story, max_bytes=12)


def test_a_turn_takes_its_first_message_even_if_that_alone_fills_it(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("abcdef", session_key=SESSION, channel="web")
        second = await harness.say("g", session_key=SESSION, channel="web")

        assert (texts(harness, first), texts(harness, second), second.reason) == (["abcdef"], ["g"], "turn_full")

    run_story(database, ledger, Brain(echo), story, max_bytes=3)


@pytest.mark.parametrize("wanted", [Decision.QUEUE, Decision.FORCE_COMPLETE])
def test_a_session_queues_a_limited_number_and_the_next_one_is_told_to_retry(
    database: Database, ledger: Ledger, wanted: Decision
) -> None:
    blocking = BlockingBrain(decides(wanted))

    async def story(harness: TurnHarness) -> None:
        first = await running(harness, blocking)
        for content in "ab":
            await harness.say(content, session_key=SESSION)
        before = count(harness), harness.turn(first.turn_id)

        for _ in range(2):
            with pytest.raises(
                TooManyRequests, match=r"at most 2 queued turns per session .*, and 2 are waiting"
            ) as refused:
                await harness.say("c", session_key=SESSION, idempotency_key="k", message_id="m")
        assert refused.value.retry_after_seconds >= 1
        assert (count(harness), harness.turn(first.turn_id)) == before
        assert (await harness.say("a", session_key=SESSION)).duplicate_of is not None

        other = await harness.say("c", session_key="another", idempotency_key="k")
        assert other.status == "new"
        blocking.runs[0].answer.set_result("done")
        for _ in range(3):
            (await blocking.began()).answer.set_result("done")
        await harness.idle()
        assert (await harness.say("c", session_key=SESSION, message_id="m")).status == "new"

    run_story(database, ledger, blocking.brain, story, max_queued=2)


def test_a_full_turn_does_not_bypass_the_queue_limit(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("abc", session_key=SESSION, channel="web")
        with pytest.raises(TooManyRequests):
            await harness.say("d", session_key=SESSION, channel="web")

        # Nothing of it is left, also not that the first turn waits no more.
        assert harness.turn(first.turn_id) == first.turn
        assert count(harness) == (1, 1)

    run_story(database, ledger, blocking.brain, story, max_bytes=3, max_queued=0)


def test_a_retried_turn_waits_in_the_same_queue(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    blocking = BlockingBrain(decides(Decision.QUEUE))

    async def story(harness: TurnHarness) -> None:
        await harness.say("broken", session_key=SESSION, idempotency_key="k")
        (await blocking.began()).answer.set_exception(ValueError("not today"))
        await harness.idle()
        await running(harness, blocking, "runs")
        await harness.say("waits", session_key=SESSION)
        before = count(harness)

        with pytest.raises(TooManyRequests):
            await harness.say("broken", session_key=SESSION, idempotency_key="k")
        assert count(harness) == before

    async def whole() -> None:
        harness = TurnHarness(
            database, ledger, blocking.brain, ManualClock(), intake=Intake(max_queued=1), max_attempts=1
        )
        async with opened(harness):
            await story(harness)

    asyncio.run(whole())
    assert "not today" in caplog.text


def test_concurrent_processes_share_the_limits(database_url: str, database: Database, ledger: Ledger) -> None:
    """Two processes on one database; neither knows what the other receives."""
    blocking = BlockingBrain(decides(Decision.QUEUE))
    intake = Intake(max_messages=3, max_queued=2)

    async def story(second: Database) -> list[Received | BaseException]:
        one, other = (
            TurnHarness(at, ledger, blocking.brain, ManualClock(), intake=intake) for at in (database, second)
        )
        async with opened(one), opened(other):
            sending = [
                harness.say(f"{number} here", session_key=SESSION, channel="web")
                for number, harness in enumerate([one, other] * 8)
            ]
            found = await asyncio.gather(*sending, return_exceptions=True)
            sizes = one.rows("SELECT count(*) FROM turn_messages GROUP BY turn_id")
            assert sorted(size for (size,) in sizes) == [3, 3, 3]
        return found

    with closing(open_database(database_url)) as second:
        found = asyncio.run(story(second))
    assert [type(one) for one in found].count(Received) == 9
    assert [type(one) for one in found].count(TooManyRequests) == 7
