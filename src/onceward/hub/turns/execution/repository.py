"""Repository of turns: the reads and writes of the engine, one transaction each. Its methods block; call in threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.timestamps import time_text
from onceward.hub.events.log import append
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import (
    Clock,
    Message,
    State,
    ToolCall,
    Turn,
    calls_to_undo,
    find_turn,
    later,
    messages_of,
)

FAILURE_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class LoadedTurn:
    """A turn with its messages and the calls to undo. `fresh`: this read started the first attempt of its epoch."""

    turn: Turn
    messages: Sequence[Message] = ()
    to_undo: Sequence[ToolCall] = ()
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn after an attempt, and the oldest unfinished turn of its session if this one is finished."""

    turn: Turn
    next_turn: str | None = None


class TurnRepository:
    """Transactions on turns. Without `delivers` a response counts as delivered as soon as it is recorded."""

    def __init__(self, database: Database, now: Clock, *, delivers: bool) -> None:
        self._database = database
        self._now = now
        self._delivers = delivers

    def begin_or_load(self, turn_id: str) -> LoadedTurn | None:
        """Start the turn if it is ready to start; otherwise load it unchanged."""
        try:
            with self._database.write() as tx:
                turn = transitions.start(tx, turn_id, self._now_text())
                if turn is not None:
                    to_undo = calls_to_undo(tx, turn) if turn.has_past else []
                    return LoadedTurn(turn, messages_of(tx, turn), to_undo, fresh=True)
                turn = find_turn(tx, turn_id)
                return None if turn is None else LoadedTurn(turn, messages_of(tx, turn))
        except IntegrityError:
            # The unique index on running turns refused it: another turn of the session is running.
            with self._database.read() as tx:
                turn = find_turn(tx, turn_id)
                return None if turn is None else LoadedTurn(turn)

    def restart(self, loaded: LoadedTurn) -> LoadedTurn | None:
        """Take over the turn. None if its epoch or state has changed since it was loaded."""
        with self._database.write() as tx:
            turn = transitions.restart(tx, loaded.turn, self._now_text())
            return None if turn is None else LoadedTurn(turn, loaded.messages, calls_to_undo(tx, turn))

    def mark_undone(self, call: ToolCall, *, did: bool) -> None:
        with self._database.write() as tx:
            transitions.mark_undone(tx, call.seq, self._now_text(), did=did)

    def respond(self, turn: Turn, response: str, reason: str | None = None) -> Finished | None:
        """Record the response together with its event. None if the run was superseded."""
        with self._database.write() as tx:
            done = transitions.respond(
                tx, turn, response, self._now_text(), delivered=not self._delivers, reason=reason
            )
            return None if done is None else self._finished(tx, done, transitions.COMPLETED)

    def fail(self, turn: Turn, failure: str, most: int, rest_seconds: float) -> Finished | None:
        """Record a failed attempt; the `most`-th fails the turn. None if the run was superseded."""
        now = self._now()
        short = failure.replace("\0", "").encode("utf-8", "replace").decode()[:FAILURE_CHARACTERS_MAX]
        with self._database.write() as tx:
            after = transitions.fail(tx, turn, short, most=most, until=later(now, rest_seconds), now=time_text(now))
            if after is None or after.state is not State.FAILED:
                return None if after is None else Finished(after)
            return self._finished(tx, after, transitions.FAILED)

    def mark_delivered(self, turn: Turn) -> None:
        with self._database.write() as tx:
            transitions.mark_delivered(tx, turn.id, self._now_text())

    def response_of(self, turn_id: str) -> str | None:
        with self._database.read() as tx:
            turn = find_turn(tx, turn_id)
            return None if turn is None else turn.response

    def next_turn(self, turn: Turn) -> str | None:
        """Return the id of the oldest unfinished turn in the session of a finished turn.

        None for a superseded turn: the turn that replaced it was woken when its message was received.
        """
        if turn.state is State.SUPERSEDED:
            return None
        with self._database.read() as tx:
            return transitions.next_turn(tx, turn)

    def _finished(self, tx: Transaction, turn: Turn, name: str) -> Finished:
        next_turn = transitions.next_turn(tx, turn)
        append(tx, [transitions.event_of(name, turn)])
        return Finished(turn, next_turn)

    def _now_text(self) -> str:
        return time_text(self._now())
