"""A message that arrives while a turn of its session is not finished: each decision, at each moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.turns.core.house import Held, HeldRun, House, Now, decides, echo, opened
from tests.waiting import SECONDS_MAX

from onceward.db.engine import Database
from onceward.errors import Superseded
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.turns import Brain, Decision, Intake, Received, State, moves
from onceward.turns.tool import tool
from onceward.turns.toolbox import Toolbox

SUPERSEDE, ABSORB, QUEUE, FORCE = Decision.SUPERSEDE, Decision.ABSORB, Decision.QUEUE, Decision.FORCE_COMPLETE


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("memory:")


def told(
    database: Database, ledger: Ledger, held: Held, story: Callable[[House], Awaitable[None]], **options: Any
) -> None:
    async def whole() -> None:
        with ledger:
            async with opened(House(database, ledger, held.brain, Now(), **options)) as house:
                await story(house)

    asyncio.run(whole())


def fire(house: House, run: HeldRun, *, irreversible: bool) -> bool:
    """What a tool does before its effect begins."""
    with house.database.write() as tx:
        return moves.fire(tx, run.turn.id, run.turn.epoch, irreversible=irreversible, now="now")


async def complete(held: Held, response: str) -> None:
    (await held.began()).answer.set_result(response)


def test_superseding_begins_a_new_turn_of_the_same_group_with_all_messages(database: Database, ledger: Ledger) -> None:
    held = Held()

    async def story(house: House) -> None:
        first = await house.say("one")
        run = await held.began()
        second = await house.say("two")
        third_run = await held.began()
        third = await house.say("three")
        last = await held.began()
        last.answer.set_result("all")
        await house.idle()

        assert [second.decision, third.decision] == [SUPERSEDE, SUPERSEDE]
        assert run.cancelled.is_set()
        assert third_run.cancelled.is_set()
        assert last.said == ["one", "two", "three"]
        turns = [house.turn(one.turn_id) for one in (first, second, third)]
        assert [turn.state for turn in turns] == [State.SUPERSEDED, State.SUPERSEDED, State.COMPLETE]
        assert [turn.superseded_by for turn in turns] == [second.turn_id, third.turn_id, None]
        assert len({turn.turn_group_id for turn in turns}) == 1
        # Each begins behind the one whose place it took.
        assert [turn.epoch for turn in turns] == [2, 3, 3]
        assert turns[0].response is None
        assert [event.name for event in house.events()].count("turn.completed") == 1

    told(database, ledger, held, story)


def test_absorbing_begins_the_same_turn_anew_with_all_messages(database: Database, ledger: Ledger) -> None:
    held = Held(decides(ABSORB))

    async def story(house: House) -> None:
        first = await house.say("one")
        run = await held.began()
        second = await house.say("two")
        again = await held.began()
        again.answer.set_result("both")
        await house.idle()

        assert second.decision is ABSORB
        assert second.turn_id == first.turn_id
        assert run.cancelled.is_set()
        assert again.said == ["one", "two"]
        turn = house.turn(first.turn_id)
        assert (turn.state, turn.answer, turn.epoch, turn.attempts) == (State.COMPLETE, "both", 2, 2)
        assert turn.turn_group_id == first.turn.turn_group_id

    told(database, ledger, held, story)


def test_queued_messages_wait_in_turns_of_their_own_and_are_answered_in_order(
    database: Database, ledger: Ledger
) -> None:
    held = Held(decides(QUEUE))

    async def story(house: House) -> None:
        received = [await house.say(word) for word in ("one", "two", "three", "four")]
        first = await held.began()
        assert len(held.runs) == 1
        first.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(held, str(number))
        await house.idle()

        assert [one.decision for one in received] == [None, QUEUE, QUEUE, QUEUE]
        assert [run.said for run in held.runs] == [["one"], ["two"], ["three"], ["four"]]
        turns = [house.turn(one.turn_id) for one in received]
        assert [turn.answer for turn in turns] == ["1", "2", "3", "4"]
        assert len({turn.turn_group_id for turn in turns}) == 4
        completed = [event.entity_id for event in house.events() if event.name == "turn.completed"]
        assert completed == [turn.id for turn in turns]

    told(database, ledger, held, story)


def test_a_turn_that_is_forced_to_complete_is_superseded_no_more_and_the_message_waits(
    database: Database, ledger: Ledger
) -> None:
    wanted = iter([FORCE, SUPERSEDE, ABSORB])
    held = Held(lambda *_: next(wanted))

    async def story(house: House) -> None:
        first = await house.say("one")
        run = await held.began()
        second = await house.say("two")
        assert (house.turn(first.turn_id).state, house.turn(first.turn_id).commit_point) == (State.COMMITTING, True)
        third = await house.say("three")
        fourth = await house.say("four")
        assert not run.cancelled.is_set()
        run.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(held, str(number))
        await house.idle()

        assert [one.decision for one in (second, third, fourth)] == [FORCE, QUEUE, QUEUE]
        assert third.reason == "SUPERSEDE became QUEUE: the running turn has reached its commit point"
        assert house.turn(third.turn_id).reason == third.reason
        assert [house.turn(one.turn_id).answer for one in (first, second, third, fourth)] == ["1", "2", "3", "4"]

    told(database, ledger, held, story)


@pytest.mark.parametrize("wanted", [None, SUPERSEDE, ABSORB], ids=str)
def test_after_the_commit_point_the_message_is_queued_and_the_reason_is_recorded(
    database: Database, ledger: Ledger, wanted: Decision | None
) -> None:
    held = Held(None if wanted is None else decides(wanted))

    async def story(house: House) -> None:
        first = await house.say("one")
        run = await held.began()
        assert fire(house, run, irreversible=True)
        second = await house.say("two")
        run.answer.set_result("1")
        await complete(held, "2")
        await house.idle()

        assert second.decision is QUEUE
        assert "commit point" in (second.reason or "")
        assert house.turn(second.turn_id).reason == second.reason
        (event,) = [event for event in house.events() if event.entity_id == second.turn_id][:1]
        assert json.loads(event.data)["reason"] == second.reason
        assert [house.turn(one.turn_id).answer for one in (first, second)] == ["1", "2"]
        assert second.turn.turn_group_id != first.turn.turn_group_id

    told(database, ledger, held, story)


def test_a_side_effect_makes_the_default_wait_and_a_brain_may_still_supersede(
    database: Database, ledger: Ledger
) -> None:
    wanted: list[Decision | None] = [None]
    held = Held(lambda *_: wanted[0])

    async def story(house: House) -> None:
        for number, (opinion, decision) in enumerate([(None, QUEUE), (SUPERSEDE, SUPERSEDE), (ABSORB, ABSORB)]):
            wanted[0] = opinion
            await house.say("one", session_key=f"{number}")
            run = await held.began()
            assert fire(house, run, irreversible=False)
            second = await house.say("two", session_key=f"{number}")

            assert second.decision is decision
            if decision is QUEUE:
                assert second.reason == "the running turn has executed a side effect"
                run.answer.set_result("1")
            await complete(held, "2")
            await house.idle()

    told(database, ledger, held, story)


@pytest.mark.parametrize("decision", [SUPERSEDE, ABSORB], ids=str)
def test_a_superseded_run_can_neither_fire_nor_say_nor_respond(
    database: Database, ledger: Ledger, decision: Decision
) -> None:
    """Even if it does not hear that it is cancelled."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    refused: list[str] = []
    happened: list[str] = []
    told_of: list[str] = []

    @tool(effect="irreversible")
    def refund(order: str) -> None:
        happened.append(order)

    async def stubborn(run: HeldRun) -> str:
        if run.said != ["one"]:
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

    held = Held(decides(decision), act=stubborn, toolbox=Toolbox([refund]))

    async def story(house: House) -> None:
        first = await house.say("one")
        await asyncio.wait_for(reached.wait(), SECONDS_MAX)
        second = await house.say("two")
        assert second.decision is decision
        go_on.set()
        await house.idle()

        turn = house.turn(second.turn_id)
        assert (turn.state, turn.answer, turn.commit_point) == (State.COMPLETE, "both", False)
        assert house.rows("SELECT 1 FROM turn_chunks UNION ALL SELECT 1 FROM turn_tools") == []
        assert (house.turn(first.turn_id).response is None) == (decision is SUPERSEDE)
        # Of what the first run tried there was nothing to see.
        assert told_of == [second.turn_id]

    told(database, ledger, held, story, told=told_of.append)
    assert refused == ["say", "call"]
    assert happened == []


