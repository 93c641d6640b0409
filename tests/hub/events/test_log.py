"""The event log on both databases: append-only, in commit order, deleted from its old end alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy
from sqlalchemy import text
from tests.servers.postgres import PostgresServer

from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.events.log import EVERYTHING, Event, Extent, Filter, NewEvent, append, delete_old_events, extent, page


def new(number: int, *, topic: str | None = "top_1", name: str = "thing.made") -> NewEvent:
    return NewEvent(name, topic, "thing", f"thing_{number}", f'{{"n":{number}}}')


def write(database: Database, *events: NewEvent) -> list[int]:
    with database.write() as tx:
        return append(tx, events)


def read(database: Database, after: int = 0, limit: int = 500, wanted: Filter = EVERYTHING) -> list[Event]:
    with database.read() as tx:
        return page(tx, after, extent(tx).last_event_id, limit, wanted)


def extent_of(database: Database) -> Extent:
    with database.read() as tx:
        return extent(tx)


def test_a_fresh_log_is_empty_and_has_an_epoch(database: Database) -> None:
    fresh = extent_of(database)

    assert (fresh.oldest_event_id, fresh.last_event_id) == (1, 0)
    assert len(fresh.log_epoch) >= 16
    assert read(database) == []


def test_events_are_read_in_the_order_in_which_they_were_appended(database: Database) -> None:
    ids = write(database, new(1), new(2), new(3, topic=None)) + write(database, new(4))

    events = read(database)
    assert ids == [event.event_id for event in events] == [1, 2, 3, 4]
    assert [event.entity_id for event in events] == ["thing_1", "thing_2", "thing_3", "thing_4"]
    assert [event.topic_id for event in events] == ["top_1", "top_1", None, "top_1"]
    assert write(database) == []


def test_an_event_is_shown_as_one_json_object_with_its_data_inside(database: Database) -> None:
    data = '{"text":"\\"quoted\\" \u2028 ä","n":1.50}'
    write(database, NewEvent('odd "name"', None, "thing", "id\n", data))

    (event,) = read(database)
    shown = json.loads(event.json)
    assert list(shown) == ["event_id", "name", "topic_id", "entity_type", "entity_id", "data", "created_at"]
    assert (shown["name"], shown["topic_id"], shown["entity_id"]) == ('odd "name"', None, "id\n")
    assert data in event.json, "pasted in unchanged, not encoded again"
    assert event.json is event.json, "written once"


def test_a_page_has_bounds_a_limit_and_a_filter(database: Database) -> None:
    write(database, *(new(n, topic=f"top_{n % 3}", name="even" if n % 2 == 0 else "odd") for n in range(1, 13)))

    def ids(after: int, until: int, limit: int, wanted: Filter = EVERYTHING) -> list[int]:
        with database.read() as tx:
            return [event.event_id for event in page(tx, after, until, limit, wanted)]

    assert ids(0, 12, 500) == list(range(1, 13))
    assert ids(3, 6, 500) == [4, 5, 6]
    assert ids(3, 12, 2) == [4, 5]
    assert ids(12, 12, 500) == []
    assert ids(0, 12, 500, Filter(topics=frozenset({"top_0"}))) == [3, 6, 9, 12]
    assert ids(0, 12, 500, Filter(topics=frozenset({"top_0", "top_1"}))) == [1, 3, 4, 6, 7, 9, 10, 12]
    assert ids(0, 12, 500, Filter(names=frozenset({"odd"}))) == [1, 3, 5, 7, 9, 11]
    assert ids(0, 12, 2, Filter(frozenset({"top_0"}), frozenset({"even"}))) == [6, 12]
    assert ids(0, 12, 500, Filter(topics=frozenset({"none"}))) == []


def test_the_python_filter_accepts_what_the_database_filter_accepts(database: Database) -> None:
    write(database, *(new(n, topic=f"top_{n % 3}" if n % 4 else None, name=f"name_{n % 2}") for n in range(24)))
    events = read(database)

    for topics in (set(), {"top_0"}, {"top_1", "top_2"}, {"none"}):
        for names in (set(), {"name_1"}, {"name_0", "name_1"}):
            wanted = Filter(frozenset(topics), frozenset(names))
            assert [event for event in events if wanted.matches(event.name, event.topic_id)] == read(
                database, wanted=wanted
            )
            assert wanted.is_all == (not topics and not names)


# Nothing is changed or deleted.


def kinds_of_damage(database: Database) -> list[str]:
    statements = [
        "UPDATE events SET name = 'other'",
        "UPDATE events SET event_id = 99 WHERE event_id = 1",
        "DELETE FROM events",
        "DELETE FROM events WHERE event_id = 1",
        "UPDATE event_log SET oldest_event_id = 0",
        "DELETE FROM event_log",
    ]
    if database.is_sqlite:
        replaced = (
            "INSERT OR REPLACE INTO events SELECT event_id, 'other', topic_id, entity_type, entity_id, data, created_at"
        )
        return [*statements, f"{replaced} FROM events", "UPDATE OR REPLACE events SET event_id = 2 WHERE event_id = 1"]
    return [*statements, "TRUNCATE events", "TRUNCATE event_log", "INSERT INTO events (event_id) VALUES (7)"]


def test_no_event_in_the_log_can_be_changed_or_deleted(database: Database) -> None:
    write(database, new(1), new(2))
    before, begins = read(database), extent_of(database)

    for statement in kinds_of_damage(database):
        with pytest.raises(sqlalchemy.exc.DBAPIError), database.engine.begin() as tx:
            tx.execute(text(statement))

    assert read(database) == before
    assert extent_of(database) == begins


def test_ids_are_never_reused_even_if_all_events_are_gone(database: Database) -> None:
    write(database, new(1), new(2))
    with database.write() as tx:
        assert delete_old_events(tx, "3000") == 2

    gone = extent_of(database)
    assert (gone.oldest_event_id, gone.last_event_id) == (3, 2)
    assert write(database, new(3)) == [3]


def test_a_rolled_back_transaction_leaves_no_event(database: Database) -> None:
    def half_done() -> None:
        with database.write() as tx:
            append(tx, [new(1)])
            raise KeyError

    with pytest.raises(KeyError):
        half_done()
    write(database, new(2))

    assert [event.entity_id for event in read(database)] == ["thing_2"]


# Retention.


def test_retention_deletes_the_oldest_in_batches_and_records_where_the_log_begins(database: Database) -> None:
    write(database, *(new(n) for n in range(1, 11)))
    middle = read(database)[-1].created_at
    write(database, *(new(n) for n in range(11, 14)))
    # Both were appended within one microsecond at worst; what was appended at that very time stays.
    first_kept = next(event.event_id for event in read(database) if event.created_at >= middle)
    later = next(event.created_at for event in read(database) if event.event_id == 11)

    with database.write() as tx:
        assert delete_old_events(tx, middle) == first_kept - 1
    with database.write() as tx:
        assert delete_old_events(tx, later, limit=4) == min(4, 11 - first_kept)
    assert extent_of(database).oldest_event_id == read(database)[0].event_id
    while True:
        with database.write() as tx:
            if delete_old_events(tx, later, limit=4) == 0:
                break

    assert [event.event_id for event in read(database)] == [11, 12, 13]
    assert extent_of(database).oldest_event_id == 11
    with database.write() as tx:
        assert delete_old_events(tx, "2000") == 0


# Order, on PostgreSQL, where transactions run side by side.


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    with closing(open_database(postgres_server.create_database())) as database:
        migrate(database)
        yield database


def test_a_later_append_waits_until_the_earlier_one_has_committed(postgres: Database) -> None:
    """With ids drawn before the lock, the second writer could commit a later id while the first is still to come."""
    appended, finished = threading.Event(), threading.Event()

    def second() -> None:
        with postgres.write() as tx:
            append(tx, [new(2)])
        appended.set()

    with postgres.write() as tx:
        append(tx, [new(1)])
        thread = threading.Thread(target=second)
        thread.start()
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        with postgres.engine.connect() as other:
            while other.execute(waiting).scalar() != 1:
                other.rollback()
        assert not appended.is_set()
        assert read(postgres) == []
        finished.set()
    thread.join()

    assert [event.entity_id for event in read(postgres)] == ["thing_1", "thing_2"]
    assert [event.event_id for event in read(postgres)] == [1, 2]
