"""Batches in flight whose loop is busy, closed or interrupted are completed by another thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.hub.blobs.blob_io import open_files
from tests.store.blockable_store import begin, block, settle
from tests.store.dispatch.pipelined_store import PipelinedMemoryStore, run, run_in_thread, start, write_on
from tests.waiting import soon, until

import onceward.store.dispatch.inflight
from onceward.core.claim import Ref, Status, Write, WriteResult
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.inflight import InflightBatch


@pytest.fixture
def store() -> PipelinedMemoryStore:
    return PipelinedMemoryStore()


@pytest.fixture
def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does not check on batches in flight."""
    monkeypatch.setattr(onceward.store.dispatch.inflight, "LOST_LOOP_SECONDS", 3600.0)


def status_of(store: PipelinedMemoryStore, key: str) -> Status | None:
    (entry,) = store.read([Ref("s", key)]).entries
    return None if entry is None else entry.status


def occupy(has_it: threading.Event, let_go: threading.Event) -> bool:
    """Use the store until `let_go` is set, for at most five seconds."""
    has_it.set()
    return let_go.wait(5)


@pytest.mark.usefixtures("without_checks")
def test_a_thread_with_a_write_in_the_batch_of_a_busy_loop_gets_its_result(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        sent = batcher.write(begin("of a thread"))  # queued, and about to wait
        own = asyncio.ensure_future(write_on(batcher, begin("of the loop")))
        await soon(lambda: bool(store.sent_batches))
        thread, results = run_in_thread(lambda: block(sent))
        thread.join(4)  # the loop does nothing else meanwhile
        assert results[0].applied
        assert (await own).applied

    store.completes = False
    run(main)

    assert store.sizes == [2]


@pytest.mark.usefixtures("without_checks")
@pytest.mark.parametrize("in_batch", [True, False])
def test_another_loop_does_not_wait_for_a_busy_loop(
    store: PipelinedMemoryStore, batcher: Batcher, in_batch: bool
) -> None:
    sent, busy = threading.Event(), threading.Event()

    def other_loop() -> WriteResult:
        async def main() -> WriteResult:
            task = asyncio.ensure_future(write_on(batcher, begin("b")))
            if in_batch:
                asyncio.get_running_loop().call_soon(sent.set)
                asyncio.get_running_loop().call_soon(busy.wait, 5)
            return await task

        if not in_batch:
            busy.wait(5)
        return asyncio.run(main())

    async def main() -> None:
        thread, results = run_in_thread(other_loop)
        if in_batch:
            sent.wait(5)
        own = asyncio.ensure_future(write_on(batcher, begin("a")))
        await soon(lambda: bool(store.sent_batches))
        busy.set()
        thread.join(4)  # the loop does nothing else meanwhile
        assert results[0].applied
        assert (await own).applied

    store.completes = False
    run(main)


def test_writes_queued_behind_a_batch_are_sent_when_its_loop_is_gone(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        held = await write_on(batcher, begin("k"))
        assert held.entry is not None
        store.completes = False
        leave(begin("other"))
        await soon(lambda: len(store.sent_batches) == 2)
        leave(settle("k", held.entry.version))
        await asyncio.sleep(0)

    def leave(write: Write) -> None:
        asyncio.ensure_future(write_on(batcher, write))  # noqa: RUF006  # nobody waits for it

    run(main)

    until(lambda: status_of(store, "k") is Status.COMPLETED)
    # Its caller was cancelled with the loop.
    until(lambda: status_of(store, "other") is not Status.IN_PROGRESS)


def test_closing_sends_writes_queued_behind_a_batch(store: PipelinedMemoryStore) -> None:
    batcher = Batcher(store, lambda _: False)

    async def main() -> None:
        held = await write_on(batcher, begin("k"))
        assert held.entry is not None
        store.completes = False
        first = asyncio.ensure_future(write_on(batcher, begin("other")))
        await soon(lambda: len(store.sent_batches) == 2)
        behind = asyncio.ensure_future(write_on(batcher, settle("k", held.entry.version)))
        await asyncio.sleep(0)
        await asyncio.to_thread(batcher.close)
        assert (await first).applied
        assert (await behind).applied

    run(main)

    assert status_of(store, "k") is Status.COMPLETED


def test_a_thread_that_waits_for_the_store_sleeps_while_a_loop_delivers_results(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    attempts = 0
    take = batcher._pipeline._acquire

    def counted() -> bool:
        nonlocal attempts
        attempts += 1
        return take()

    def slow(_: object) -> None:
        batcher.read([Ref("s", "k")])  # done by the thread
        until(lambda: attempts >= 2)

    async def main() -> None:
        await write_on(batcher, begin("k"))

    batcher._pipeline._acquire = counted  # type: ignore[method-assign]
    store.spoil = slow
    run(main)

    assert 2 <= attempts < 30


def test_a_thread_that_waits_for_the_store_sleeps_while_another_completes_a_batch(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    let_go = threading.Event()
    store.blocks = True

    def slow(_: object) -> None:
        let_go.wait(5)

    store.spoil = slow
    attempts = 0
    take = batcher._pipeline._acquire

    def counted() -> bool:
        nonlocal attempts
        attempts += 1
        return take()

    async def main() -> None:
        own = asyncio.ensure_future(write_on(batcher, begin("k")))
        await soon(lambda: bool(store.finished))
        batcher._pipeline._acquire = counted  # type: ignore[method-assign]
        thread, _ = run_in_thread(want)
        await soon(lambda: attempts >= 2)
        let_go.set()
        await own
        thread.join()

    def want() -> WriteResult:
        with batcher._pipeline.exclusive_store(batcher):
            return WriteResult(applied=False, entry=None, now=0)

    run(main)

    assert 2 <= attempts < 30


@pytest.mark.usefixtures("patient")
def test_writes_queued_while_a_thread_has_the_store_are_sent_by_their_loop(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    async def main() -> None:
        working = batcher.call(lambda _: occupy(has_it, let_go))
        await soon(has_it.is_set)
        own = [asyncio.ensure_future(write_on(batcher, begin(f"k{number}"))) for number in range(3)]
        await soon(
            lambda: len(batcher.queue) == len(own) and not batcher._nudged
        )  # they wait, and the loop tried to send
        let_go.set()
        assert await working
        assert all(result.applied for result in await asyncio.gather(*own))

    run(main)

    assert (store.sizes, store.batches) == ([3], [])


def test_a_loop_that_is_busy_when_it_should_send_does_not_delay_renewals(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    async def main() -> None:
        held = await write_on(batcher, begin("held"))
        assert held.entry is not None
        working = batcher.call(lambda _: occupy(has_it, let_go))
        await soon(has_it.is_set)
        renewal = batcher.start_renewal(held.entry, lease=3_000, retain=1_000_000, seconds=60)
        own = asyncio.ensure_future(write_on(batcher, begin("own")))
        await asyncio.sleep(0)
        let_go.set()
        until(lambda: store.writes_of("held"), "nobody renewed it", seconds=5)  # the loop does nothing else meanwhile
        batcher.stop_renewal(renewal)
        assert await working
        assert (await own).applied

    run(main)


def test_no_file_is_left_open_whichever_thread_completes_a_batch() -> None:
    gc.collect()
    before = open_files()
    for _ in range(3):
        store = PipelinedMemoryStore()
        store.completes = False
        batcher = Batcher(store, lambda _: False)
        loop = asyncio.new_event_loop()
        task = loop.create_task(write_on(batcher, begin("k")))
        loop.run_until_complete(soon(lambda made=store.sent_batches: bool(made)))
        batcher.close()  # completes it; the loop would hear of it in its next turn
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as meant
        loop.close()
        del store, batcher, loop, task

    gc.collect()
    assert open_files() == before


def test_a_loop_drops_a_batch_that_a_thread_completed(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.completes = False
        own = asyncio.ensure_future(write_on(batcher, begin("own")))
        await soon(lambda: bool(store.sent_batches))
        before = open_files()
        thread, results = run_in_thread(lambda: block(batcher.write(begin("other"))))
        thread.join(10)
        assert results[0].applied
        assert (await own).applied
        await asyncio.sleep(0)
        # The two ends of the batch itself, and the reader's descriptor.
        assert open_files() == before - 3

    run(main)


def test_a_completed_batch_is_not_completed_again() -> None:
    store = PipelinedMemoryStore()
    batcher = Batcher(store, lambda _: False)
    sent_batch = start(store, begin("k"))
    assert sent_batch is not None
    in_flight = InflightBatch(sent_batch, [], asyncio.new_event_loop(), batcher)
    in_flight.over = True

    assert not batcher._pipeline._complete_on_thread(in_flight)
    assert store.finished == []
    in_flight.loop.close()
    batcher.close()


def test_a_forgotten_batcher_is_freed_at_once() -> None:
    gc.disable()
    try:
        batcher = Batcher(PipelinedMemoryStore(), lambda _: False)
        seen = weakref.ref(batcher)
        del batcher
        assert seen() is None
    finally:
        gc.enable()
