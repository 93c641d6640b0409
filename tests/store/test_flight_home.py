"""Flights whose loop is busy, closed or interrupted: somebody brings them home, and nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.blobs.keeping import open_files
from tests.store.flying import FlyingStore, answered, run, start, write_on
from tests.store.gate import begin, block, settle
from tests.waiting import soon, until

import onceward.store.flight
from onceward.core.claim import Answer, Ref, Status, Write
from onceward.store.batch import Batcher
from onceward.store.flight import Journey


@pytest.fixture
def store() -> FlyingStore:
    return FlyingStore()


@pytest.fixture
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds a flight by looking after it now and then."""
    monkeypatch.setattr(onceward.store.flight, "LOOK_SECONDS", 3600.0)


def status_of(store: FlyingStore, key: str) -> Status | None:
    (entry,) = store.read([Ref("s", key)]).entries
    return None if entry is None else entry.status


def occupy(has_it: threading.Event, let_go: threading.Event) -> bool:
    """What a thread does that has the store for a while."""
    has_it.set()
    return let_go.wait(5)


@pytest.mark.usefixtures("no_look")
def test_a_thread_aboard_the_flight_of_a_busy_loop_is_answered(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        sent = line.write(begin("of a thread"))  # queued, and about to wait
        own = asyncio.ensure_future(write_on(line, begin("of the loop")))
        await soon(lambda: bool(store.flights))
        thread, answers = answered(lambda: block(sent))
        thread.join(4)  # the loop does nothing else meanwhile
        assert answers[0].applied
        assert (await own).applied

    store.lands = False
    run(main)

    assert store.sizes == [2]


@pytest.mark.usefixtures("no_look")
@pytest.mark.parametrize("aboard", [True, False])
def test_another_loop_does_not_wait_for_one_that_is_busy(store: FlyingStore, line: Batcher, aboard: bool) -> None:
    sent, busy = threading.Event(), threading.Event()

    def other_loop() -> Answer:
        async def main() -> Answer:
            task = asyncio.ensure_future(write_on(line, begin("b")))
            if aboard:
                asyncio.get_running_loop().call_soon(sent.set)
                asyncio.get_running_loop().call_soon(busy.wait, 5)
            return await task

        if not aboard:
            busy.wait(5)
        return asyncio.run(main())

    async def main() -> None:
        thread, answers = answered(other_loop)
        if aboard:
            sent.wait(5)
        own = asyncio.ensure_future(write_on(line, begin("a")))
        await soon(lambda: bool(store.flights))
        busy.set()
        thread.join(4)  # the loop does nothing else meanwhile
        assert answers[0].applied
        assert (await own).applied

    store.lands = False
    run(main)


def test_what_is_queued_behind_a_flight_is_written_when_its_loop_is_gone(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        held = await write_on(line, begin("k"))
        assert held.entry is not None
        store.lands = False
        leave(begin("other"))
        await soon(lambda: len(store.flights) == 2)
        leave(settle("k", held.entry.version))
        await asyncio.sleep(0)

    def leave(write: Write) -> None:
        asyncio.ensure_future(write_on(line, write))  # noqa: RUF006  # nobody waits for it

    run(main)

    until(lambda: status_of(store, "k") is Status.COMPLETED)
    # Its caller was cancelled with the loop.
    until(lambda: status_of(store, "other") is not Status.IN_PROGRESS)


def test_closing_writes_what_is_queued_behind_a_flight(store: FlyingStore) -> None:
    line = Batcher(store, lambda _: False)

    async def main() -> None:
        held = await write_on(line, begin("k"))
        assert held.entry is not None
        store.lands = False
        first = asyncio.ensure_future(write_on(line, begin("other")))
        await soon(lambda: len(store.flights) == 2)
        behind = asyncio.ensure_future(write_on(line, settle("k", held.entry.version)))
        await asyncio.sleep(0)
        await asyncio.to_thread(line.close)
        assert (await first).applied
        assert (await behind).applied

    run(main)

    assert status_of(store, "k") is Status.COMPLETED


def test_a_thread_that_wants_the_store_sleeps_while_a_loop_hands_out_answers(store: FlyingStore, line: Batcher) -> None:
    looked = 0
    take = line._flights._take

    def counted() -> bool:
        nonlocal looked
        looked += 1
        return take()

    def slow(_: object) -> None:
        line.read([Ref("s", "k")])  # done by the thread
        until(lambda: looked >= 2)

    async def main() -> None:
        await write_on(line, begin("k"))

    line._flights._take = counted  # type: ignore[method-assign]
    store.spoil = slow
    run(main)

    assert 2 <= looked < 30


def test_a_thread_that_wants_the_store_sleeps_while_another_brings_a_flight_home(
    store: FlyingStore, line: Batcher
) -> None:
    let_go = threading.Event()
    store.grounds = True

    def slow(_: object) -> None:
        let_go.wait(5)

    store.spoil = slow
    looked = 0
    take = line._flights._take

    def counted() -> bool:
        nonlocal looked
        looked += 1
        return take()

    async def main() -> None:
        own = asyncio.ensure_future(write_on(line, begin("k")))
        await soon(lambda: bool(store.finished))
        line._flights._take = counted  # type: ignore[method-assign]
        thread, _ = answered(want)
        await soon(lambda: looked >= 2)
        let_go.set()
        await own
        thread.join()

    def want() -> Answer:
        with line._flights.store_to_oneself(line):
            return Answer(applied=False, entry=None, now=0)

    run(main)

    assert 2 <= looked < 30


@pytest.mark.usefixtures("patient")
def test_what_is_queued_while_a_thread_has_the_store_is_sent_by_its_loop(store: FlyingStore, line: Batcher) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    async def main() -> None:
        working = line.call(lambda _: occupy(has_it, let_go))
        await soon(has_it.is_set)
        own = [asyncio.ensure_future(write_on(line, begin(f"k{number}"))) for number in range(3)]
        await soon(lambda: len(line.queue) == len(own) and not line._nudged)  # they wait, and the loop tried to send
        let_go.set()
        assert await working
        assert all(answer.applied for answer in await asyncio.gather(*own))

    run(main)

    assert (store.sizes, store.batches) == ([3], [])


def test_a_loop_that_is_busy_when_it_is_to_send_keeps_no_renewal_waiting(store: FlyingStore, line: Batcher) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    async def main() -> None:
        held = await write_on(line, begin("held"))
        assert held.entry is not None
        working = line.call(lambda _: occupy(has_it, let_go))
        await soon(has_it.is_set)
        kept = line.keep(held.entry, lease=3_000, retain=1_000_000, seconds=60)
        own = asyncio.ensure_future(write_on(line, begin("own")))
        await asyncio.sleep(0)
        let_go.set()
        until(lambda: store.writes_of("held"), "nobody renewed it", seconds=5)  # the loop does nothing else meanwhile
        line.drop(kept)
        assert await working
        assert (await own).applied

    run(main)


def test_nothing_is_left_open_whoever_brings_a_flight_home() -> None:
    gc.collect()
    before = open_files()
    for _ in range(3):
        store = FlyingStore()
        store.lands = False
        line = Batcher(store, lambda _: False)
        loop = asyncio.new_event_loop()
        task = loop.create_task(write_on(line, begin("k")))
        loop.run_until_complete(soon(lambda made=store.flights: bool(made)))
        line.close()  # brings it home; the loop would hear of it in its next turn
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as meant
        loop.close()
        del store, line, loop, task

    gc.collect()
    assert open_files() == before


def test_a_loop_lets_go_of_a_flight_that_a_thread_brought_home(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        store.lands = False
        own = asyncio.ensure_future(write_on(line, begin("own")))
        await soon(lambda: bool(store.flights))
        before = open_files()
        thread, answers = answered(lambda: block(line.write(begin("other"))))
        thread.join(10)
        assert answers[0].applied
        assert (await own).applied
        await asyncio.sleep(0)
        # The two ends of the flight itself, and the ear.
        assert open_files() == before - 3

    run(main)


def test_a_flight_that_is_over_is_nobody_elses() -> None:
    store = FlyingStore()
    line = Batcher(store, lambda _: False)
    flight = start(store, begin("k"))
    assert flight is not None
    journey = Journey(flight, [], asyncio.new_event_loop(), line)
    journey.over = True

    assert not line._flights._bring_home(journey)
    assert store.finished == []
    journey.loop.close()
    line.close()


def test_a_forgotten_batcher_is_freed_at_once() -> None:
    gc.disable()
    try:
        batcher = Batcher(FlyingStore(), lambda _: False)
        seen = weakref.ref(batcher)
        del batcher
        assert seen() is None
    finally:
        gc.enable()
