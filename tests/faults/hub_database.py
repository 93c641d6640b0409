"""The content of a hub's database, read from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import sqlalchemy

from onceward.hub.db import tables
from onceward.hub.db.engine import Database, open_database
from onceward.hub.events.log import extent, page

_RUNNING = sqlalchemy.text("SELECT count(*) FROM turns WHERE state IN ('accumulating', 'processing', 'committing')")


@contextmanager
def connected_to(url: str) -> Iterator[Database]:
    with closing(open_database(url, pool_size=2)) as database:
        yield database


def written(database: Database) -> dict[str, int]:
    """Return the row count of every table and the end of the log, which a refused request must not change."""
    with database.read() as tx:
        counts = {
            table.fullname: tx.execute(sqlalchemy.select(sqlalchemy.func.count()).select_from(table)).scalar_one()
            for table in tables.metadata_on(is_sqlite=database.is_sqlite).tables.values()
        }
        return {**counts, "last event": extent(tx).last_event_id}


def at_rest(database: Database) -> bool:
    """Return whether no turn is running: a turn of an earlier request writes at any time."""
    with database.read() as tx:
        running: int = tx.execute(_RUNNING).scalar_one()
    return not running


def event_ids(database: Database) -> list[int]:
    """Return every id of the log, in order."""
    ids: list[int] = []
    while True:
        with database.read() as tx:
            more = page(tx, ids[-1] if ids else 0, 2**62, 500)
        ids += [event.event_id for event in more]
        if len(more) < 500:
            return ids


def entities(database: Database, name: str, topic_id: str) -> list[str]:
    """Return the entity ids of the events with this name and topic, in order."""
    events = tables.events.c
    wanted = sqlalchemy.select(events.entity_id).where(events.name == name, events.topic_id == topic_id)
    with database.read() as tx:
        return list(tx.execute(wanted.order_by(events.event_id)).scalars())
