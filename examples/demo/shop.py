"""The demo's shop stores its sales in the ledger's database, so that a sale and its response commit together."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from examples.demo.orders import SALE, Refused, check
from examples.demo.world import Order, Reply

SCHEMA = "CREATE TABLE IF NOT EXISTS sales (buyer TEXT, item TEXT, amount INTEGER)"
# In PostgreSQL, two processes that create the same table at once fail. With this lock, one waits for the other.
LOCK = "SELECT pg_advisory_xact_lock(7)"
SQLITE = "sqlite:///"


class Shop:
    """The shop, on SQLite or PostgreSQL: the two stores whose transactions an application can share."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        self._mark = "?" if store_url.startswith(SQLITE) else "%s"
        self._ready = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a connection in a transaction that commits at the end, or rolls back."""
        if self._url.startswith(SQLITE):
            with closing(sqlite3.connect(self._url.removeprefix(SQLITE), timeout=20)) as connection, connection:
                if not self._ready:
                    connection.execute(SCHEMA)
                    self._ready = True
                yield connection
        elif self._url.startswith("postgres"):
            with psycopg.connect(self._url) as postgres:
                if not self._ready:
                    postgres.execute(LOCK)
                    postgres.execute(SCHEMA)
                    postgres.commit()
                    self._ready = True
                yield postgres
        else:
            raise Refused(501, "notImplemented", "The shop needs a store on SQLite or PostgreSQL.")

    def sell(self, connection: Any, buyer: str, order: Order) -> Reply:
        sale = check(order, SALE)
        mark = self._mark
        statement = f"INSERT INTO sales VALUES ({mark}, {mark}, {mark})"  # noqa: S608  # a placeholder, no value
        connection.execute(statement, (buyer, sale["item"], sale["amount"]))
        return Reply(201, {"buyer": buyer, **sale})

    def sold(self, item: str) -> int:
        """Return how often an item was sold."""
        with self.transaction() as connection:
            counted = f"SELECT count(*) FROM sales WHERE item = {self._mark}"  # noqa: S608  # a placeholder, no value
            return int(connection.execute(counted, (item,)).fetchone()[0])
