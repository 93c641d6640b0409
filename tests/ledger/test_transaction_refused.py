"""Connections that cannot be bound are refused before the effect has done anything: in autocommit, or elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.backends import BACKENDS, Servers

from onceward import current_claim, errors, open_ledger

DRIVERS = {"sqlite": ("sqlite", "sqlite+aiosqlite"), "postgres": ("postgresql+psycopg", "postgresql+psycopg")}
CREATE = "CREATE TABLE IF NOT EXISTS refused_sales (n integer)"
INSERT = sqlalchemy.text("INSERT INTO refused_sales VALUES (1)")


@pytest.fixture(params=DRIVERS)
def urls(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> tuple[str, str, str]:
    """The connections of the ledger, and of SQLAlchemy's engines, synchronous and asynchronous."""
    url = BACKENDS[request.param].url(servers, tmp_path)
    rest = url.partition("://")[2]
    sync, asynchronous = DRIVERS[request.param]
    engine = sqlalchemy.create_engine(f"{sync}://{rest}")
    with engine.begin() as connection:
        connection.exec_driver_sql(CREATE)
        connection.exec_driver_sql("DELETE FROM refused_sales")
    engine.dispose()
    return url, f"{sync}://{rest}", f"{asynchronous}://{rest}"


def sales(url: str) -> int:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        count: int = connection.exec_driver_sql("SELECT count(*) FROM refused_sales").scalar_one()
    engine.dispose()
    return count


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_in_autocommit_mode_is_refused(urls: tuple[str, str, str], kind: str) -> None:
    engine = sqlalchemy.create_engine(urls[1], isolation_level="AUTOCOMMIT")

    def effect() -> None:
        with Session(engine) if kind == "session" else engine.connect() as connection:
            bound: Any = current_claim().bind(connection)
            connection.execute(INSERT)
            bound.settle("sold")

    with open_ledger(urls[0]) as ledger, pytest.raises(errors.InvalidOption, match="autocommit"):
        ledger.blocking.run("sale", effect, effect="idempotent")
    engine.dispose()

    assert sales(urls[1]) == 0


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_async_sqlalchemy_in_autocommit_mode_is_refused(urls: tuple[str, str, str], kind: str) -> None:
    async def main() -> None:
        engine = create_async_engine(urls[2], isolation_level="AUTOCOMMIT")

        async def effect() -> None:
            async with AsyncSession(engine) if kind == "session" else engine.connect() as connection:
                bound: Any = await current_claim().bind(connection)
                await connection.execute(INSERT)
                await bound.settle("sold")

        with open_ledger(urls[0]) as ledger, pytest.raises(errors.InvalidOption, match="autocommit"):
            await ledger.run("sale", effect, effect="idempotent")
        await engine.dispose()

    asyncio.run(main())

    assert sales(urls[1]) == 0


@pytest.mark.parametrize("begins", [False, True])
def test_psycopg_in_autocommit_mode_is_refused_without_a_transaction(
    servers: Servers, tmp_path: Path, *, begins: bool
) -> None:
    """With an explicit transaction it is accepted."""
    url = BACKENDS["postgres"].url(servers, tmp_path)

    def effect() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            if begins:
                connection.execute("BEGIN")
            bound: Any = current_claim().bind(connection)
            bound.settle("sold")
            connection.execute("COMMIT")

    with open_ledger(url) as ledger:
        if begins:
            assert ledger.blocking.run("sale", effect, effect="idempotent") == "sold"
        else:
            with pytest.raises(errors.InvalidOption, match="autocommit"):
                ledger.blocking.run("sale", effect, effect="idempotent")


def test_another_database_is_refused(servers: Servers, tmp_path: Path) -> None:
    """A transaction in another database cannot include the outcome."""
    other = servers.postgres.create_database()

    def effect() -> None:
        with psycopg.connect(other) as connection:
            current_claim().bind(connection)

    with (
        open_ledger(BACKENDS["postgres"].url(servers, tmp_path)) as ledger,
        pytest.raises(errors.InvalidOption, match="own database"),
    ):
        ledger.blocking.run("sale", effect, effect="idempotent")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_has_ended_is_refused(urls: tuple[str, str, str], end: str) -> None:
    """The transaction is over, and its outcome cannot be added afterwards."""
    engine = sqlalchemy.create_engine(urls[1])

    def effect() -> None:
        with engine.connect() as connection:
            bound: Any = current_claim().bind(connection)
            connection.execute(INSERT)
            getattr(connection, end)()
            bound.settle("sold")

    with open_ledger(urls[0]) as ledger:
        with pytest.raises(errors.TransactionConflict, match="has ended"):
            ledger.blocking.run("sale", effect, effect="idempotent")
        entry = ledger.blocking.read("call", "sale")
    engine.dispose()

    assert entry is not None
    assert entry.status == "failed"


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_has_ended_is_refused_although_another_has_begun(servers: Servers, end: str) -> None:
    """PostgreSQL numbers its transactions. On SQLite they cannot be distinguished, as the guide says."""
    url = servers.postgres.create_database()

    def effect() -> None:
        with psycopg.connect(url) as connection:
            bound: Any = current_claim().bind(connection)
            connection.execute("CREATE TABLE IF NOT EXISTS sales (id integer)")
            getattr(connection, end)()
            connection.execute("SELECT 1")
            bound.settle("sold")

    with open_ledger(url) as ledger:
        with pytest.raises(errors.TransactionConflict, match=r"has ended.*this is another"):
            ledger.blocking.run("sale", effect, effect="idempotent")
        entry = ledger.blocking.read("call", "sale")

    assert entry is not None
    assert entry.status != "completed"


def test_a_savepoint_may_be_rolled_back_or_released_before_the_settle(servers: Servers) -> None:
    url = servers.postgres.create_database()

    def effect() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
            with connection.transaction():
                bound: Any = current_claim().bind(connection)
            with connection.transaction(force_rollback=True):
                connection.execute("CREATE TABLE sales (id integer)")
            with connection.transaction():
                bound.settle("sold")

    with open_ledger(url) as ledger:
        ledger.blocking.run("sale", effect, effect="idempotent")
        entry = ledger.blocking.read("call", "sale")

    assert entry is not None
    assert entry.status == "completed"
