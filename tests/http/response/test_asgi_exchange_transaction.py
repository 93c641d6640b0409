"""A request bound to its handler's transaction that has not ended, or on a connection that others use by now."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.http.asgi_server import Call, ReceivedResponse, protected, reply, run, send_request
from tests.waiting import soon

from onceward.http import idempotency
from onceward.http.asgi_types import App, Receive, Send
from onceward.store import Store
from onceward.store.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(file: Path) -> Store:
    return SqliteStore(file)


@pytest.fixture
def connection(store: Store, file: Path) -> Iterator[sqlite3.Connection]:
    """Opened behind the store, which makes the tables."""
    assert store.purge(1) == 0
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE payments (amount INTEGER)")
        yield connection


async def again(app: App) -> ReceivedResponse:
    """Retry until the first request no longer runs."""

    async def retry() -> ReceivedResponse | None:
        got = await send_request(app)
        return got if got.status != 409 else None

    return await soon(retry, "the first one never ends")


class Payment:
    """Pays in a transaction. The test decides how the first one ends; later ones have their own connections."""

    def __init__(self, file: Path, connection: sqlite3.Connection, leave: Callable[[], object]) -> None:
        self._file = file
        self._connection = connection
        self._leave = leave
        self.runs = 0
        self.left = asyncio.Event()
        self.settles = True
        self.waits = False
        self.status = 201

    async def __call__(self, scope: Any, _receive: Receive, send: Send) -> None:
        self.runs += 1
        if self.runs == 1:
            self._pay(scope, self._connection, settles=self.settles)
            self._leave()
            self.left.set()
            if self.waits:
                await asyncio.Event().wait()
        else:
            with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
                self._pay(scope, connection, settles=True)
                connection.execute("COMMIT")
        await reply(send, b"paid", self.status)

    def _pay(self, scope: Any, connection: sqlite3.Connection, *, settles: bool) -> None:
        connection.execute("BEGIN IMMEDIATE")
        bound = idempotency(scope).bind(connection)
        connection.execute("INSERT INTO payments VALUES (1)")
        if settles:
            bound.settle((201, {}, b"paid"))

    @property
    def payments(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM payments").fetchone()
        return int(count)


@pytest.mark.parametrize("status", [201, 400])
@pytest.mark.parametrize(("end", "runs"), [("ROLLBACK", 2), ("COMMIT", 1)])
def test_a_transaction_still_open_at_the_response_gives_503_and_its_own_end_decides(
    file: Path, store: Store, connection: sqlite3.Connection, end: str, runs: int, status: int
) -> None:
    async def main() -> None:
        app = Payment(file, connection, lambda: None)
        app.status = status
        with protected(app, store, store_seconds=0.05) as middleware:
            first = await send_request(middleware)
            assert (first.status, first.headers["retry-after"]) == (503, "1")
            connection.execute(end)

            retry = await again(middleware)

            assert (retry.status, retry.body, retry.replayed) == (201, b"paid", runs == 1)
            assert (app.runs, app.payments) == (runs, 1)

    run(main())


@pytest.mark.parametrize(
    ("way", "settles"),
    [("returns", True), ("raises", True), ("raises", False), ("is cancelled", True), ("is cancelled", False)],
)
def test_a_rollback_frees_the_key_although_its_connection_is_already_in_another_transaction(
    file: Path, store: Store, connection: sqlite3.Connection, way: str, settles: bool
) -> None:
    """Like a connection pool: the connection is returned, and the next request begins on it before this one has ended."""

    def leave() -> None:
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        if way == "raises":
            raise ValueError("a deadlock, say")

    async def main() -> None:
        app = Payment(file, connection, leave)
        app.settles, app.waits = settles, way == "is cancelled"
        with protected(app, store, store_seconds=0.05) as middleware:
            first = Call(middleware)
            await soon(lambda: app.left.is_set() or first.task.done())
            if way == "is cancelled":
                first.task.cancel()
            await asyncio.wait({first.task})
            if way == "returns":
                assert first.got.status == 503

            retry = await again(middleware)

            assert (retry.status, app.runs, app.payments) == (201, 2, 1)

    run(main())


@pytest.mark.parametrize("settles", [True, False])
def test_a_commit_counts_although_its_connection_is_already_in_another_transaction(
    file: Path, store: Store, connection: sqlite3.Connection, settles: bool
) -> None:
    """It is an error not to settle a bound transaction, but its effect was committed."""

    def leave() -> None:
        connection.execute("COMMIT")
        connection.execute("BEGIN")

    async def main() -> None:
        app = Payment(file, connection, leave)
        app.settles = settles
        with protected(app, store, store_seconds=0.05) as middleware:
            first = await send_request(middleware)
            connection.execute("ROLLBACK")
            retry = await again(middleware)

            assert (first.status, first.body) == (retry.status, retry.body) == (201, b"paid")
            assert (app.runs, app.payments, retry.replayed) == (1, 1, True)

    run(main())