def test_a_run_that_does_not_know_that_it_is_superseded_finds_out_when_it_responds(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has superseded it, and no sweep came between."""
    held = Held()

    async def story(house: House) -> None:
        elsewhere = House(database, ledger, Brain(echo), house.now)
        async with opened(elsewhere):
            first = await house.say("one")
            run = await held.began()
            second = await elsewhere.say("two")
            run.answer.set_result("only the first")
            await house.idle()
            await elsewhere.idle()

            assert house.turn(first.turn_id).response is None
            assert house.turn(second.turn_id).answer == "You said: one\ntwo"

    told(database, ledger, held, story)
    assert caplog.text == ""


def test_messages_that_come_within_the_window_of_their_channel_are_one_turn(database: Database, ledger: Ledger) -> None:
    held = Held()

    async def story(house: House) -> None:
        received = [await house.say("one", channel="web")]
        house.now.advance(0.599)
        received.append(await house.say("two", channel="web"))
        house.now.advance(0.599)
        received.append(await house.say("three", channel="web"))
        await house.sweep()
        assert held.runs == []
        house.now.advance(0.6)
        await house.runner.sweep_once()
        run = await held.began()
        run.answer.set_result("all")
        await house.idle()

        assert {one.turn_id for one in received} == {run.turn.id}
        assert run.said == ["one", "two", "three"]
        assert [one.decision for one in received] == [None, None, None]

    told(database, ledger, held, story)


def test_a_runner_waits_for_the_end_of_the_window_by_itself(database: Database, ledger: Ledger) -> None:
    """The one test in which time passes: a fifth of a second."""
    held = Held()

    async def whole() -> None:
        with ledger:
            house = House(database, ledger, held.brain, intake=Intake(windows={"web": 200}), real_time=True)
            async with opened(house):
                await house.say("one", channel="web")
                await house.say("two", channel="web")
                run = await held.began()
                run.answer.set_result("both")
                await house.idle()

                assert run.said == ["one", "two"]

    asyncio.run(whole())


def test_what_arrives_behind_a_waiting_message_does_not_overtake_it(database: Database, ledger: Ledger) -> None:
    """Superseding the running turn would carry its messages behind those that wait."""
    wanted = iter([QUEUE, SUPERSEDE, ABSORB])
    held = Held(lambda *_: next(wanted))

    async def story(house: House) -> None:
        received: list[Received] = [await house.say("one")]
        first = await held.began()
        received += [await house.say(word) for word in ("two", "three", "four")]
        first.answer.set_result("1")
        for number in (2, 3, 4):
            await complete(held, str(number))
        await house.idle()

        assert [one.decision for one in received] == [None, QUEUE, QUEUE, QUEUE]
        assert received[2].reason == "SUPERSEDE became QUEUE: other messages of the session are waiting already"
        assert [house.turn(one.turn_id).answer for one in received] == ["1", "2", "3", "4"]

    told(database, ledger, held, story)


def test_a_brain_that_cannot_decide_loses_no_message(
    database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Decision:
        raise RuntimeError("no idea")

    held = Held(broken)

    async def story(house: House) -> None:
        await house.say("one")
        await held.began()
        second = await house.say("two")
        await complete(held, "both")
        await house.idle()

        assert second.decision is SUPERSEDE
        assert house.turn(second.turn_id).answer == "both"

    told(database, ledger, held, story)
    assert "could not decide" in caplog.text


def test_a_brain_is_asked_again_when_the_turn_has_changed_meanwhile(database: Database, ledger: Ledger) -> None:
    asked: list[str] = []
    held = Held()

    async def story(house: House) -> None:
        async def decide(turn: object, _messages: object, _new: object) -> Decision:
            asked.append(getattr(turn, "id", ""))
            if len(asked) == 1:
                # The turn that it is asked about finishes, and the next one begins, while it thinks.
                first.answer.set_result("1")
                await held.began()
            return SUPERSEDE

        object.__setattr__(held.brain, "decide", lambda *_: QUEUE)
        one = await house.say("one")
        first = await held.began()
        two = await house.say("two")
        object.__setattr__(held.brain, "decide", decide)
        three = await house.say("three")
        last = await held.began()
        last.answer.set_result("3")
        await house.idle()

        assert asked == [one.turn_id, two.turn_id]
        assert three.decision is SUPERSEDE
        assert last.said == ["two", "three"]

    told(database, ledger, held, story)
