"""Exactly once: the effect's rows and its outcome commit together, on every kind of connection."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from tests.backends import BACKENDS, Servers
from tests.connections import CREATE, KINDS, Transaction, of_asyncpg, of_django, of_psycopg, of_sqlite3
from tests.waiting import soon

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.core.claim import Claim, Status
from onceward.ledger.internals import start_renewal
from onceward.ledger.run import CurrentClaim
from onceward.ledger.terms import Terms

Kind = Callable[[str], AbstractAsyncContextManager[Transaction]]
CASES = [pytest.param(name, kind, id=f"{name}-{kind.__name__}") for name, kinds in KINDS.items() for kind in kinds]
EACH_STORE = [("sqlite", of_sqlite3), ("postgres", of_psycopg)]
SQL = pytest.mark.parametrize(("name", "kind"), EACH_STORE)
# Kinds with their own way to show whether a transaction is open.
SQL_AND_OTHERS = pytest.mark.parametrize(
    ("name", "kind"), [*EACH_STORE, ("sqlite", of_django), ("postgres", of_django), ("postgres", of_asyncpg)]
)


class PaymentDatabase:
    """A ledger and a table of payments in the same database."""

    def __init__(self, url: str, kind: Kind) -> None:
        self.url = url
        self.kind = kind
        self.ledger = open_ledger(url, lease_seconds=5, wait_seconds=5)
        self.ledger.blocking.scan()
        self._execute(CREATE)
        self._execute("DELETE FROM payments")

    def paid(self) -> int:
        return int(self._execute("SELECT count(*) FROM payments"))

    def _execute(self, sql: str) -> int:
        with closing(self._connection()) as connection, connection:
            rows = connection.execute(sql)
            row = rows.fetchone() if rows.description else None
            return row[0] if row else 0

    def _connection(self) -> sqlite3.Connection | psycopg.Connection:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"))
        return psycopg.connect(self.url)

    async def pay(self, order_id: str, *, commit: bool = True, fail: bool = False) -> object:
        """An effect whose every write is in the bound transaction, so that it may be repeated."""

        async def effect() -> object:
            async with self.kind(self.url) as transaction:
                bound = await transaction.bind(current_claim())
                await transaction.pay(order_id)
                await transaction.settle(bound, {"paid": order_id})
                if fail:
                    await transaction.rollback()
                    raise ValueError("the shop burnt down")
                await (transaction.commit() if commit else transaction.rollback())
            return None

        return await self.ledger.run(f"pay:{order_id}", effect, effect="idempotent")

    def status(self, key: str) -> Status | None:
        entry = self.ledger.blocking.read("call", key)
        return None if entry is None else entry.status


@pytest.fixture
def payments(name: str, kind: Kind, servers: Servers, tmp_path: Path) -> Iterator[PaymentDatabase]:
    payments = PaymentDatabase(BACKENDS[name].url(servers, tmp_path), kind)
    yield payments
    payments.ledger.close()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_effect_and_its_outcome_commit_together(payments: PaymentDatabase) -> None:
    first = asyncio.run(payments.pay("42"))
    again = asyncio.run(payments.pay("42"))

    assert first == again == {"paid": "42"}
    assert payments.paid() == 1
    assert payments.status("pay:42") is Status.COMPLETED


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_rolled_back_effect_leaves_nothing_and_may_run_again(payments: PaymentDatabase) -> None:
    with pytest.raises(ValueError, match="burnt down"):
        asyncio.run(payments.pay("42", fail=True))
    assert payments.paid() == 0
    assert payments.status("pay:42") is Status.FAILED

    assert asyncio.run(payments.pay("42")) == {"paid": "42"}
    assert payments.paid() == 1


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_silent_rollback_is_never_reported_as_done(payments: PaymentDatabase) -> None:
    with pytest.raises(errors.TransactionConflict, match="rolled back"):
        asyncio.run(payments.pay("42", commit=False))

    assert payments.paid() == 0
    assert asyncio.run(payments.pay("42")) == {"paid": "42"}


@SQL
@pytest.mark.parametrize("silent", [True, False])
def test_an_irreversible_effect_may_have_done_more_than_what_was_rolled_back(
    payments: PaymentDatabase, *, silent: bool
) -> None:
    """An effect that is declared irreversible may have done more than its bound transaction."""

    async def effect() -> None:
        async with payments.kind(payments.url) as transaction:
            bound = await transaction.bind(current_claim())
            await transaction.settle(bound, "paid")
            await transaction.rollback()
            if not silent:
                raise ValueError("after a mail went out")

    async def call() -> object:
        outcome: object = await payments.ledger.run("k", effect, effect="irreversible")
        return outcome

    with pytest.raises(errors.InDoubt if silent else ValueError):
        asyncio.run(call())
    with pytest.raises(errors.InDoubt):
        asyncio.run(call())


@SQL_AND_OTHERS
def test_a_large_result_is_settled_as_chunks_in_the_same_transaction(payments: PaymentDatabase) -> None:
    report = "x" * 200_000

    async def effect() -> None:
        async with payments.kind(payments.url) as transaction:
            bound = await transaction.bind(current_claim())
            await transaction.settle(bound, report)
            await transaction.commit()

    first = asyncio.run(payments.ledger.run("report", effect, effect="idempotent"))
    again = asyncio.run(payments.ledger.run("report", effect, effect="idempotent"))

    assert first == again == report


@SQL_AND_OTHERS
def test_another_ledger_call_inside_a_bound_transaction_is_refused_at_once(payments: PaymentDatabase) -> None:
    async def effect() -> None:
        async with payments.kind(payments.url) as transaction:
            bound = await transaction.bind(current_claim())
            with pytest.raises(errors.InsideBoundTransaction, match="open bound transaction"):
                await payments.ledger.run("other", lambda: 1, effect="pure")
            await transaction.settle(bound, "done")
            await transaction.commit()
            assert await payments.ledger.run("other", lambda: 1, effect="pure") == 1

    assert asyncio.run(payments.ledger.run("k", effect, effect="idempotent")) == "done"


@SQL
def test_a_claim_that_was_taken_over_cannot_be_bound(payments: PaymentDatabase) -> None:
    ledger = payments.ledger
    stale = ledger.blocking.begin("call", "k", repeatable=True)
    assert isinstance(stale, Claim)
    ledger.blocking.release(stale)
    assert isinstance(ledger.blocking.begin("call", "k", repeatable=True), Claim)

    async def main() -> None:
        async with payments.kind(payments.url) as transaction:
            with pytest.raises(errors.ClaimLost):
                await transaction.bind(_claim(ledger, stale))
            await transaction.rollback()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "kind", "lease_seconds"), [("sqlite", of_sqlite3, 60), ("postgres", of_psycopg, 0.001)]
)
def test_other_callers_are_busy_at_once_while_a_bound_transaction_is_open(
    payments: PaymentDatabase, lease_seconds: float
) -> None:
    """The open transaction is the proof of life: nobody waits for its lock, and on PostgreSQL nobody takes the key
    over even when the lease has lapsed. (SQLite has one lock for the whole file, so a takeover waits for it.)
    """
    ledger = payments.ledger
    claim = ledger.blocking.begin("call", "k", repeatable=True, lease_seconds=lease_seconds)
    assert isinstance(claim, Claim)

    async def main() -> None:
        async with payments.kind(payments.url) as transaction:
            bound = await transaction.bind(_claim(ledger, claim))
            other_task = asyncio.get_running_loop().run_in_executor
            with pytest.raises(errors.Busy):
                await other_task(None, open_and_run, payments.url, lambda: pytest.fail("taken over"), 0.05)
            await transaction.settle(bound, "mine")
            await transaction.commit()

    asyncio.run(main())

    assert asyncio.run(ledger.run("k", lambda: "other", effect="idempotent")) == "mine"


def open_and_run(url: str, effect: Callable[[], object], wait_seconds: float) -> object:
    with open_ledger(url, wait_seconds=wait_seconds) as ledger:
        return ledger.blocking.run("k", effect, effect="idempotent")


@SQL
def test_a_hundred_other_keys_are_claimed_and_renewed_while_a_bound_transaction_is_open(
    payments: PaymentDatabase,
) -> None:
    """For two seconds, four times as long as their leases. SQLite has one lock for the whole file: there they wait for it,
    and are claimed once it is free.
    """
    opened, release = asyncio.Event(), threading.Event()
    keys = [f"k{n}" for n in range(100)]

    async def effect() -> object:
        async with payments.kind(payments.url) as transaction:
            bound = await transaction.bind(current_claim())
            await transaction.pay("42")
            opened.set()
            await asyncio.to_thread(release.wait, 10)
            await transaction.settle(bound, "bound")
            await transaction.commit()
        return None

    async def claimed(key: str) -> Claim:
        claim = await payments.ledger.begin("call", key, repeatable=True, lease_seconds=0.5)
        assert isinstance(claim, Claim)
        assert release.is_set() is payments.url.startswith("sqlite")
        start_renewal(payments.ledger, claim, 0.5, None, 60)
        return claim

    async def main() -> None:
        began = time.monotonic()
        bound = asyncio.create_task(payments.ledger.run("k", effect, effect="idempotent"))
        await opened.wait()
        others = asyncio.gather(*map(claimed, keys))
        if not payments.url.startswith("sqlite"):
            leases = {claim.entry.key: claim.entry.lease_until for claim in await others}

            async def renewed() -> list[str]:
                """Return the keys whose lease was renewed since `leases` was read."""
                entries = (await payments.ledger.scan("call", limit=500)).entries
                return [entry.key for entry in entries if entry.lease_until > leases.get(entry.key, math.inf) + 500_000]

            while set(await renewed()) != set(keys):
                assert time.monotonic() - began < 10
        await soon(lambda: time.monotonic() - began > 2, "two seconds")
        release.set()
        held = await others

        assert await bound == "bound"
        assert len({(claim.entry.key, claim.version) for claim in held}) == 100
        assert all(await asyncio.gather(*(payments.ledger.renew(claim, 60) for claim in held)))

    asyncio.run(main())

    assert payments.paid() == 1


def test_a_serializable_transaction_commits_once_or_must_be_repeated(servers: Servers, tmp_path: Path) -> None:
    payments = PaymentDatabase(BACKENDS["postgres"].url(servers, tmp_path), of_psycopg)
    engine = sqlalchemy.create_engine(
        payments.url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="SERIALIZABLE"
    )
    insert = sqlalchemy.text("INSERT INTO payments VALUES ('42')")

    def effect() -> None:
        with engine.begin() as connection:
            bound = current_claim().bind(connection)
            connection.execute(insert)
            bound.settle("done")

    assert payments.ledger.blocking.run("k", effect, effect="idempotent") == "done"
    assert payments.paid() == 1

    # A snapshot taken before the claim was committed cannot see it: nothing may be written under it.
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(sqlalchemy.text("SELECT 1"))
        claim = payments.ledger.blocking.begin("call", "late", repeatable=True)
        assert isinstance(claim, Claim)
        with pytest.raises(errors.TransactionConflict, match="began before the claim"):
            _claim(payments.ledger, claim).bind(connection)
        transaction.rollback()
    engine.dispose()
    payments.ledger.close()


def test_a_connection_to_another_file_is_refused(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        other = sqlite3.connect(tmp_path / "other.db")

        def effect() -> None:
            current_claim().bind(other)

        with pytest.raises(errors.InvalidOption, match="own file"):
            ledger.blocking.run("k", effect, effect="idempotent")
        other.close()


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
def test_an_unsupported_connection_is_refused_with_the_supported_ones(url: str, tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'ledger.db'}" if url == "sqlite" else url
    with open_ledger(where) as ledger, pytest.raises(errors.InvalidOption, match=r"bind\(\)"):
        ledger.blocking.run("k", lambda: current_claim().bind(object()), effect="idempotent")


@SQL
def test_binding_without_settling_is_logged_and_settled_outside(
    payments: PaymentDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    async def effect() -> str:
        async with payments.kind(payments.url) as transaction:
            await transaction.bind(current_claim())
            await transaction.commit()
        return "value"

    assert asyncio.run(payments.ledger.run("k", effect, effect="idempotent")) == "value"
    assert "bound_transaction_not_settled" in [record.msg for record in caplog.records]
    assert payments.status("k") is Status.COMPLETED


@SQL_AND_OTHERS
def test_a_transaction_that_outlives_its_effect_decides_by_itself(payments: PaymentDatabase) -> None:
    """The caller opens the transaction around the call, so its later commit makes outcome and effect durable."""

    async def main() -> None:
        async with payments.kind(payments.url) as transaction:

            async def effect() -> object:
                bound = await transaction.bind(current_claim())
                await transaction.pay("42")
                await transaction.settle(bound, "later")
                return None

            assert await payments.ledger.run("k", effect, effect="idempotent") == "later"
            await transaction.commit()

    asyncio.run(main())

    assert payments.paid() == 1
    assert payments.status("k") is Status.COMPLETED


@SQL_AND_OTHERS
def test_a_lost_claim_is_reported_inside_a_transaction_around_the_call(payments: PaymentDatabase) -> None:
    async def main() -> None:
        async with payments.kind(payments.url) as transaction:

            async def effect() -> None:
                mine = current_claim()
                lost = await asyncio.to_thread(payments.ledger.blocking.read, "call", "k")
                assert lost is not None
                await asyncio.to_thread(payments.ledger.blocking.release, Claim(lost, None))
                await transaction.bind(mine)

            with pytest.raises(errors.ClaimLost):
                await payments.ledger.run("k", effect, effect="idempotent")
            await transaction.rollback()

    asyncio.run(main())


def test_a_transaction_that_lost_a_race_must_and_may_be_repeated(servers: Servers, tmp_path: Path) -> None:
    """The claim's row changes after the snapshot of a serializable transaction was taken: by a renewal, here."""
    payments = PaymentDatabase(BACKENDS["postgres"].url(servers, tmp_path), of_psycopg)
    snapshots = [1, 2]

    def effect() -> None:
        with psycopg.connect(payments.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            connection.execute("SELECT FROM platform_idempotency_keys")
            if snapshots.pop() == 2:
                with psycopg.connect(payments.url, autocommit=True) as other:
                    other.execute("UPDATE platform_idempotency_keys SET lease_until = lease_until")
            current_claim().bind(connection).settle("done")

    with pytest.raises(errors.TransactionConflict, match="repeat"):
        payments.ledger.blocking.run("k", effect, effect="idempotent")
    assert payments.ledger.blocking.run("k", effect, effect="idempotent") == "done"
    payments.ledger.close()


def _claim(ledger: Ledger, claim: Claim) -> CurrentClaim:
    return CurrentClaim(ledger, claim, claim.entry.key, Terms(effect="idempotent"))
