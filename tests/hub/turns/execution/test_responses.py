"""Responses of many turns in one transaction: each run that may still respond does, and no other."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.hub.turns.turn_harness import BlockingBrain, TurnHarness, opened
from tests.waiting import SECONDS_MAX

from onceward.hub.db.append import Appending
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.timestamps import new_id
from onceward.hub.events import log
from onceward.hub.turns.execution import responses
from onceward.hub.turns.execution.responses import RunResponse
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import find_turn
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import State, Turn

NOW, LATER = "2026-11-16T03:26:00.000000Z", "2026-11-16T03:27:00.000000Z"
respond_all = Appending(responses._respond_steps)


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("memory:")


def make(tx: Transaction, session: str) -> Turn:
    fields = ("turn_group_id", "principal", "tenant_id", "agent_id", "customer_id", "channel")
    values: dict[str, Any] = dict.fromkeys(fields, "x")
    return transitions.insert_turn(
        tx, {**values, "id": new_id("turn"), "session_key": session, "until": NOW, "reason": None, "now": NOW}
    )


def running(tx: Transaction, session: str) -> Turn:
    turn = transitions.start(tx, make(tx, session).id, NOW)
    assert turn is not None
    return turn


def response_of(turn: Turn, text: str = '"x"', *, delivered: bool = True) -> RunResponse:
    return RunResponse(turn, text, None, LATER, delivered)


def test_each_response_is_recorded_with_its_event_and_returned_as_it_is_stored(database: Database) -> None:
    with database.write() as tx:
        turns = [running(tx, f"s{number}") for number in range(3)]
        waiting = make(tx, "s1")
        make(tx, "s1")
        assert transitions.fire(tx, turns[2].id, 1, irreversible=True, now=NOW)
        before = log.extent(tx).last_event_id
        done = respond_all(
            tx,
            [response_of(turn, f'"{number}"', delivered=number != 0) for number, turn in enumerate(turns)],
        )
        stored = [find_turn(tx, turn.id) for turn in turns]
        events = log.page(tx, before, log.extent(tx).last_event_id, log.PAGE_MAX)

    assert [one and one.turn for one in done] == stored
    assert [one and one.next_turn for one in done] == [None, waiting.id, None]
    assert [one and (one.state, one.answer, one.delivered_at) for one in stored] == [
        (State.COMPLETE, "0", None),
        (State.COMPLETE, "1", LATER),
        (State.COMPLETE, "2", LATER),
    ]
    assert [event.entity_id for event in events] == [turn.id for turn in turns]


def test_a_run_whose_epoch_has_passed_gets_nothing_from_the_response_of_its_successor(database: Database) -> None:
    with database.write() as tx:
        old = running(tx, "s")
        new = transitions.restart(tx, old, NOW)
        assert new is not None
        before = log.extent(tx).last_event_id
        late, done, again = respond_all(tx, [response_of(old, '"old"'), response_of(new, '"new"'), response_of(new)])
        events = log.page(tx, before, log.extent(tx).last_event_id, log.PAGE_MAX)

        assert (late, again) == (None, None)
        assert done is not None
        assert done.turn == find_turn(tx, old.id)
        assert done.turn.answer == "new"
        assert [event.entity_id for event in events] == [old.id]


@pytest.mark.parametrize("state", [State.ACCUMULATING, State.COMPLETE, State.SUPERSEDED, State.FAILED])
def test_a_turn_that_does_not_run_gets_no_response_and_does_not_disturb_the_others(
    database: Database, state: State
) -> None:
    with database.write() as tx:
        other = running(tx, "a")
        turn = make(tx, "b")
        if state is not State.ACCUMULATING:
            turn = running(tx, "c")
        if state is State.COMPLETE:
            assert transitions.respond(tx, turn, '"first"', NOW, delivered=True)
        elif state is State.SUPERSEDED:
            assert transitions.supersede(tx, turn, "turn_new", NOW)
        elif state is State.FAILED:
            assert transitions.fail(tx, turn, "x", most=1, until=NOW, now=NOW)
        stored = find_turn(tx, turn.id)
        assert stored is not None
        refused, done = respond_all(tx, [response_of(stored), response_of(other)])

        assert refused is None
        assert find_turn(tx, turn.id) == stored
        assert done is not None
        assert done.turn == replace(
            other, state=State.COMPLETE, response='"x"', updated_at=LATER, completed_at=LATER, delivered_at=LATER
        )


def test_a_turn_that_another_transaction_has_locked_is_waited_for(database: Database, ledger: Ledger) -> None:
    """On PostgreSQL the batch does not wait, and the response is recorded alone."""
    blocking = BlockingBrain()
    locked, release = threading.Event(), threading.Event()

    def hold(turn: Turn) -> None:
        with database.write() as tx:
            transitions.unfinished(tx, transitions.session_of(turn), lock=True)
            locked.set()
            release.wait(SECONDS_MAX)

    async def story() -> None:
        with ledger:
            async with opened(TurnHarness(database, ledger, blocking.brain)) as harness:
                received = await harness.say("hello")
                run = await blocking.began()
                holding = asyncio.create_task(asyncio.to_thread(hold, run.turn))
                await asyncio.to_thread(locked.wait, SECONDS_MAX)
                run.answer.set_result("done")
                idle = asyncio.create_task(harness.runner.idle())
                done, _ = await asyncio.wait({idle}, timeout=0.2)
                assert not done
                release.set()
                await asyncio.wait_for(idle, SECONDS_MAX)
                await holding
                turn = harness.turn(received.turn_id)
                assert (turn.state, turn.answer) == (State.COMPLETE, "done")

    asyncio.run(story())
