"""Recovery points: recorded from async and blocking code, and read by the next attempt and by reconcile hooks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.backends import ONE_OF_EACH_KIND, Opener

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.core.claim import Claim, Entry, Mark, Write, WriteResult
from onceward.core.verdict import Final, Verdict, committed, not_committed
from onceward.ledger.run import CurrentClaim
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

LEASE = 30.0


@pytest.fixture
def ledger(clock: PinnedClock) -> Iterator[Ledger]:
    with closing(Ledger(MemoryStore(clock), lease_seconds=LEASE)) as ledger:
        yield ledger


class Crash(Exception):
    """Ends an attempt without a known result."""


def in_async_code(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    async def effect() -> None:
        await record(current_claim())
        raise Crash

    asyncio.run(ledger.run("k", effect, effect="idempotent"))


def in_a_plain_function_on_a_loop(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    def effect() -> None:
        record(current_claim())
        raise Crash

    asyncio.run(ledger.run("k", effect, effect="idempotent"))


def in_a_thread_of_async_code(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    async def effect() -> None:
        await asyncio.to_thread(lambda: record(current_claim()))
        raise Crash

    asyncio.run(ledger.run("k", effect, effect="idempotent"))


def in_blocking_code(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    def effect() -> None:
        record(current_claim())
        raise Crash

    ledger.blocking.run("k", effect, effect="idempotent")


def in_async_code_of_a_blocking_call(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    async def effect() -> None:
        await record(current_claim())
        raise Crash

    ledger.blocking.run("k", effect, effect="idempotent")


def on_a_loop_inside_blocking_code(ledger: Ledger, record: Callable[[CurrentClaim], Any]) -> None:
    def effect() -> None:
        async def inside() -> None:
            await record(current_claim())

        asyncio.run(inside())
        raise Crash

    ledger.blocking.run("k", effect, effect="idempotent")


WAYS = [
    in_async_code,
    in_a_plain_function_on_a_loop,
    in_a_thread_of_async_code,
    in_blocking_code,
    in_async_code_of_a_blocking_call,
    on_a_loop_inside_blocking_code,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_recovery_point_is_durable_when_the_call_returns(ledger: Ledger, way: Callable[..., None]) -> None:
    store: Any = ledger._dispatcher.store
    recorded: list[object] = []

    def record(claim: CurrentClaim) -> Any:
        recorded.append(claim.recovered)
        return claim.recovery_point({"batch": len(recorded)})

    for number in (1, 2):
        with pytest.raises(Crash):
            way(ledger, record)
        (entry,) = store._entries.values()
        assert (entry.recovery_point, entry.recovery_seq) == ({"batch": number}, number)
    assert recorded == [None, {"batch": 1}]


@pytest.mark.parametrize("backend", ONE_OF_EACH_KIND, indirect=True)
def test_a_holder_that_takes_over_continues_where_the_other_one_was(make_store: Opener) -> None:
    clock = PinnedClock()
    submitted: list[str] = []
    with closing(Ledger(make_store(clock), lease_seconds=LEASE)) as ledger:
        first = ledger.blocking.begin("call", "import", None, repeatable=True)
        assert isinstance(first, Claim)
        ledger.blocking.mark(first, 1, '{"batch":"b-1"}')
        clock.advance(LEASE + 1)

        def effect() -> str:
            claim = current_claim()
            if claim.recovered is None:
                submitted.append("again")
            claim.recovery_point({**claim.recovered, "polled": True})
            with pytest.raises(errors.ClaimLost, match="taken over"):
                ledger.blocking.mark(first, 9, '"late"')
            return str(claim.recovered["batch"])

        assert ledger.blocking.run("import", effect, effect="idempotent") == "b-1"
        entry = ledger.blocking.read("call", "import")

    assert submitted == []
    assert entry is not None
    assert (entry.recovery_point, entry.recovery_seq) == ({"batch": "b-1", "polled": True}, 2)


def test_a_reconcile_hook_reads_the_recovery_point(ledger: Ledger) -> None:
    seen: list[object] = []

    def effect() -> None:
        current_claim().recovery_point(["pi_1"])
        raise TimeoutError

    def reconcile(entry: Entry) -> Verdict:
        seen.append(entry.recovery_point)
        return committed(entry.recovery_point[0])

    with pytest.raises(TimeoutError):
        ledger.blocking.run("charge", effect, effect="irreversible")

    assert ledger.blocking.run("charge", effect, effect="irreversible", reconcile=reconcile) == "pi_1"
    assert seen == [["pi_1"]]


def test_a_value_that_cannot_be_stored_is_refused_before_any_write(ledger: Ledger) -> None:
    def effect() -> int:
        claim = current_claim()
        for value in (b"bytes", "x" * 20_000):
            with pytest.raises(errors.InvalidOption):
                claim.recovery_point(value)
        claim.recovery_point("fits")
        return 1

    ledger.blocking.run("k", effect, effect="idempotent")
    entry = ledger.blocking.read("call", "k")
    assert entry is not None
    assert (entry.recovery_point, entry.recovery_seq) == ("fits", 1)


def test_a_recovery_point_is_refused_inside_a_bound_transaction(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"

    def effect() -> None:
        claim = current_claim()
        claim.recovery_point("before")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
            bound = claim.bind(connection)
            with pytest.raises(errors.InsideBoundTransaction):
                claim.recovery_point("inside")
            # Another thread does not know of the transaction, and would wait for its lock.
            with ThreadPoolExecutor() as threads, pytest.raises(errors.InsideBoundTransaction):
                threads.submit(claim.recovery_point, "inside").result()
            bound.settle("done")

    with open_ledger(url) as ledger:
        ledger.blocking.run("k", effect, effect="idempotent")
        entry = ledger.blocking.read("call", "k")

    assert entry is not None
    assert (entry.recovery_point, entry.outcome.body) == ("before", b'"done"')


class Lossy(MemoryStore):
    """A store whose first result of each mark is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()
        self.marks = 0

    def commit(self, writes: Any) -> list[WriteResult]:
        results = super().commit(writes)
        marks: list[Write] = [write for write in writes if isinstance(write, Mark)]
        self.marks += len(marks)
        for write in marks:
            if write.write_id not in self.lost:
                self.lost.add(write.write_id)
                raise errors.StoreUnavailable("the result was lost")
        return results


