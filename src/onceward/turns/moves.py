"""Every change of a turn's row: one guarded UPDATE each, so that of two that meet, the first one wins.

    start       accumulating -> processing           it is due, and the oldest unfinished turn of its session
    restart     processing -> processing, epoch + 1  whoever worked on it is gone; the epoch is the one that was seen
    fire        before an effect                     the epoch is mine and the turn is running
    supersede   -> superseded, epoch + 1             the epoch is the one that was seen, and no commit point
    absorb      -> accumulating, epoch + 1           the same
    force       commit point reached                 not finished yet
    close       waits for no more messages           accumulating
    respond     -> complete                          the epoch is mine and the turn is running
    fail        -> failed, or stays for a retry      the same

`processing` is called `committing` from the commit point on. A function that answers None or False has changed nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.core.text import compact
from onceward.db.engine import Transaction
from onceward.events.log import NewEvent
from onceward.turns.turn import COLUMNS, OF_SESSION, Turn, read_turn

# ruff: noqa: S608  # The statements are put together from the constants of this module.

RECEIVED = "turn.message_received"
COMPLETED = "turn.completed"
FAILED = "turn.failed"

_UNFINISHED = "state IN ('accumulating', 'processing', 'committing')"
_RUNNING = "state IN ('processing', 'committing')"
_MINE = f"id = :id AND epoch = :epoch AND {_RUNNING}"
_RETURNING = f"RETURNING {COLUMNS}"
_RUN_STATE = "CASE WHEN commit_point THEN 'committing' ELSE 'processing' END"

_LOCK = text("SELECT pg_advisory_xact_lock(CAST(:number AS bigint))")
_OF_SESSION = f"SELECT {COLUMNS} FROM turns WHERE {OF_SESSION} AND turns.{_UNFINISHED} ORDER BY turns.seq"
_SESSION_SQLITE = text(_OF_SESSION)
# Locked, so that nobody finishes one of them while it is decided what becomes of it.
_SESSION_POSTGRES = text(f"{_OF_SESSION} FOR NO KEY UPDATE")

_INSERT = text(f"""
    INSERT INTO turns (id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state,
                       epoch, accumulate_until, reason, created_at, updated_at)
    VALUES (:id, :turn_group_id, :principal, :tenant_id, :agent_id, :customer_id, :channel, :session_key,
            'accumulating', :epoch, :until, :reason, :now, :now)
    {_RETURNING}
""")
_JOIN = text(f"""
    UPDATE turns SET accumulate_until = :until, updated_at = :now
    WHERE id = :id AND state = 'accumulating' {_RETURNING}
""")
_START = text(f"""
    UPDATE turns SET state = {_RUN_STATE}, attempts = attempts + 1, updated_at = :now
    WHERE id = :id AND state = 'accumulating' AND accumulate_until <= :now AND NOT EXISTS (
        SELECT 1 FROM turns AS older
        WHERE older.principal = turns.principal AND older.tenant_id = turns.tenant_id
          AND older.session_key = turns.session_key AND older.seq < turns.seq AND older.{_UNFINISHED}
    )
    {_RETURNING}
""")
_RESTART = text(f"""
    UPDATE turns SET epoch = epoch + 1, attempts = attempts + 1, updated_at = :now WHERE {_MINE} {_RETURNING}
""")
_FIRE = text(f"""
    UPDATE turns SET effects_started = effects_started + 1, commit_point = commit_point OR :irreversible,
                     state = CASE WHEN commit_point OR :irreversible THEN 'committing' ELSE state END,
                     updated_at = :now
    WHERE {_MINE}
""")
_SEEN = f"id = :id AND epoch = :epoch AND NOT commit_point AND {_UNFINISHED}"
_SUPERSEDE = text(f"""
    UPDATE turns SET state = 'superseded', epoch = epoch + 1, superseded_by = :by, updated_at = :now,
                     completed_at = :now
    WHERE {_SEEN}
