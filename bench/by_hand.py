"""Hand-written baselines with the same durability and no library: one caller, and many callers.

By hand, with one caller: a claim is one commit, a settle is another, and a replay is one read. No design that writes
twice can be faster. One statement per call: the same from 64 callers, which share connections and nothing else.
"""

from __future__ import annotations

import queue
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Protocol

import psycopg
import redis

from bench.contest import Unable
from bench.load import SETTLED, Mode, Scenario, in_parallel, namer, with_threads
from bench.names import BY_HAND
from onceward.store.sqlite import SqliteStore
from onceward.store.sqlite.rows import INSERT_ALONE, MOVE_ALONE, SELECT_ONE

_BODY = b'{"paid":true,"number":1}'
_SCOPE = "onceward:call"
_AT = "2026-01-01T00:00:00.000000Z"
# Columns that belong to the key and not to an attempt. Most entries have none of them.
_LASTING = (None, None, None, None)


class Lane(Protocol):
    """One connection, and the three statements of a keyed call on it."""

    def claim(self, key: str) -> object: ...

    def settle(self, key: str) -> object: ...

    def read(self, key: str) -> object: ...

    def close(self) -> None: ...


class SqliteLane:
    """SQLite with a `PRAGMA journal_mode`. With DELETE, SQLite's default, a commit syncs several times."""

    def __init__(self, url: str, journal: str = "WAL") -> None:
        path = url.removeprefix("sqlite:///")
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute(f"PRAGMA journal_mode={journal}")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS calls"
            " (key TEXT PRIMARY KEY, version INTEGER, status TEXT, body BLOB) WITHOUT ROWID"
        )

    def claim(self, key: str) -> object:
        return self._db.execute("INSERT INTO calls VALUES (?, 1, 'in_progress', NULL) ON CONFLICT DO NOTHING", (key,))

    def settle(self, key: str) -> object:
        settle = "UPDATE calls SET status = 'completed', body = ? WHERE key = ? AND version = 1"
        return self._db.execute(settle, (_BODY, key))

    def read(self, key: str) -> object:
        return self._db.execute("SELECT status, body FROM calls WHERE key = ?", (key,)).fetchone()

    def close(self) -> None:
        self._db.close()


class LedgerLane:
    """The statements that `SqliteStore` runs for one caller, without the rest of Onceward."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        with closing(SqliteStore(path)) as store:
            store.read([])  # creates the tables
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.create_function("onceward_now", 0, lambda: 0)
        self._row: tuple[object, ...] = ("f" * 64, "in_progress", 1, 1, "claims", "h" * 60, 0, _AT, None, _AT, None)

    def claim(self, key: str) -> object:
        self._db.execute(SELECT_ONE, (_SCOPE, key)).fetchone()
        return self._db.execute(
            INSERT_ALONE, (_SCOPE, key, *self._row, "", "", "", None, None, None, 0, _AT, *_LASTING, 0, 1)
        )

    def settle(self, key: str) -> object:
        row = ("completed", "settles", _AT, _AT, _AT, "", None, None, _BODY, 0)
        return self._db.execute(MOVE_ALONE, (*row, *_LASTING, _SCOPE, key, "claims", 1))

    def read(self, key: str) -> object:
        return self._db.execute(SELECT_ONE, (_SCOPE, key)).fetchone()

    def close(self) -> None:
        self._db.close()


class PostgresLane:
    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=1)
        # Lanes are opened one after the other, so this cannot race.
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS calls (key text PRIMARY KEY, version bigint, status text, body bytea)"
        )

    def claim(self, key: str) -> object:
        return self._db.execute("INSERT INTO calls VALUES (%s, 1, 'in_progress', NULL) ON CONFLICT DO NOTHING", (key,))

    def settle(self, key: str) -> object:
        settle = "UPDATE calls SET status = 'completed', body = %s WHERE key = %s AND version = 1"
        return self._db.execute(settle, (_BODY, key))

    def read(self, key: str) -> object:
        return self._db.execute("SELECT status, body FROM calls WHERE key = %s", (key,)).fetchone()

    def close(self) -> None:
        self._db.close()


class RedisLane:
    def __init__(self, url: str) -> None:
        self._db = redis.Redis.from_url(url, single_connection_client=True)

    def claim(self, key: str) -> object:
        return self._db.set(key, b"in_progress", nx=True)

    def settle(self, key: str) -> object:
        return self._db.set(key, _BODY)

    def read(self, key: str) -> object:
        return self._db.get(key)

    def close(self) -> None:
        self._db.close()


class ByHand:
    """One caller on one connection: the fastest way to do two commits."""

    def __init__(self, connect: Callable[[], Lane], name: str = BY_HAND) -> None:
        self.name = name
        self._lane = connect()

    def _fresh(self, key: str) -> None:
        self._lane.claim(key)
        self._lane.settle(key)

    def warm(self) -> None:
        for key in SETTLED:
            self._fresh(key)

    def rate(self, scenario: Scenario, seconds: float) -> float:
        if scenario.callers > 1:
            raise Unable(
                "This baseline has one caller. The rows *one statement per call* have many callers without a library."
            )
        call = self._fresh if scenario.mode is Mode.FRESH else self._lane.read
        return with_threads(call, 1, seconds, namer(scenario.mode)).rate

    def close(self) -> None:
        self._lane.close()


class OneEach:
    """Many callers with separate statements. A caller holds a connection for one statement, not during the effect."""

    def __init__(self, name: str, connect: Callable[[], Lane], lanes: int) -> None:
        self.name = name
        self._lanes = [connect() for _ in range(lanes)]
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)

    def _fresh(self, key: str) -> None:
        with self._lane() as lane:
            lane.claim(key)
        with self._lane() as lane:
            lane.settle(key)

    def _replay(self, key: str) -> None:
        with self._lane() as lane:
            lane.read(key)

    def warm(self) -> None:
        in_parallel(self._fresh, SETTLED)

    def rate(self, scenario: Scenario, seconds: float) -> float:
        if scenario.callers == 1:
            raise Unable("With one caller this is the same as *two commits by hand*.")
        call = self._fresh if scenario.mode is Mode.FRESH else self._replay
        return with_threads(call, scenario.callers, seconds, namer(scenario.mode)).rate

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
