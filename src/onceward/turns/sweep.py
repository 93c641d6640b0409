"""What a look at the database finds to do: turns that are due and that perhaps nobody runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, text

from onceward.db.engine import Transaction
from onceward.turns.turn import RUNNING

# More than this is found by the next look.
SWEEP_MAX = 200

_DUE = text("""
    SELECT id FROM turns
    WHERE state IN ('accumulating', 'processing', 'committing') AND accumulate_until <= :now AND NOT EXISTS (
        SELECT 1 FROM turns AS older
        WHERE older.principal = turns.principal AND older.tenant_id = turns.tenant_id
          AND older.session_key = turns.session_key AND older.seq < turns.seq
          AND older.state IN ('accumulating', 'processing', 'committing')
    )
    ORDER BY seq LIMIT :limit
""")
_UNDELIVERED = text("""
    SELECT id FROM turns WHERE state = 'complete' AND delivered_at IS NULL ORDER BY seq LIMIT :limit
""")
_RUNNING = text("SELECT id, epoch, state FROM turns WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))


@dataclass(frozen=True, slots=True)
class Found:
    """`due` are the oldest unfinished turns of their sessions, and those to deliver; `superseded` run here in vain."""

    due: tuple[str, ...]
    superseded: tuple[str, ...]


def look(tx: Transaction, now: str, running: Mapping[str, int]) -> Found:
    """`running` are the turns that run here, with their epochs."""
    due = [row[0] for row in tx.execute(_DUE, {"now": now, "limit": SWEEP_MAX})]
    due += [row[0] for row in tx.execute(_UNDELIVERED, {"limit": SWEEP_MAX})]
    superseded = []
    if running:
        for turn_id, epoch, state in tx.execute(_RUNNING, {"ids": sorted(running)}):
            if epoch != running[turn_id] or state not in RUNNING:
                superseded.append(turn_id)
    return Found(tuple(one for one in due if one not in running), tuple(superseded))
