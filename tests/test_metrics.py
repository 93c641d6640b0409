"""The gauges of a ledger, and the cache that keeps a slow store from delaying a scrape."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.backends import Opener
from tests.waiting import until

from onceward import Ledger, metrics
from onceward.core.claim import Claim
from onceward.metrics import CachedValue, DoubtGauges
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long timeout: on a busy machine, a read takes longer than a scrape would wait for it."""
    monkeypatch.setattr(metrics, "WAIT_SECONDS", 30.0)


def gauges(ledger: Ledger) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(DoubtGauges(ledger))
    rows = [line.split(" ") for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def put_in_doubt(ledger: Ledger, key: str) -> None:
    claim = ledger.blocking.begin("call", key, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.doubt(claim)


def test_the_gauges_count_the_doubts_of_their_namespace_and_show_the_age_of_the_oldest(
    make_store: Opener, clock: PinnedClock
) -> None:
    with closing(Ledger(make_store(clock))) as ledger, closing(Ledger(make_store(clock), namespace="other")) as other:
        before = gauges(ledger)
        put_in_doubt(other, "k0")
        clock.advance(50)
        put_in_doubt(ledger, "k1")
        clock.advance(40)
        put_in_doubt(ledger, "k2")
        assert isinstance(ledger.blocking.begin("call", "k3", repeatable=False), Claim)
        clock.advance(2)
        shown = gauges(ledger)

    assert before == {"onceward_in_doubt": 0, "onceward_in_doubt_oldest_seconds": 0}
    assert shown == {"onceward_in_doubt": 2, "onceward_in_doubt_oldest_seconds": 42}


def test_a_second_scrape_does_not_ask_the_store_again() -> None:
    with closing(Ledger(MemoryStore())) as ledger:
        doubts = DoubtGauges(ledger)
        list(doubts.collect())
        put_in_doubt(ledger, "k")
        (count, _) = doubts.collect()

    assert [sample.value for sample in count.samples] == [0]


def test_a_store_that_does_not_respond_delays_one_scrape_a_little_and_the_gauges_are_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "WAIT_SECONDS", 0.05)
    unblocked, reads = threading.Event(), []

    def read() -> int:
        reads.append(1)
        assert unblocked.wait(30)
        return 7

    cached = CachedValue(read)
    first = cached.get()
    began_at = time.monotonic()
    more = [cached.get() for _ in range(1000)]
    seconds = time.monotonic() - began_at
    unblocked.set()

    assert (first, set(more), len(reads)) == (None, {None}, 1)
    assert seconds < 25, "a thousand waits of 0.05 seconds take 50"
    assert until(cached.get) == 7


def test_a_value_is_shown_until_it_is_stale_and_read_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "COST_FACTOR", 0.0)
    results: list[int | None] = [1, None, None, 2]

    def read() -> int:
        result = results.pop(0)
        if result is None:
            raise OSError("down")
        return result

    cached = CachedValue(read)
    shown = [cached.get(), cached.get()]
    monkeypatch.setattr(cached, "_stale_at", time.monotonic())
    shown += [cached.get(), cached.get()]

    assert shown == [1, 1, None, 2]


def test_an_expensive_read_is_repeated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "COST_FACTOR", 1e6)
    reads = []

    def read() -> int:
        time.sleep(0.001)
        reads.append(1)
        return 1

    cached = CachedValue(read)
    until(cached.get)
    cached.get()

    assert reads == [1]
