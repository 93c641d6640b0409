"""Every change of a turn's row: one UPDATE with a guard each, so that the first of two concurrent changes wins.

    function    change                               guard
    start       accumulating -> processing           the turn is due, and the oldest unfinished turn of its session
    restart     processing -> processing, epoch + 1  the epoch is the one that was read
    fire        before an effect                     the epoch is the run's, and the turn is running
    supersede   -> superseded, epoch + 1             the epoch is the one that was read, and no commit point
    absorb      -> accumulating, epoch + 1           as for supersede
    force       commit point reached                 unfinished
    close       ends the accumulation                accumulating
    respond     -> complete                          the epoch is the run's, and the turn is running
    fail        -> failed, or unchanged for a retry  as for respond

After the commit point the state `processing` is called `committing`. A function that returns None or False has changed
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.hub.db.append import NewEvent
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.turns.model.turn import COLUMNS, OF_SESSION, Turn, read_turn

# ruff: noqa: S608  # The statements are built from constants of this module.

RECEIVED = "turn.message_received"
COMPLETED = "turn.completed"
FAILED = "turn.failed"

_UNFINISHED = "state IN ('accumulating', 'processing', 'committing')"
_RUNNING = "state IN ('processing', 'committing')"
_MINE = f"id = :id AND epoch = :epoch AND {_RUNNING}"
_RETURNING = f"RETURNING {COLUMNS}"
_RUN_STATE = "CASE WHEN commit_point THEN 'committing' ELSE 'processing' END"

_LOCK = RawStatement("SELECT pg_advisory_xact_lock(CAST(:number AS bigint))")
_OF_SESSION = f"SELECT {COLUMNS} FROM turns WHERE {OF_SESSION} AND turns.{_UNFINISHED} ORDER BY turns.seq"
_SESSION_SQLITE = RawStatement(_OF_SESSION)
# Lock the rows: no other transaction finishes one of these turns before the decision about it is committed.
_SESSION_POSTGRES = RawStatement(f"{_OF_SESSION} FOR NO KEY UPDATE")

_INSERT = RawStatement(f"""
    INSERT INTO turns (id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state,
                       epoch, accumulate_until, reason, created_at, updated_at)
    VALUES (:id, :turn_group_id, :principal, :tenant_id, :agent_id, :customer_id, :channel, :session_key,
            'accumulating', :epoch, :until, :reason, :now, :now)
    {_RETURNING}
""")
_JOIN = RawStatement(f"""
    UPDATE turns SET accumulate_until = :until, updated_at = :now
    WHERE id = :id AND state = 'accumulating' {_RETURNING}
""")
_START = RawStatement(f"""
    UPDATE turns SET state = {_RUN_STATE}, attempts = attempts + 1, updated_at = :now
    WHERE id = :id AND state = 'accumulating' AND accumulate_until <= :now AND NOT EXISTS (
        SELECT 1 FROM turns AS other
        WHERE other.principal = turns.principal AND other.tenant_id = turns.tenant_id
          AND other.session_key = turns.session_key AND other.{_UNFINISHED}
          AND (other.seq < turns.seq OR other.{_RUNNING})
    )
    {_RETURNING}
""")
_RESTART = RawStatement(f"""
    UPDATE turns SET epoch = epoch + 1, attempts = attempts + 1, updated_at = :now WHERE {_MINE} {_RETURNING}
""")
_FIRE = RawStatement(f"""
    UPDATE turns SET effects_started = effects_started + 1, commit_point = commit_point OR :irreversible,
                     state = CASE WHEN commit_point OR :irreversible THEN 'committing' ELSE state END,
                     updated_at = :now
    WHERE {_MINE}
""")
_UNCHANGED = f"id = :id AND epoch = :epoch AND NOT commit_point AND {_UNFINISHED}"
_SUPERSEDE = RawStatement(f"""
    UPDATE turns SET state = 'superseded', epoch = epoch + 1, superseded_by = :by, updated_at = :now,
                     completed_at = :now
    WHERE {_UNCHANGED}
