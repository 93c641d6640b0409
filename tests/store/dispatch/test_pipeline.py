"""Batches that a loop sends itself: sending, completing, and no waiting for a busy loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import closing

import pytest
from tests.store.blockable_store import BlockableStore, begin, block, refuse_key
from tests.store.dispatch.pipelined_store import PipelinedMemoryStore, run, write_on
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Ref, Status, WriteResult
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.inflight import EncodedBatch, SentBatch
from onceward.store.dispatch.pipeline import EARLY_MIN
from onceward.testing import PipelinedStore


@pytest.fixture
def store() -> PipelinedMemoryStore:
    return PipelinedMemoryStore()


@pytest.mark.usefixtures("patient")
@pytest.mark.usefixtures("patient")
def test_a_loop_sends_and_receives_without_a_thread(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        for number in range(3):
            assert (await write_on(batcher, begin(f"k{number}"))).applied

    run(main)

    assert store.finished == ["MainThread"] * 3
    assert store.batches == []


def test_a_result_that_arrives_in_pieces_is_received_piece_by_piece(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.pieces = 3

    async def main() -> None:
        assert (await write_on(batcher, begin("k"))).applied

    run(main)

    assert store.sent_batches[0].polls == 3


def test_a_batch_in_flight_whose_loop_is_busy_is_completed_by_the_thread(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.completes = False
    results: list[WriteResult] = []

    async def main() -> None:
        first = asyncio.ensure_future(write_on(batcher, begin("first")))
        await soon(lambda: bool(store.sent_batches))
        other = threading.Thread(target=lambda: results.append(block(batcher.write(begin("second")))))
        other.start()
        other.join(10)  # the loop does nothing else meanwhile
        assert results[0].applied
        assert (await first).applied
        # The loop's reader runs, and is removed.
        store.completes = True
        assert (await write_on(batcher, begin("third"))).applied

    run(main)

    assert store.finished[0] == "onceward-store"


def test_a_claim_is_renewed_while_the_sending_loop_is_busy(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        held = await write_on(batcher, begin("held"))
        assert held.entry is not None
        store.completes = False
        asyncio.ensure_future(write_on(batcher, begin("other")))  # noqa: RUF006  # ends with the loop
        await soon(lambda: len(store.sent_batches) == 2)
        renewal = batcher.start_renewal(held.entry, lease=150_000, retain=1_000_000, seconds=60)
        until(lambda: store.writes_of("held"), "nobody renewed it")  # the loop does nothing else meanwhile
        batcher.stop_renewal(renewal)

    run(main)


def test_a_batch_in_flight_whose_loop_was_closed_is_completed_before_the_next(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.completes = False

    async def leave() -> None:
        asyncio.ensure_future(write_on(batcher, begin("left")))  # noqa: RUF006  # nobody waits for it
        await soon(lambda: bool(store.sent_batches))

    async def come() -> None:
        store.completes = True
        began = time.monotonic()
        assert (await write_on(batcher, begin("next"))).applied
        assert time.monotonic() - began < 5

    run(leave)
    run(come)

    # Its caller was cancelled with the loop: what it claimed is free again.
    until(lambda: [write.__class__.__name__ for write in store.writes_of("left")] == ["Move"])
    (entry,) = store.read([Ref("s", "left")]).entries
    assert entry is None or entry.status is not Status.IN_PROGRESS


def test_the_write_that_fails_a_batch_in_flight_is_found_by_the_thread(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.spoil = refuse_key("k3")

    async def main() -> list[object]:
        return await asyncio.gather(
            *(write_on(batcher, begin(f"k{number}")) for number in range(EARLY_MIN)), return_exceptions=True
        )

    results: list[object] = []

    async def gathered() -> None:
        results.extend(await main())

    run(gathered)

    assert [type(result) for result in results] == [
        errors.WriteRefused if number == 3 else WriteResult for number in range(EARLY_MIN)
    ]
    assert store.finished == ["MainThread"]
    assert store.batches, "the thread takes it apart"


def test_a_single_write_that_is_refused_in_flight_gets_its_error(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    store.spoil = refuse_key("bad")

    async def main() -> None:
        with pytest.raises(errors.WriteRefused, match="the data of bad is bad"):
            await write_on(batcher, begin("bad"))
        assert (await write_on(batcher, begin("good"))).applied

    run(main)


@pytest.mark.parametrize("error", [errors.StoreUnavailable("gone"), ValueError("a bug")])
def test_every_write_of_a_batch_in_flight_gets_the_error(
    store: PipelinedMemoryStore, batcher: Batcher, error: Exception
) -> None:
    def spoil(_: object) -> None:
        raise error

    async def main() -> None:
        store.spoil = spoil
        failed = await asyncio.gather(
            *(write_on(batcher, begin(f"k{number}")) for number in range(3)), return_exceptions=True
        )
        assert {type(one) for one in failed} == {errors.StoreUnavailable}
        assert len({id(one) for one in failed}) == 3
        store.spoil = lambda _: None
        assert (await write_on(batcher, begin("k"))).applied

    run(main)


@pytest.mark.parametrize("error", [errors.StoreUnavailable("gone"), ValueError("a bug")])
def test_a_batch_that_cannot_be_sent_is_an_error_and_the_store_is_free(
    store: PipelinedMemoryStore, batcher: Batcher, error: Exception
) -> None:
    async def main() -> None:
        store.raises = error
        with pytest.raises(errors.StoreUnavailable):
            await write_on(batcher, begin("k"))
        store.raises = None
        assert (await write_on(batcher, begin("k", "again"))).applied

    run(main)


def test_an_interrupt_while_sending_leaves_the_store_free(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.raises = KeyboardInterrupt()  # type: ignore[assignment]
        await write_on(batcher, begin("k"))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    store.raises = None

    async def after() -> None:
        assert (await write_on(batcher, begin("k", "again"))).applied

    run(after)


def test_a_batch_that_would_block_is_sent_by_the_thread(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    store.connected = False

    async def main() -> None:
        assert (await write_on(batcher, begin("k0"))).applied
        many = await asyncio.gather(*(write_on(batcher, begin(f"n{number}")) for number in range(100)))
        assert all(result.applied for result in many)
        store.connected = True
        number = 0
        while not store.sizes:  # the thread may be awake still, and serve some
            number += 1
            assert (await write_on(batcher, begin(f"k{number}"))).applied

    run(main)

    by_thread = {write.key for batch in store.batches for write in batch}
    assert {"k0", *(f"n{number}" for number in range(100))} <= by_thread
    assert len(store.batches) < 50, "they do not share batches"


def test_a_batch_in_flight_that_would_block_is_completed_by_the_thread(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.blocks = True

    async def main() -> None:
        assert (await write_on(batcher, begin("k0"))).applied
        assert (await write_on(batcher, begin("k1"))).applied

    run(main)

    assert set(store.finished) == {"onceward-store"}


def test_a_loop_without_readers_leaves_its_batches_to_the_thread(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        def no_readers(*_: object) -> None:
            raise NotImplementedError

        asyncio.get_running_loop().add_reader = no_readers  # type: ignore[assignment, method-assign]
        assert (await write_on(batcher, begin("k"))).applied

    run(main)

    assert store.finished == ["onceward-store"]


def test_a_caller_cancelled_in_flight_releases_its_claim(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    store.completes = False

    async def main() -> None:
        task = asyncio.ensure_future(write_on(batcher, begin("k")))
        await soon(lambda: bool(store.sent_batches))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.completes = True
        store.sent_batches[0].complete()
        await soon(lambda: store.read([Ref("s", "k")]).entries == (None,))

    run(main)


def test_a_read_does_not_overtake_a_batch_in_flight(batcher: Batcher) -> None:
    async def main() -> None:
        written = asyncio.ensure_future(write_on(batcher, begin("k")))
        await asyncio.sleep(0)
        reading = await batcher.read([Ref("s", "k")])
        assert reading.entries[0] is not None
        assert (await written).applied

    run(main)


def test_a_thread_gets_the_store_from_loops_that_are_always_busy(batcher: Batcher) -> None:
    over = threading.Event()
    waited: list[float] = []

    def blocking() -> None:
        for number in range(20):
            began = time.monotonic()
            block(batcher.write(begin(f"thread-{number}")))
            waited.append(time.monotonic() - began)
        over.set()

    async def busy(caller: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            await write_on(batcher, begin(f"loop-{caller}-{number}"))

    async def main() -> None:
        thread = threading.Thread(target=blocking)
        thread.start()
        await asyncio.gather(*(busy(caller) for caller in range(32)))
        thread.join()

    run(main)

    assert len(waited) == 20
    assert sorted(waited)[10] < 1


def test_closing_waits_for_batches_in_flight(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    store.completes = False

    async def main() -> None:
        task = asyncio.ensure_future(write_on(batcher, begin("k")))
        await soon(lambda: bool(store.sent_batches))
        await asyncio.to_thread(batcher.close)
        assert (await task).applied

    run(main)


@pytest.mark.parametrize("number", [1, EARLY_MIN - 1, EARLY_MIN, EARLY_MIN + 1])
@pytest.mark.parametrize("readers", [True, False], ids=["", "no readers"])
def test_a_batch_of_the_early_size_does_not_wait_when_the_thread_has_to_complete_it(
    store: PipelinedMemoryStore, batcher: Batcher, number: int, readers: bool
) -> None:
    store.blocks = readers

    async def main() -> None:
        if not readers:
            asyncio.get_running_loop().add_reader = refused  # type: ignore[assignment, method-assign]
        began = time.monotonic()
        await asyncio.gather(*(write_on(batcher, begin(f"k{n}")) for n in range(number)))
        assert time.monotonic() - began < 3

    def refused(*_: object) -> None:
        raise NotImplementedError

    run(main)


@pytest.mark.usefixtures("patient")
def test_a_thread_that_waits_for_the_store_comes_before_the_next_batch(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        store.completes = False
        first = asyncio.ensure_future(write_on(batcher, begin("first")))
        await soon(lambda: bool(store.sent_batches))
        reading = batcher.read([Ref("s", "first")])
        await soon(lambda: batcher._pipeline._threads_waiting == 1)
        second = asyncio.ensure_future(write_on(batcher, begin("second")))
        await asyncio.sleep(0)
        store.completes = True
        store.sent_batches[0].complete()
        assert (await first).applied
        assert (await second).applied
        assert (await reading).entries[0] is not None

    run(main)

    assert [write.key for batch in store.batches for write in batch] == ["second"]
    assert store.sizes == [1]


def test_restored_writes_keep_their_order(batcher: Batcher) -> None:
    sent = [batcher.write(begin(f"k{number}")) for number in range(5)]

    batcher.queue.restore(batcher.queue.gather())

    assert batcher.queue.gather() == sent
    batcher.queue.restore(sent)


class EarlierNames(BlockableStore):
    """A store with the names that this interface had at first: `pack`, `depart` and `grounded`."""

    def __init__(self, store: PipelinedMemoryStore) -> None:
        super().__init__()
        self._current = store

    def pack(self) -> EarlierBatch:
        return EarlierBatch(self._current.encode_batch())


class EarlierBatch:
    def __init__(self, encoded: EncodedBatch) -> None:
        self.add = encoded.add
        self._encoded = encoded

    def depart(self) -> EarlierSentBatch | None:
        sent_batch = self._encoded.send()
        return None if sent_batch is None else EarlierSentBatch(sent_batch)


class EarlierSentBatch:
    def __init__(self, sent_batch: SentBatch) -> None:
        self._sent_batch = sent_batch
        self.grounded = sent_batch.must_block

    def __getattr__(self, name: str) -> object:
        return getattr(self._sent_batch, name) if name != "must_block" else None


def test_a_store_with_the_old_method_names_is_pipelined(store: PipelinedMemoryStore) -> None:
    earlier = EarlierNames(store)
    with closing(Batcher(earlier, lambda _: False)) as batcher:

        async def write_until_sent(count: int) -> None:
            """The I/O thread may be awake and take a write before the loop sends it."""
            numbers = itertools.count()
            while len(store.sizes) < count:
                assert (await write_on(batcher, begin(f"{count} {next(numbers)}"))).applied

        async def main() -> None:
            await write_until_sent(1)
            store.blocks = True
            await write_until_sent(2)
            store.connected = False
            taken = len(earlier.batches)
            assert (await write_on(batcher, begin("not sent"))).applied
            assert len(earlier.batches) == taken + 1

        run(main)

    assert store.sizes == [1, 1]
    assert {len(batch) for batch in earlier.batches} == {1}
    assert PipelinedStore(earlier).commit([begin("last")])[0].applied
