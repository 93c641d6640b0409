"""Batches in flight one after the other: in two parts, each sent as soon as the one before it has been received."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.store.blockable_store import begin, refuse_key, settle
from tests.store.dispatch.pipelined_store import PipelinedMemoryStore, run, write_on
from tests.waiting import soon

from onceward import errors
from onceward.core.claim import Write
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.pipeline import EARLY_MIN

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def store() -> PipelinedMemoryStore:
    return PipelinedMemoryStore()


def test_a_large_queue_is_sent_in_two_batches_so_that_server_and_callers_work_concurrently(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    async def twice(number: int) -> None:
        first = await write_on(batcher, begin(f"k{number}"))
        assert first.entry is not None
        await write_on(batcher, settle(f"k{number}", first.entry.version))

    async def main() -> None:
        await asyncio.gather(*(twice(number) for number in range(64)))

    run(main)

    assert store.sizes[:3] == [EARLY_MIN, 32, 32]
    assert sum(store.sizes) == 128
    assert len(store.sizes) <= 7


def test_queued_writes_are_sent_before_the_results_of_the_previous_batch_are_processed(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    sent_before = []
    store.completes = False

    async def main() -> None:
        first = asyncio.ensure_future(write_on(batcher, begin("first")))
        await soon(lambda: bool(store.sent_batches))
        behind = asyncio.ensure_future(write_on(batcher, begin("behind")))
        await soon(lambda: bool(batcher.queue) and not batcher._nudged)
        store.spoil = lambda writes: sent_before.append((writes[0].key, len(store.sent_batches)))
        store.sent_batches[0].complete()
        assert (await first).applied
        store.sent_batches[1].complete()
        assert (await behind).applied

    run(main)

    assert sent_before == [("first", 2), ("behind", 2)]
    assert store.finished == ["MainThread"] * 2


def test_nothing_is_sent_after_a_failed_batch_until_the_failure_is_known(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    sent_before = []
    store.completes = store.goes_well = False

    def fail(writes: Sequence[Write]) -> None:
        sent_before.append((writes[0].key, len(store.sent_batches)))
        store.spoil, store.completes, store.goes_well = lambda _: None, True, True
        raise errors.StoreUnavailable("gone")

    async def main() -> None:
        first = asyncio.ensure_future(write_on(batcher, begin("first")))
        await soon(lambda: bool(store.sent_batches))
        behind = asyncio.ensure_future(write_on(batcher, begin("behind")))
        await soon(lambda: bool(batcher.queue) and not batcher._nudged)
        store.spoil = fail
        store.sent_batches[0].complete()
        with pytest.raises(errors.StoreUnavailable, match="gone"):
            await first
        assert (await behind).applied

    run(main)

    assert sent_before == [("first", 1)]


def test_writes_that_depend_on_results_in_flight_wait_for_them(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    """A second `begin` of the same key is refused by the result of the first: it is never sent."""
    store.completes = False

    async def main() -> None:
        first = asyncio.ensure_future(write_on(batcher, begin("k")))
        await soon(lambda: bool(store.sent_batches))
        again = asyncio.ensure_future(write_on(batcher, begin("k", "other")))
        await soon(lambda: bool(batcher.queue) and not batcher._nudged)
        store.sent_batches[0].complete()
        assert (await first).applied
        assert not (await again).applied

    run(main)

    assert store.sizes == [1]


def test_a_batch_that_is_split_is_not_mixed_up_with_the_next_batch(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    store.completes = False
    store.spoil = refuse_key("bad")

    async def main() -> None:
        mixed = [asyncio.ensure_future(write_on(batcher, begin(key))) for key in ("good", "bad")]
        await soon(lambda: bool(store.sent_batches))
        behind = asyncio.ensure_future(write_on(batcher, begin("behind")))
        await soon(lambda: bool(batcher.queue) and not batcher._nudged)
        store.sent_batches[0].complete()
        await soon(lambda: len(store.sent_batches) == 2)
        store.sent_batches[1].complete()
        assert (await behind).applied
        assert (await mixed[0]).applied
        with pytest.raises(errors.WriteRefused):
            await mixed[1]

    run(main)


def test_two_batches_of_unequal_size_become_balanced(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    """Otherwise few writes would be in flight and many wait, forever: writes completed together are queued together
    again.
    """
    store.completes = False

    async def main() -> None:
        few = [asyncio.ensure_future(write_on(batcher, begin(f"few{n}"))) for n in range(2)]
        await soon(lambda: bool(store.sent_batches))
        many = [asyncio.ensure_future(write_on(batcher, begin(f"many{n}"))) for n in range(62)]
        await soon(lambda: len(batcher.queue) == 62 and not batcher._nudged)
        store.completes = True
        store.sent_batches[0].complete()
        assert all(result.applied for result in await asyncio.gather(*few, *many))

    run(main)

    assert store.sizes == [2, 32, 30]
