"""Stored explanations: which artifacts each run of a turn reused or computed, and why, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.turns.artifacts.artifacts import Explanation
from onceward.hub.turns.model.turn import Turn

# A brain asks for a few artifacts. Those of one that asks in a loop are not all kept.
STORED_MAX = 100
# An explanation may contain the error of a store.
_REASON_CHARACTERS_MAX = 500

_INSERT = RawStatement("""
    INSERT INTO turn_artifacts (turn_id, epoch, name, reused, reason, computed_at)
    VALUES (:turn_id, :epoch, :name, :reused, :reason, :computed_at)
""")
_OF_TURN = RawStatement("""
    SELECT epoch, name, reused, reason, computed_at FROM turn_artifacts WHERE turn_id = :turn_id ORDER BY seq
""")


@dataclass(frozen=True, slots=True)
class StoredExplanation:
    """The explanation of one artifact, with the epoch of the run that asked for it."""

    epoch: int
    name: str
    reused: bool
    reason: str
    computed_at: str


def store_explanations(tx: Transaction, turn: Turn, explanations: Sequence[Explanation]) -> None:
    """Store the explanations of one run, the first 100 of them."""
    for one in explanations[:STORED_MAX]:
        row = {
            "turn_id": turn.id,
            "epoch": turn.epoch,
            "name": one.name,
            "reused": one.reused,
            "reason": one.reason.replace("\0", "")[:_REASON_CHARACTERS_MAX],
            "computed_at": one.computed_at,
        }
        _INSERT.count(tx, row)


def explanations_of(tx: Transaction, turn: Turn) -> list[StoredExplanation]:
    """Return the explanations of all runs of a turn that ended, in the order of the requests."""
    rows = _OF_TURN.rows(tx, {"turn_id": turn.id})
    return [StoredExplanation(row[0], row[1], bool(row[2]), row[3], row[4]) for row in rows]