""")
_ABSORB = text(f"""
    UPDATE turns SET state = 'accumulating', epoch = epoch + 1, accumulate_until = :until, failures = 0,
                     updated_at = :now
    WHERE {_SEEN} {_RETURNING}
""")
_FORCE = text(f"""
    UPDATE turns SET commit_point = true, state = CASE WHEN {_RUNNING} THEN 'committing' ELSE state END,
                     accumulate_until = CASE WHEN accumulate_until > :now THEN :now ELSE accumulate_until END,
                     updated_at = :now
    WHERE id = :id AND {_UNFINISHED}
""")
_CLOSE = text("""
    UPDATE turns SET accumulate_until = :now, updated_at = :now
    WHERE id = :id AND state = 'accumulating' AND accumulate_until > :now
""")
_REPLACE = text("""
    UPDATE turns SET superseded_by = :by WHERE id = :id AND state = 'failed' AND superseded_by IS NULL
""")
_MOVE_MESSAGES = text("UPDATE turn_messages SET turn_id = :by WHERE turn_id = :id")
_UNDO = text("""
    UPDATE turn_tools SET undo_wanted = true
    WHERE turn_id = :id AND effect = 'compensatable' AND status IN ('started', 'done', 'unknown')
""")
_UNDONE = text("UPDATE turn_tools SET status = :status, updated_at = :now WHERE seq = :seq")
_RESPOND = text(f"""
    UPDATE turns SET state = 'complete', response = :response, reason = coalesce(:reason, reason), updated_at = :now,
                     completed_at = :now, delivered_at = CASE WHEN :delivered THEN :now END
    WHERE {_MINE} {_RETURNING}
""")
_FAIL = text(f"""
    UPDATE turns SET failures = failures + 1, failure = :failure, updated_at = :now,
                     state = CASE WHEN failures + 1 >= :most THEN 'failed' ELSE state END,
                     completed_at = CASE WHEN failures + 1 >= :most THEN :now END,
                     accumulate_until = :until
    WHERE {_MINE} {_RETURNING}
""")
_DELIVERED = text("UPDATE turns SET delivered_at = :now WHERE id = :id AND delivered_at IS NULL")
_NEXT = text(f"SELECT id FROM turns WHERE {OF_SESSION} AND {_UNFINISHED} ORDER BY seq LIMIT 1")


def session_of(turn: Turn) -> dict[str, str]:
    return {"principal": turn.principal, "tenant_id": turn.tenant_id, "session_key": turn.session_key}


def lock_session(tx: Transaction, session: dict[str, str]) -> None:
    """Whoever changes which turns a session has does so one after the other. SQLite has one writer at a time anyway."""
    if tx.dialect.name != "sqlite":
        digest = hashlib.sha256("\0".join(["turns", *session.values()]).encode()).digest()
        tx.execute(_LOCK, {"number": int.from_bytes(digest[:8], signed=True)})


def unfinished(tx: Transaction, session: dict[str, str], *, lock: bool = False) -> list[Turn]:
    """The session's unfinished turns, the oldest first: it is the one that runs, or runs next."""
    statement = _SESSION_POSTGRES if lock and tx.dialect.name != "sqlite" else _SESSION_SQLITE
    return [read_turn(row) for row in tx.execute(statement, session)]


def insert_turn(tx: Transaction, values: dict[str, Any]) -> Turn:
    return read_turn(tx.execute(_INSERT, {"epoch": 1, **values}).one())


def join(tx: Transaction, turn_id: str, until: str, now: str) -> Turn | None:
    """One more message is coming; the turn waits for others until then."""
    return _one(tx.execute(_JOIN, {"id": turn_id, "until": until, "now": now}))


def start(tx: Transaction, turn_id: str, now: str) -> Turn | None:
    """Begin the first attempt. None when it is not due, not the oldest, or not waiting to be started."""
    return _one(tx.execute(_START, {"id": turn_id, "now": now}))