""")
_ABSORB = RawStatement(f"""
    UPDATE turns SET state = 'accumulating', epoch = epoch + 1, accumulate_until = :until, failures = 0,
                     updated_at = :now
    WHERE {_UNCHANGED} {_RETURNING}
""")
_FORCE = RawStatement(f"""
    UPDATE turns SET commit_point = true, state = CASE WHEN {_RUNNING} THEN 'committing' ELSE state END,
                     accumulate_until = CASE WHEN accumulate_until > :now THEN :now ELSE accumulate_until END,
                     updated_at = :now
    WHERE id = :id AND {_UNFINISHED}
""")
_CLOSE = RawStatement("""
    UPDATE turns SET accumulate_until = :now, updated_at = :now
    WHERE id = :id AND state = 'accumulating' AND accumulate_until > :now
""")
_REPLACE = RawStatement("""
    UPDATE turns SET superseded_by = :by WHERE id = :id AND state = 'failed' AND superseded_by IS NULL
""")
_MOVE_MESSAGES = RawStatement("UPDATE turn_messages SET turn_id = :by WHERE turn_id = :id")
_UNDO = RawStatement("""
    UPDATE turn_tools SET undo_wanted = true
    WHERE turn_id = :id AND effect = 'compensatable' AND status IN ('started', 'done', 'unknown')
""")
_UNDONE = RawStatement("UPDATE turn_tools SET status = :status, updated_at = :now WHERE seq = :seq")
_RESPOND = RawStatement(f"""
    UPDATE turns SET state = 'complete', response = :response, reason = coalesce(:reason, reason), updated_at = :now,
                     completed_at = :now, delivered_at = CASE WHEN :delivered THEN :now END
    WHERE {_MINE} {_RETURNING}
""")
_FAIL = RawStatement(f"""
    UPDATE turns SET failures = failures + 1, failure = :failure, updated_at = :now,
                     state = CASE WHEN failures + 1 >= :most THEN 'failed' ELSE state END,
                     completed_at = CASE WHEN failures + 1 >= :most THEN :now END,
                     accumulate_until = :until
    WHERE {_MINE} {_RETURNING}
""")
_DELIVERED = RawStatement("UPDATE turns SET delivered_at = :now WHERE id = :id AND delivered_at IS NULL")
_NEXT = RawStatement(f"SELECT id FROM turns WHERE {OF_SESSION} AND {_UNFINISHED} ORDER BY seq LIMIT 1")


def session_of(turn: Turn) -> dict[str, str]:
    return {"principal": turn.principal, "tenant_id": turn.tenant_id, "session_key": turn.session_key}


def session_number(session: Mapping[str, str]) -> int:
    """Return the number of the lock on a session."""
    digest = hashlib.sha256("\0".join(["turns", *session.values()]).encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def lock_session(tx: Transaction, session: Mapping[str, str]) -> None:
    """Serialize transactions that change the set of turns of a session. SQLite has only one writer anyway."""
    if tx.dialect.name != "sqlite":
        _LOCK.rows(tx, {"number": session_number(session)})


def unfinished(tx: Transaction, session: Mapping[str, str], *, lock: bool = False) -> list[Turn]:
    """Return the session's unfinished turns, oldest first. The oldest one is running or runs next."""
    statement = _SESSION_POSTGRES if lock and tx.dialect.name != "sqlite" else _SESSION_SQLITE
    return [read_turn(row) for row in statement.rows(tx, session)]


def insert_turn(tx: Transaction, values: dict[str, Any]) -> Turn:
    (row,) = _INSERT.rows(tx, {"epoch": 1, **values})
    return read_turn(row)


def join(tx: Transaction, turn_id: str, until: str, now: str) -> Turn | None:
    """Let the turn wait for more messages until `until`, because a message joins it."""
    return _one(_JOIN.rows(tx, {"id": turn_id, "until": until, "now": now}))


def start(tx: Transaction, turn_id: str, now: str) -> Turn | None:
    """Start the first attempt of an epoch. None if the turn is not accumulating, not due, or not the oldest."""
    return _one(_START.rows(tx, {"id": turn_id, "now": now}))


