"""Two separate schemas, and the switch between them."""

from __future__ import annotations

import queue
import threading
from contextlib import closing

import pytest
from tests.hub.ingest.entries.payloads import stored, thought
from tests.waiting import SECONDS_MAX

from onceward.errors import InvalidInput
from onceward.hub.db.engine import Database, open_database
from onceward.hub.ingest.entries import schema
from onceward.hub.ingest.entries.insert import insert_entries, insert_entry
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, EntrySchema, active_schema, schema_named, set_test_mode


def active(database: Database) -> EntrySchema:
    with database.read() as tx:
        assert schema.test_mode(tx) is (active_schema(tx) is PKM_TEST)
        return active_schema(tx)


def switch(database: Database, enabled: bool) -> None:
    with database.write() as tx:
        set_test_mode(tx, enabled)


def test_a_schema_must_have_a_valid_name() -> None:
    assert (schema_named("pkm"), schema_named("pkm_test")) == (PKM, PKM_TEST)
    for name in ("", "PKM", "public", "pkm_"):
        with pytest.raises(InvalidInput, match="pkm_test"):
            schema_named(name)


def test_the_test_mode_is_stored_and_visible_to_other_processes(database: Database, database_url: str) -> None:
    assert active(database) is PKM
    with closing(open_database(database_url)) as other:
        switch(database, enabled=True)
        assert active(other) is active(database) is PKM_TEST
        switch(other, enabled=False)
        assert active(database) is PKM


def test_the_same_entry_is_new_in_each_schema(database: Database) -> None:
    in_pkm = insert_entry(database, PKM, thought(1, "for real"))
    in_test = insert_entry(database, PKM_TEST, thought(1, "for a test"))
    again = insert_entry(database, PKM_TEST, thought(1, "for a test"))

    assert [result.action for result in (in_pkm, in_test, again)] == ["inserted", "inserted", "updated"]
    assert [row["clean_text"] for row in stored(database, PKM)] == ["for real"]
    assert [row["clean_text"] for row in stored(database, PKM_TEST)] == ["for a test"]


def test_a_batch_stays_in_one_schema_during_a_switch(database: Database) -> None:
    """Each writer reads the active schema, and inserts there although the mode was switched in between."""
    asked: queue.Queue[threading.Event | None] = queue.Queue()

    def toggle() -> None:
        enabled = False
        while (switched := asked.get(timeout=SECONDS_MAX)) is not None:
            enabled = not enabled
            switch(database, enabled=enabled)
            switched.set()

    def write(writer: int) -> None:
        for number in range(8):
            mine = active(database)
            asked.put(switched := threading.Event())
            assert switched.wait(SECONDS_MAX)
            batch = [thought(writer * 1000 + number * 10 + n, mine.name) for n in range(3)]
            insert_entries(database, mine, batch)

    switcher = threading.Thread(target=toggle)
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in (switcher, *writers):
        thread.start()
    for thread in writers:
        thread.join(SECONDS_MAX)
    asked.put(None)
    switcher.join(SECONDS_MAX)

    for one in (PKM, PKM_TEST):
        assert {row["clean_text"] for row in stored(database, one)} <= {one.name}
    assert len(stored(database, PKM)) + len(stored(database, PKM_TEST)) == 3 * 8 * 3
