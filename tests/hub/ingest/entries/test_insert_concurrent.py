"""Concurrent writers: one entry for each key, the same result in any order, and no visible deadlock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import text
from tests.hub.ingest.entries.payloads import events, newsletter, stored, thought
from tests.servers.postgres import PostgresServer
from tests.waiting import SECONDS_MAX, until

from onceward.errors import StoreUnavailable, TransactionConflict
from onceward.hub.db.engine import Database, Transaction, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.db.timestamps import new_uuids
from onceward.hub.ingest.entries import insert
from onceward.hub.ingest.entries.draft import Draft, drafts_of
from onceward.hub.ingest.entries.insert import Inserted, insert_entries, insert_entry
from onceward.hub.ingest.entries.open_table import table_of
from onceward.hub.ingest.entries.policy import list_policies
from onceward.hub.ingest.entries.postgres_table import PostgresTable
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST
from onceward.hub.ingest.entries.table import LookupResult
from onceward.hub.ingest.payload import Payload


def run_concurrently(*tasks: Callable[[], None]) -> None:
    """Run all of them concurrently; raise the first error."""
    gate = threading.Barrier(len(tasks))
    failed: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        gate.wait(SECONDS_MAX)
        try:
            task()
        except BaseException as error:  # noqa: BLE001  # it is raised below, where a test sees it
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    if failed:
        raise failed[0]


def test_eight_writers_of_the_same_entries_insert_each_once(database: Database) -> None:
    batch = [
        *(thought(n, f"text {n % 30}") for n in range(100)),
        *(newsletter(f"<{n}@x>", f"d{n}") for n in range(100)),
    ]
    results: list[Inserted] = []

    def write(seed: int) -> None:
        mine = random.Random(seed).sample(batch, len(batch))
        for begin in range(0, len(mine), 50):
            results.extend(insert_entries(database, PKM, mine[begin : begin + 50]))

    run_concurrently(*(lambda seed=seed: write(seed) for seed in range(8)))

    actions = [result.action for result in results]
    assert (actions.count("inserted"), actions.count("failed")) == (200, 0)
    assert len(stored(database)) == 200
    assert {(row["idempotency_policy_id"], row["idempotency_key_primary"]) for row in stored(database)} == {
        (1 if "thought" in str(one["content_type"]) else 3, one["idempotency_key_primary"]) for one in batch
    }
    named = [event.name for event in events(database)]
    assert named.count("entry.inserted") == 200


@pytest.fixture
def database_of(postgres_server: PostgresServer, postgres_template: str) -> str:
    return postgres_server.create_database(postgres_template)


@pytest.fixture
def postgres(database_of: str) -> Iterator[Database]:
    with closing(open_database(database_of)) as database:
        migrate(database)
        yield database


def versions(number: int, version: int) -> Payload:
    time = f"2026-11-16T03:26:00.{version:06d}Z"
    return thought(number, f"{number} version {version}", metadata={"source_time": time, f"v{version % 2}": version})


def test_two_batches_in_opposite_order_give_the_same_result_without_a_deadlock(postgres: Database) -> None:
    numbers = list(range(30))
    for turn in range(6):
        # New entries and old ones, in both batches, each with a later version of half of them.
        mine = [versions(n + 10 * turn, 2 * turn + n % 2) for n in numbers]
        yours = [versions(n + 10 * turn, 2 * turn + (n + 1) % 2) for n in reversed(numbers)]

        run_concurrently(lambda: _write(postgres, mine), lambda: _write(postgres, yours))  # noqa: B023

        rows = {row["idempotency_key_primary"]: row for row in stored(postgres)}
        for n in numbers:
            row = rows[f"tg:1:{n + 10 * turn}"]
            assert row["clean_text"] == f"{n + 10 * turn} version {2 * turn + 1}"
    assert len(stored(postgres)) == 80


def _write(database: Database, batch: list[Payload]) -> None:
    assert "failed" not in {result.action for result in insert_entries(database, PKM, batch)}


def insert_inside(tx: Transaction, payloads: list[Payload]) -> None:
    """An insert of another transaction that is not yet committed."""
    policies = list_policies(tx, PKM)
    table = table_of(tx, PKM, policies)
    insert._insert(tx, PKM, policies, drafts_of(payloads, policies), None, table, singly=False)


def waiters(database: Database) -> int:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with database.read() as tx:
        return int(tx.execute(waiting).scalar_one())


def test_a_deadlock_is_retried_and_not_reported(postgres: Database, database_of: str) -> None:
    """Another program locks the rows in the other order, with a longer deadlock timeout than ours."""
    insert_entries(postgres, PKM, [thought(1), thought(2)])
    ours = threading.Thread(target=_write, args=(postgres, [thought(1, "ours"), thought(2, "ours")]))
    with psycopg.connect(database_of) as other:
        other.execute("SET deadlock_timeout = '60s'")
        other.execute("SELECT 1 FROM pkm.entries WHERE idempotency_key_primary = 'tg:1:2' FOR UPDATE")
        ours.start()
        until(lambda: waiters(postgres) == 1, "ours has the first row and waits for the second")
        # Waits for the first row until ours is thrown out, which is then tried again.
        other.execute("UPDATE pkm.entries SET author = 'other' WHERE idempotency_key_primary = 'tg:1:1'")
    ours.join(SECONDS_MAX)

    assert [(row["clean_text"], row["author"]) for row in stored(postgres)] == [("ours", "other"), ("ours", None)]


def test_batches_run_one_after_the_other_and_single_entries_run_beside_them(postgres: Database) -> None:
    late = threading.Thread(target=_write, args=(postgres, [thought(n) for n in range(10, 13)]))
    with postgres.write() as tx:
        table_of(tx, PKM, ()).take_turn()
        late.start()
        until(lambda: waiters(postgres) == 1, "the other batch waits for this one")
        _write(postgres, [thought(1)])
        assert len(stored(postgres)) == 1
        insert_entries(postgres, PKM_TEST, [thought(1), thought(2)])
    late.join(SECONDS_MAX)

    assert len(stored(postgres)) == 4


def test_after_repeated_conflicts_the_table_is_locked(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    meetings = 0
    attempt = insert._insert

    def meet(*arguments: Any) -> Any:
        nonlocal meetings
        if meetings < 3:
            meetings += 1
            raise StoreUnavailable("the database does not answer: deadlock detected") from _deadlock()
        tx = arguments[0]
        held = text("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'ShareRowExclusiveLock'")
        assert tx.execute(held).scalar() == 1
        return attempt(*arguments)

    monkeypatch.setattr(insert, "_insert", meet)

    assert insert_entry(postgres, PKM, thought(1)).action == "inserted"
    assert meetings == 3


def _deadlock() -> sqlalchemy.exc.OperationalError:
    return sqlalchemy.exc.OperationalError("INSERT", {}, psycopg.errors.DeadlockDetected())


def test_an_entry_that_is_being_inserted_is_waited_for_and_found(postgres: Database) -> None:
    """The lookup does not see it and the index refuses a second row; the next lookup finds it."""
    found: list[Inserted] = []
    late = threading.Thread(target=lambda: found.extend(insert_entries(postgres, PKM, [newsletter("<1@x>", "d")])))
    with postgres.write() as tx:
        insert_inside(tx, [newsletter("<1@x>", "d")])
        late.start()
        until(lambda: waiters(postgres) == 1, "the other one waits for this")
    late.join(SECONDS_MAX)

    assert [(result.action, result.matched_on) for result in found] == [("skipped", "primary")]
    assert len(stored(postgres)) == 1


def test_an_entry_that_is_deleted_before_it_is_locked_is_inserted(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_entry(postgres, PKM, thought(1, "old"))
    lock = PostgresTable.lock

    def gone(self: PostgresTable, entry_ids: set[int]) -> Any:
        with postgres.write() as tx:
            tx.execute(text("DELETE FROM pkm.entries"))
        return lock(self, entry_ids)

    monkeypatch.setattr(PostgresTable, "lock", gone)

    result = insert_entry(postgres, PKM, thought(1, "new"))

    assert result.action == "inserted"
    assert [row["clean_text"] for row in stored(postgres)] == ["new"]


def test_an_entry_that_keeps_disappearing_is_not_retried_forever(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresTable, "find_and_insert", lambda _self, _first, _others: LookupResult([], []))

    with pytest.raises(TransactionConflict, match="keep inserting and deleting the same entries"):
        insert_entry(postgres, PKM, thought(1))


def test_an_update_sees_what_another_transaction_has_committed(postgres: Database) -> None:
    """Both merge into the same entry; the later one waits for the lock and merges into the new state."""
    insert_entry(postgres, PKM, thought(1, metadata={}))
    late = threading.Thread(target=_write, args=(postgres, [thought(1, metadata={"b": 2})]))
    with postgres.write() as tx:
        insert_inside(tx, [thought(1, metadata={"a": 1})])
        late.start()
        until(lambda: waiters(postgres) == 1, "the other one waits for this")
    late.join(SECONDS_MAX)

    assert [row["metadata"] for row in stored(postgres)] == ['{"a":1,"b":2}']


def test_a_key_that_another_transaction_is_taking_is_not_filled(postgres: Database) -> None:
    """The index refuses to fill the null once the other transaction commits. The next attempt sees its entry."""
    insert_entry(postgres, PKM, thought(1, "old", idempotency_key_secondary=None))
    late = threading.Thread(target=_write, args=(postgres, [thought(1, "same")]))
    with postgres.write() as tx:
        insert_inside(tx, [thought(2, "same")])
        late.start()
        until(lambda: waiters(postgres) == 1, "the other one waits for this")
    late.join(SECONDS_MAX)

    assert [(row["clean_text"], row["idempotency_key_secondary"]) for row in stored(postgres)] == [
        ("same", None),
        ("same", "hash of same"),
    ]


class ExplainTransaction:
    """A transaction that returns the plan of a statement instead of its rows."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.plans: list[str] = []

    def exec_driver_sql(self, statement: str, values: dict[str, Any]) -> Any:
        self.plans.append("\n".join(self._tx.exec_driver_sql(f"EXPLAIN {statement}", values).scalars()))
        return self._tx.exec_driver_sql(statement, values)


def test_a_query_plan_made_for_an_empty_table_is_good_for_a_large_one(postgres: Database) -> None:
    """The server would cache the plan, and read the whole table for each batch."""
    with postgres.write() as tx:
        explained: Any = ExplainTransaction(tx)
        table = PostgresTable(explained, PKM, [1])
        drafts = drafts_of([newsletter("<1@x>", "d")], list_policies(tx, PKM))
        rows = [
            (None, one, "", "", *cast("Draft", draft).values) for one, draft in zip(new_uuids(1), drafts, strict=True)
        ]
        table.find_and_insert(rows, [])
        table.find(rows)
        table.read([1])
        table.lock([1])

    assert len(explained.plans) == 4
    for plan in explained.plans:
        assert "Seq Scan" not in plan
