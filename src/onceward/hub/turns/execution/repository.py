"""Repository of turns: the reads and writes of the engine. Writes go through the writer of the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import IntegrityError

from onceward.hub.db.append import EventSteps
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.timestamps import time_text
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.execution.responses import RESPOND, Finished, RunResponse
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
    order_of,
)

FAILURE_CHARACTERS_MAX = 500

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedTurn:
    """A turn with its messages and the calls to undo. `fresh`: this read started the first attempt of its epoch."""

    turn: Turn
    messages: Sequence[Message] = ()
    to_undo: Sequence[ToolCall] = ()
    fresh: bool = False


class TurnRepository:
    """Transactions on turns. Without `delivers` a response counts as delivered as soon as it is recorded."""

    def __init__(self, database: Database, now: Clock, *, delivers: bool) -> None:
        self._database = database
        self._now = now
        self._delivers = delivers

    async def begin_or_load(self, turn_id: str) -> LoadedTurn | None:
        """Start the turn if it is ready to start; otherwise load it unchanged."""
        try:
            return await self._database.writer.run(lambda tx: self._begin_or_load(tx, turn_id))
        except IntegrityError:
            # The unique index on running turns refused it: another process has started a turn of the session.
            turn = await self._read(find_turn, turn_id)
            return None if turn is None else LoadedTurn(turn)

    def _begin_or_load(self, tx: Transaction, turn_id: str) -> LoadedTurn | None:
        turn = transitions.start(tx, turn_id, self._now_text())
        if turn is not None:
            to_undo = calls_to_undo(tx, turn) if turn.has_past else []
            return LoadedTurn(turn, messages_of(tx, turn), to_undo, fresh=True)
        turn = find_turn(tx, turn_id)
        return None if turn is None else LoadedTurn(turn, messages_of(tx, turn))

    async def restart(self, loaded: LoadedTurn) -> LoadedTurn | None:
        """Take over the turn. None if its epoch or state has changed since it was loaded."""

        def work(tx: Transaction) -> LoadedTurn | None:
            turn = transitions.restart(tx, loaded.turn, self._now_text())
            return None if turn is None else LoadedTurn(turn, loaded.messages, calls_to_undo(tx, turn))

        return await self._database.writer.run(work, order_of(loaded.turn))

    async def mark_undone(self, turn: Turn, call: ToolCall, *, did: bool) -> None:
        now = self._now_text()
        await self._database.writer.run(lambda tx: transitions.mark_undone(tx, call.seq, now, did=did), order_of(turn))

    async def respond(self, turn: Turn, response: str, reason: str | None = None) -> Finished | None:
        """Record the response together with its event. None if the run was superseded."""
        new = RunResponse(turn, response, reason, self._now_text(), not self._delivers)
        done = await self._database.writer.add(RESPOND, new)
        if done is not None:
            return done

        def steps(tx: Transaction) -> EventSteps[Finished | None]:
            done = transitions.respond(tx, turn, response, new.now, delivered=new.delivered, reason=reason)
            return None if done is None else (yield from _finished(tx, done, transitions.COMPLETED))

        return await self._database.writer.append(steps, order_of(turn))

    async def fail(self, turn: Turn, failure: str, most: int, rest_seconds: float) -> Finished | None:
        """Record a failed attempt; the `most`-th fails the turn. None if the run was superseded."""
        short = failure.replace("\0", "").encode("utf-8", "replace").decode()[:FAILURE_CHARACTERS_MAX]

        def steps(tx: Transaction) -> EventSteps[Finished | None]:
            now = self._now()
            after = transitions.fail(tx, turn, short, most=most, until=later(now, rest_seconds), now=time_text(now))
            if after is None or after.state is not State.FAILED:
                return None if after is None else Finished(after)
            return (yield from _finished(tx, after, transitions.FAILED))

        return await self._database.writer.append(steps, order_of(turn))

    async def mark_delivered(self, turn: Turn) -> None:
        now = self._now_text()
        await self._database.writer.run(lambda tx: transitions.mark_delivered(tx, turn.id, now), order_of(turn))

    async def response_of(self, turn_id: str) -> str | None:
        turn = await self._read(find_turn, turn_id)
        return None if turn is None else turn.response

    async def next_turn(self, turn: Turn) -> str | None:
        """Return the id of the oldest unfinished turn in the session of a finished turn.

        None for a superseded turn: the turn that replaced it was woken when its message was received.
        """
        return None if turn.state is State.SUPERSEDED else await self._read(transitions.next_turn, turn)

    async def _read(self, query: Callable[[Transaction, A], T], argument: A) -> T:
        def read() -> T:
            with self._database.read() as tx:
                return query(tx, argument)

        return await in_thread(read)

    def _now_text(self) -> str:
        return time_text(self._now())


def _finished(tx: Transaction, turn: Turn, name: str) -> EventSteps[Finished]:
    next_turn = transitions.next_turn(tx, turn)
    yield [transitions.event_of(name, turn)]
    return Finished(turn, next_turn)
