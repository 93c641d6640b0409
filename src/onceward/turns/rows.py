"""What the engine reads and writes of a turn, each in one transaction. Plain functions of a thread: nothing awaits here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from onceward.db.clock import time_text
from onceward.db.engine import Database, Transaction
from onceward.events.log import append
from onceward.turns import moves
from onceward.turns.turn import (
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
class Seen:
    """A turn with what belongs to it. `fresh`: its first attempt, or the first of its epoch, has just begun."""

    turn: Turn
    messages: Sequence[Message] = ()
    to_undo: Sequence[ToolCall] = ()
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn after an attempt, and the oldest unfinished turn of its session if this one is finished."""

    turn: Turn
    next_turn: str | None = None


class Rows:
    """`delivers` says that responses are sent somewhere; otherwise they are delivered as soon as they are recorded."""

    def __init__(self, database: Database, now: Clock, *, delivers: bool) -> None:
        self._database = database
        self._now = now
        self._delivers = delivers

    def look(self, turn_id: str) -> Seen | None:
        """Begin the turn if it can begin; else see how it stands."""
        try:
            with self._database.write() as tx:
                turn = moves.start(tx, turn_id, self._text())
                if turn is not None:
                    to_undo = calls_to_undo(tx, turn) if turn.has_past else []
                    return Seen(turn, messages_of(tx, turn), to_undo, fresh=True)
                turn = find_turn(tx, turn_id)
                return None if turn is None else Seen(turn, messages_of(tx, turn))
        except IntegrityError:
            # The index on running turns speaks last: another turn of the session runs.
            with self._database.read() as tx:
                turn = find_turn(tx, turn_id)
                return None if turn is None else Seen(turn)

    def restart(self, seen: Seen) -> Seen | None:
        """Take the turn over, if it still is as it was seen."""
        with self._database.write() as tx:
            turn = moves.restart(tx, seen.turn, self._text())
            return None if turn is None else Seen(turn, seen.messages, calls_to_undo(tx, turn))

    def undone(self, call: ToolCall, *, did: bool) -> None:
        with self._database.write() as tx:
            moves.undone(tx, call.seq, self._text(), did=did)

    def respond(self, turn: Turn, response: str, reason: str | None = None) -> Finished | None:
        """Record the response together with its event. None when the run is superseded."""
        with self._database.write() as tx:
            done = moves.respond(tx, turn, response, self._text(), delivered=not self._delivers, reason=reason)
            return None if done is None else self._finished(tx, done, moves.COMPLETED)

    def fail(self, turn: Turn, failure: str, most: int, rest_seconds: float) -> Finished | None:
        """Record a failure; the `most`-th is the last. None when the run is superseded."""
        now = self._now()
        short = failure.replace("\0", "").encode("utf-8", "replace").decode()[:FAILURE_CHARACTERS_MAX]
        with self._database.write() as tx:
            after = moves.fail(tx, turn, short, most=most, until=later(now, rest_seconds), now=time_text(now))
            if after is None or after.state is not State.FAILED:
                return None if after is None else Finished(after)
            return self._finished(tx, after, moves.FAILED)

    def delivered(self, turn: Turn) -> None:
        with self._database.write() as tx:
            moves.delivered(tx, turn.id, self._text())

    def response_of(self, turn_id: str) -> str | None:
        with self._database.read() as tx:
            turn = find_turn(tx, turn_id)
            return None if turn is None else turn.response

    def next_turn(self, turn: Turn) -> str | None:
        """The oldest unfinished turn of the session of a finished one; None for one that was superseded: the turn that
        took its place was woken with the message that made it.
        """
        if turn.state is State.SUPERSEDED:
            return None
        with self._database.read() as tx:
            return moves.next_turn(tx, turn)

    def _finished(self, tx: Transaction, turn: Turn, name: str) -> Finished:
        next_turn = moves.next_turn(tx, turn)
        append(tx, [moves.event_of(name, turn)])
        return Finished(turn, next_turn)

    def _text(self) -> str:
        return time_text(self._now())
