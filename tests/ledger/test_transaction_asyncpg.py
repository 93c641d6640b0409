"""asyncpg's connections: savepoints, pools, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.backends import BACKENDS, Servers

from onceward import current_claim, errors, open_ledger
from onceward.core.claim import Status
from onceward.errors import InvalidOption

Effect = Callable[[Any], Awaitable[None]]


@pytest.fixture
def url(servers: Servers, tmp_path: Path) -> str:
    return BACKENDS["postgres"].url(servers, tmp_path)


def run(url: str, effect: Effect, elsewhere: str = "", **options: Any) -> tuple[object, Status]:
    """Run an effect that gets a connection; return its value, or the error it raised, and the status of its key."""

    async def main() -> tuple[object, Status]:
        connection = await asyncpg.connect(elsewhere or url, **options)
        async with open_ledger(url) as ledger:
            try:
                value: object = await ledger.run("k", lambda: effect(connection), effect="idempotent")
            except errors.OncewardError as error:
                value = error
            await connection.close()
            entry = await ledger.read("call", "k")
            assert entry is not None
            return value, entry.status

    return asyncio.run(main())


@pytest.mark.parametrize("options", [{}, {"statement_cache_size": 0}], ids=["prepared", "without a cache"])
def test_every_type_of_value_reaches_the_server(url: str, options: dict[str, Any]) -> None:
    """asyncpg rejects a value whose type the server does not expect."""
    value = {"text": "$1 :key", "bytes": b"\x00\xff", "large": "x" * 200_000}

    async def effect(connection: Any) -> None:
        async with connection.transaction():
            bound = await current_claim().bind(connection)
            await bound.settle(value)

    assert run(url, effect, **options) == (value, Status.COMPLETED)


def test_a_connection_outside_a_transaction_is_refused(url: str) -> None:
    async def effect(connection: Any) -> None:
        await current_claim().bind(connection)

    value, _ = run(url, effect)

    assert isinstance(value, InvalidOption)
    assert "open transaction" in str(value)


def test_savepoints_may_be_rolled_back_or_released_before_the_settle(url: str) -> None:
    async def effect(connection: Any) -> None:
        async with connection.transaction():
            async with connection.transaction():
                bound = await current_claim().bind(connection)
            savepoint = connection.transaction()
            await savepoint.start()
            await savepoint.rollback()
            async with connection.transaction():
                await bound.settle("sold")

    assert run(url, effect) == ("sold", Status.COMPLETED)


def test_an_outcome_in_a_savepoint_that_was_rolled_back_is_not_reported(url: str) -> None:
    async def effect(connection: Any) -> None:
        async with connection.transaction():
            savepoint = connection.transaction()
            await savepoint.start()
            await (await current_claim().bind(connection)).settle("sold")
            await savepoint.rollback()

    value, status = run(url, effect)

    assert isinstance(value, errors.TransactionConflict)
    assert status is Status.FAILED


@pytest.mark.parametrize("begins", [False, True])
def test_a_transaction_that_has_ended_settles_nothing(url: str, begins: bool) -> None:
    async def effect(connection: Any) -> None:
        async with connection.transaction():
            bound = await current_claim().bind(connection)
        if begins:
            async with connection.transaction():
                await bound.settle("sold")
        else:
            await bound.settle("sold")

    value, status = run(url, effect)

    assert isinstance(value, errors.TransactionConflict)
    assert "has ended" in str(value)
    assert status is Status.FAILED


@pytest.mark.parametrize("end", ["released", "closed"])
def test_a_connection_that_is_gone_settles_nothing(url: str, end: str) -> None:
    async def effect(connection: Any) -> None:
        pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        try:
            used = connection if end == "closed" else await pool.acquire()
            await used.transaction().start()
            bound = await current_claim().bind(used)
            await (used.close() if end == "closed" else pool.release(used))  # both roll back
            await bound.settle("sold")
        finally:
            pool.terminate()  # `close` would wait for a connection that is not released

    value, status = run(url, effect)

    assert isinstance(value, errors.TransactionConflict)
    assert "has ended" in str(value)
    assert status is Status.FAILED


def test_another_database_is_refused(url: str, servers: Servers) -> None:
    async def effect(connection: Any) -> None:
        async with connection.transaction():
            await current_claim().bind(connection)

    value, _ = run(url, effect, elsewhere=servers.postgres.create_database())

    assert isinstance(value, InvalidOption)
    assert "own database" in str(value)


def test_a_snapshot_from_before_the_claim_is_refused(url: str) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(url)
        async with open_ledger(url) as ledger, connection.transaction(isolation="repeatable_read"):
            await connection.fetch("SELECT 1")

            async def effect() -> None:
                await current_claim().bind(connection)

            with pytest.raises(errors.TransactionConflict, match="began before the claim"):
                await ledger.run("late", effect, effect="idempotent")
        await connection.close()

    asyncio.run(main())
