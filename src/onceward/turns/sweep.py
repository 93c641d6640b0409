"""What a look at the database finds to do: turns that are due and that perhaps nobody runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, text

from onceward.db.engine import Transaction
from onceward.turns.rows import Seen
from onceward.turns.turn import COLUMNS, RUNNING, State, messages_of, read_turn

# More than this is found by the next looks, each of which goes on where the last one ended.
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
""")  # noqa: S608  # put together from constants
_UNDELIVERED = text("""
    SELECT seq, id FROM turns WHERE state = 'complete' AND delivered_at IS NULL AND seq > :after
    ORDER BY seq LIMIT :limit
""")
_RUNNING = text("SELECT id, epoch, state FROM turns WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a look ended, and the next one goes on: behind these rows, or at the beginning again."""

    due: int = 0
    undelivered: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a look found.

    due         turns that can begin, and those with a response to deliver
    held        turns that run: elsewhere, if their beats are still held, or nowhere
    superseded  turns that run here in vain
    """

    due: tuple[str, ...]
    held: tuple[Seen, ...]
    superseded: tuple[str, ...]
    place: Place


def look(tx: Transaction, now: str, running: Mapping[str, int], place: Place, limit: int = SWEEP_MAX) -> Found:
    """`running` are the turns that run here, with their epochs."""
    turns = [read_turn(row) for row in tx.execute(_DUE, {"now": now, "after": place.due, "limit": limit})]
    undelivered = tx.execute(_UNDELIVERED, {"after": place.undelivered, "limit": limit}).all()
    due = [turn.id for turn in turns if turn.state is State.ACCUMULATING] + [row.id for row in undelivered]
    held = [Seen(turn, messages_of(tx, turn)) for turn in turns if turn.state in RUNNING and turn.id not in running]
    superseded = []
    if running:
        for turn_id, epoch, state in tx.execute(_RUNNING, {"ids": sorted(running)}):
            if epoch != running[turn_id] or state not in RUNNING:
                superseded.append(turn_id)
    ends = [rows[-1].seq if len(rows) == limit else 0 for rows in (turns, undelivered)]
    return Found(tuple(one for one in due if one not in running), tuple(held), tuple(superseded), Place(*ends))
