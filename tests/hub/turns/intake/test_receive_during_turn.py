"""A message that arrives during a turn of its session: each decision, at each step."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.hub.turns.turn_harness import BlockedRun, BlockingBrain, ManualClock, TurnHarness, decides, echo, opened
from tests.waiting import SECONDS_MAX

from onceward.errors import Superseded
from onceward.hub.db.engine import Database
from onceward.hub.turns.model import transitions
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox
from onceward.turns import Brain, Decision, Intake, Received, State

SUPERSEDE, ABSORB, QUEUE, FORCE = Decision.SUPERSEDE, Decision.ABSORB, Decision.QUEUE, Decision.FORCE_COMPLETE


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("memory:")


def run_story(
    database: Database,
    ledger: Ledger,
    blocking: BlockingBrain,
    story: Callable[[TurnHarness], Awaitable[None]],
    **options: Any,
) -> None:
    async def whole() -> None:
        with ledger:
            async with opened(TurnHarness(database, ledger, blocking.brain, ManualClock(), **options)) as harness:
                await story(harness)

    asyncio.run(whole())


def fire(harness: TurnHarness, run: BlockedRun, *, irreversible: bool) -> bool:
    """Begin an effect as a tool does."""
    with harness.database.write() as tx:
        return transitions.fire(tx, run.turn.id, run.turn.epoch, irreversible=irreversible, now="now")


async def complete(blocking: BlockingBrain, response: str) -> None:
    (await blocking.began()).answer.set_result(response)


def test_superseding_starts_a_new_turn_of_the_same_group_with_all_messages(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("one")
        run = await blocking.began()
        second = await harness.say("two")
        third_run = await blocking.began()
        third = await harness.say("three")
        last = await blocking.began()
        last.answer.set_result("all")
        await harness.idle()

        assert [second.decision, third.decision] == [SUPERSEDE, SUPERSEDE]
        assert run.cancelled.is_set()
        assert third_run.cancelled.is_set()
        assert last.message_texts == ["one", "two", "three"]
        turns = [harness.turn(one.turn_id) for one in (first, second, third)]
        assert [turn.state for turn in turns] == [State.SUPERSEDED, State.SUPERSEDED, State.COMPLETE]
        assert [turn.superseded_by for turn in turns] == [second.turn_id, third.turn_id, None]
        assert len({turn.turn_group_id for turn in turns}) == 1
        # Each begins behind the one whose place it took.
        assert [turn.epoch for turn in turns] == [2, 3, 3]
        assert turns[0].response is None
        assert [event.name for event in harness.events()].count("turn.completed") == 1

    run_story(database, ledger, blocking, story)


def test_absorbing_restarts_the_same_turn_with_all_messages(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain(decides(ABSORB))

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("one")
        run = await blocking.began()
        second = await harness.say("two")
        again = await blocking.began()
        again.answer.set_result("both")
        await harness.idle()

        assert second.decision is ABSORB
        assert second.turn_id == first.turn_id
        assert run.cancelled.is_set()
        assert again.message_texts == ["one", "two"]
        turn = harness.turn(first.turn_id)
        assert (turn.state, turn.answer, turn.epoch, turn.attempts) == (State.COMPLETE, "both", 2, 2)
        assert turn.turn_group_id == first.turn.turn_group_id

    run_story(database, ledger, blocking, story)


def test_queued_messages_wait_in_turns_of_their_own_and_are_answered_in_order(
    database: Database, ledger: Ledger
) -> None:
    blocking = BlockingBrain(decides(QUEUE))

    async def story(harness: TurnHarness) -> None:
        received = [await harness.say(word) for word in ("one", "two", "three", "four")]
        first = await blocking.began()
        assert len(blocking.runs) == 1
        first.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(blocking, str(number))
        await harness.idle()

        assert [one.decision for one in received] == [None, QUEUE, QUEUE, QUEUE]
        assert [run.message_texts for run in blocking.runs] == [["one"], ["two"], ["three"], ["four"]]
        turns = [harness.turn(one.turn_id) for one in received]
        assert [turn.answer for turn in turns] == ["1", "2", "3", "4"]
        assert len({turn.turn_group_id for turn in turns}) == 4
        completed = [event.entity_id for event in harness.events() if event.name == "turn.completed"]
        assert completed == [turn.id for turn in turns]

    run_story(database, ledger, blocking, story)


def test_a_turn_forced_to_complete_is_not_superseded_any_more_and_the_message_waits(
    database: Database, ledger: Ledger
) -> None:
    wanted = iter([FORCE, SUPERSEDE, ABSORB])
    blocking = BlockingBrain(lambda *_: next(wanted))

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("one")
        run = await blocking.began()
        second = await harness.say("two")
        assert (harness.turn(first.turn_id).state, harness.turn(first.turn_id).commit_point) == (State.COMMITTING, True)
        third = await harness.say("three")
        fourth = await harness.say("four")
        assert not run.cancelled.is_set()
        run.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(blocking, str(number))
        await harness.idle()

        assert [one.decision for one in (second, third, fourth)] == [FORCE, QUEUE, QUEUE]
        assert third.reason == "SUPERSEDE became QUEUE: the running turn has reached its commit point"
        assert harness.turn(third.turn_id).reason == third.reason
        assert [harness.turn(one.turn_id).answer for one in (first, second, third, fourth)] == ["1", "2", "3", "4"]

    run_story(database, ledger, blocking, story)


@pytest.mark.parametrize("wanted", [None, SUPERSEDE, ABSORB], ids=str)
def test_after_the_commit_point_the_message_is_queued_and_the_reason_is_recorded(
    database: Database, ledger: Ledger, wanted: Decision | None
) -> None:
    blocking = BlockingBrain(None if wanted is None else decides(wanted))

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("one")
        run = await blocking.began()
        assert fire(harness, run, irreversible=True)
        second = await harness.say("two")
        run.answer.set_result("1")
        await complete(blocking, "2")
        await harness.idle()

        assert second.decision is QUEUE
        assert "commit point" in (second.reason or "")
        assert harness.turn(second.turn_id).reason == second.reason
        (event,) = [event for event in harness.events() if event.entity_id == second.turn_id][:1]
        assert json.loads(event.data)["reason"] == second.reason
        assert [harness.turn(one.turn_id).answer for one in (first, second)] == ["1", "2"]
        assert second.turn.turn_group_id != first.turn.turn_group_id

    run_story(database, ledger, blocking, story)


def test_after_a_side_effect_the_default_is_to_queue_and_a_brain_may_still_supersede(
    database: Database, ledger: Ledger
) -> None:
    wanted: list[Decision | None] = [None]
    blocking = BlockingBrain(lambda *_: wanted[0])

    async def story(harness: TurnHarness) -> None:
        for number, (preference, decision) in enumerate([(None, QUEUE), (SUPERSEDE, SUPERSEDE), (ABSORB, ABSORB)]):
            wanted[0] = preference
            await harness.say("one", session_key=f"{number}")
            run = await blocking.began()
            assert fire(harness, run, irreversible=False)
            second = await harness.say("two", session_key=f"{number}")

            assert second.decision is decision
            if decision is QUEUE:
                assert second.reason == "the running turn has executed a side effect"
                run.answer.set_result("1")
            await complete(blocking, "2")
            await harness.idle()

    run_story(database, ledger, blocking, story)


@pytest.mark.parametrize("decision", [SUPERSEDE, ABSORB], ids=str)
def test_a_superseded_run_can_neither_start_effects_nor_stream_nor_respond(
    database: Database, ledger: Ledger, decision: Decision
) -> None:
    """Even if it ignores its cancellation."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    refused: list[str] = []
    happened: list[str] = []
    notified: list[str] = []

    @tool(effect="irreversible")
    def refund(order: str) -> None:
        happened.append(order)

    async def stubborn(run: BlockedRun) -> str:
        if run.message_texts != ["one"]:
            return "both"
        reached.set()
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        for name, act in (("say", run.context.say("too late")), ("call", run.context.call("refund", order="7"))):
            try:
                await act
            except Superseded:
                refused.append(name)
        return "only the first"

    blocking = BlockingBrain(decides(decision), act=stubborn, toolbox=Toolbox([refund]))

    async def story(harness: TurnHarness) -> None:
        first = await harness.say("one")
        await asyncio.wait_for(reached.wait(), SECONDS_MAX)
        second = await harness.say("two")
        assert second.decision is decision
        go_on.set()
        await harness.idle()

        turn = harness.turn(second.turn_id)
        assert (turn.state, turn.answer, turn.commit_point) == (State.COMPLETE, "both", False)
        assert harness.rows("SELECT 1 FROM turn_chunks UNION ALL SELECT 1 FROM turn_tools") == []
        assert (harness.turn(first.turn_id).response is None) == (decision is SUPERSEDE)
        # Of what the first run tried there was nothing to see.
        assert notified == [second.turn_id]

    run_story(database, ledger, blocking, story, told=notified.append)
    assert refused == ["say", "call"]
    assert happened == []


