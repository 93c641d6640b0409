"""Batch work for messages of idle sessions: each message is stored with a new turn, many of them in one transaction.

A turn that this process can run at once is stored as already started. The message then costs one transaction, and the
next step of its turn is the claim on its beat.

Nothing here waits for another transaction. A message that is known after all, whose session is not idle, or whose session
another process has locked, is left out, and `receive` decides about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from onceward.hub.db.append import EventSteps
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import new_id
from onceward.hub.db.writer import BatchWork
from onceward.hub.turns.intake.incoming import Incoming
from onceward.hub.turns.intake.receive import Received, Status, received_event
from onceward.hub.turns.model.transitions import session_number
from onceward.hub.turns.model.turn import Message, State, Turn, group_of, order_of

# ruff: noqa: S608  # The statements are built from constants of this module.

# The numbers of the rows of a turn and of its message.
_Stored: TypeAlias = Mapping[str, tuple[int, int]]

_FIELDS = (
    *("turn_id", "turn_group_id", "principal", "tenant_id", "agent_id", "customer_id", "channel", "session_key"),
    *("state", "attempts", "until", "now", "message_id", "content", "metadata", "idempotency_key", "fingerprint"),
    *("content_hash", "since", "given_id"),
)
# Each condition is one search in an index. With LIMIT, no planner turns it into a scan of the table. A message id that
# was made here cannot exist.
_IS_NEW = """
    (SELECT 1 FROM turns
     WHERE turns.principal = new.principal AND turns.tenant_id = new.tenant_id AND turns.session_key = new.session_key
       AND turns.state IN ('accumulating', 'processing', 'committing') LIMIT 1) IS NULL
    AND (new.given_id IS NULL OR (
        SELECT 1 FROM turn_messages AS same
        WHERE same.principal = new.principal AND same.tenant_id = new.tenant_id
          AND same.session_key = new.session_key AND same.message_id = new.given_id LIMIT 1) IS NULL)
    AND (new.idempotency_key IS NULL OR (
        SELECT 1 FROM turn_messages AS same
        WHERE same.principal = new.principal AND same.tenant_id = new.tenant_id
          AND same.idempotency_key = new.idempotency_key LIMIT 1) IS NULL)
    AND (new.content_hash IS NULL OR (
        SELECT 1 FROM turn_messages AS same
        WHERE same.principal = new.principal AND same.tenant_id = new.tenant_id
          AND same.session_key = new.session_key AND same.content_hash = new.content_hash
          AND same.created_at > new.since LIMIT 1) IS NULL)
"""
_TURN_COLUMNS = """id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state, attempts,
    accumulate_until, created_at, updated_at"""
_TURN_VALUES = """new.turn_id, new.turn_group_id, new.principal, new.tenant_id, new.agent_id, new.customer_id,
    new.channel, new.session_key, new.state, CAST(new.attempts AS integer), new.until, new.now, new.now"""
_MESSAGE_COLUMNS = """principal, tenant_id, session_key, message_id, turn_id, content, metadata, idempotency_key,
    fingerprint, content_hash, created_at"""
_MESSAGE_VALUES = """new.principal, new.tenant_id, new.session_key, new.message_id, new.turn_id, new.content,
    new.metadata, new.idempotency_key, new.fingerprint, new.content_hash, new.now"""

# SQLite: no other transaction writes, so what is read first stays true. Each call of the driver, and each row that it
# returns, is a switch between threads: so one row answers for all messages, and the numbers of the rows are chosen here.
_NEW_SQLITE = f"""(
    SELECT key AS place, {", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name in enumerate(_FIELDS))}
    FROM json_each(:rows)
) AS new"""
_SELECT_SQLITE = RawStatement(f"""
    SELECT (SELECT json_group_array(new.place) FROM {_NEW_SQLITE} WHERE {_IS_NEW}),
           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'turns'), 0),
           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'turn_messages'), 0)
""")
_TURNS_SQLITE = RawStatement(f"""
    INSERT INTO turns (seq, {_TURN_COLUMNS}) SELECT :first + new.place, {_TURN_VALUES} FROM {_NEW_SQLITE}
""")
_MESSAGES_SQLITE = RawStatement(f"""
    INSERT INTO turn_messages (seq, {_MESSAGE_COLUMNS}) SELECT :first + new.place, {_MESSAGE_VALUES} FROM {_NEW_SQLITE}
""")

# PostgreSQL: the lock of a session comes in a statement of its own, so that the next one sees all its turns. Another
# process may store a message with the same key in another session; then the message is not stored, and neither is its
# turn. The foreign key is checked at the end of the statement.
_LOCK_POSTGRES = RawStatement("""
    SELECT CAST(number AS bigint) FROM json_array_elements_text(CAST(:numbers AS json)) AS number
    WHERE pg_try_advisory_xact_lock(CAST(number AS bigint))
""")
_STORE_POSTGRES = RawStatement(f"""
    WITH new AS MATERIALIZED (
        SELECT e.place, {", ".join(f"e.row ->> {at} AS {name}" for at, name in enumerate(_FIELDS))}
        FROM json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS e(row, place)
    ), messages AS (
        INSERT INTO turn_messages ({_MESSAGE_COLUMNS})
        SELECT {_MESSAGE_VALUES} FROM new WHERE {_IS_NEW} ORDER BY new.place
        ON CONFLICT DO NOTHING
        RETURNING turn_id, seq
    ), begun AS (
        INSERT INTO turns ({_TURN_COLUMNS})
        SELECT {_TURN_VALUES} FROM new JOIN messages ON messages.turn_id = new.turn_id ORDER BY new.place
        RETURNING id, seq
    )
    SELECT begun.id, begun.seq, messages.seq FROM begun JOIN messages ON messages.turn_id = begun.id
