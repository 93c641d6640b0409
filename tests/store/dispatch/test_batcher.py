"""The batcher's own rules, on a store that the test can block, break and count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.store.blockable_store import BlockableStore, begin, block, refuse_key, settle
from tests.store.dispatch.pipelined_store import result_of
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Append, Begin, Claim, Move, Ref, Status, Verb, Write, WriteResult, found
from onceward.ledger import Ledger
from onceward.store import BATCH_WRITES_MAX, Reading
from onceward.store.dispatch.batcher import Batcher


async def entered(store: BlockableStore) -> None:
    assert await asyncio.to_thread(store.entered.acquire, timeout=10)


def queued_together(batcher: Batcher, writes: Iterable[Write]) -> list[Awaitable[WriteResult]]:
    """Queue the writes under the lock: the I/O thread may be awake, and would take the first of them alone."""
    with batcher._pipeline.lock:
        return [result_of(batcher.write(write)) for write in writes]


def test_writes_queue_up_while_a_batch_is_in_flight(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(result_of(batcher.write(begin("first"))))
        await entered(store)
        rest = [asyncio.ensure_future(result_of(batcher.write(begin(f"k{n}")))) for n in range(50)]
        await asyncio.sleep(0)
        store.let_go()
        results = await asyncio.gather(first, *rest)

        assert all(result.applied for result in results)

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [1, 50]


def test_writes_of_one_loop_iteration_are_one_batch(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        await asyncio.gather(*(result_of(batcher.write(begin(f"k{n}"))) for n in range(64)))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [64]


def test_many_duplicates_of_one_key_cost_one_write(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> list[WriteResult]:
        return await asyncio.gather(*(result_of(batcher.write(begin("k", f"w{n}"))) for n in range(1000)))

    results = asyncio.run(main())

    assert len(store.writes_of("k")) == 1
    assert sum(result.applied for result in results) == 1
    assert {result.entry.version for result in results if result.entry} == {1}


def test_writes_of_one_key_keep_their_order(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        result = await result_of(batcher.write(begin("k")))
        assert result.entry is not None
        version = result.entry.version
        chunks = [Append("s", "k", f"a{n}", version, n, (b"x",)) for n in (1, 2, 3)]
        writes: list[Write] = [*chunks, settle("k", version)]
        results = await asyncio.gather(*(result_of(batcher.write(write)) for write in writes))

        assert [result.applied for result in results] == [True] * 4

    asyncio.run(main())

    assert [write.write_id for write in store.writes_of("k")] == ["w", "a1", "a2", "a3", "settle"]


def test_one_bad_write_does_not_fail_its_batch(store: BlockableStore, batcher: Batcher) -> None:
    store.spoil = refuse_key("k13")

    async def main() -> list[WriteResult | BaseException]:
        waiting = (result_of(batcher.write(begin(f"k{n}"))) for n in range(32))
        return await asyncio.gather(*waiting, return_exceptions=True)

    results = asyncio.run(main())

    assert isinstance(results[13], errors.WriteRefused)
    assert all(isinstance(result, WriteResult) and result.applied for n, result in enumerate(results) if n != 13)
    assert store.batches[-1][0].key != "k13" or len(store.batches[-1]) == 1


def test_an_io_error_reaches_every_caller_and_nothing_is_sent_twice(store: BlockableStore, batcher: Batcher) -> None:
    def fail(writes: Sequence[Write]) -> None:
        raise errors.StoreUnavailable(f"the disk is gone, with {len(writes)} writes")

    async def main() -> list[WriteResult | BaseException]:
        store.spoil = fail
        waiting = (result_of(batcher.write(begin(f"k{n}"))) for n in range(8))
        return await asyncio.gather(*waiting, return_exceptions=True)

    results = asyncio.run(main())
    store.spoil = lambda _: None

    assert all(isinstance(result, errors.StoreUnavailable) for result in results)
    assert len({id(result) for result in results}) == 8, "each caller gets an exception of its own"
    assert len(store.batches) == 1
    assert block(batcher.write(begin("k0"))).applied


def test_a_store_with_a_bug_does_not_end_the_thread(store: BlockableStore, batcher: Batcher) -> None:
    def bug(_: Sequence[Write]) -> None:
        raise KeyError("oops")

    async def main() -> None:
        store.spoil = bug
        with pytest.raises(errors.StoreUnavailable, match="oops"):
            await batcher.write(begin("k"))
        store.spoil = lambda _: None

        assert (await batcher.write(begin("k"))).applied

    asyncio.run(main())


def test_a_cancelled_caller_withdraws_a_queued_begin(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(result_of(batcher.write(begin("first"))))
        await entered(store)
        second = asyncio.ensure_future(result_of(batcher.write(begin("second"))))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        store.let_go()
        await first
        await batcher.write(begin("third"))

    asyncio.run(main())

    assert store.writes_of("second") == []


def test_a_cancelled_begin_that_was_already_sent_is_released(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.hold()
        sent = asyncio.ensure_future(result_of(batcher.write(begin("k"))))
        await entered(store)
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        store.let_go()
        again = await batcher.write(begin("k", "again", fingerprint="other"))

        assert again.applied, "the key is free, even for another call"

    asyncio.run(main())

    assert [type(write) for write in store.writes_of("k")][:2] == [Begin, Move]


def test_a_cancelled_settle_is_still_sent(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        result = await batcher.write(begin("k"))
        assert result.entry is not None
        store.hold()
        first = asyncio.ensure_future(result_of(batcher.write(begin("first"))))
        store.entered.acquire()
        await entered(store)
        settling = asyncio.ensure_future(result_of(batcher.write(settle("k", result.entry.version))))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        store.let_go()
        await first
        reading = await batcher.read([Ref("s", "k")])

        assert reading.entries[0] is not None
        assert reading.entries[0].status is Status.COMPLETED

    asyncio.run(main())


def test_a_read_does_not_overtake_a_write_queued_before_it(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(result_of(batcher.write(begin("first"))))
        await entered(store)
        second = asyncio.ensure_future(result_of(batcher.write(begin("second"))))
        await asyncio.sleep(0)
        reading = batcher.read([Ref("s", "second")])
        store.let_go()

        assert (await reading).entries[0] is not None
        await asyncio.gather(first, second)

    asyncio.run(main())


def test_a_read_does_not_overtake_two_queued_writes_of_its_key(batcher: Batcher) -> None:
    async def main() -> Reading:
        held = (await result_of(batcher.write(begin("k")))).entry
        assert held is not None
        with batcher._pipeline.lock:
            moves: list[Write] = [Move("s", "k", "renew", Verb.RENEW, held.version, 60, 60), settle("k", held.version)]
            written = [result_of(batcher.write(write)) for write in [*moves, begin("last")]]
            reading = batcher.read([Ref("s", "k")])
        await asyncio.gather(*written)
        return await reading

    reading = asyncio.run(main())

    assert reading.entries[0] is not None
    assert reading.entries[0].status is Status.COMPLETED


def test_a_write_that_times_out_is_store_unavailable_and_can_be_waited_for_again(
    store: BlockableStore, batcher: Batcher
) -> None:
    async def main() -> None:
        store.hold()
        sent = batcher.write(begin("k"))
        sent.timeout = 0.01
        with pytest.raises(errors.StoreUnavailable, match=r"the store did not respond within 0\.01 s"):
            await sent
        store.let_go()
        sent.timeout = 10

        assert (await sent).applied

    asyncio.run(main())

    assert len(store.writes_of("k")) == 1


def test_the_ledger_repeats_a_write_under_the_same_id_until_it_is_decided(
    store: BlockableStore, batcher: Batcher
) -> None:
    """The store applied the write, but its result was lost, so the caller knows only that it may have been applied."""
    ledger = Ledger(store, dispatcher=batcher)
    failures = iter([True, True, False])

    def lose(results: list[WriteResult]) -> list[WriteResult]:
        if next(failures, False):
            raise errors.StoreUnavailable("the answer was lost")
        return results

    store.results = lose
    claim = ledger.blocking.begin("s", "k", repeatable=False)

    assert isinstance(claim, Claim)
    assert len({write.write_id for write in store.writes_of("k")}) == 1
    assert len(store.writes_of("k")) == 3
    assert claim.attempt == 1


def test_a_row_locked_by_another_transaction_is_retried(store: BlockableStore, batcher: Batcher) -> None:
    ledger = Ledger(store, dispatcher=batcher)
    claim = ledger.blocking.begin("s", "k", repeatable=True)
    assert isinstance(claim, Claim)
    locked = iter([True, True])
    whole = store.commit

    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        if next(locked, False):
            return [WriteResult(applied=False, entry=claim.entry, now=0, locked=True) for _ in writes]
        return whole(writes)

    store.commit = commit  # type: ignore[method-assign]  # a lock is the other transaction's, not this store's

    assert ledger.blocking.settle(claim, claim.entry.outcome)


def test_threads_and_loops_share_batches(store: BlockableStore, batcher: Batcher) -> None:
    store.hold()

    def on_thread(key: str) -> WriteResult:
        return block(batcher.write(begin(key)))

    def on_loop(key: str) -> WriteResult:
        return asyncio.run(result_of(batcher.write(begin(key))))

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(on_thread, "first")
        store.entered.acquire(timeout=10)
        rest = [pool.submit(on_thread if n % 2 else on_loop, f"k{n}") for n in range(8)]
        until(lambda: len(batcher.queue._waiting) == 8, "not all of them wait")
        store.let_go()

        assert all(future.result(10).applied for future in [first, *rest])
    assert [len(batch) for batch in store.batches] == [1, 8]


def test_a_single_thread_commits_its_own_batch_without_a_thread_switch(store: BlockableStore, batcher: Batcher) -> None:
    block(batcher.write(begin("k")))

    assert store.threads == [threading.current_thread().name]


def test_an_interrupted_thread_leaves_no_caller_waiting(store: BlockableStore, batcher: Batcher) -> None:
    def interrupt(_: Sequence[Write]) -> None:
        store.spoil = lambda _: None
        raise KeyboardInterrupt

    store.spoil = interrupt
    other = batcher.write(begin("other"))
    with pytest.raises(KeyboardInterrupt):
        block(batcher.write(begin("k")))

    with pytest.raises(errors.StoreUnavailable, match="interrupted"):
        other.result()
    assert block(batcher.write(begin("k"))).applied


def test_a_batch_is_limited_in_writes_and_bytes(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        results = await asyncio.gather(
            *(result_of(batcher.write(begin(f"k{n}"))) for n in range(BATCH_WRITES_MAX + 10))
        )
        chunk = b"x" * 65536
        versions = [result.entry.version for result in results if result.entry]
        big = [Append("s", f"k{n}", f"a{n}", versions[n], 1, (chunk,) * 32) for n in range(4)]
        await asyncio.gather(*queued_together(batcher, big))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [BATCH_WRITES_MAX, 10, 2, 2]


def test_no_write_makes_a_batch_exceed_its_limit(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        results = await asyncio.gather(*(result_of(batcher.write(begin(f"k{n}"))) for n in range(3)))
        versions = [result.entry.version for result in results if result.entry]
        big = [Append("s", f"k{n}", f"a{n}", versions[n], 1, (b"x" * 65536,) * 31) for n in range(3)]
        await asyncio.gather(*queued_together(batcher, big))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [3, 2, 1]


def test_close_finishes_what_is_queued_and_refuses_the_rest(store: BlockableStore, batcher: Batcher) -> None:
    nap = batcher.sleep(3600)
    sent = batcher.write(begin("k"))
    batcher.close()
    batcher.close()

    assert sent.result().applied
    with pytest.raises(errors.StoreClosed):
        nap.result()
    with pytest.raises(errors.StoreClosed, match="open another one"):
        batcher.write(begin("k"))
    with pytest.raises(errors.StoreClosed):
        batcher.watch(Ref("s", "k"), 1)
    assert len(store.writes_of("k")) == 1


def test_an_idle_thread_ends_and_the_next_call_starts_another(
    store: BlockableStore, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.store.dispatch.batcher.IDLE_SECONDS", 0.001)

    async def main() -> None:
        await batcher.write(begin("k"))
        await soon(lambda: batcher._thread is None)
        await batcher.write(begin("k2"))

    asyncio.run(main())

    assert len(store.batches) == 2


def test_a_caller_on_a_closed_loop_does_not_disturb_the_others(store: BlockableStore, batcher: Batcher) -> None:
    loop = asyncio.new_event_loop()
    left_behind: list[asyncio.Future[WriteResult]] = []
    store.hold()

    async def start() -> None:
        left_behind.append(asyncio.ensure_future(result_of(batcher.write(begin("k")))))
        await entered(store)
        loop.stop()

    task = loop.create_task(start())
    loop.run_forever()
    for left in asyncio.all_tasks(loop):
        left.cancel()
    loop.run_until_complete(asyncio.gather(task, *asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()
    store.let_go()

    assert block(batcher.write(begin("k2"))).applied


def test_the_result_of_a_begin_is_decoded_into_a_claim(batcher: Batcher) -> None:
    write = begin("k")

    assert isinstance(found(write, block(batcher.write(write))), Claim)
