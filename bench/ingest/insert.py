"""Inserts of ready payloads, compared with raw SQL: the same rows in the same chunks, one commit per chunk, in turn.

Raw SQL is one `INSERT … VALUES (…), (…) ON CONFLICT DO NOTHING` per chunk into a separate database with the same tables
and indexes, so each side pays for its own checkpoints. It reads nothing, decides nothing and appends no events.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import text

from onceward.core.json_text import written
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import new_uuids, now_text
from onceward.hub.ingest.entries.columns import COLUMNS
from onceward.hub.ingest.entries.insert import insert_entries
from onceward.hub.ingest.entries.policy import list_policies
from onceward.hub.ingest.entries.schema import PKM
from onceward.hub.ingest.payload import Payload

CHUNK = 1000
_NAMES = COLUMNS[1:]

Write = Callable[[str, list[Any]], None]


@dataclass(slots=True)
class Run:
    """Seconds of each chunk, in order, including the occasional checkpoint."""

    count: int
    ours: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.count / sum(self.ours)

    @property
    def raw_rate(self) -> float:
        return self.count / sum(self.raw)


def compete(database: Database, write: Write, payloads: Sequence[Payload]) -> tuple[Run, Run]:
    """Return the first run and a second run over the same payloads; `write` uses a different database."""
    rows = _rows(database, payloads)
    first, again = Run(len(payloads)), Run(len(payloads))
    for run in (first, again):
        for begin in range(0, len(payloads), CHUNK):
            some, same = payloads[begin : begin + CHUNK], rows[begin : begin + CHUNK]
            run.ours.append(timed(functools.partial(insert_entries, database, PKM, some)))
            run.raw.append(timed(functools.partial(_raw, database, write, same)))
    return first, again


def grown(database: Database, write: Write, payloads: Sequence[Payload], sizes: Sequence[int]) -> dict[int, float]:
    """Return the entries per second of new chunks, by number of entries already in the table."""
    found: dict[int, float] = {}
    there = 0
    for size in sizes:
        while there < size:
            filler = [_other(payload, there + number) for number, payload in enumerate(payloads[:CHUNK])]
            _raw(database, write, _rows(database, filler))
            there += len(filler)
        some = [_other(payload, size + number, "n") for number, payload in enumerate(payloads[: 5 * CHUNK])]
        took = timed(functools.partial(_insert_all, database, some))
        found[size] = len(some) / took
        there += len(some)
    return found


def _insert_all(database: Database, payloads: Sequence[Payload]) -> None:
    for begin in range(0, len(payloads), CHUNK):
        insert_entries(database, PKM, payloads[begin : begin + CHUNK])


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _other(payload: Payload, number: int, mark: str = "f") -> Payload:
    """Return the same content with different keys."""
    keys = {
        f"idempotency_key_{name}": f"{mark}{name[0]}{number * 7919 % 2**40:x}:{number}"
        for name in ("primary", "secondary")
    }
    return {**payload, **keys}


def _rows(database: Database, payloads: Sequence[Payload]) -> list[tuple[Any, ...]]:
    with database.read() as tx:
        policies = {policy.policy_key: policy.policy_id for policy in list_policies(tx, PKM)}
    at, ids = now_text(), new_uuids(len(payloads))
    rows = []
    for uuid, payload in zip(ids, payloads, strict=True):
        values: dict[str, Any] = {
            **payload,
            "id": uuid,
            "created_at": at,
            "updated_at": at,
            "metadata": written(payload["metadata"]),
            "idempotency_policy_id": policies[str(payload["idempotency_policy_key"])],
        }
        rows.append(tuple(values.get(name) for name in _NAMES))
    return rows


def _raw(database: Database, write: Write, rows: Sequence[tuple[Any, ...]]) -> None:
    mark = "?" if database.is_sqlite else "%s"
    table = PKM.table("entries", is_sqlite=database.is_sqlite)
    one = f"({', '.join([mark] * len(_NAMES))})"
    values = ", ".join([one] * len(rows))
    statement = f"INSERT INTO {table} ({', '.join(_NAMES)}) VALUES {values} ON CONFLICT DO NOTHING"  # noqa: S608  # ours
    write(statement, [value for row in rows for value in row])


@contextlib.contextmanager
def writer(url: str) -> Iterator[Write]:
    """Yield a function that runs one statement in one transaction, on a connection as durable as that of Onceward."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)) as connection:
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}")
            yield functools.partial(_write_sqlite, connection)
    else:
        with psycopg.connect(url, autocommit=True) as client:
            yield lambda statement, values: _ignored(client.execute(statement.encode(), values))


def _write_sqlite(connection: sqlite3.Connection, statement: str, values: list[Any]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(statement, values)
    connection.execute("COMMIT")


def _ignored(_result: object) -> None: ...


def emptied(database: Database) -> None:
    """Delete all entries of an earlier measurement, and truncate the WAL so that no later checkpoint has to copy them."""
    with database.write() as tx:
        tx.execute(text(f"DELETE FROM {PKM.table('entries', is_sqlite=database.is_sqlite)}"))  # noqa: S608  # ours
    if database.is_sqlite:
        with database.engine.connect() as connection:
            connection.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
