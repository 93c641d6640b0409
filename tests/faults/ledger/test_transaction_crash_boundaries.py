"""Exactly once: a bound effect whose process ends at any boundary has written its row once, or not yet at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.backends import Opener
from tests.faults.ledger.crash_points import Boundaries, History, every_crash, life

from onceward import Ledger, current_claim
from onceward.testing import PinnedClock


class Shop:
    """The caller's own table, in the database that the ledger is in."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._mark = "?" if url.startswith("sqlite") else "%s"
        with closing(self.connect()) as connection:
            connection.execute("DROP TABLE IF EXISTS payments")
            connection.execute("CREATE TABLE payments (key TEXT, run TEXT)")
            connection.commit()

    def connect(self) -> Any:
        if self._url.startswith("sqlite"):
            return sqlite3.connect(self._url.removeprefix("sqlite:///"))
        return psycopg.connect(self._url)

    def pay(self, key: str, run: str, boundaries: Boundaries) -> str:
        """An effect that is wholly bound. Leaving it early closes the connection, as the end of a process does."""
        with closing(self.connect()) as connection:
            boundaries("before bind")
            bound = current_claim().bind(connection)
            boundaries("before payment")
            self._insert(connection, key, run)
            boundaries("before settle in the transaction")
            bound.settle(run)
            boundaries("before commit")
            connection.commit()
            boundaries("after commit")
        return run

    def _insert(self, connection: Any, key: str, run: str) -> None:
        connection.execute(f"INSERT INTO payments VALUES ({self._mark}, {self._mark})", (key, run))  # noqa: S608

    def payments(self, key: str) -> list[str]:
        with closing(self.connect()) as connection:
            rows = connection.execute(f"SELECT run FROM payments WHERE key = {self._mark}", (key,))  # noqa: S608
            return [row[0] for row in rows.fetchall()]


@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("others_are_dead", [True, False], ids=["proved dead", "lapsed"])
def test_a_bound_effect_happens_exactly_once(make_store: Opener, clock: PinnedClock, others_are_dead: bool) -> None:
    store, shop = make_store(clock), Shop(make_store.url)
    passed: list[str] = []

    def call(ledger: Ledger, key: str, boundaries: Boundaries, history: History) -> None:
        def effect() -> str:
            history.events.append("effect")
            return shop.pay(key, f"run {history.runs}", boundaries)

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
