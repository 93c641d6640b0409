"""Batch work for responses: record the responses of many turns, with their events, in one transaction.

Nothing here waits for another transaction. A turn that another process has locked, and one whose run was superseded, are
left out, and `transitions.respond` decides about them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceward.hub.db.append import EventSteps
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.writer import BatchWork
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import State, Turn, order_of

# ruff: noqa: S608  # The statements are built from constants of this module.

_FIELDS = ("id", "epoch", "response", "reason", "now", "delivered_at")
_MINE = "turns.id = new.id AND turns.epoch = CAST(new.epoch AS integer) AND turns.state IN ('processing', 'committing')"
_SET = """state = 'complete', response = new.response, reason = coalesce(new.reason, turns.reason),
    updated_at = new.now, completed_at = new.now, delivered_at = new.delivered_at"""
# The columns that may have changed since the engine read the turn, and the next turn of the session.
_CHANGED = """turns.id, turns.epoch, turns.commit_point, turns.effects_started, coalesce(new.reason, turns.reason), (
        SELECT later.id FROM turns AS later
        WHERE later.principal = turns.principal AND later.tenant_id = turns.tenant_id
          AND later.session_key = turns.session_key AND later.state IN ('accumulating', 'processing', 'committing')
          AND later.id <> turns.id
        ORDER BY later.seq LIMIT 1
    )"""

# SQLite: no other transaction writes, so what is read first stays true. One row answers for all turns, because each row
# is a switch between threads.
_NEW_SQLITE = f"""(
    SELECT {", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name in enumerate(_FIELDS))}
    FROM json_each(:rows)
) AS new"""
_SELECT_SQLITE = RawStatement(f"""
    SELECT json_group_array(json_array({_CHANGED})) FROM {_NEW_SQLITE} CROSS JOIN turns ON {_MINE}
""")
_UPDATE_SQLITE = RawStatement(f"UPDATE turns SET {_SET} FROM {_NEW_SQLITE} WHERE {_MINE}")

# PostgreSQL: the ids are also in an array, so that every planner searches the index of ids.
_UPDATE_POSTGRES = RawStatement(f"""
    WITH new AS MATERIALIZED (
        SELECT {", ".join(f"e.row ->> {at} AS {name}" for at, name in enumerate(_FIELDS))}
        FROM json_array_elements(CAST(:rows AS json)) AS e(row)
    ), locked AS MATERIALIZED (
        SELECT turns.id FROM turns WHERE turns.id = ANY(CAST(:ids AS text[])) FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE turns SET {_SET} FROM new JOIN locked ON locked.id = new.id
    WHERE turns.id = ANY(CAST(:ids AS text[])) AND {_MINE}
    RETURNING {_CHANGED}
""")


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn after an attempt, and the oldest unfinished turn of its session if this one is finished."""

    turn: Turn
    next_turn: str | None = None


@dataclass(frozen=True, slots=True)
class RunResponse:
    """The response of a run. `delivered`: there is nowhere to send it, so it counts as delivered."""

    turn: Turn
    response: str
    reason: str | None
    now: str
    delivered: bool

    def row(self) -> tuple[object, ...]:
        """The values of `_FIELDS`."""
        delivered_at = self.now if self.delivered else None
        return self.turn.id, self.turn.epoch, self.response, self.reason, self.now, delivered_at

    def finished(self, commit_point: Any, effects_started: int, reason: str | None, next_turn: str | None) -> Finished:
        turn = replace(
            self.turn,
            state=State.COMPLETE,
            response=self.response,
            commit_point=bool(commit_point),
            effects_started=effects_started,
            reason=reason,
            updated_at=self.now,
            completed_at=self.now,
            delivered_at=self.now if self.delivered else None,
        )
        return Finished(turn, next_turn)


def _respond_steps(tx: Transaction, responses: Sequence[RunResponse]) -> EventSteps[Sequence[Finished | None]]:
    """Record responses. None for one that must be left to `transitions.respond`."""
    # A turn can have two runs in a batch, one of them superseded. A run responds once.
    first = {(one.turn.id, one.turn.epoch): one for one in reversed(responses)}
    changed = {(turn_id, epoch): values for turn_id, epoch, *values in _update(tx, list(first.values()))}
    results: list[Finished | None] = []
    for one in responses:
        key = one.turn.id, one.turn.epoch
        results.append(one.finished(*changed[key]) if key in changed and first[key] is one else None)
    yield [transitions.event_of(transitions.COMPLETED, one.turn) for one in results if one is not None]
    return results


# The name places it before `turns.begin`: a response makes its session idle.
RESPOND = BatchWork("turns.answer", _respond_steps, lambda response: order_of(response.turn))


def _update(tx: Transaction, responses: Sequence[RunResponse]) -> Iterable[Sequence[Any]]:
    rows = json.dumps([one.row() for one in responses])
    if tx.dialect.name != "sqlite":
        return _UPDATE_POSTGRES.rows(tx, {"rows": rows, "ids": [one.turn.id for one in responses]})
    changed: list[list[Any]] = json.loads(_SELECT_SQLITE.rows(tx, {"rows": rows})[0][0])
    if changed:
        _UPDATE_SQLITE.count(tx, {"rows": rows})
    return changed
