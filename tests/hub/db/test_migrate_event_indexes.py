"""The migration to smaller indexes of the event log: the log itself is unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy.exc
from sqlalchemy import text

from onceward.hub.db import migrate as migrating
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.db.request_key import RequestKey
from onceward.hub.events.log import NewEvent, append, delete_old_events, extent, page

LATER = "9999"


@pytest.fixture
def before(empty_url: str) -> Iterator[Database]:
    """A database that the previous version has left."""
    with closing(open_database(empty_url)) as database:
        with database.write() as tx:
            migrating._upgrade(tx, "0004")
        yield database


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    """A new database: pages that earlier tests have left in a table change the plan of a query."""
    with closing(open_database(empty_url)) as database:
        migrate(database)
        yield database


def new(topic: str | None = None) -> NewEvent:
    return NewEvent("topic.created", topic, "topic", "1", "{}")


def request(digest: str) -> RequestKey:
    return RequestKey(digest, again=False)


def test_the_log_is_unchanged_and_can_be_appended_to(before: Database) -> None:
    with before.write() as tx:
        append(tx, [new("t1"), new(), new("t2")], request("r"))
    with before.read() as tx:
        was = page(tx, 0, 10, 10), extent(tx)

    assert migrate(before)

    with before.read() as tx:
        assert (page(tx, 0, 10, 10), extent(tx)) == was
    with before.write() as tx:
        assert append(tx, [new()]) == [4]
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"), before.write() as tx:
        tx.execute(text("DELETE FROM events"))
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"), before.write() as tx:
        tx.execute(text("UPDATE events SET name = 'other'"))


def test_the_triggers_of_the_log_are_the_same_before_and_after(before: Database) -> None:
    look = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'event%' ORDER BY 1"
        if before.is_sqlite
        else "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'event%' ORDER BY 1"
    )
    with before.read() as tx:
        was = tx.execute(text(look)).all()

    migrate(before)

    with before.read() as tx:
        assert tx.execute(text(look)).all() == was != []


def test_ids_of_events_deleted_by_retention_are_not_reused(before: Database) -> None:
    with before.write() as tx:
        append(tx, [new(), new()])
    with before.write() as tx:
        assert delete_old_events(tx, LATER) == 2

    migrate(before)

    with before.write() as tx:
        assert append(tx, [new()]) == [3]


def test_a_log_without_events_starts_with_id_1(before: Database) -> None:
    migrate(before)

    with before.write() as tx:
        assert append(tx, [new()]) == [1]


def test_both_indexes_are_used_and_are_partial(database: Database) -> None:
    explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    plans = []
    with database.read() as tx:
        if not database.is_sqlite:
            tx.execute(text("SET LOCAL enable_seqscan = off"))
        for condition in ("topic_id IN ('a', 'b') AND event_id > 1", "request_key = 'r'"):
            found = tx.execute(text(f"{explain} SELECT * FROM events WHERE {condition}"))  # noqa: S608
            plans.append(str(found.all()))

    assert "idx_events_topic" in plans[0]
    assert "idx_events_request" in plans[1]
