"""After the retention of an outcome: the key is refused, or the entry stays forever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.backends import ONE_OF_EACH_KIND, Opener, Servers
from tests.connections import of_psycopg, of_sqlite3

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.core.claim import EVER, Claim, Expired, Mismatch, Replay
from onceward.core.outcome import Outcome
from onceward.core.verdict import committed
from onceward.ledger.run import run
from onceward.ledger.terms import Terms
from onceward.store.dispatch.future import wait
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

DAY = 24 * 3600
OPTIONS: dict[str, Any] = {"retain_seconds": 60, "after_retention": "refuse"}


@pytest.fixture
def ledger(clock: PinnedClock) -> Iterator[Ledger]:
    with closing(Ledger(MemoryStore(clock))) as ledger:
        yield ledger


class Runs:
    """An effect that counts its runs."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


@pytest.mark.parametrize("backend", ONE_OF_EACH_KIND, indirect=True)
def test_a_key_is_refused_after_its_retention_and_free_after_thirty_days(make_store: Opener) -> None:
    clock, runs = PinnedClock(), Runs()
    with closing(Ledger(make_store(clock))) as ledger:

        def call(arguments: object = None) -> object:
            return ledger.blocking.run("k", runs, effect="irreversible", fingerprint=arguments, **OPTIONS)

        assert [call(), call()] == [1, 1]
        clock.advance(60)
        for _ in range(2):
            with pytest.raises(errors.Expired, match="use a new key for new work"):
                call()
            with pytest.raises(errors.KeyReused):
                call("other arguments")
            assert isinstance(ledger.blocking.begin("call", "k", None, repeatable=True), Expired)
            assert isinstance(ledger.blocking.begin("call", "k", "other", repeatable=True), Mismatch)
            assert [entry.key for entry in ledger.blocking.scan(status="expired").entries] == ["k"]
            ledger.blocking.purge()
        clock.advance(30 * DAY - 1)
        with pytest.raises(errors.Expired):
            call()

        clock.advance(1)
        assert call() == 2
        assert ledger.blocking.scan(status="expired").entries == ()


def test_the_time_of_the_refusal_can_be_chosen(ledger: Ledger, clock: PinnedClock) -> None:
    @ledger.once(key="k", effect="idempotent", refuse_seconds=10, **OPTIONS)
    def work() -> int:
        return runs()

    runs = Runs()
    assert work() == 1
    clock.advance(69)
    with pytest.raises(errors.Expired):
        work()
    clock.advance(1)
    assert work() == 2


def test_a_failure_does_not_refuse_the_key(ledger: Ledger, clock: PinnedClock) -> None:
    def fails() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        ledger.blocking.run("k", fails, effect="idempotent", **OPTIONS)
    clock.advance(60)

    assert ledger.blocking.run("k", lambda: 1, effect="idempotent", **OPTIONS) == 1


def test_a_reconciled_outcome_refuses_too(ledger: Ledger, clock: PinnedClock) -> None:
    def fails() -> None:
        raise TimeoutError

    def call() -> object:
        return ledger.blocking.run("k", fails, effect="irreversible", reconcile=lambda _: committed(5), **OPTIONS)

    with pytest.raises(TimeoutError):
        call()
    assert call() == 5
    clock.advance(60)
    with pytest.raises(errors.Expired):
        call()


@pytest.mark.parametrize("refuse", [10_000_000, EVER])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_outcome_settled_in_a_transaction_refuses_too(
    servers: Servers, tmp_path: Any, kind: str, refuse: int
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db" if kind == "sqlite" else servers.postgres.create_database()
    connections = of_sqlite3 if kind == "sqlite" else of_psycopg
    terms = Terms(effect="idempotent", retain_ever=True) if refuse == EVER else Terms(
        effect="idempotent", after_retention="refuse", refuse_seconds=10
    )  # fmt: skip

    async def effect() -> None:
        async with connections(url) as transaction:
            await transaction.settle(await transaction.bind(current_claim()), 1)
            await transaction.commit()

    with open_ledger(url) as ledger:
        ledger.blocking.scan()
        asyncio.run(run(ledger, "k", effect, fingerprint=None, terms=terms))
        entry = ledger.blocking.read("call", "k")

    assert entry is not None
    assert entry.completed_at is not None
    day = DAY * 1_000_000
    until = (
        (None, entry.completed_at + day)
        if refuse == EVER
        else (entry.completed_at + day, entry.completed_at + day + refuse)
    )
    assert (entry.expires_at, entry.refuse_until) == until


def test_an_entry_forever_is_replayed_without_its_result(ledger: Ledger, clock: PinnedClock) -> None:
    terms, runs = Terms(effect="irreversible", retain_ever=True, retain_seconds=60), Runs()

    def call() -> object:
        return wait(run(ledger, "k", runs, fingerprint=None, terms=terms))

    assert [call(), call()] == [1, 1]
    clock.advance(60)
    assert (ledger.blocking.purge(), ledger.blocking.purge()) == (1, 0)
    clock.advance(1000 * DAY)
    ledger.blocking.purge()

    with pytest.raises(errors.OutcomeNotKept):
        call()
    found = ledger.blocking.begin("call", "k", None, repeatable=False)
    assert isinstance(found, Replay)
    # A recorded None has a body.
    assert (found.entry.outcome.kept, found.entry.expires_at, runs.count) == (False, None, 1)


def test_a_late_worker_of_an_expired_key_gets_expired(ledger: Ledger, clock: PinnedClock) -> None:
    runs = Runs()

    def late() -> int:
        clock.advance(31)
        claim = ledger.blocking.begin("call", "k", None, repeatable=True)
        assert isinstance(claim, Claim)
        ledger.blocking.settle(claim, Outcome(body=b"1"), 60, refuse_seconds=10)
        clock.advance(60)
        ledger.blocking.purge()
        return runs()

    with pytest.raises(errors.Expired):
        ledger.blocking.run("k", late, effect="idempotent")


@pytest.mark.parametrize(
    "wrong",
    [
        {"after_retention": "keep"},
        {"after_retention": "refuse", "refuse_seconds": 0},
        {"after_retention": "refuse", "retain_ever": True},
    ],
)
def test_wrong_terms_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption):
        Terms(effect="idempotent", **wrong)
