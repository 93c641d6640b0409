"""Every kind of connection that `bind` accepts, behind one small interface."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg
import psycopg
import sqlalchemy
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from tests.django_databases import django_database

from onceward.ledger.run import CurrentClaim
from onceward.ledger.transaction import Bound

CREATE = "CREATE TABLE IF NOT EXISTS payments (order_id TEXT NOT NULL)"


class Transaction(Protocol):
    """An open transaction of the caller's own."""

    async def pay(self, order_id: str) -> None: ...
    async def bind(self, claim: CurrentClaim) -> Bound[Any]: ...
    async def settle(self, bound: Bound[Any], value: object) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


@dataclass
class ConnectionTransaction:
    """A transaction on a connection whose methods return values or awaitables; both are waited for."""

    connection: Any
    insert: Callable[[str], Any]
    begun: Any = None  # the transaction, if it is not ended through its connection

    async def pay(self, order_id: str) -> None:
        await _await_if_needed(self.insert(order_id))

    async def bind(self, claim: CurrentClaim) -> Bound[Any]:
        bound = claim.bind(self.connection)
        return await bound if bound.is_async else bound

    async def settle(self, bound: Bound[Any], value: object) -> None:
        await _await_if_needed(bound.settle(value))

    async def commit(self) -> None:
        await _await_if_needed((self.begun or self.connection).commit())

    async def rollback(self) -> None:
        await _await_if_needed((self.begun or self.connection).rollback())


async def _await_if_needed(result: object) -> None:
    if isinstance(result, Awaitable):
        await result


Opened = Callable[[str], Any]


@asynccontextmanager
async def of_sqlite3(url: str) -> AsyncIterator[Transaction]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        yield ConnectionTransaction(
            connection, lambda order: connection.execute("INSERT INTO payments VALUES (?)", (order,))
        )
    finally:
        connection.close()


@asynccontextmanager
async def of_sqlite3_without_implicit_transactions(url: str) -> AsyncIterator[Transaction]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        yield ConnectionTransaction(
            connection, lambda order: connection.execute("INSERT INTO payments VALUES (?)", (order,))
        )
    finally:
        connection.close()


@asynccontextmanager
async def of_psycopg(url: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(url) as connection:
        yield ConnectionTransaction(
            connection, lambda order: connection.execute("INSERT INTO payments VALUES (%s)", (order,))
        )


@asynccontextmanager
async def of_psycopg_async(url: str) -> AsyncIterator[Transaction]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield ConnectionTransaction(
            connection, lambda order: connection.execute("INSERT INTO payments VALUES (%s)", (order,))
        )


INSERT = sqlalchemy.text("INSERT INTO payments VALUES (:order_id)")


def _sync_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def _async_url(url: str) -> str:
    return _sync_url(url).replace("sqlite://", "sqlite+aiosqlite://")


@asynccontextmanager
async def of_sqlalchemy(url: str) -> AsyncIterator[Transaction]:
    engine = sqlalchemy.create_engine(_sync_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        yield ConnectionTransaction(connection, lambda order: connection.execute(INSERT, {"order_id": order}))


@asynccontextmanager
async def of_sqlalchemy_session(url: str) -> AsyncIterator[Transaction]:
    engine = sqlalchemy.create_engine(_sync_url(url), poolclass=sqlalchemy.NullPool)
    with orm.Session(engine) as session:
        yield ConnectionTransaction(session, lambda order: session.execute(INSERT, {"order_id": order}))


@asynccontextmanager
async def of_sqlalchemy_async(url: str) -> AsyncIterator[Transaction]:
    engine = sqlalchemy_asyncio.create_async_engine(_async_url(url), poolclass=sqlalchemy.NullPool)
    async with engine.connect() as connection:
        yield ConnectionTransaction(connection, lambda order: connection.execute(INSERT, {"order_id": order}))
    await engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_session(url: str) -> AsyncIterator[Transaction]:
    engine = sqlalchemy_asyncio.create_async_engine(_async_url(url), poolclass=sqlalchemy.NullPool)
    async with sqlalchemy_asyncio.AsyncSession(engine) as session:
        yield ConnectionTransaction(session, lambda order: session.execute(INSERT, {"order_id": order}))
    await engine.dispose()


@dataclass
class DjangoTransaction:
    """A transaction of Django in async code: everything runs on the thread that `sync_to_async` uses."""

    connection: Any
    block: Any

    async def pay(self, order_id: str) -> None:
        await sync_to_async(self._execute)("INSERT INTO payments VALUES (%s)", (order_id,))

    def _execute(self, sql: str, values: tuple[str, ...]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)

    async def bind(self, claim: CurrentClaim) -> Bound[Any]:
        bound: Bound[Any] = await sync_to_async(claim.bind)(self.connection)
        return bound

    async def settle(self, bound: Bound[Any], value: object) -> None:
        await sync_to_async(bound.settle)(value)

    async def commit(self) -> None:
        await sync_to_async(self.block.__exit__)(None, None, None)

    async def rollback(self) -> None:
        await sync_to_async(transaction.set_rollback)(True, using=self.connection.alias)
        await self.commit()


@asynccontextmanager
async def of_django(url: str) -> AsyncIterator[Transaction]:
    with django_database(url) as connection:
        block = transaction.atomic(using=connection.alias)
        await sync_to_async(block.__enter__)()
        try:
            yield DjangoTransaction(connection, block)
        finally:
            await sync_to_async(connections.close_all)()


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Transaction]:
    connection = await asyncpg.connect(url)
    try:
        yield await _begin_asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpg_pool(url: str) -> AsyncIterator[Transaction]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield await _begin_asyncpg(connection)


async def _begin_asyncpg(connection: Any) -> Transaction:
    begun = connection.transaction()
    await begun.start()
    return ConnectionTransaction(
        connection, lambda order: connection.execute("INSERT INTO payments VALUES ($1)", order), begun
    )


KINDS = {
    "sqlite": (
        of_sqlite3,
        of_sqlite3_without_implicit_transactions,
        of_sqlalchemy,
        of_sqlalchemy_session,
        of_sqlalchemy_async,
        of_sqlalchemy_async_session,
        of_django,
    ),
    "postgres": (
        of_psycopg,
        of_psycopg_async,
        of_sqlalchemy,
        of_sqlalchemy_session,
        of_sqlalchemy_async,
        of_sqlalchemy_async_session,
        of_django,
        of_asyncpg,
        of_asyncpg_pool,
    ),
}