""")


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A message and the turn that it begins."""

    incoming: Incoming
    turn: Turn
    message: Message

    @classmethod
    def of(cls, incoming: Incoming) -> NewTurn:
        """Return the turn that a message begins."""
        sent, turn_id = incoming.message, new_id("turn")
        message = Message(
            0, sent.message_id or new_id("msg"), sent.content, json.loads(incoming.metadata), incoming.now
        )
        turn = Turn(
            seq=0,
            id=turn_id,
            turn_group_id=group_of(turn_id),
            principal=sent.principal,
            tenant_id=sent.tenant_id,
            agent_id=sent.agent_id,
            customer_id=sent.customer_id,
            channel=sent.channel,
            session_key=sent.session_key or "",
            state=State.ACCUMULATING,
            epoch=1,
            commit_point=False,
            effects_started=0,
            attempts=0,
            failures=0,
            accumulate_until=incoming.until,
            response=None,
            failure=None,
            superseded_by=None,
            reason=None,
            created_at=incoming.now,
            updated_at=incoming.now,
            completed_at=None,
            delivered_at=None,
        )
        return cls(incoming, turn, message)

    @property
    def is_due(self) -> bool:
        """True if the channel of the message does not wait for more."""
        return self.turn.accumulate_until <= self.incoming.now

    def started(self) -> NewTurn:
        """Return the same with a turn whose first attempt has started: this process runs it after the commit."""
        return replace(self, turn=replace(self.turn, state=State.PROCESSING, attempts=1))

    def row(self) -> tuple[object, ...]:
        """The values of `_FIELDS`."""
        incoming, turn, message = self.incoming, self.turn, self.message
        return (
            *(turn.id, turn.turn_group_id, turn.principal, turn.tenant_id, turn.agent_id, turn.customer_id),
            *(turn.channel, turn.session_key, turn.state, turn.attempts, turn.accumulate_until, incoming.now),
            *(message.message_id, message.content, incoming.metadata, incoming.key),
            *(incoming.message.fingerprint, incoming.content_hash, incoming.since, incoming.message.message_id),
        )


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """Result of the batch work: the acknowledgement, and the message as it was stored."""

    received: Received
    message: Message


def _begin_steps(tx: Transaction, new: Sequence[NewTurn]) -> EventSteps[Sequence[BegunTurn | None]]:
    """Store messages with their turns. None for a message that must be left to `receive`."""
    rows = {one.turn.id: one.row() for one in _independent(new)}
    stored = (_store_sqlite if tx.dialect.name == "sqlite" else _store_postgres)(tx, new, rows)
    results: list[BegunTurn | None] = []
    for one in new:
        begun = None
        if one.turn.id in stored:
            turn_seq, message_seq = stored[one.turn.id]
            turn, message = replace(one.turn, seq=turn_seq), replace(one.message, seq=message_seq)
            begun = BegunTurn(Received(Status.NEW, turn, message.message_id), message)
        results.append(begun)
    ids = iter((yield [received_event(begun.received) for begun in results if begun is not None]))
    return [
        None if begun is None else replace(begun, received=replace(begun.received, event_id=next(ids)))
        for begun in results
    ]


# The name places it behind the responses of the same batch, which make their sessions idle.
BEGIN_TURNS = BatchWork("turns.begin", _begin_steps, lambda new: order_of(new.turn))


def _independent(new: Sequence[NewTurn]) -> Iterable[NewTurn]:
    """Leave out a message if its session or its key is that of an earlier one: their statement does not see each other."""
    seen: set[tuple[object, ...]] = set()
    for one in new:
        session, key = order_of(one.turn), ("key", one.turn.principal, one.turn.tenant_id, one.incoming.key)
        if session not in seen and (one.incoming.key is None or key not in seen):
            yield one
        seen |= {session, key}


def _store_sqlite(tx: Transaction, _new: Sequence[NewTurn], rows: Mapping[str, tuple[object, ...]]) -> _Stored:
    asked = list(rows.values())
    places, last_turn, last_message = _SELECT_SQLITE.rows(tx, {"rows": json.dumps(asked)})[0]
    accepted = [asked[place] for place in json.loads(places)]
    if not accepted:
        return {}
    text = json.dumps(accepted)
    _TURNS_SQLITE.count(tx, {"rows": text, "first": last_turn + 1})
    _MESSAGES_SQLITE.count(tx, {"rows": text, "first": last_message + 1})
    return {str(row[0]): (last_turn + number, last_message + number) for number, row in enumerate(accepted, 1)}


def _store_postgres(tx: Transaction, new: Sequence[NewTurn], rows: Mapping[str, tuple[object, ...]]) -> _Stored:
    numbers = {one.turn.id: session_number(one.incoming.session) for one in new if one.turn.id in rows}
    locked = {row[0] for row in _LOCK_POSTGRES.rows(tx, {"numbers": json.dumps(list(numbers.values()))})}
    asked = [row for turn_id, row in rows.items() if numbers[turn_id] in locked]
    if not asked:
        return {}
    return {row[0]: (row[1], row[2]) for row in _STORE_POSTGRES.rows(tx, {"rows": json.dumps(asked)})}
