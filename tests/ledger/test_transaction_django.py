"""Django's connection: atomic blocks and their savepoints, threads, async code, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from tests.backends import BACKENDS, Servers
from tests.django_databases import django_database

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.core.claim import Entry, Status
from onceward.errors import InvalidOption


class DjangoShop:
    """A ledger and a table of sales in one database of Django."""

    def __init__(self, url: str, connection: Any) -> None:
        self.url = url
        self.connection = connection
        self.ledger = open_ledger(url, lease_seconds=5, wait_seconds=5)
        self.ledger.blocking.scan()
        self.execute("CREATE TABLE IF NOT EXISTS django_sales (item TEXT)")
        self.execute("DELETE FROM django_sales")

    def atomic(self, **options: bool) -> Any:
        return transaction.atomic(using=self.connection.alias, **options)

    def roll_back(self) -> None:
        """Let the innermost block end with a rollback, without an exception."""
        transaction.set_rollback(True, using=self.connection.alias)

    def execute(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall()) if cursor.description else []

    def sell(self, item: str = "100% tea") -> None:
        self.execute("INSERT INTO django_sales VALUES (%s)", (item,))

    def sold(self) -> int:
        return int(self.execute("SELECT count(*) FROM django_sales")[0][0])

    def entry(self, key: str = "k") -> Entry:
        found = self.ledger.blocking.read("call", key)
        assert found is not None
        return found

    def run(self, effect: Callable[[], object], **options: Any) -> object:
        return self.ledger.blocking.run("k", effect, effect="idempotent", **options)

    def pay(self) -> None:
        with self.atomic():
            bound = current_claim().bind(self.connection)
            self.sell()
            bound.settle("sold")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    return BACKENDS[request.param].url(servers, tmp_path)


@pytest.fixture
def shop(url: str) -> Iterator[DjangoShop]:
    with django_database(url) as connection:
        shop = DjangoShop(url, connection)
        yield shop
        shop.ledger.close()
        connections.close_all()


def wrapper_of(shop: DjangoShop) -> Any:
    return connections[shop.connection.alias]


@pytest.mark.parametrize("named", ["connection", "connections[alias]"])
def test_a_blocking_call_settles_in_an_atomic_block(shop: DjangoShop, named: str) -> None:
    connection = shop.connection if named == "connection" else wrapper_of(shop)

    def effect() -> None:
        with shop.atomic():
            bound: Any = current_claim().bind(connection)
            shop.sell()
            bound.settle({"100%": b"\x00%s", "big": "%(key)s" * 20_000})

    first, again = shop.run(effect), shop.run(effect)

    assert first == again == {"100%": b"\x00%s", "big": "%(key)s" * 20_000}
    assert shop.sold() == 1


@pytest.mark.parametrize("through", ["run", "once"])
def test_an_async_call_settles_in_a_function_of_sync_to_async(shop: DjangoShop, through: str) -> None:
    async def call() -> object:
        if through == "run":
            return await shop.ledger.run("k", sync_to_async(shop.pay), effect="idempotent")

        @shop.ledger.once(key="k", effect="idempotent")
        async def pay() -> Any:
            await sync_to_async(shop.pay)()

        return await pay()

    async def main() -> list[object]:
        answers = [await call(), await call()]
        await sync_to_async(connections.close_all)()
        return answers

    assert asyncio.run(main()) == ["sold", "sold"]
    assert shop.sold() == 1


def test_another_request_on_the_shared_thread_does_not_hide_a_rollback(shop: DjangoShop) -> None:
    """Async requests share one thread, and so one connection of Django. The next request opens its transaction before the
    first one goes on; the same decorated function makes even their atomic blocks the same object.
    """
    go_on, opened = threading.Event(), threading.Event()

    @shop.atomic()  # type: ignore[untyped-decorator]  # Django has no types of its own
    def pay_or_wait(first: bool) -> None:
        if first:
            current_claim().bind(shop.connection).settle("sold")
            shop.roll_back()
        else:
            shop.execute("SELECT 1")
            opened.set()
            go_on.wait(10)

    async def main() -> None:
        other: list[asyncio.Task[None]] = []

        async def effect() -> None:
            await sync_to_async(pay_or_wait)(True)
            other.append(asyncio.create_task(sync_to_async(pay_or_wait)(False)))
            await asyncio.to_thread(opened.wait, 10)

        try:
            with pytest.raises(errors.TransactionConflict, match="rolled back"):
                await shop.ledger.run("k", effect, effect="idempotent")
        finally:
            go_on.set()
            await other[0]
            await sync_to_async(connections.close_all)()

    asyncio.run(main())

    assert shop.entry().status is Status.FAILED


@pytest.mark.parametrize("durable", [False, True])
def test_a_commit_hook_may_use_the_ledger(shop: DjangoShop, durable: bool) -> None:
    """Hooks run after the commit, so the task is no longer inside the bound transaction."""
    sent: list[object] = []

    def effect() -> None:
        with shop.atomic(durable=durable):
            bound = current_claim().bind(shop.connection)
            transaction.on_commit(
                lambda: sent.append(shop.ledger.blocking.run("mail", lambda: "sent", effect="irreversible")),
                using=shop.connection.alias,
            )
            bound.settle("sold")

    assert shop.run(effect) == "sold"
    assert sent == ["sent"]


def test_another_ledger_call_in_the_atomic_block_is_refused(shop: DjangoShop) -> None:
    def effect() -> None:
        with shop.atomic():
            bound = current_claim().bind(shop.connection)
            with pytest.raises(errors.InsideBoundTransaction):
                shop.ledger.blocking.run("other", lambda: 1, effect="pure")
            bound.settle("sold")

    assert shop.run(effect) == "sold"


def test_a_transaction_around_the_call_decides(shop: DjangoShop) -> None:
    """The case of ATOMIC_REQUESTS: the view is in an atomic block, and the effect in a nested one."""
    with shop.atomic():
        assert shop.run(shop.pay) == "sold"
        assert shop.entry().status is Status.IN_PROGRESS

    assert shop.entry().status is Status.COMPLETED
    assert shop.sold() == 1


def test_a_rolled_back_savepoint_with_the_outcome_is_never_reported_as_done(shop: DjangoShop) -> None:
    def effect() -> None:
        with shop.atomic():
            current_claim().bind(shop.connection).settle("sold")
            shop.roll_back()

    with shop.atomic(), pytest.raises(errors.TransactionConflict, match="savepoint"):
        shop.run(effect)

    assert shop.entry().status is Status.IN_PROGRESS


def test_an_exception_in_a_nested_block_does_not_wait_for_the_transaction_around_it(shop: DjangoShop) -> None:
    """On SQLite the outer block still holds the write lock of the file, so the failure cannot be recorded yet."""

    def effect() -> None:
        with shop.atomic():
            current_claim().bind(shop.connection).settle("sold")
            raise ValueError("the shop burnt down")

    with shop.atomic(), pytest.raises(ValueError, match="burnt down") as raised:
        shop.run(effect)

    assert not hasattr(raised.value, "__notes__")  # no failed attempt to record it


def test_an_outcome_survives_other_savepoints(shop: DjangoShop) -> None:
    def effect() -> None:
        with shop.atomic():
            with shop.atomic():
                bound = current_claim().bind(shop.connection)
            with shop.atomic():
                shop.sell()
                shop.roll_back()
            with shop.atomic():
                bound.settle("sold")
            with shop.atomic():
                shop.sell()
                shop.roll_back()

    assert shop.run(effect) == "sold"
    assert shop.sold() == 0
    assert shop.entry().status is Status.COMPLETED


def test_an_outcome_after_a_rolled_back_bind_is_kept(shop: DjangoShop) -> None:
    """The savepoint of the bind is gone, but the settle checks the claim again."""

    def effect() -> None:
        with shop.atomic():
            with shop.atomic():
                bound = current_claim().bind(shop.connection)
                shop.roll_back()
            bound.settle("sold")

    with shop.atomic():
        assert shop.run(effect) == "sold"

    assert shop.entry().status is Status.COMPLETED


def test_a_block_that_failed_can_only_be_rolled_back(shop: DjangoShop) -> None:
    def effect() -> None:
        with shop.atomic():
            bound = current_claim().bind(shop.connection)
            with pytest.raises(DatabaseError), shop.atomic(savepoint=False):
                shop.execute("SELECT * FROM no_such_table")
            bound.settle("sold")

    with pytest.raises(errors.TransactionConflict, match="only be rolled back"):
        shop.run(effect)
    assert shop.run(shop.pay) == "sold"


def test_a_connection_outside_an_atomic_block_is_refused(shop: DjangoShop) -> None:
    with pytest.raises(InvalidOption, match=r"transaction\.atomic"):
        shop.run(lambda: current_claim().bind(shop.connection))


def test_async_code_itself_is_refused(shop: DjangoShop) -> None:
    async def effect() -> None:
        current_claim().bind(shop.connection)

    with pytest.raises(InvalidOption, match="sync_to_async"):
        asyncio.run(shop.ledger.run("k", effect, effect="idempotent"))


def test_a_block_that_does_not_commit_is_refused(url: str) -> None:
    """With autocommit off, the end of an atomic block only releases a savepoint."""
    with django_database(url, AUTOCOMMIT=False) as connection, open_ledger(url) as ledger:

        def effect() -> None:
            with transaction.atomic(using=connection.alias):
                current_claim().bind(connection)

        with pytest.raises(InvalidOption, match="autocommit is off"):
            ledger.blocking.run("k", effect, effect="idempotent")
        connection.rollback()
        connections.close_all()


def test_the_connection_of_another_thread_is_refused(shop: DjangoShop) -> None:
    def effect() -> None:
        with shop.atomic(), ThreadPoolExecutor(1) as pool:
            claim, own = current_claim(), wrapper_of(shop)
            with pytest.raises(InvalidOption, match="this thread"):
                pool.submit(claim.bind, own).result()
            bound = claim.bind(own)
            with pytest.raises(InvalidOption, match="this thread"):
                pool.submit(bound.settle, "sold").result()
            bound.settle("sold here")

    assert shop.run(effect) == "sold here"


@pytest.mark.parametrize("nested", [False, True])
def test_a_connection_that_was_closed_in_its_block_settles_nothing(shop: DjangoShop, nested: bool) -> None:
    def effect() -> None:
        with shop.atomic():
            bound = current_claim().bind(shop.connection)
            shop.sell()
            shop.connection.close()
            bound.settle("sold")

    with pytest.raises(errors.TransactionConflict, match="has ended"), shop.atomic() if nested else nullcontext():
        shop.run(effect)
    assert shop.sold() == 0
    assert shop.entry().status is Status.FAILED


def test_the_statements_are_logged_like_those_of_the_application(shop: DjangoShop) -> None:
    own = wrapper_of(shop)
    own.force_debug_cursor = True

    assert shop.run(shop.pay) == "sold"

    logged = [query["sql"] for query in own.queries]
    assert len([sql for sql in logged if "platform_idempotency_keys" in sql]) == 2


def test_a_database_of_another_kind_is_refused(servers: Servers, tmp_path: Path) -> None:
    with (
        django_database(BACKENDS["postgres"].url(servers, tmp_path)) as connection,
        open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger,
        pytest.raises(InvalidOption, match="postgresql"),
    ):
        ledger.blocking.run("k", lambda: current_claim().bind(connection), effect="idempotent")


def bind_elsewhere(ledger: Ledger, other_url: str, **options: object) -> None:
    with django_database(other_url, **options) as connection:

        def effect() -> None:
            with transaction.atomic(using=connection.alias):
                current_claim().bind(connection)

        try:
            ledger.blocking.run("k", effect, effect="idempotent")
        finally:
            connections.close_all()


def test_another_database_is_refused(servers: Servers, tmp_path: Path, url: str) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}" if url.startswith("sqlite") else servers.postgres.create_database()

    with open_ledger(url) as ledger, pytest.raises(InvalidOption, match=r"own (file|database)"):
        bind_elsewhere(ledger, other)


def test_a_snapshot_from_before_the_claim_is_refused(servers: Servers, tmp_path: Path) -> None:
    url = BACKENDS["postgres"].url(servers, tmp_path)
    options = {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ}
    with django_database(url, OPTIONS=options) as connection, open_ledger(url) as ledger:
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            with pytest.raises(errors.TransactionConflict, match="began before the claim"):
                ledger.blocking.run("late", lambda: current_claim().bind(connection), effect="idempotent")
        connections.close_all()


def test_a_read_from_before_the_claim_conflicts_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with django_database(url) as connection, open_ledger(url) as ledger:
        ledger.blocking.scan()
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM platform_idempotency_keys")
            with pytest.raises(errors.TransactionConflict, match="repeat"):
                ledger.blocking.run("late", lambda: current_claim().bind(connection), effect="idempotent")
        connections.close_all()
