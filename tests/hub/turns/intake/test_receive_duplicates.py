"""Known messages: found by id, key or content. Each is stored once, and answered by the turn that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.hub.turns.turn_harness import BlockingBrain, ManualClock, TurnHarness, echo, opened

from onceward.hub.db.engine import Database
from onceward.hub.turns.intake.receive import API_TTL_SECONDS, CONTENT_WINDOW_SECONDS
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Context, Decision, Intake, Received, State


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("memory:")


def run_story(database: Database, ledger: Ledger, story: Callable[[TurnHarness], Awaitable[None]], brain: Brain | None = None,
         intake: Intake | None = None) -> None:  # fmt: skip
    async def whole() -> None:
        with ledger:
            async with opened(
                TurnHarness(database, ledger, brain or Brain(echo), ManualClock(), intake=intake)
            ) as harness:
                await story(harness)

    asyncio.run(whole())


def count(harness: TurnHarness) -> tuple[int, int]:
    """Return the number of turns and messages."""
    ((turns,),) = harness.rows("SELECT count(*) FROM turns")
    ((messages,),) = harness.rows("SELECT count(*) FROM turn_messages")
    return turns, messages


def test_a_used_key_gives_its_turn_while_it_runs_and_the_response_afterwards(
    database: Database, ledger: Ledger
) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", idempotency_key="k")
        run = await blocking.began()
        during = await harness.say("hello", idempotency_key="k")
        run.answer.set_result("done")
        await harness.idle()
        after = await harness.say("hello", idempotency_key="k")

        assert (first.status, first.duplicate_of) == ("new", None)
        assert (during.status, during.turn_id, during.duplicate_of) == ("processing", first.turn_id, first.turn_id)
        assert (after.status, after.turn_id, after.turn.answer) == ("complete", first.turn_id, "done")
        assert count(harness) == (1, 1)
        assert len(harness.events()) == 2

    run_story(database, ledger, story, blocking.brain)


def test_another_message_under_a_used_key_is_a_mismatch_and_stores_nothing(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        await harness.say("hello", idempotency_key="k")
        other = await harness.say("goodbye", idempotency_key="k")
        await harness.idle()
        later = await harness.say("hello", idempotency_key="k", message_id="m")

        assert [other.status, later.status] == ["mismatch", "mismatch"]
        assert count(harness) == (1, 1)

    run_story(database, ledger, story)


def test_a_key_may_be_reused_after_its_retention(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", idempotency_key="k")
        run = await blocking.began()
        harness.now.advance(API_TTL_SECONDS * 10)
        assert (await harness.say("hello", idempotency_key="k")).status == "processing"
        run.answer.set_result("1")
        await harness.idle()
        harness.now.advance(API_TTL_SECONDS - 0.001)
        assert (await harness.say("hello", idempotency_key="k")).status == "complete"
        assert (await harness.say("goodbye", idempotency_key="k")).status == "mismatch"
        harness.now.advance(0.001)
        second = await harness.say("goodbye", idempotency_key="k")
        (await blocking.began()).answer.set_result("2")
        await harness.idle()

        assert second.status == "new"
        assert second.turn_id != first.turn_id
        assert (await harness.say("goodbye", idempotency_key="k")).turn_id == second.turn_id
        assert (await harness.say("hello", idempotency_key="k")).status == "mismatch"
        assert count(harness) == (2, 2)

    run_story(database, ledger, story, blocking.brain)


def test_a_message_id_is_known_forever_with_any_other_fields(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", message_id="m", idempotency_key="k")
        await harness.idle()
        harness.now.advance(API_TTL_SECONDS * 1000)
        again = [
            await harness.say("hello", message_id="m"),
            await harness.say("hello", message_id="m", idempotency_key="k"),
            await harness.say("something else", message_id="m"),
            await harness.say("hello", message_id="m", idempotency_key="new"),
        ]

        assert [(one.status, one.turn_id) for one in again] == [("complete", first.turn_id)] * 4
        assert count(harness) == (1, 1)
        # Nothing was taken from the first one for it.
        assert harness.rows("SELECT idempotency_key FROM turn_messages") == [("k",)]

    run_story(database, ledger, story)


def test_the_same_message_id_in_another_session_is_another_message(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", message_id="m", session_key="1")
        second = await harness.say("hello", message_id="m", session_key="2")
        third = await harness.say("hello", message_id="m", session_key="1", tenant_id="other")
        fourth = await harness.say("hello", message_id="m", session_key="1", principal="other", tenant_id="local")
        await harness.idle()

        assert len({one.turn_id for one in (first, second, third, fourth)}) == 4

    run_story(database, ledger, story)


def test_a_key_is_valid_in_every_session_of_its_tenant_and_in_no_other(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        await harness.say("hello", idempotency_key="k", session_key="1")
        assert (await harness.say("hello", idempotency_key="k", session_key="2")).status == "mismatch"
        assert (await harness.say("hello", idempotency_key="k", tenant_id="other")).status == "new"
        assert (await harness.say("hello", idempotency_key="k", principal="other", tenant_id="local")).status == "new"
        await harness.idle()

    run_story(database, ledger, story)


def test_the_same_words_without_a_key_are_a_duplicate_for_exactly_the_window(
    database: Database, ledger: Ledger
) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello")
        await harness.idle()
        harness.now.advance(CONTENT_WINDOW_SECONDS - 0.001)
        inside = await harness.say("hello")
        harness.now.advance(0.001)
        outside = await harness.say("hello")
        await harness.idle()

        assert (inside.status, inside.duplicate_of) == ("complete", first.turn_id)
        assert (outside.status, outside.duplicate_of) == ("new", None)

    run_story(database, ledger, story)


def test_words_are_the_same_only_from_the_same_customer_in_the_same_session_without_an_id(
    database: Database, ledger: Ledger
) -> None:
    async def story(harness: TurnHarness) -> None:
        await harness.say("hello", session_key="s")
        await harness.idle()
        others = [
            await harness.say("hello", session_key="s", customer_id="c"),
            await harness.say("hello", session_key="t"),
            await harness.say("hello!", session_key="s"),
            await harness.say("hello", session_key="s", message_id="new"),
            await harness.say("hello", session_key="s", idempotency_key="new"),
        ]
        await harness.idle()

        assert [one.status for one in others] == ["new"] * 5

    run_story(database, ledger, story)


@pytest.mark.parametrize(
    "intake", [Intake(checks=False), Intake(auto_generate_keys=False)], ids=["no checks", "no keys of our own"]
)
def test_a_message_that_opts_out_of_the_check_is_not_checked(
    database: Database, ledger: Ledger, intake: Intake
) -> None:
    async def story(harness: TurnHarness) -> None:
        words = [await harness.say("hello") for _ in range(2)]
        keyed = [await harness.say("one", idempotency_key="k"), await harness.say("two", idempotency_key="k")]
        named = [await harness.say("hello", message_id="m") for _ in range(2)]
        await harness.idle()

        assert [one.status for one in words] == ["new", "new"]
        assert keyed[1].status == ("mismatch" if intake.checks else "new")
        assert named[1].duplicate_of == named[0].turn_id

    run_story(database, ledger, story, intake=intake)


def test_the_key_of_a_superseded_turn_gives_the_turn_that_replaced_it(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("refund my order", idempotency_key="1")
        await blocking.began()
        second = await harness.say("order 12345", idempotency_key="2")
        run = await blocking.began()
        during = await harness.say("refund my order", idempotency_key="1")
        run.answer.set_result("refunded")
        await harness.idle()
        after = await harness.say("refund my order", idempotency_key="1")

        assert second.decision is Decision.SUPERSEDE
        assert (during.status, during.turn_id) == ("processing", second.turn_id)
        assert (after.status, after.turn_id, after.turn.answer) == ("complete", second.turn_id, "refunded")
        assert harness.turn(first.turn_id).superseded_by == second.turn_id

    run_story(database, ledger, story, blocking.brain)


async def _fails_first(context: Context) -> str:
    if context.turn.reason is None:
        raise RuntimeError("not today")
    return context.text


@pytest.mark.parametrize("how", ["key", "message id", "words"])
def test_a_failed_turn_frees_its_key_and_the_retry_keeps_the_group(
    database: Database, ledger: Ledger, how: str
) -> None:
    fields = {"key": {"idempotency_key": "k"}, "message id": {"message_id": "m"}, "words": {}}[how]

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", channel="web", **fields)
        harness.now.advance(1)
        harness.runner.wake(first.turn_id)
        await harness.idle()
        failed = harness.turn(first.turn_id)
        assert (failed.state, failed.failures, failed.failure) == (State.FAILED, 3, "RuntimeError: not today")
        again = await harness.say("hello", channel="web", **fields)
        await harness.idle()
        done = harness.turn(again.turn_id)

        assert again.status == "new"
        assert again.turn_id != first.turn_id
        assert (done.state, done.answer, done.turn_group_id) == (State.COMPLETE, "hello", failed.turn_group_id)
        assert harness.turn(first.turn_id).superseded_by == again.turn_id
        assert count(harness) == (2, 1)
        assert (await harness.say("hello", channel="web", **fields)).duplicate_of == again.turn_id

    run_story(database, ledger, story, Brain(_fails_first))


def test_the_key_of_a_failed_turn_is_free_for_another_message(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("hello", idempotency_key="k")
        await harness.idle()
        other = await harness.say("goodbye", idempotency_key="k")
        await harness.idle()

        assert other.status == "new"
        assert harness.turn(first.turn_id).turn_group_id != other.turn.turn_group_id

    run_story(database, ledger, story, Brain(_fails_first))


def test_concurrent_duplicates_are_stored_once(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        kinds: tuple[dict[str, str], ...] = ({"idempotency_key": "k"}, {"message_id": "m"}, {})
        for number, fields in enumerate(kinds):
            answers: list[Received] = await asyncio.gather(
                *(harness.say("hello", session_key=f"{number}", **fields) for _ in range(8))
            )
            (await blocking.began()).answer.set_result("done")

            assert sorted(one.status for one in answers) == ["new", *["processing"] * 7]
            assert len({one.turn_id for one in answers}) == 1
        assert count(harness) == (3, 3)

    run_story(database, ledger, story, blocking.brain)


def test_one_key_sent_concurrently_in_many_sessions_is_stored_once(database: Database, ledger: Ledger) -> None:
    """Sessions do not wait for each other: the index on keys refuses all but one, and the others read again."""
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        answers = await asyncio.gather(
            *(
                harness.say("hello", session_key=f"{number}", idempotency_key="k", fingerprint="f")
                for number in range(8)
            )
        )
        (await blocking.began()).answer.set_result("done")

        assert sorted(one.status for one in answers) == ["new", *["processing"] * 7]
        assert count(harness) == (1, 1)

    run_story(database, ledger, story, blocking.brain)
