"""Inserting ready payloads, beside raw SQL: the same rows in the same chunks, each chunk one commit, taking turns.

Raw means one `INSERT … VALUES (…), (…) ON CONFLICT DO NOTHING` for each chunk into the other schema, whose tables and
indexes are the same. It looks at nothing, decides nothing and appends no events.
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import text

from onceward.core.text import written
from onceward.db.clock import new_uuids, now_text
from onceward.db.engine import Database
from onceward.ingest.columns import COLUMNS
from onceward.ingest.insert import insert_entries
from onceward.ingest.payload import Payload
from onceward.ingest.policy import list_policies
from onceward.ingest.schema import PKM, PKM_TEST

CHUNK = 1000
_NAMES = COLUMNS[1:]

Write = Callable[[str, list[Any]], None]


@dataclass(slots=True)
class Rates:
    """Entries per second of each chunk."""

    ours: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)


def compete(database: Database, write: Write, payloads: Sequence[Payload]) -> tuple[Rates, Rates]:
    """The first run and the run after it."""
    rows = _rows(database, payloads)
    first, again = Rates(), Rates()
    for rates in (first, again):
        for begin in range(0, len(payloads), CHUNK):
            some, same = payloads[begin : begin + CHUNK], rows[begin : begin + CHUNK]
            rates.ours.append(len(some) / timed(functools.partial(insert_entries, database, PKM, some)))
            rates.raw.append(len(some) / timed(functools.partial(_raw, database, write, same)))
    return first, again


def grown(database: Database, write: Write, payloads: Sequence[Payload], sizes: Sequence[int]) -> dict[int, float]:
    """Entries per second of new chunks, with so many entries in the table already."""
    found: dict[int, float] = {}
    there = 0
    for size in sizes:
        while there < size:
            filler = [_other(payload, there + number) for number, payload in enumerate(payloads[:CHUNK])]
            _raw(database, write, _rows(database, filler), PKM.name)
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
    """The same content under keys of its own."""
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
        said: dict[str, Any] = {
            **payload,
            "id": uuid,
            "created_at": at,
            "updated_at": at,
            "metadata": written(payload["metadata"]),
            "idempotency_policy_id": policies[str(payload["idempotency_policy_key"])],
        }
        rows.append(tuple(said[name] for name in _NAMES))
    return rows


def _raw(database: Database, write: Write, rows: Sequence[tuple[Any, ...]], schema: str = PKM_TEST.name) -> None:
    mark = "?" if database.is_sqlite else "%s"
    table = (PKM if schema == PKM.name else PKM_TEST).table("entries", is_sqlite=database.is_sqlite)
    one = f"({', '.join([mark] * len(_NAMES))})"
    values = ", ".join([one] * len(rows))
    statement = f"INSERT INTO {table} ({', '.join(_NAMES)}) VALUES {values} ON CONFLICT DO NOTHING"  # noqa: S608  # ours
    write(statement, [value for row in rows for value in row])


def sqlite_writer(path: str) -> tuple[Write, Callable[[], None]]:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")

    def write(statement: str, values: list[Any]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(statement, values)
        connection.execute("COMMIT")

    return write, connection.close


def postgres_writer(url: str) -> tuple[Write, Callable[[], None]]:
    connection = psycopg.connect(url)

    def write(statement: str, values: list[Any]) -> None:
        connection.execute(statement.encode(), values)
        connection.commit()

    return write, connection.close


def emptied(database: Database) -> None:
    """Nothing of an earlier measurement is left."""
    with database.write() as tx:
        for schema in (PKM, PKM_TEST):
            tx.execute(text(f"DELETE FROM {schema.table('entries', is_sqlite=database.is_sqlite)}"))  # noqa: S608  # ours
