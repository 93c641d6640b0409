"""The batcher's own rules, on a store that the test holds up, spoils and counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.store.flying import answer_of
from tests.store.gate import GateStore, begin, block, refuse_key, settle
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Answer, Append, Begin, Claim, Move, Ref, Status, Verb, Write, found
from onceward.ledger import Ledger
from onceward.store import BATCH_WRITES_MAX, Reading
from onceward.store.batch import Batcher


async def entered(store: GateStore) -> None:
    assert await asyncio.to_thread(store.entered.acquire, timeout=10)


def queued_together(line: Batcher, writes: Iterable[Write]) -> list[Awaitable[Answer]]:
    """The thread may be awake still, and would take the first of them alone."""
    with line._flights.lock:
        return [answer_of(line.write(write)) for write in writes]


def test_writes_gather_while_a_batch_is_in_flight(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(answer_of(line.write(begin("first"))))
        await entered(store)
        rest = [asyncio.ensure_future(answer_of(line.write(begin(f"k{n}")))) for n in range(50)]
        await asyncio.sleep(0)
        store.let_go()
        answers = await asyncio.gather(first, *rest)

        assert all(answer.applied for answer in answers)

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [1, 50]


def test_a_turn_of_the_loop_becomes_one_batch(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        await asyncio.gather(*(answer_of(line.write(begin(f"k{n}"))) for n in range(64)))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [64]


def test_a_flood_of_one_key_costs_one_write(store: GateStore, line: Batcher) -> None:
    async def main() -> list[Answer]:
        return await asyncio.gather(*(answer_of(line.write(begin("k", f"w{n}"))) for n in range(1000)))

    answers = asyncio.run(main())

    assert len(store.writes_of("k")) == 1
    assert sum(answer.applied for answer in answers) == 1
    assert {answer.entry.version for answer in answers if answer.entry} == {1}


def test_writes_of_one_key_keep_their_order(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        answer = await answer_of(line.write(begin("k")))
        assert answer.entry is not None
        version = answer.entry.version
        chunks = [Append("s", "k", f"a{n}", version, n, (b"x",)) for n in (1, 2, 3)]
        writes: list[Write] = [*chunks, settle("k", version)]
        answers = await asyncio.gather(*(answer_of(line.write(write)) for write in writes))

        assert [answer.applied for answer in answers] == [True] * 4

    asyncio.run(main())

    assert [write.write_id for write in store.writes_of("k")] == ["w", "a1", "a2", "a3", "settle"]


def test_one_bad_write_does_not_spoil_its_batch(store: GateStore, line: Batcher) -> None:
    store.spoil = refuse_key("k13")

    async def main() -> list[Answer | BaseException]:
        waiting = (answer_of(line.write(begin(f"k{n}"))) for n in range(32))
        return await asyncio.gather(*waiting, return_exceptions=True)

    answers = asyncio.run(main())

    assert isinstance(answers[13], errors.WriteRefused)
    assert all(isinstance(answer, Answer) and answer.applied for n, answer in enumerate(answers) if n != 13)
    assert store.batches[-1][0].key != "k13" or len(store.batches[-1]) == 1


def test_an_io_error_reaches_every_caller_and_nothing_is_sent_twice(store: GateStore, line: Batcher) -> None:
    def fail(writes: Sequence[Write]) -> None:
        raise errors.StoreUnavailable(f"the disk is gone, with {len(writes)} writes")

    async def main() -> list[Answer | BaseException]:
        store.spoil = fail
        waiting = (answer_of(line.write(begin(f"k{n}"))) for n in range(8))
        return await asyncio.gather(*waiting, return_exceptions=True)

    answers = asyncio.run(main())
    store.spoil = lambda _: None

    assert all(isinstance(answer, errors.StoreUnavailable) for answer in answers)
    assert len({id(answer) for answer in answers}) == 8, "each caller gets an exception of its own"
    assert len(store.batches) == 1
    assert block(line.write(begin("k0"))).applied


def test_a_store_with_a_bug_does_not_end_the_thread(store: GateStore, line: Batcher) -> None:
    def bug(_: Sequence[Write]) -> None:
        raise KeyError("oops")

    async def main() -> None:
        store.spoil = bug
        with pytest.raises(errors.StoreUnavailable, match="oops"):
            await line.write(begin("k"))
        store.spoil = lambda _: None

        assert (await line.write(begin("k"))).applied

    asyncio.run(main())


def test_a_cancelled_caller_withdraws_a_queued_begin(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(answer_of(line.write(begin("first"))))
        await entered(store)
        second = asyncio.ensure_future(answer_of(line.write(begin("second"))))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        store.let_go()
        await first
        await line.write(begin("third"))

    asyncio.run(main())

    assert store.writes_of("second") == []


def test_a_cancelled_begin_that_was_already_sent_is_released(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        store.hold()
        sent = asyncio.ensure_future(answer_of(line.write(begin("k"))))
        await entered(store)
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        store.let_go()
        again = await line.write(begin("k", "again", fingerprint="other"))

        assert again.applied, "the key is free, even for another call"

    asyncio.run(main())

    assert [type(write) for write in store.writes_of("k")][:2] == [Begin, Move]


def test_a_cancelled_settle_is_carried_out_all_the_same(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        answer = await line.write(begin("k"))
        assert answer.entry is not None
        store.hold()
        first = asyncio.ensure_future(answer_of(line.write(begin("first"))))
        store.entered.acquire()
        await entered(store)
        settling = asyncio.ensure_future(answer_of(line.write(settle("k", answer.entry.version))))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        store.let_go()
        await first
        reading = await line.read([Ref("s", "k")])

        assert reading.entries[0] is not None
        assert reading.entries[0].status is Status.COMPLETED

    asyncio.run(main())


def test_a_read_does_not_overtake_a_write_queued_before_it(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        store.hold()
        first = asyncio.ensure_future(answer_of(line.write(begin("first"))))
        await entered(store)
        second = asyncio.ensure_future(answer_of(line.write(begin("second"))))
        await asyncio.sleep(0)
        reading = line.read([Ref("s", "second")])
        store.let_go()

        assert (await reading).entries[0] is not None
        await asyncio.gather(first, second)

    asyncio.run(main())


def test_a_read_does_not_overtake_what_was_queued_before_it_be_it_the_second_of_its_key(line: Batcher) -> None:
    async def main() -> Reading:
        held = (await answer_of(line.write(begin("k")))).entry
        assert held is not None
        with line._flights.lock:
            moves: list[Write] = [Move("s", "k", "renew", Verb.RENEW, held.version, 60, 60), settle("k", held.version)]
            written = [answer_of(line.write(write)) for write in [*moves, begin("last")]]
            reading = line.read([Ref("s", "k")])
        await asyncio.gather(*written)
        return await reading

    reading = asyncio.run(main())

    assert reading.entries[0] is not None
    assert reading.entries[0].status is Status.COMPLETED


def test_no_answer_in_time_is_store_unavailable_and_the_write_can_be_waited_for_again(
    store: GateStore, line: Batcher
) -> None:
    async def main() -> None:
        store.hold()
        sent = line.write(begin("k"))
        sent.patience = 0.01
        with pytest.raises(errors.StoreUnavailable, match="no answer"):
            await sent
        store.let_go()
        sent.patience = 10

        assert (await sent).applied

    asyncio.run(main())

    assert len(store.writes_of("k")) == 1


def test_the_ledger_repeats_a_write_under_the_same_id_until_it_is_decided(store: GateStore, line: Batcher) -> None:
    """A lost answer: the store applied the write, and the caller was told that it may have been."""
    ledger = Ledger(store, line=line)
    failures = iter([True, True, False])

    def lose(answers: list[Answer]) -> list[Answer]:
        if next(failures, False):
            raise errors.StoreUnavailable("the answer was lost")
        return answers

    store.answers = lose
    claim = ledger.blocking.begin("s", "k", repeatable=False)

    assert isinstance(claim, Claim)
    assert len({write.write_id for write in store.writes_of("k")}) == 1
    assert len(store.writes_of("k")) == 3
    assert claim.attempt == 1


def test_a_row_locked_by_another_transaction_is_asked_for_again(store: GateStore, line: Batcher) -> None:
    ledger = Ledger(store, line=line)
    claim = ledger.blocking.begin("s", "k", repeatable=True)
    assert isinstance(claim, Claim)
    locked = iter([True, True])
    whole = store.commit

    def commit(writes: Sequence[Write]) -> list[Answer]:
        if next(locked, False):
            return [Answer(applied=False, entry=claim.entry, now=0, locked=True) for _ in writes]
        return whole(writes)

    store.commit = commit  # type: ignore[method-assign]  # a lock is the other transaction's, not this store's

    assert ledger.blocking.settle(claim, claim.entry.outcome)


def test_threads_and_loops_share_batches(store: GateStore, line: Batcher) -> None:
    store.hold()

    def on_thread(key: str) -> Answer:
        return block(line.write(begin(key)))

    def on_loop(key: str) -> Answer:
        return asyncio.run(answer_of(line.write(begin(key))))

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(on_thread, "first")
        store.entered.acquire(timeout=10)
        rest = [pool.submit(on_thread if n % 2 else on_loop, f"k{n}") for n in range(8)]
        until(lambda: len(line.queue._waiting) == 8, "not all of them wait")
        store.let_go()

        assert all(future.result(10).applied for future in [first, *rest])
    assert [len(batch) for batch in store.batches] == [1, 8]


def test_a_lone_thread_commits_its_own_batch_without_a_switch(store: GateStore, line: Batcher) -> None:
    block(line.write(begin("k")))

    assert store.threads == [threading.current_thread().name]


def test_an_interrupted_helper_leaves_nobody_waiting(store: GateStore, line: Batcher) -> None:
    def interrupt(_: Sequence[Write]) -> None:
        store.spoil = lambda _: None
        raise KeyboardInterrupt

    store.spoil = interrupt
    other = line.write(begin("other"))
    with pytest.raises(KeyboardInterrupt):
        block(line.write(begin("k")))

    with pytest.raises(errors.StoreUnavailable, match="interrupted"):
        other.result()
    assert block(line.write(begin("k"))).applied


def test_a_batch_is_bounded_in_writes_and_bytes(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(answer_of(line.write(begin(f"k{n}"))) for n in range(BATCH_WRITES_MAX + 10)))
        chunk = b"x" * 65536
        versions = [answer.entry.version for answer in answers if answer.entry]
        big = [Append("s", f"k{n}", f"a{n}", versions[n], 1, (chunk,) * 32) for n in range(4)]
        await asyncio.gather(*queued_together(line, big))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [BATCH_WRITES_MAX, 10, 2, 2]


def test_no_write_makes_a_batch_larger_than_it_may_be(store: GateStore, line: Batcher) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(answer_of(line.write(begin(f"k{n}"))) for n in range(3)))
        versions = [answer.entry.version for answer in answers if answer.entry]
        big = [Append("s", f"k{n}", f"a{n}", versions[n], 1, (b"x" * 65536,) * 31) for n in range(3)]
        await asyncio.gather(*queued_together(line, big))

    asyncio.run(main())

    assert [len(batch) for batch in store.batches] == [3, 2, 1]


def test_close_finishes_what_is_queued_and_refuses_the_rest(store: GateStore, line: Batcher) -> None:
    nap = line.sleep(3600)
    sent = line.write(begin("k"))
    line.close()
    line.close()

    assert sent.result().applied
    with pytest.raises(errors.StoreClosed):
        nap.result()
    with pytest.raises(errors.StoreClosed, match="open it again"):
        line.write(begin("k"))
    with pytest.raises(errors.StoreClosed):
        line.watch(Ref("s", "k"), 1)
    assert len(store.writes_of("k")) == 1


def test_an_idle_thread_ends_and_the_next_call_starts_another(
    store: GateStore, line: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.store.batch.IDLE_SECONDS", 0.001)

    async def main() -> None:
        await line.write(begin("k"))
        await soon(lambda: line._thread is None)
        await line.write(begin("k2"))

    asyncio.run(main())

    assert len(store.batches) == 2


def test_a_caller_on_a_closed_loop_does_not_disturb_the_others(store: GateStore, line: Batcher) -> None:
    loop = asyncio.new_event_loop()
    left_behind: list[asyncio.Future[Answer]] = []
    store.hold()

    async def start() -> None:
        left_behind.append(asyncio.ensure_future(answer_of(line.write(begin("k")))))
        await entered(store)
        loop.stop()

    task = loop.create_task(start())
    loop.run_forever()
    for left in asyncio.all_tasks(loop):
        left.cancel()
    loop.run_until_complete(asyncio.gather(task, *asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()
    store.let_go()

    assert block(line.write(begin("k2"))).applied


def test_the_answer_to_a_begin_is_read_once_for_all_states(line: Batcher) -> None:
    write = begin("k")

    assert isinstance(found(write, block(line.write(write))), Claim)
