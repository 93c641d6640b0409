"""The next batch is encoded while one is in flight, so that the store waits for nothing in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.blockable_store import begin, block, refuse_key
from tests.store.dispatch.pipelined_store import PipelinedMemoryStore, run, run_in_thread, write_on
from tests.waiting import soon

from onceward import errors
from onceward.core.claim import Ref, Write, WriteResult
from onceward.store import BatchFailed, Reading
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.future import StoreFuture
from onceward.store.dispatch.queue import Queue, QueuedWrite

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def store() -> PipelinedMemoryStore:
    store = PipelinedMemoryStore()
    store.completes = False
    return store


async def send_first(store: PipelinedMemoryStore, batcher: Batcher) -> asyncio.Task[WriteResult]:
    """Start a batch with `first` in it, and leave it in flight."""
    first = asyncio.ensure_future(write_on(batcher, begin("first")))
    await soon(lambda: bool(store.sent_batches))
    return first


async def queued(batcher: Batcher, *writes: Write) -> list[asyncio.Task[WriteResult]]:
    """Queue writes and wait until the loop has handled them at the end of its iteration."""
    tasks = [asyncio.ensure_future(write_on(batcher, write)) for write in writes]
    await soon(
        lambda: [sent.write for sent in batcher.queue._waiting][-len(writes) :] == list(writes) and not batcher._nudged
    )
    return tasks


async def complete_batches(store: PipelinedMemoryStore) -> None:
    """Complete the first batch, and all later ones at once."""
    store.completes = True
    store.sent_batches[0].complete()


def test_queued_writes_are_encoded_once_while_a_batch_is_in_flight(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        behind = await queued(batcher, begin("a"), begin("b"))
        assert store.encoded == ["first", "a", "b"]
        await complete_batches(store)
        assert (await first).applied
        assert all(result.applied for result in await asyncio.gather(*behind))

    run(main)

    assert store.encoded == ["first", "a", "b"]
    assert store.sizes == [1, 2]


def test_the_batch_after_the_next_is_encoded_ahead_too(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        many = await queued(batcher, *(begin(f"k{number}") for number in range(8)))
        store.sent_batches[0].complete()
        await first
        assert len(store.sent_batches) == 2
        (last,) = await queued(batcher, begin("last"))
        assert store.encoded[-1] == "last"
        store.completes = True
        store.sent_batches[1].complete()
        await asyncio.gather(*many, last)

    run(main)

    assert store.sizes == [1, 8, 1]


def test_later_writes_are_added_to_an_encoded_batch(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        behind = [*await queued(batcher, begin("a")), *await queued(batcher, begin("b"))]
        await complete_batches(store)
        await asyncio.gather(first, *behind)

    run(main)

    assert store.encoded == ["first", "a", "b"]
    assert store.sizes == [1, 2]


def test_a_cancelled_write_is_not_sent_although_it_was_encoded(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        gone, stays = await queued(batcher, begin("gone"), begin("stays"))
        gone.cancel()
        await asyncio.wait([gone])
        await complete_batches(store)
        assert (await first).applied
        assert (await stays).applied

    run(main)

    assert store.sizes == [1, 1]
    assert store.read([Ref("s", "gone")]).entries == (None,)


def test_an_encoded_batch_is_dropped_when_the_queue_begins_with_another_write(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        gone, stays = await queued(batcher, begin("gone"), begin("stays"))
        gone.cancel()
        await asyncio.wait([gone])
        (later,) = await queued(batcher, begin("later"))
        await complete_batches(store)
        assert all(result.applied for result in await asyncio.gather(first, stays, later))

    run(main)

    assert store.encoded == ["first", "gone", "stays", "stays", "later"]
    assert store.read([Ref("s", "gone")]).entries == (None,)


def test_a_batch_is_taken_only_while_it_is_the_head_of_the_queue(batcher: Batcher) -> None:
    sent = [batcher.write(begin(f"k{number}")) for number in range(3)]
    batch = batcher.queue.first(2)
    assert batch == sent[:2]
    urgent = batcher.write(begin("urgent"))
    batcher.queue.restore([*batcher.queue.gather()][::-1])

    assert not batcher.queue.take(batch)
    assert len(batcher.queue) == 4, "nothing was taken"
    assert batcher.queue.take([urgent, *sent[:1:-1]])
    batcher.queue.gather()


def test_writes_that_depend_on_results_are_not_encoded_before_them(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        (again,) = await queued(batcher, begin("first", "another write"))
        assert store.encoded == ["first"]
        await complete_batches(store)
        assert (await first).applied
        assert not (await again).applied

    run(main)


def test_a_write_that_cannot_be_encoded_fails_alone(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        store.raises = BatchFailed("not in this form")
        store.spoil = refuse_key("bad")
        good, bad = await queued(batcher, begin("good"), begin("bad"))
        await complete_batches(store)
        assert (await first).applied
        assert (await good).applied
        with pytest.raises(errors.WriteRefused):
            await bad

    run(main)

    assert store.sizes == [1], "the rest was the thread's to do"


def test_an_error_during_encoding_does_not_reach_the_batch_in_flight(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        store.raises = RuntimeError("a bug of the store's")
        (behind,) = await queued(batcher, begin("behind"))
        await complete_batches(store)
        assert (await first).applied
        with pytest.raises(errors.StoreUnavailable, match="a bug of the store's"):
            await behind
        store.raises = None
        assert (await write_on(batcher, begin("next"))).applied

    run(main)


def test_a_thread_that_waits_for_the_store_sends_the_encoded_batch_once(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        (behind,) = await queued(batcher, begin("behind"))
        reading = batcher.read([Ref("s", "behind")])
        await soon(lambda: batcher._pipeline._threads_waiting > 0)
        await complete_batches(store)
        assert (await first).applied
        assert (await behind).applied
        assert (await reading).entries[0] is not None, "a read does not overtake what was queued before it"

    run(main)

    assert store.sizes == [1]
    assert len(store.writes_of("behind")) == 1


def test_another_thread_may_send_the_encoded_batch(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        (behind,) = await queued(batcher, begin("behind"))
        thread, results = run_in_thread(lambda: block(batcher.write(begin("from a thread"))))
        await soon(lambda: len(batcher.queue) == 2)
        await complete_batches(store)
        assert (await first).applied
        assert (await behind).applied
        await asyncio.to_thread(thread.join, 10)
        assert results[0].applied

    run(main)

    assert store.encoded.count("behind") == 1


def test_a_queue_that_grows_in_every_iteration_is_not_scanned_each_time(
    store: PipelinedMemoryStore, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    first = Queue.first

    def counted(queue: Queue, most: int) -> list[QueuedWrite]:
        looks.append(len(queue))
        return first(queue, most)

    async def main() -> None:
        sent_batch = await send_first(store, batcher)
        monkeypatch.setattr(Queue, "first", counted)
        behind = [task for number in range(300) for task in await queued(batcher, begin(f"k{number}"))]
        assert len(looks) < 30
        await complete_batches(store)
        await asyncio.gather(sent_batch, *behind)

    run(main)

    assert len(store.encoded) < 2 * 301


@pytest.mark.parametrize("by", ["the thread", "its loop"])
def test_an_unusable_encoded_batch_is_released(store: PipelinedMemoryStore, batcher: Batcher, by: str) -> None:
    async def main() -> None:
        first = await send_first(store, batcher)
        (behind,) = await queued(batcher, begin("behind"))
        if by == "the thread":
            store.sent_batches[0].must_block = True  # its loop leaves it to one who can wait
            await complete_batches(store)
            await asyncio.gather(first, behind)
        else:
            reading = batcher.read([Ref("s", "behind")])
            await soon(lambda: batcher._pipeline._threads_waiting > 0)
            await complete_batches(store)
            await asyncio.gather(first, behind, reading_of(reading))

    run(main)

    assert batcher._pipeline._ahead is None


async def reading_of(reading: StoreFuture[Reading]) -> Reading:
    return await reading