def restart(tx: Transaction, turn: Turn, now: str) -> Turn | None:
    """Take over from an attempt whose process is gone. The new epoch fences off whatever is left of that attempt."""
    return _one(_RESTART.rows(tx, {"id": turn.id, "epoch": turn.epoch, "now": now}))


def fire(tx: Transaction, turn_id: str, epoch: int, *, irreversible: bool, now: str) -> bool:
    """Allow an effect to start. False if it must not, because the run was superseded or has ended."""
    values = {"id": turn_id, "epoch": epoch, "irreversible": irreversible, "now": now}
    return _FIRE.count(tx, values) == 1


def supersede(tx: Transaction, turn: Turn, by: str, now: str) -> bool:
    """End the turn in favour of another one. False if it has changed or has reached its commit point."""
    return _SUPERSEDE.count(tx, {"id": turn.id, "epoch": turn.epoch, "by": by, "now": now}) == 1


def hand_over(tx: Transaction, turn: Turn, by: str) -> None:
    """Move all messages of a turn to another turn."""
    _MOVE_MESSAGES.count(tx, {"id": turn.id, "by": by})


def request_undo(tx: Transaction, turn: Turn) -> None:
    """Mark the turn's compensatable calls to be undone before its messages are processed again."""
    _UNDO.count(tx, {"id": turn.id})


def replace(tx: Transaction, failed: Turn, by: str) -> bool:
    """Record that another turn retries a failed one. False if one already does."""
    return _REPLACE.count(tx, {"id": failed.id, "by": by}) == 1


def absorb(tx: Transaction, turn: Turn, until: str, now: str) -> Turn | None:
    """Let the turn accumulate again. None if it has changed or has reached its commit point."""
    return _one(_ABSORB.rows(tx, {"id": turn.id, "epoch": turn.epoch, "until": until, "now": now}))


def mark_undone(tx: Transaction, seq: int, now: str, *, did: bool) -> None:
    """Record that a tool call was undone, or, if not `did`, that it never had its effect."""
    _UNDONE.count(tx, {"seq": seq, "status": "undone" if did else "failed", "now": now})


def force(tx: Transaction, turn: Turn, now: str) -> bool:
    """Set the commit point now: the turn can no longer be superseded, and it waits for no more messages."""
    return _FORCE.count(tx, {"id": turn.id, "now": now}) == 1


def close(tx: Transaction, turn: Turn, now: str) -> bool:
    """End the accumulation: the turn is due now. False if it was not waiting for more messages."""
    return _CLOSE.count(tx, {"id": turn.id, "now": now}) == 1


def respond(
    tx: Transaction, turn: Turn, response: str, now: str, *, delivered: bool, reason: str | None = None
) -> Turn | None:
    """Record the one response. `delivered`: there is nowhere to send it, so it counts as delivered."""
    values = {"id": turn.id, "epoch": turn.epoch, "response": response, "reason": reason, "now": now}
    return _one(_RESPOND.rows(tx, {**values, "delivered": delivered}))


def fail(tx: Transaction, turn: Turn, failure: str, *, most: int, until: str, now: str) -> Turn | None:
    """Record a failed attempt. The `most`-th failure is the turn's; before that the turn is due again at `until`."""
    values = {"id": turn.id, "epoch": turn.epoch, "failure": failure, "most": most, "until": until, "now": now}
    return _one(_FAIL.rows(tx, values))


def mark_delivered(tx: Transaction, turn_id: str, now: str) -> bool:
    return _DELIVERED.count(tx, {"id": turn_id, "now": now}) == 1


def next_turn(tx: Transaction, turn: Turn) -> str | None:
    """Return the id of the oldest unfinished turn of the same session."""
    rows = _NEXT.rows(tx, session_of(turn))
    return rows[0][0] if rows else None


def event_of(name: str, turn: Turn, **more: Json) -> NewEvent:
    """Return the event about a turn. It has ids and the state, never a message's text or its sender."""
    data: dict[str, Json] = {"turn_id": turn.id, "turn_group_id": turn.turn_group_id, "status": turn.state.value}
    return NewEvent(name, None, "turn", turn.id, compact({**data, **more}))


def _one(rows: Sequence[Any]) -> Turn | None:
    return read_turn(rows[0]) if rows else None
