"""Exactly once: a bound effect whose process ends at any boundary has written its row once, or not yet at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import transaction
from tests.backends import Opener
from tests.django_databases import django_database
from tests.faults.ledger.crash_points import Boundaries, History, every_crash, life

from onceward import Ledger, current_claim
from onceward.testing import PinnedClock


class Shop:
    """The caller's own table, in the ledger's database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.mark = "?" if url.startswith("sqlite") else "%s"
        with closing(self.connect()) as connection:
            connection.execute("DROP TABLE IF EXISTS payments")
            connection.execute("CREATE TABLE payments (key TEXT, run TEXT)")
            connection.commit()

    def connect(self) -> Any:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"))
        return psycopg.connect(self.url)

    def payments(self, key: str) -> list[str]:
        with closing(self.connect()) as connection:
            rows = connection.execute(f"SELECT run FROM payments WHERE key = {self.mark}", (key,))  # noqa: S608
            return [row[0] for row in rows.fetchall()]


# An effect that is wholly bound. Leaving it early closes the connection, as the end of a process does.
Pay = Callable[[Shop, str, str, Boundaries], object]


def by_driver(shop: Shop, key: str, run: str, boundaries: Boundaries) -> None:
    with closing(shop.connect()) as connection:
        boundaries("before bind")
        bound = current_claim().bind(connection)
        boundaries("before payment")
        connection.execute(f"INSERT INTO payments VALUES ({shop.mark}, {shop.mark})", (key, run))  # noqa: S608
        boundaries("before settle in the transaction")
        bound.settle(run)
        boundaries("before commit")
        connection.commit()
        boundaries("after commit")


def by_django(shop: Shop, key: str, run: str, boundaries: Boundaries) -> None:
    with django_database(shop.url) as connection, closing(connection):
        with transaction.atomic(using=connection.alias):
            boundaries("before bind")
            bound = current_claim().bind(connection)
            boundaries("before payment")
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO payments VALUES (%s, %s)", (key, run))
            boundaries("before settle in the transaction")
            bound.settle(run)
            boundaries("before commit")
        boundaries("after commit")


async def by_asyncpg(shop: Shop, key: str, run: str, boundaries: Boundaries) -> None:
    connection = await asyncpg.connect(shop.url)
    try:
        async with connection.transaction():
            boundaries("before bind")
            bound = await current_claim().bind(connection)
            boundaries("before payment")
            await connection.execute("INSERT INTO payments VALUES ($1, $2)", key, run)
            boundaries("before settle in the transaction")
            await bound.settle(run)
            boundaries("before commit")
        boundaries("after commit")
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("backend", "pay"),
    [
        ("sqlite", by_driver), ("postgres", by_driver), ("sqlite", by_django), ("postgres", by_django),
        ("postgres", by_asyncpg),
    ],
    indirect=["backend"],
)  # fmt: skip
@pytest.mark.parametrize("others_are_dead", [True, False], ids=["proved dead", "lapsed"])
def test_a_bound_effect_happens_exactly_once(
    make_store: Opener, clock: PinnedClock, pay: Pay, others_are_dead: bool
) -> None:
    store, shop = make_store(clock), Shop(make_store.url)
    passed: list[str] = []

    def call(ledger: Ledger, key: str, boundaries: Boundaries, history: History) -> None:
        def effect() -> Any:
            history.events.append("effect")
            return pay(shop, key, f"run {history.runs}", boundaries)

        with history.recording(boundaries):
            history.results.append(ledger.blocking.run(key, effect, effect="idempotent"))

    def live(key: str, lives: list[Boundaries]) -> None:
        history = History()
        for boundaries in lives:
            # The server notices a moment later that a connection is gone; until then its transaction is open.
            with life(store, boundaries, others_are_dead=others_are_dead, wait_seconds=10.0) as ledger:
                call(ledger, key, boundaries, history)
            assert len(shop.payments(key)) <= 1, f"{key}: {history}"
            if not others_are_dead:
                clock.advance(ledger.lease_seconds)
        passed[:] = lives[0].passed

        assert history.values == set(shop.payments(key)), f"{key}: {history}"
        assert history.results[-1] == history.results[-2], f"{key}: {history}"

    every_crash(live)

    assert passed == [
        "before begin", "after begin", "before bind", "before payment", "before settle in the transaction",
        "before commit", "after commit", "before read", "after read",
    ]  # fmt: skip
