"""Batches on SQLite: many rows in few statements, and nothing is written if one row is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.blockable_store import begin, settle

import onceward.store.sqlite.store
from onceward.core.claim import Ref, Status
from onceward.store import BATCH_WRITES_MAX, BatchFailed
from onceward.store.sqlite import SqliteStore
from onceward.store.sqlite.rows import ROWS_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def claimed(store: SqliteStore, number: int) -> list[int]:
    """Commit this many new claims, and return their versions."""
    results = store.commit([begin(f"k{n}") for n in range(number)])
    return [result.entry.version for result in results if result.entry is not None and result.applied]


def statuses(store: SqliteStore, number: int) -> list[Status | None]:
    entries = store.read([Ref("s", f"k{n}") for n in range(number)]).entries
    return [None if entry is None else entry.status for entry in entries]


@pytest.mark.parametrize("updates_from", [True, False])
@pytest.mark.parametrize("number", [2, ROWS_MAX, ROWS_MAX + 1, BATCH_WRITES_MAX])
def test_every_row_of_a_batch_is_written(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, number: int, updates_from: bool
) -> None:
    monkeypatch.setattr(onceward.store.sqlite.store, "UPDATES_FROM", updates_from)  # an SQLite before 3.33 cannot

    versions = claimed(store, number)
    results = store.commit([settle(f"k{n}", version) for n, version in enumerate(versions)])

    assert len(versions) == number
    assert all(result.applied for result in results)
    assert statuses(store, number) == [Status.COMPLETED] * number


def test_a_batch_takes_one_statement_for_each_kind_of_write(store: SqliteStore) -> None:
    """Each statement releases the interpreter's lock, and must get it again afterwards."""
    versions = claimed(store, 20)
    executed: list[str] = []
    assert store._db is not None
    store._db.set_trace_callback(executed.append)

    begins = [begin(f"new{n}") for n in range(10)]
    store.commit([*begins, *[settle(f"k{n}", version) for n, version in enumerate(versions)]])

    words = ["INSERT" if "INSERT" in one else "UPDATE" if "UPDATE" in one else one.split()[0] for one in executed]
    assert words == ["WITH", "BEGIN", "PRAGMA", "INSERT", "UPDATE", "COMMIT"]


@pytest.mark.parametrize("what", ["INSERT", "UPDATE"])
def test_a_batch_with_a_refused_row_writes_nothing(store: SqliteStore, path: Path, what: str) -> None:
    versions = claimed(store, 3)
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            f"CREATE TRIGGER refuses BEFORE {what} ON platform_idempotency_keys WHEN new.key IN ('k1', 'new1')"
            " BEGIN SELECT RAISE(FAIL, 'not this one'); END"
        )
        db.commit()
    begins = [begin(f"new{n}") for n in range(3)]

    with pytest.raises(BatchFailed, match="not this one"):
        store.commit([*begins, *[settle(f"k{n}", version) for n, version in enumerate(versions)]])

    assert statuses(store, 3) == [Status.IN_PROGRESS] * 3
    assert store.read([Ref("s", f"new{n}") for n in range(3)]).entries == (None, None, None)
    assert store.commit([settle("k0", versions[0])])[0].applied  # and the file is not left locked
