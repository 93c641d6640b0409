"""The background purge: it deletes expired entries page by page, until the ledger is closed."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.blockable_store import begin, block, settle
from tests.waiting import until

from onceward import Ledger, open_ledger
from onceward.core.claim import Claim, Ref
from onceward.core.outcome import Outcome
from onceward.errors import InvalidOption, StoreClosed, StoreUnavailable
from onceward.store import PAGE_MAX
from onceward.store.dispatch.batcher import Batcher
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

WAIT_SECONDS = 10.0
SOON = 0.002
# Nothing that comes a second time comes by itself.
ONCE = 3600.0


class PurgedStore(MemoryStore):
    """Reports when it is purged, and fails as often as the test sets."""

    def __init__(self, clock: PinnedClock) -> None:
        super().__init__(clock)
        self.limits: list[int] = []
        self.failures: list[Exception] = []
        self._swept = threading.Semaphore(0)

    def purge(self, limit: int) -> int:
        self.limits.append(limit)
        try:
            if self.failures:
                raise self.failures.pop(0)
            return super().purge(limit)
        finally:
            self._swept.release()

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._swept.acquire(timeout=WAIT_SECONDS), "the purge never came"


@pytest.fixture
def store(clock: PinnedClock) -> PurgedStore:
    return PurgedStore(clock)


@pytest.fixture
def batcher(store: PurgedStore) -> Iterator[Batcher]:
    with closing(Batcher(store, lambda _: False)) as batcher:
        yield batcher


def settled(batcher: Batcher, count: int, prefix: str = "k") -> list[Ref]:
    """Settle entries with a retention of a minute, and return their refs."""
    for number in range(count):
        result = block(batcher.write(begin(f"{prefix}{number}", f"w{prefix}{number}")))
        assert result.entry is not None
        block(batcher.write(settle(f"{prefix}{number}", result.entry.version)))
    return [Ref("s", f"{prefix}{number}") for number in range(count)]


def left(batcher: Batcher, refs: list[Ref]) -> int:
    return sum(entry is not None for entry in block(batcher.read(refs)).entries)


def test_expired_entries_are_deleted_at_once_and_the_rest_stays(
    store: PurgedStore, batcher: Batcher, clock: PinnedClock
) -> None:
    old = settled(batcher, 3, "old")
    clock.advance(61)
    new = settled(batcher, 2, "new")

    batcher.purge_every(ONCE)
    store.wait()

    assert left(batcher, old) == 0
    assert left(batcher, new) == 2


def test_the_purge_is_repeated(store: PurgedStore, batcher: Batcher, clock: PinnedClock) -> None:
    batcher.purge_every(SOON)
    store.wait(3)
    refs = settled(batcher, 2)
    clock.advance(61)
    store.wait(len(store.limits) + 2)

    assert left(batcher, refs) == 0


def test_a_long_backlog_is_purged_page_by_page_without_pauses(
    store: PurgedStore, batcher: Batcher, clock: PinnedClock
) -> None:
    refs = settled(batcher, 2 * PAGE_MAX + 1)
    clock.advance(61)

    batcher.purge_every(ONCE)
    store.wait(3)

    assert left(batcher, refs) == 0
    assert store.limits == [PAGE_MAX] * 3


def test_nothing_is_purged_by_default(store: PurgedStore, batcher: Batcher, clock: PinnedClock) -> None:
    refs = settled(batcher, 1)
    clock.advance(61)

    assert left(batcher, refs) == 1
    assert store.limits == []


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), RuntimeError("a store's bug")], ids=["gone", "bug"])
def test_a_failed_purge_is_logged_once_and_retried(
    store: PurgedStore, batcher: Batcher, clock: PinnedClock, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    refs = settled(batcher, 1)
    clock.advance(61)
    store.failures = [failure, type(failure)("again")]

    with caplog.at_level(logging.INFO, "onceward.store"):
        batcher.purge_every(SOON)
        store.wait(3)
        assert left(batcher, refs) == 0

    failed, recovered = [record.__dict__ for record in caplog.records]
    assert (failed["msg"], failed["levelname"]) == ("purge_failed", "WARNING")
    assert (failed["retry_in_seconds"], failed["reason"], failed["failure_count"]) == (0.002, str(failure), 1)
    assert (recovered["msg"], recovered["levelname"]) == ("purge_recovered", "INFO")
    assert recovered["failure_count"] == 2


def test_a_failed_purge_fails_no_other_call(store: PurgedStore, batcher: Batcher) -> None:
    store.failures = [StoreUnavailable("gone") for _ in range(1000)]
    batcher.purge_every(SOON)
    store.wait(2)

    assert left(batcher, settled(batcher, 1)) == 1


def test_the_purge_ends_with_the_ledger(store: PurgedStore) -> None:
    batcher = Batcher(store, lambda _: False)
    batcher.purge_every(SOON)
    store.wait(2)
    thread = batcher._thread
    assert thread is not None

    batcher.close()

    assert not thread.is_alive()
    with pytest.raises(StoreClosed):
        batcher.purge_every(SOON)


def test_claims_are_renewed_during_a_purge(batcher: Batcher, clock: PinnedClock) -> None:
    result = block(batcher.write(begin("held", lease=3_000)))
    assert result.entry is not None
    batcher.purge_every(SOON)
    renewal = batcher.start_renewal(result.entry, 3_000, 60_000_000, seconds=60)
    clock.advance(0.001)

    def renewed() -> bool:
        (entry,) = block(batcher.read([Ref("s", "held")])).entries
        return entry is not None and entry.lease_until == clock() + 3_000

    until(renewed)
    batcher.stop_renewal(renewal)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60", None, True])
def test_the_interval_is_a_number_of_seconds(seconds: float) -> None:
    with Ledger(MemoryStore()) as ledger, pytest.raises(InvalidOption, match="purge_seconds"):
        ledger.purge_every(seconds)


# On a real database.


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM platform_idempotency_keys").fetchone()
    return int(count)


def expired(ledger: Ledger, key: str) -> None:
    claim = ledger.blocking.begin("s", key, repeatable=True)
    assert isinstance(claim, Claim)
    ledger.blocking.settle(claim, Outcome(body=b"x"), retain_seconds=0)


def test_rows_are_deleted_from_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        for number in range(3):
            expired(ledger, f"k{number}")
        kept = ledger.blocking.begin("s", "kept", repeatable=True)
        assert rows(path) == 4

        ledger.purge_every(SOON)
        until(lambda: rows(path) == 1)
        expired(ledger, "later")
        until(lambda: rows(path) == 1)

        assert isinstance(kept, Claim)
        assert ledger.blocking.read("s", "kept") is not None


def test_a_forked_child_purges_after_its_first_call(tmp_path: Path) -> None:
    """The parent's thread does not exist in the child. The parent ends first, so that only the child can purge."""
    path = tmp_path / "keys.db"
    script = textwrap.dedent(
        """
        import os, sys
        from onceward import open_ledger
        from onceward.core.outcome import Outcome

        path = sys.argv[1]
        ledger = open_ledger(f"sqlite:///{path}")
        ledger.blocking.read("s", "k")
        ledger.purge_every(0.01)
        if os.fork():
            os._exit(0)
        claim = ledger.blocking.begin("s", "k", repeatable=True)
        ledger.blocking.settle(claim, Outcome(body=b"x"), retain_seconds=0)
        os.write(1, b"settled\\n")
        sys.stdin.read()
        os._exit(0)
        """
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(path)]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"settled\n"
        assert parent.wait(30) == 0
        until(lambda: rows(path) == 0, "the child does not purge")