def test_a_run_that_does_not_know_that_it_is_superseded_learns_it_when_it_responds(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has superseded it, and no sweep ran in between."""
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        elsewhere = TurnHarness(database, ledger, Brain(echo), harness.now)
        async with opened(elsewhere):
            first = await harness.say("one")
            run = await blocking.began()
            second = await elsewhere.say("two")
            run.answer.set_result("only the first")
            await harness.idle()
            await elsewhere.idle()

            assert harness.turn(first.turn_id).response is None
            assert harness.turn(second.turn_id).answer == "You said: one\ntwo"

    run_story(database, ledger, blocking, story)
    assert caplog.text == ""


def test_messages_within_the_window_of_their_channel_are_one_turn(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        received = [await harness.say("one", channel="web")]
        harness.now.advance(0.599)
        received.append(await harness.say("two", channel="web"))
        harness.now.advance(0.599)
        received.append(await harness.say("three", channel="web"))
        await harness.sweep()
        assert blocking.runs == []
        harness.now.advance(0.6)
        await harness.runner.sweep_once()
        run = await blocking.began()
        run.answer.set_result("all")
        await harness.idle()

        assert {one.turn_id for one in received} == {run.turn.id}
        assert run.message_texts == ["one", "two", "three"]
        assert [one.decision for one in received] == [None, None, None]

    run_story(database, ledger, blocking, story)


def test_a_runner_waits_for_the_end_of_the_window(database: Database, ledger: Ledger) -> None:
    """The only test that waits. On a busy machine, the second message would come too late for a shorter window."""
    blocking = BlockingBrain()

    async def whole() -> None:
        with ledger:
            harness = TurnHarness(
                database, ledger, blocking.brain, intake=Intake(windows={"web": 1500}), real_time=True
            )
            async with opened(harness):
                await harness.say("one", channel="web")
                await harness.say("two", channel="web")
                run = await blocking.began()
                run.answer.set_result("both")
                await harness.idle()

                assert run.message_texts == ["one", "two"]

    asyncio.run(whole())


def test_a_later_message_does_not_overtake_a_waiting_one(database: Database, ledger: Ledger) -> None:
    """Its messages would come after the waiting ones if the running turn were superseded."""
    wanted = iter([QUEUE, SUPERSEDE, ABSORB])
    blocking = BlockingBrain(lambda *_: next(wanted))

    async def story(harness: TurnHarness) -> None:
        received: list[Received] = [await harness.say("one")]
        first = await blocking.began()
        received += [await harness.say(word) for word in ("two", "three", "four")]
        first.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(blocking, str(number))
        await harness.idle()

        assert [one.decision for one in received] == [None, QUEUE, QUEUE, QUEUE]
        assert received[2].reason == "SUPERSEDE became QUEUE: other messages of the session are already waiting"
        assert [harness.turn(one.turn_id).answer for one in received] == ["1", "2", "3", "4"]

    run_story(database, ledger, blocking, story)


def test_a_brain_whose_decision_raises_loses_no_message(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Decision:
        raise RuntimeError("no idea")

    blocking = BlockingBrain(broken)

    async def story(harness: TurnHarness) -> None:
        await harness.say("one")
        await blocking.began()
        second = await harness.say("two")
        await complete(blocking, "both")
        await harness.idle()

        assert second.decision is SUPERSEDE
        assert harness.turn(second.turn_id).answer == "both"

    run_story(database, ledger, blocking, story)
    assert "brain_decide_failed" in caplog.text


def test_a_brain_is_asked_again_if_the_turn_has_changed(database: Database, ledger: Ledger) -> None:
    asked: list[str] = []
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        async def decide(turn: object, _messages: object, _new: object) -> Decision:
            asked.append(getattr(turn, "id", ""))
            if len(asked) == 1:
                # The turn that it is asked about finishes, and the next one begins, while it thinks.
                first.answer.set_result("1")
                await blocking.began()
            return SUPERSEDE

        object.__setattr__(blocking.brain, "decide", lambda *_: QUEUE)
        one = await harness.say("one")
        first = await blocking.began()
        two = await harness.say("two")
        object.__setattr__(blocking.brain, "decide", decide)
        three = await harness.say("three")
        last = await blocking.began()
        last.answer.set_result("3")
        await harness.idle()

        assert asked == [one.turn_id, two.turn_id]
        assert three.decision is SUPERSEDE
        assert last.message_texts == ["two", "three"]

    run_story(database, ledger, blocking, story)
