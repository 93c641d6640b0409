"""A keyed request that runs again, because its process died before the response was recorded, gets the same results."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import text
from tests.hub.ingest.entries.payloads import UPDATE_IDENTITY, events, make_policies, newsletter, note, stored, thought
from tests.waiting import SECONDS_MAX, until

from onceward.errors import NotFound
from onceward.hub.db.engine import Database
from onceward.hub.db.request_key import RequestKey
from onceward.hub.ingest.entries import insert
from onceward.hub.ingest.entries.insert import Inserted, insert_entries, insert_entry
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST
from onceward.hub.ingest.payload import Payload

FIRST, AGAIN = RequestKey("digest", again=False), RequestKey("digest", again=True)


def summary_of(results: list[Inserted]) -> list[dict[str, Any]]:
    return [result.json() for result in results]


def test_an_insert_is_replayed_as_inserted(database: Database) -> None:
    first = insert_entry(database, PKM, thought(1), request=FIRST)
    before, log = stored(database), events(database)

    again = insert_entry(database, PKM, thought(1), request=AGAIN)
    another = insert_entry(database, PKM, thought(1), request=RequestKey("another"))

    assert again.json() == first.json()
    assert again.action == "inserted"
    assert another.action == "updated"
    assert (stored(database), events(database)) == (before, log)


def test_an_update_is_replayed_as_updated_and_undoes_no_later_change(database: Database) -> None:
    insert_entry(database, PKM, thought(1, "original"))
    first = insert_entry(database, PKM, thought(1, "mine"), request=FIRST)
    insert_entry(database, PKM, thought(1, "somebody else's"))
    before, log = stored(database), events(database)

    again = insert_entry(database, PKM, thought(1, "mine"), request=AGAIN)

    assert (again.action, again.changed, again.event_id) == ("updated", True, first.event_id)
    assert (again.row or {})["clean_text"] == "somebody else's", "as it is by now"
    assert (stored(database), events(database)) == (before, log)


def batch() -> list[dict[str, Any]]:
    """One of each: inserted, skipped, bad, updated, unchanged, a duplicate of each kind, plain, split, a stale one, one that
    would grow too large.
    """
    return [
        newsletter("<new@x>", "new day"),
        newsletter("<old@x>", "another day"),
        {"source": "email"},
        thought(1, "edited"),
        thought(2, "same"),
        newsletter("<new@x>", None),
        thought(1, "edited twice"),
        {"source": "manual", "title": "plain"},
        note(UPDATE_IDENTITY, "p", "s0", title="split"),
        thought(3, "stale", metadata={"source_time": "2026-01-01T00:00:00.000000Z"}),
        thought(4, metadata={"more": "x" * 40_000}),
    ]


def prepare(database: Database) -> None:
    make_policies(database)
    there = [newsletter("<old@x>", "old day"), thought(1, "original"), thought(2, "same")]
    there += [note(UPDATE_IDENTITY, "p", "s"), note(UPDATE_IDENTITY, "p0", "s0")]
    there += [thought(3, "newer", metadata={"source_time": "2026-02-01T00:00:00.000000Z"})]
    there += [thought(4, metadata={"much": "x" * 40_000})]
    insert_entries(database, PKM, there)


def test_a_whole_batch_is_replayed_with_its_first_results_and_writes_nothing(database: Database) -> None:
    prepare(database)
    first = insert_entries(database, PKM, batch(), request=FIRST)
    before, log = stored(database), events(database)

    again = insert_entries(database, PKM, batch(), request=AGAIN)

    assert [result.action for result in first] == [
        "inserted", "skipped", "failed", "updated", "updated", "skipped", "updated", "inserted", "updated", "updated",
        "failed",
    ]  # fmt: skip
    shown = summary_of(first)
    # The row is shown as it is by now, and the first edit has been edited since.
    shown[3] |= {"clean_text": "edited twice"}
    assert summary_of(again) == shown
    assert first[8].split_with != []
    assert first[9].stale
    assert (stored(database), events(database)) == (before, log)


def test_items_that_changed_nothing_change_nothing_on_replay(database: Database) -> None:
    prepare(database)
    insert_entries(database, PKM, batch(), request=FIRST)
    insert_entries(database, PKM, [thought(2, "somebody else's"), thought(1, "and this")])
    table = PKM.table("entries", is_sqlite=database.is_sqlite)
    with database.write() as tx:
        tx.execute(text(f"DELETE FROM {table} WHERE idempotency_key_primary IN ('<old@x>', '<new@x>')"))  # noqa: S608
    before, log = stored(database), events(database)

    again = insert_entries(database, PKM, batch(), request=AGAIN)

    assert (stored(database), events(database)) == (before, log)
    assert (again[4].action, again[4].changed) == ("updated", False)
    assert (again[0].action, (again[0].row or {})["idempotency_key_primary"]) == ("inserted", "<new@x>")
    assert isinstance(again[1].error, NotFound)
    assert again[1].json()["error"]["code"] == "notFound"  # type: ignore[index, call-overload]


def test_a_request_that_changed_nothing_runs_again_normally(database: Database) -> None:
    insert_entry(database, PKM, newsletter("<1@x>", None))

    for request in (FIRST, AGAIN):
        result = insert_entry(database, PKM, newsletter("<1@x>", None), request=request)
        assert (result.action, result.event_id) == ("skipped", None)


def test_a_batch_with_more_events_than_a_page_is_replayed_completely(database: Database) -> None:
    first = insert_entries(database, PKM, [thought(n) for n in range(501)], request=FIRST)

    again = insert_entries(database, PKM, [thought(n) for n in range(501)], request=AGAIN)

    assert summary_of(again) == summary_of(first)


def test_the_key_of_one_request_does_not_match_another(database: Database) -> None:
    one = insert_entry(database, PKM, thought(1), request=RequestKey("one"))
    two = insert_entry(database, PKM_TEST, thought(1), request=RequestKey("two"))

    assert (one.action, two.action) == ("inserted", "inserted")


@pytest.mark.parametrize("payload", [thought(1), {"source": "manual"}], ids=["with a key", "without one"])
def test_a_run_in_progress_is_waited_for_and_its_results_returned(
    database: Database, monkeypatch: pytest.MonkeyPatch, payload: Payload
) -> None:
    """Its lease has lapsed, so the retry runs beside it, and waits for its row or for its turn to append."""
    at_the_end, go_on = threading.Event(), threading.Event()
    insert_all = insert._insert
    answers: list[list[dict[str, Any]]] = []

    def held(*arguments: Any) -> list[Inserted]:
        results = insert_all(*arguments)
        if not at_the_end.is_set():
            at_the_end.set()
            go_on.wait(SECONDS_MAX)
        return results

    def run(request: RequestKey) -> None:
        answers.append(summary_of(insert_entries(database, PKM, [payload], request=request)))

    monkeypatch.setattr(insert, "_insert", held)
    first = threading.Thread(target=run, args=(FIRST,))
    first.start()
    assert at_the_end.wait(SECONDS_MAX)
    second = threading.Thread(target=run, args=(AGAIN,))
    second.start()
    until(lambda: database.is_sqlite or somebody_waits(database), "the second run waits for the first")
    go_on.set()
    for thread in (first, second):
        thread.join(SECONDS_MAX)

    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert len(stored(database)) == len(events(database)) == 1


def somebody_waits(database: Database) -> bool:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with database.read() as tx:
        return bool(tx.execute(waiting).scalar())
