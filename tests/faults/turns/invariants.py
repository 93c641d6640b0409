"""Invariants at the end: rows of the database, claims, and external effects."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import text
from tests.faults.turns.brain import wanted, world_entries
from tests.waiting import soon

from onceward import open_ledger
from onceward.core.claim import Entry, Status
from onceward.hub.db.engine import Database
from onceward.ledger.holder import proved_dead
from onceward.store import PAGE_MAX

_UNFINISHED = text("SELECT count(*) FROM turns WHERE state IN ('accumulating', 'processing', 'committing')")
_TURNS = text("SELECT state, count(*), sum(CASE WHEN attempts > 1 THEN 1 ELSE 0 END) FROM turns GROUP BY state")
_CARRIED = text("""
    SELECT turns.session_key, turns.id, turns.state, turns.response, turns.completed_at, turn_messages.content
    FROM turn_messages JOIN turns ON turns.id = turn_messages.turn_id
    ORDER BY turns.session_key, turns.seq, turn_messages.seq
""")
_EMPTY = text("""
    SELECT id, state, response FROM turns
    WHERE NOT EXISTS (SELECT 1 FROM turn_messages WHERE turn_messages.turn_id = turns.id)
""")
_EVENTS = text("SELECT entity_id, count(*) AS count FROM events WHERE name = 'turn.completed' GROUP BY entity_id")
_DECISIONS = text("SELECT data FROM events WHERE name = 'turn.message_received'")


@dataclass(frozen=True, slots=True)
class Beat:
    """A completed turn: the messages that it carries, and its response as JSON text."""

    turn_id: str
    session: str
    texts: tuple[str, ...]
    response: str
    completed_at: str

    @property
    def orders(self) -> list[str]:
        return [order_of(line) for line in self.texts]


def order_of(content: str) -> str:
    return content.split()[1]


def unfinished(database: Database) -> int:
    with database.read() as tx:
        return int(tx.execute(_UNFINISHED).scalar_one())


def turns(database: Database) -> tuple[dict[str, int], int]:
    """Return the number of turns in each state, and how many took more than one attempt."""
    with database.read() as tx:
        rows = tx.execute(_TURNS).all()
    return {state: count for state, count, _ in rows}, sum(again for _, _, again in rows)


def decisions(database: Database) -> Counter[str]:
    with database.read() as tx:
        return Counter(json.loads(data)["decision"] or "none" for data in tx.execute(_DECISIONS).scalars())


def beats(database: Database) -> list[Beat]:
    """Every turn that has messages, which must be complete; every other one must have been superseded."""
    with database.read() as tx:
        rows = tx.execute(_CARRIED).all()
        empty = tx.execute(_EMPTY).all()
        events = Counter({row.entity_id: row.count for row in tx.execute(_EVENTS)})
    assert {row.state for row in rows} <= {"complete"}, [row for row in rows if row.state != "complete"]
    assert {(row.state, row.response) for row in empty} <= {("superseded", None)}, empty
    found = []
    for turn_id, some in groupby(rows, lambda row: row.id):
        its = list(some)
        texts = tuple(row.content for row in its)
        found.append(Beat(turn_id, its[0].session_key, texts, its[0].response, its[0].completed_at))
    assert events == Counter(beat.turn_id for beat in found), "a turn has no event of its end, or several"
    return found


def check_sessions(found: Sequence[Beat], sent: dict[str, list[str]]) -> None:
    """Each message is in one beat, in the order in which it was sent, and the beats were answered in that order."""
    by_session = {session: list(some) for session, some in groupby(found, lambda beat: beat.session)}
    for session, orders in sent.items():
        its = by_session.pop(session, [])
        carried = [order for beat in its for order in beat.orders]
        assert carried == orders, f"{session} has {carried}, sent was {orders}"
        ends = [beat.completed_at for beat in its]
        assert ends == sorted(ends), f"{session} was answered in another order: {its}"
    assert not by_session, f"nobody sent {by_session}"


def check_answers(found: Sequence[Beat], responses: dict[str, set[tuple[str, str]]]) -> None:
    """Every answer that a caller received is the recorded one."""
    for beat in found:
        response: dict[str, Any] = json.loads(beat.response)
        assert response["orders"] == [order for _, order in wanted(beat.texts)], beat
        for order in beat.orders:
            other = responses.get(order, set()) - {(beat.turn_id, json.dumps(response, sort_keys=True))}
            assert not other, f"{order} was answered by {beat}, and somebody was told {other}"


def check_world(found: Sequence[Beat], world: Path) -> None:
    """A wanted effect happened once; an unwanted one never happened, or was undone."""
    expected = set()
    for beat in found:
        wanted_orders = {order for _, order in wanted(beat.texts)}
        for line in beat.texts:
            _check_order(world, *line.split()[:2], is_wanted=order_of(line) in wanted_orders)
            expected.add(order_of(line))
    assert {path.name for path in world.iterdir()} <= expected
    for _, some in groupby(found, lambda beat: beat.session):
        orders = [order for beat in some for _, order in wanted(beat.texts)]
        for (first, before), (second, after) in pairwise(
            (order, world_entries(world, order)[0].at) for order in orders
        ):
            assert before < after, f"{second} was done before {first}"


def _check_order(world: Path, act: str, order: str, *, is_wanted: bool) -> None:
    done = world_entries(world, order)
    twice = [entry for entry, count in Counter((one.sign, one.key) for one in done).items() if count > 1]
    assert not twice, f"{order} was done twice under one key: {done}"
    times = sum(1 if entry.sign == "+" else -1 for entry in done)
    # An idempotent effect of a superseded run is not undone.
    allowed = {1} if is_wanted else {0, 1} if act == "provide" else {0}
    assert times in allowed, f"{act} of {order}, {'wanted' if is_wanted else 'not wanted any more'}: {done}"


async def check_claims(url: str) -> int:
    """Check that no claim is held and none is in doubt.

    Return the number of claims left by killed processes, and by those that took over and found themselves superseded.
    """
    with open_ledger(url, namespace="idempotency") as ledger:

        async def entries(status: Status) -> list[Entry]:
            page = await ledger.scan(None, status, limit=PAGE_MAX)
            found = list(page.entries)
            while page.next:
                page = await ledger.scan(None, status, after=page.next, limit=PAGE_MAX)
                found += page.entries
            return found

        async def let_go() -> bool | None:
            return not any(map(_is_held, await entries(Status.IN_PROGRESS)))

        # A run that has just answered is about to settle its claim; a superseded run has yet to notice.
        is_free: bool = await soon(let_go, "all turns are over, and a claim is held")
        assert is_free
        doubts = await entries(Status.IN_DOUBT)
        assert not doubts, doubts
        return len(await entries(Status.IN_PROGRESS))


def _is_held(entry: Entry) -> bool:
    return entry.lease_until > time.time_ns() // 1000 and not proved_dead(entry.holder)