def test_a_mark_whose_result_was_lost_is_sent_again_and_recognised() -> None:
    store = Lossy()

    def effect() -> None:
        current_claim().recovery_point("one")

    with closing(Ledger(store)) as ledger:
        ledger.blocking.run("k", effect, effect="idempotent")
        entry = ledger.blocking.read("call", "k")

    assert entry is not None
    assert (store.marks, entry.recovery_point, entry.recovery_seq) == (2, "one", 1)


# Keys for providers.


def test_a_key_for_a_provider_changes_only_when_the_provider_certainly_did_nothing(
    ledger: Ledger, clock: PinnedClock
) -> None:
    keys: list[str] = []
    ends: list[Exception] = [errors.NotDone("busy"), errors.NotDone("busy"), Crash(), errors.NotDone("busy"), Crash()]

    def effect() -> None:
        keys.append(current_claim().key_for("bank"))
        if ends:
            raise ends.pop(0)

    for _ in range(5):
        with pytest.raises((errors.NotDone, Crash)):
            ledger.blocking.run("k", effect, effect="idempotent")
    taken = ledger.blocking.begin("call", "k", None, repeatable=True)
    assert isinstance(taken, Claim)
    clock.advance(LEASE + 1)
    ledger.blocking.run("k", effect, effect="idempotent")

    # Changed by two attempts that did nothing. The third may have reached the bank, and so may no later key differ.
    assert len(set(keys[:3])) == 3
    assert set(keys[2:]) == {keys[2]}
    assert len(keys) == 6


def test_a_verdict_of_not_committed_changes_the_key(ledger: Ledger) -> None:
    keys: list[str] = []

    def effect() -> None:
        keys.append(current_claim().key_for("bank", "capture"))
        if len(keys) == 1:
            raise TimeoutError

    def reconcile(_: Entry) -> Verdict:
        return not_committed(Final.PROVIDER_FINAL)

    with pytest.raises(TimeoutError):
        ledger.blocking.run("k", effect, effect="irreversible")
    ledger.blocking.run("k", effect, effect="irreversible", reconcile=reconcile)

    assert keys[0] != keys[1]


def test_every_attempt_of_a_compensatable_effect_has_its_own_key(ledger: Ledger, clock: PinnedClock) -> None:
    keys: list[str] = []

    def effect() -> None:
        keys.append(current_claim().key_for("bank"))
        if len(keys) == 1:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        ledger.blocking.run("k", effect, effect="compensatable", undo=lambda: None)
    vanished = ledger.blocking.begin("call", "k", None, repeatable=True)
    assert isinstance(vanished, Claim)
    clock.advance(LEASE + 1)
    ledger.blocking.run("k", effect, effect="compensatable", undo=lambda: None)

    assert keys[0] != keys[1]


def test_a_ledger_derives_keys_from_its_secret(clock: PinnedClock) -> None:
    store = MemoryStore(clock)

    def effect() -> None:
        keys.append(current_claim().key_for("bank"))
        raise Crash

    keys: list[str] = []
    old, new = "the old secret 1", "the new secret 2"
    for options in ({"secret": old}, {"secrets": [new, old]}):
        with closing(Ledger(store, **options)) as ledger, pytest.raises(Crash):
            ledger.blocking.run("k", effect, effect="idempotent")
    with closing(Ledger(store, secret=new)) as ledger, pytest.raises(errors.InvalidOption):
        ledger.blocking.run("k", effect, effect="idempotent")
    with closing(Ledger(store)) as ledger, pytest.raises(Crash):
        ledger.blocking.run("another", effect, effect="idempotent")

    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(("provider", "step"), [(None, ""), ("bank", 1)])
def test_names_of_providers_and_steps_are_texts(ledger: Ledger, provider: Any, step: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="must be a text"):
        ledger.blocking.run("k", lambda: current_claim().key_for(provider, step), effect="idempotent")