def restart(tx: Transaction, turn: Turn, now: str) -> Turn | None:
    """Take over from an attempt that is no more. Whatever is left of it has another epoch from now on."""
    return _one(tx.execute(_RESTART, {"id": turn.id, "epoch": turn.epoch, "now": now}))


def fire(tx: Transaction, turn_id: str, epoch: int, *, irreversible: bool, now: str) -> bool:
    """An effect is about to begin. False: not for this run, which is superseded or over."""
    values = {"id": turn_id, "epoch": epoch, "irreversible": irreversible, "now": now}
    return tx.execute(_FIRE, values).rowcount == 1


def supersede(tx: Transaction, turn: Turn, by: str, now: str) -> bool:
    return tx.execute(_SUPERSEDE, {"id": turn.id, "epoch": turn.epoch, "by": by, "now": now}).rowcount == 1


def hand_over(tx: Transaction, turn: Turn, by: str) -> None:
    """Give all messages of a turn to another one."""
    tx.execute(_MOVE_MESSAGES, {"id": turn.id, "by": by})


def want_undone(tx: Transaction, turn: Turn) -> None:
    """What the turn has done so far is taken back before its messages are worked on again, as far as it can be."""
    tx.execute(_UNDO, {"id": turn.id})


def replace(tx: Transaction, failed: Turn, by: str) -> bool:
    """Another turn tries again what this one failed at. False when one does already."""
    return tx.execute(_REPLACE, {"id": failed.id, "by": by}).rowcount == 1


def absorb(tx: Transaction, turn: Turn, until: str, now: str) -> Turn | None:
    return _one(tx.execute(_ABSORB, {"id": turn.id, "epoch": turn.epoch, "until": until, "now": now}))


def undone(tx: Transaction, seq: int, now: str, *, did: bool) -> None:
    """A tool call is taken back; or there was nothing to take back, because it never came to its effect."""
    tx.execute(_UNDONE, {"seq": seq, "status": "undone" if did else "failed", "now": now})


def force(tx: Transaction, turn: Turn, now: str) -> bool:
    """Its commit point is now: nothing supersedes it any more, and it waits for nothing."""
    return tx.execute(_FORCE, {"id": turn.id, "now": now}).rowcount == 1


def close(tx: Transaction, turn: Turn, now: str) -> bool:
    """End its accumulation: it is due now. False when it was not waiting for more messages."""
    return tx.execute(_CLOSE, {"id": turn.id, "now": now}).rowcount == 1


def respond(
    tx: Transaction, turn: Turn, response: str, now: str, *, delivered: bool, reason: str | None = None
) -> Turn | None:
    """Record the one response. `delivered` says that there is nobody to send it to."""
    values = {"id": turn.id, "epoch": turn.epoch, "response": response, "reason": reason, "now": now}
    return _one(tx.execute(_RESPOND, {**values, "delivered": delivered}))


def fail(tx: Transaction, turn: Turn, failure: str, *, most: int, until: str, now: str) -> Turn | None:
    """The attempt failed. The turn has failed with the last one that it may have; else it is due again then."""
    values = {"id": turn.id, "epoch": turn.epoch, "failure": failure, "most": most, "until": until, "now": now}
    return _one(tx.execute(_FAIL, values))


def delivered(tx: Transaction, turn_id: str, now: str) -> bool:
    return tx.execute(_DELIVERED, {"id": turn_id, "now": now}).rowcount == 1


def next_turn(tx: Transaction, turn: Turn) -> str | None:
    """The oldest unfinished turn of the same session."""
    return tx.execute(_NEXT, session_of(turn)).scalar()


def event_of(name: str, turn: Turn, **more: Json) -> NewEvent:
    """What the log says of a turn: which one, and how it stands; never what was said in it, or by whom."""
    data: dict[str, Json] = {"turn_id": turn.id, "turn_group_id": turn.turn_group_id, "status": turn.state.value}
    return NewEvent(name, None, "turn", turn.id, compact({**data, **more}))


def _one(rows: Any) -> Turn | None:
    row = rows.one_or_none()
    return None if row is None else read_turn(row)
