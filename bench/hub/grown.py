"""A hub with much data: copies of a small hub's data, whose rows are multiplied with bulk SQL.

Each row that a hub wrote itself is repeated with other ids and keys, so the rows have all columns of the current schema.
The attachments are in the topic, the files in the task, and the turns in the sessions that are measured.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.connections import Connections
from bench.hub.contest import CONNECTIONS
from bench.hub.process import HubProcess
from bench.hub.rows import ROWS, get_health, prepare, rows_of
from bench.hub.servers import Ground, HubData

# Half of the turns are in the sessions of the connections, the others in as many other sessions.
_SESSIONS = 2 * CONNECTIONS
# The numbers of added rows have the same length, so that ids made of them are in order.
_FIRST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and how its rows are multiplied.

    Attributes:
        distinct: SQL of the columns that differ in each row, where `n` is the number of the row.
        generated: Columns that the database fills in.
        which: The condition for the rows to multiply; the first that matches is used.
    """

    name: str
    distinct: Mapping[str, str]
    generated: Sequence[str] = ()
    which: str = "1 = 1"


_SESSION = f"'bench-' || (n % {_SESSIONS})"
_TURN = "'turn_0' || n"
TABLES = (
    Table("topic_attachments", {"id": "'att_0' || n", "dedupe_key": "'url:' || md5('a' || n)"}),
    Table("events", {"entity_id": "'att_0' || n"}, ("event_id",), "topic_id IS NOT NULL AND request_key IS NULL"),
    Table("turns", {"id": _TURN, "turn_group_id": "'grp_0' || n", "session_key": _SESSION}, ("seq",)),
    Table(
        "turn_messages",
        {
            "turn_id": _TURN,
            "session_key": _SESSION,
            "message_id": "'msg_0' || n",
            "fingerprint": "md5('f' || n) || md5('g' || n)",
            "content_hash": "md5('c' || n)",
        },
        ("seq",),
    ),
    Table(
        "{pkm}entries",
        {
            "id": "{uuid}",
            "external_ref": "'tg:0:' || n",
            "content_hash": "md5('h' || n) || md5('i' || n)",
            "idempotency_key_primary": "'tg:0:' || n",
            "idempotency_key_secondary": "md5('h' || n) || md5('i' || n)",
        },
        ("entry_id",),
    ),
    Table("blobs", {"id": "'bl-0' || n", "sha256": "md5('b' || n) || md5('d' || n)", "blob_key": "'grown/' || n"}),
    Table("attachments", {"id": "'at-0' || n", "blob_id": "'bl-0' || n"}, which="request_key IS NULL"),
)


@dataclass(frozen=True, slots=True)
class Base:
    """A stopped hub that has handled one request of each row, to be copied."""

    on: Ground
    data: HubData

    def copy(self, name: str, count: int) -> HubData:
        """Copy the data, and add `count` rows to each table."""
        folder = self.on.folder / f"grown-{count}"
        shutil.copytree(self.data.folder, folder)
        database = self.on.database(self.data.database)
        if count:
            fill(database or f"sqlite:///{folder / 'hub.db'}", count)
        return HubData(name, folder, database, place=self.data.place)


def make_base(on: Ground) -> Base:
    data = HubData("base", on.folder / "base", on.database())
    with HubProcess(data.folder, database=data.database) as hub:
        place = prepare(hub.port)
        rows = rows_of(hub.port, place)
        with closing(Connections(hub.port, 1, get_health(hub.port))) as connection:
            for row in ROWS:
                (response,) = connection.send_all([rows[row].request(0, 0)])
                rows[row].check(0, response)
    return Base(on, HubData(data.name, data.folder, data.database, place=place))


def fill(url: str, count: int) -> None:
    """Add `count` rows to each table."""
    if url.startswith("sqlite:"):
        _fill_sqlite(url.removeprefix("sqlite:///"), count)
    else:
        _fill_postgres(url, count)


def _fill_sqlite(path: str, count: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("md5", 1, _md5, deterministic=True)
        connection.create_function("uuid_text", 1, lambda text: str(uuid.UUID(_md5(text))), deterministic=True)
        # Only here: the data is complete before a hub opens it. The cache holds the indexes, which grow in random order.
        for pragma in ("synchronous = OFF", "cache_size = -2000000"):
            connection.execute(f"PRAGMA {pragma}")
        series = f"SELECT {_FIRST + 1} AS n UNION ALL SELECT n + 1 FROM series WHERE n < {_FIRST + count}"  # noqa: S608  # numbers
        numbers = f"(WITH RECURSIVE series AS ({series}) SELECT n FROM series) AS numbers"  # noqa: S608
        for table in TABLES:
            name = table.name.format(pkm="pkm_")
            columns = [column[0] for column in connection.execute(f"SELECT * FROM {name} LIMIT 0").description]  # noqa: S608  # ours
            connection.execute(_insert(table, name, columns, numbers, "uuid_text('e' || n)"))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _fill_postgres(url: str, count: int) -> None:
    numbers = f"generate_series({_FIRST + 1}, {_FIRST + count}) AS numbers(n)"
    with psycopg.connect(url, autocommit=True) as connection:
        # The foreign keys hold by construction; checking each would take most of the time.
        _run(connection, "SET session_replication_role = replica")
        for table in TABLES:
            name = table.name.format(pkm="pkm.")
            description = _run(connection, f"SELECT * FROM {name} LIMIT 0").description or []  # noqa: S608  # ours
            columns = [column.name for column in description]
            _run(connection, _insert(table, name, columns, numbers, "CAST(md5('e' || n) AS uuid)"))
        # As the server does by itself, but now and not during the measurement.
        _run(connection, "VACUUM ANALYZE")
        _run(connection, "CHECKPOINT")


def _run(connection: psycopg.Connection[Any], statement: str) -> psycopg.Cursor[Any]:
    return connection.execute(statement.encode())


def _insert(table: Table, name: str, columns: Sequence[str], numbers: str, uuid_sql: str) -> str:
    kept = [column for column in columns if column not in table.generated]
    values = [table.distinct.get(column, f"sample.{column}").replace("{uuid}", uuid_sql) for column in kept]
    missing = {*table.distinct, *table.generated} - set(columns)
    assert not missing, f"{name} has no columns {sorted(missing)}"
    sample = f"(SELECT * FROM {name} WHERE {table.which} LIMIT 1) AS sample"  # noqa: S608  # constants of this module
    return f"INSERT INTO {name} ({', '.join(kept)}) SELECT {', '.join(values)} FROM {sample}, {numbers}"  # noqa: S608


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
