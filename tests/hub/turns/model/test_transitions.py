"""The guards of a turn's row, one by one: a late writer changes nothing; of two concurrent writers, the first wins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.waiting import SECONDS_MAX, until

from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.timestamps import new_id
from onceward.hub.turns.intake.incoming import Incoming
from onceward.hub.turns.intake.receive import NO_PREFERENCE, receive
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import find_turn, now_utc
from onceward.turns import Intake, Received, State, Turn, UserMessage

SESSION = {"principal": "ada", "tenant_id": "t", "session_key": "s"}
BEFORE, NOW, LATER = "2026-11-16T00:00:00", "2026-11-16T00:00:01", "2026-11-16T00:00:02"


def make(tx: Transaction, *, session: str = "s", until: str = NOW) -> Turn:
    values = {**SESSION, "agent_id": "a", "customer_id": "c", "channel": "api", "reason": None, "now": NOW, "epoch": 1}
    turn_id = new_id("turn")
    return transitions.insert_turn(
        tx, {**values, "session_key": session, "id": turn_id, "turn_group_id": "g", "until": until}
    )


def running(tx: Transaction, *, session: str = "s") -> Turn:
    turn = transitions.start(tx, make(tx, session=session).id, NOW)
    assert turn is not None
    return turn


def reload(tx: Transaction, turn: Turn) -> Turn:
    found = find_turn(tx, turn.id)
    assert found is not None
    return found


def in_state(tx: Transaction, turn: Turn, state: State) -> Turn:
    tx.execute(text("UPDATE turns SET state = :state WHERE id = :id"), {"id": turn.id, "state": state})
    return reload(tx, turn)


ENDED = (State.COMPLETE, State.SUPERSEDED, State.FAILED)


def test_a_turn_starts_if_it_is_due_waiting_and_the_oldest(database: Database) -> None:
    with database.write() as tx:
        first, second = make(tx), make(tx)
        elsewhere = make(tx, session="other", until=LATER)

        assert transitions.start(tx, first.id, BEFORE) is None
        assert transitions.start(tx, second.id, NOW) is None
        assert transitions.start(tx, elsewhere.id, NOW) is None
        begun = transitions.start(tx, first.id, NOW)
        assert begun is not None
        assert (begun.state, begun.epoch, begun.attempts) == (State.PROCESSING, 1, 1)
        assert transitions.start(tx, first.id, NOW) is None
        assert transitions.start(tx, second.id, NOW) is None
        assert transitions.respond(tx, begun, '"x"', NOW, delivered=True) is not None
        assert transitions.start(tx, second.id, NOW) is not None


def test_a_session_has_one_running_turn_under_any_race(database: Database) -> None:
    with database.write() as tx:
        running(tx)
        running(tx, session="other")
        waiting = make(tx)
    for state in (State.PROCESSING, State.COMMITTING):
        with pytest.raises(IntegrityError), database.write() as tx:
            in_state(tx, waiting, state)


def test_only_a_running_turn_of_the_expected_epoch_is_taken_over(database: Database) -> None:
    with database.write() as tx:
        turn = running(tx)
        taken = transitions.restart(tx, turn, NOW)
        assert taken is not None
        assert (taken.state, taken.epoch, taken.attempts) == (State.PROCESSING, 2, 2)
        assert transitions.restart(tx, turn, NOW) is None
        for state in (*ENDED, State.ACCUMULATING):
            assert transitions.restart(tx, in_state(tx, taken, state), NOW) is None


def test_effects_start_only_for_the_running_epoch(database: Database) -> None:
    with database.write() as tx:
        turn = running(tx)
        assert transitions.fire(tx, turn.id, turn.epoch, irreversible=False, now=NOW)
        assert reload(tx, turn) == replace(turn, effects_started=1)
        assert not transitions.fire(tx, turn.id, turn.epoch + 1, irreversible=True, now=NOW)
        assert transitions.fire(tx, turn.id, turn.epoch, irreversible=True, now=NOW)
        assert reload(tx, turn) == replace(turn, effects_started=2, commit_point=True, state=State.COMMITTING)
        assert transitions.fire(tx, turn.id, turn.epoch, irreversible=False, now=NOW)
        assert reload(tx, turn) == replace(turn, effects_started=3, commit_point=True, state=State.COMMITTING)
        for state in (*ENDED, State.ACCUMULATING):
            in_state(tx, turn, state)
            assert not transitions.fire(tx, turn.id, turn.epoch, irreversible=False, now=NOW)


@pytest.mark.parametrize("decision", ["supersede", "absorb", "force"])
def test_a_turn_is_not_interrupted_after_its_commit_point_its_end_or_another_epoch(
    database: Database, decision: str
) -> None:
    def move(tx: Transaction, turn: Turn) -> bool:
        match decision:
            case "supersede":
                return transitions.supersede(tx, turn, "turn_new", NOW)
            case "absorb":
                return transitions.absorb(tx, turn, LATER, NOW) is not None
            case _:
                return transitions.force(tx, turn, NOW)

    with database.write() as tx:
        turn = running(tx)
        committed = running(tx, session="committed")
        assert transitions.fire(tx, committed.id, committed.epoch, irreversible=True, now=NOW)
        restarted = running(tx, session="restarted")
        assert transitions.restart(tx, restarted, NOW)
        ended = [in_state(tx, running(tx, session=state), state) for state in ENDED]

        assert not any(move(tx, one) for one in ended)
        assert move(tx, committed) == (decision == "force")
        assert move(tx, restarted) == (decision == "force")
        assert move(tx, turn)
        after = reload(tx, turn)
        changed = {
            "supersede": {"state": State.SUPERSEDED, "epoch": 2, "superseded_by": "turn_new", "completed_at": NOW},
            "absorb": {"state": State.ACCUMULATING, "epoch": 2, "accumulate_until": LATER},
            "force": {"state": State.COMMITTING, "commit_point": True},
        }[decision]
        assert after == replace(turn, **changed)  # type: ignore[arg-type]  # by the names of the fields


def test_a_waiting_turn_is_forced_to_start_and_to_finish(database: Database) -> None:
    with database.write() as tx:
        turn = make(tx, until=LATER)
        assert transitions.force(tx, turn, NOW)
        assert reload(tx, turn) == replace(turn, commit_point=True, accumulate_until=NOW)
        assert not transitions.supersede(tx, reload(tx, turn), "turn_new", NOW)
        begun = transitions.start(tx, turn.id, NOW)
        assert begun is not None
        assert begun.state is State.COMMITTING


@pytest.mark.parametrize("end", ["respond", "fail"])
def test_a_turn_is_ended_once_and_by_the_running_epoch(database: Database, end: str) -> None:
    def move(tx: Transaction, turn: Turn) -> Turn | None:
        if end == "respond":
            return transitions.respond(tx, turn, '"x"', NOW, delivered=False)
        return transitions.fail(tx, turn, "x", most=1, until=NOW, now=NOW)

    with database.write() as tx:
        turn = running(tx)
        assert move(tx, replace(turn, epoch=2)) is None
        for state in (*ENDED, State.ACCUMULATING):
            assert move(tx, in_state(tx, turn, state)) is None
        again = in_state(tx, turn, State.COMMITTING)
        after = move(tx, again)
        assert after is not None
        assert (after.state, after.completed_at) == (State.COMPLETE if end == "respond" else State.FAILED, NOW)
        assert move(tx, again) is None


def test_a_failure_before_the_last_attempt_leaves_the_turn_running_until_it_is_due_again(database: Database) -> None:
    with database.write() as tx:
        turn = running(tx)
        after = transitions.fail(tx, turn, "x", most=2, until=LATER, now=NOW)
        assert after == replace(turn, failures=1, failure="x", accumulate_until=LATER)
        last = transitions.fail(tx, turn, "y", most=2, until=LATER, now=NOW)
        assert last is not None
        assert (last.state, last.failure) == (State.FAILED, "y")


def test_a_failed_turn_is_retried_by_one_turn(database: Database) -> None:
    with database.write() as tx:
        turn = running(tx)
        assert not transitions.replace(tx, turn, "turn_new")
        failed = in_state(tx, turn, State.FAILED)
        assert transitions.replace(tx, failed, "turn_new")
        assert not transitions.replace(tx, failed, "turn_other")
        assert reload(tx, turn).superseded_by == "turn_new"


# Two that meet in PostgreSQL, where several write at once.

_WAITING = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


@contextmanager
def running_concurrently(database: Database, move: Callable[[Transaction], object]) -> Iterator[list[object]]:
    """Run it in a thread until it waits for a lock; after the block, to its end. Yields the list for its result."""
    came: list[object] = []

    def act() -> None:
        with database.write() as tx:
            came.append(move(tx))

    def waits() -> bool:
        assert thread.is_alive(), f"it waited for nobody: {came}"
        with database.read() as tx:
            return tx.execute(_WAITING).first() is not None

    thread = threading.Thread(target=act)
    thread.start()
    until(waits, "it waited for nobody")
    yield came
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


MOVES: dict[str, Callable[[Transaction, Turn], object]] = {
    "fire": lambda tx, turn: transitions.fire(tx, turn.id, turn.epoch, irreversible=True, now=NOW),
    "supersede": lambda tx, turn: transitions.supersede(tx, turn, "turn_new", NOW),
    "absorb": lambda tx, turn: transitions.absorb(tx, turn, NOW, NOW) is not None,
    "respond": lambda tx, turn: transitions.respond(tx, turn, '"x"', NOW, delivered=True) is not None,
    "restart": lambda tx, turn: transitions.restart(tx, turn, NOW) is not None,
}
MEETINGS = [
    (first, second)
    for first in MOVES
    for second in MOVES
    # An effect may begin before the response is recorded, and during a run that is given up later.
    if (first, second) not in {("fire", "fire"), ("fire", "respond"), ("fire", "restart")}
]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_of_two_concurrent_transitions_the_first_one_wins(database: Database) -> None:
    for number, (first, second) in enumerate(MEETINGS):
        with database.write() as tx:
            turn = running(tx, session=f"{number}")
        with ExitStack() as stack, database.write() as tx:
            assert MOVES[first](tx, turn), (first, second)
            came = stack.enter_context(
                running_concurrently(database, lambda tx, turn=turn, move=MOVES[second]: move(tx, turn))  # type: ignore[misc]
            )

        assert came == [False], (first, second)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_message_concurrent_with_the_response_of_a_turn_does_not_queue_behind_it(database: Database) -> None:
    """It would wait for a turn that did not know of it when it ended."""
    with database.write() as tx:
        turn = running(tx)
    message = UserMessage(content="hello", principal="ada", tenant_id="t", session_key="s").ready()
    with ExitStack() as stack, database.write() as tx:
        assert transitions.respond(tx, turn, '"x"', NOW, delivered=True)
        assert transitions.next_turn(tx, turn) is None
        came = stack.enter_context(
            running_concurrently(
                database, lambda tx: receive(tx, Incoming.of(message, Intake(), now_utc()), NO_PREFERENCE)
            )
        )

    (received,) = came
    assert isinstance(received, Received)
    assert (received.status, received.decision) == ("new", None)
