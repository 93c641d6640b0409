"""Append to the event log: the last step of a transaction.

Ids follow the order of the commits, on PostgreSQL too: appending takes one lock, after every row lock, and holds it
until the commit. A function that appends is a generator: it changes its rows, yields its events once, and gets their
ids. So one transaction can do the work of many callers, and append the events of all of them with its last statement.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Generator, Sequence
from typing import Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import sqlalchemy
from sqlalchemy import text

from onceward.errors import TransactionConflict
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.timestamps import now_text

P = ParamSpec("P")
T = TypeVar("T")

# The channel of NOTIFY and LISTEN (PostgreSQL).
CHANNEL = "onceward_events"
# An arbitrary number, but it must be the same in every version of Onceward.
_LOCK = 7_331_005


class NewEvent(NamedTuple):
    """An event to append. `data` is the compact JSON text of an object."""

    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: str


# Its public place, which is also its name in stored outcomes.
NewEvent.__module__ = "onceward.hub.events.log"


class MarkedEvent(NamedTuple):
    """An event to append, with the mark of its keyed request."""

    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: str
    request_key: str


Events: TypeAlias = Sequence[NewEvent | MarkedEvent]
# Yields the events of one caller, or of a batch, at most once; gets their ids; returns the result.
EventSteps: TypeAlias = Generator[Events, Sequence[int], T]

_APPEND_ONE_SQLITE = RawStatement("""
    INSERT INTO events (name, topic_id, entity_type, entity_id, data, request_key, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
""")
# One statement for all rows: the driver releases Python's lock only once, and no other thread comes between two rows.
_APPEND_SQLITE = RawStatement("""
    INSERT INTO events (event_id, name, topic_id, entity_type, entity_id, data, request_key, created_at)
    SELECT :first + key, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), :created_at
    FROM json_each(:rows)
""")
# The last id ever used, even by a deleted event. It cannot change while this transaction has the write lock.
_LAST_SQLITE = RawStatement("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")

# The lock comes first: an id is drawn only after the CTE `turn` has taken the lock.
_APPEND_POSTGRES = text("""
    WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(:lock)),
    written AS (
        INSERT INTO events (name, topic_id, entity_type, entity_id, data, request_key, created_at)
        SELECT e.row ->> 0, e.row ->> 1, e.row ->> 2, e.row ->> 3, e.row ->> 4, e.row ->> 5, :created_at
        FROM turn, json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS e(row, place)
        ORDER BY e.place
        RETURNING event_id
    )
    SELECT event_id, pg_notify(:channel, '') FROM written ORDER BY event_id
""")


def append(tx: sqlalchemy.Connection, new: Events, request: RequestKey | None = None) -> list[int]:
    """Append events and return their ids. This must be the last step of its transaction.

    On PostgreSQL, every other transaction that appends waits from here until the commit. The first event records the
    request key. Raises `TransactionConflict` if another run of the same request has already appended its event.
    """
    if not new:
        return []
    try:
        return _append(tx, marked(new, request))
    except sqlalchemy.exc.IntegrityError as error:
        raise TransactionConflict("another run of the same request has committed first; send it again") from error


def marked(new: Events, request: RequestKey | None) -> Events:
    """Return the events, the first one with the mark of its request."""
    return new if request is None or not new else [MarkedEvent(*new[0][:5], request.digest), *new[1:]]


def _append(tx: sqlalchemy.Connection, new: Events) -> list[int]:
    at = now_text()
    rows = [one if isinstance(one, MarkedEvent) else (*one, None) for one in new]
    if tx.dialect.name == "sqlite":
        if len(rows) == 1:
            return [_APPEND_ONE_SQLITE.new_id(tx, (*rows[0], at))]
        first = int(_LAST_SQLITE.rows(tx)[0][0]) + 1
        _APPEND_SQLITE.count(tx, {"first": first, "rows": json.dumps(rows), "created_at": at})
        return list(range(first, first + len(rows)))
    values = {"lock": _LOCK, "channel": CHANNEL, "created_at": at, "rows": json.dumps(rows)}
    return [row[0] for row in tx.execute(_APPEND_POSTGRES, values)]


class Appending(Generic[P, T]):
    """A function that changes rows and then appends events; used as a decorator.

    A call does both in the given transaction. `steps` is the undecorated function, for the writer, which appends the
    events of many callers together.
    """

    def __init__(self, steps: Callable[Concatenate[sqlalchemy.Connection, P], EventSteps[T]]) -> None:
        self.steps = steps
        functools.update_wrapper(self, steps)

    def __call__(self, tx: sqlalchemy.Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = self.steps(tx, *args, **kwargs)
        try:
            new = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        return finish(steps, append(tx, new))


def finish(steps: EventSteps[T], ids: Sequence[int]) -> T:
    """Send the ids of its events to a function that has yielded, and return its result."""
    try:
        steps.send(ids)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a function appends its events in one step")
