"""Sweep: find turns in the database that are due and that possibly no process runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, text

from onceward.hub.db.engine import Transaction
from onceward.hub.turns.execution.repository import LoadedTurn
from onceward.hub.turns.model.turn import COLUMNS, RUNNING, State, messages_of, read_turn

# Turns found by one sweep. The next sweep continues where this one ended.
SWEEP_MAX = 200

_DUE = text(f"""
    SELECT {COLUMNS} FROM turns
    WHERE turns.state IN ('accumulating', 'processing', 'committing') AND turns.seq > :after
      AND turns.accumulate_until <= :now AND NOT EXISTS (
        SELECT 1 FROM turns AS older
        WHERE older.principal = turns.principal AND older.tenant_id = turns.tenant_id
          AND older.session_key = turns.session_key AND older.seq < turns.seq
          AND older.state IN ('accumulating', 'processing', 'committing')
    )
    ORDER BY turns.seq LIMIT :limit
""")  # noqa: S608  # built from constants
_UNDELIVERED = text("""
    SELECT seq, id FROM turns WHERE state = 'complete' AND delivered_at IS NULL AND seq > :after
    ORDER BY seq LIMIT :limit
""")
_RUNNING = text("SELECT id, epoch, state FROM turns WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))


@dataclass(frozen=True, slots=True)
class SweepCursor:
    """Position at which the next sweep continues: after these rows, or 0 for the beginning."""

    due: int = 0
    undelivered: int = 0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        due: Turns that can start, and complete turns whose response is not delivered.
        running_elsewhere: Turns in a running state that do not run in this process. The claim on the beat decides
            whether another process runs them or none does.
        superseded: Turns whose run in this process was superseded.
        cursor: The position of the next sweep.
    """

    due: tuple[str, ...]
    running_elsewhere: tuple[LoadedTurn, ...]
    superseded: tuple[str, ...]
    cursor: SweepCursor


def find_due(
    tx: Transaction, now: str, running: Mapping[str, int], cursor: SweepCursor, limit: int = SWEEP_MAX
) -> SweepResult:
    """Find turns to run. `running` are the turns that run in this process, with their epochs."""
    turns = [read_turn(row) for row in tx.execute(_DUE, {"now": now, "after": cursor.due, "limit": limit})]
    undelivered = tx.execute(_UNDELIVERED, {"after": cursor.undelivered, "limit": limit}).all()
    due = [turn.id for turn in turns if turn.state is State.ACCUMULATING] + [row.id for row in undelivered]
    running_elsewhere = [
        LoadedTurn(turn, messages_of(tx, turn)) for turn in turns if turn.state in RUNNING and turn.id not in running
    ]
    superseded = []
    if running:
        for turn_id, epoch, state in tx.execute(_RUNNING, {"ids": sorted(running)}):
            if epoch != running[turn_id] or state not in RUNNING:
                superseded.append(turn_id)
    ends = [rows[-1].seq if len(rows) == limit else 0 for rows in (turns, undelivered)]
    return SweepResult(
        tuple(one for one in due if one not in running), tuple(running_elsewhere), tuple(superseded), SweepCursor(*ends)
    )
