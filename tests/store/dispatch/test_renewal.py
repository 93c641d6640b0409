"""Work of the I/O thread besides batches: renewals during a blocked loop, and watches that cost one read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.store.blockable_store import SECOND, BlockableStore, begin, block, settle
from tests.waiting import until

from onceward import errors
from onceward.core.claim import Move, Ref, Status, Verb
from onceward.store.dispatch.batcher import Batcher


def test_a_claim_is_renewed_while_its_callers_loop_is_blocked(store: BlockableStore, batcher: Batcher) -> None:
    async def main() -> None:
        result = await batcher.write(begin("k", lease=30_000))
        assert result.entry is not None
        renewal = batcher.start_renewal(result.entry, 30_000, SECOND, seconds=60)
        # This waits on the loop's own thread: nothing of asyncio can run.
        until(lambda: len(store.writes_of("k")) >= 4, "it is not renewed")
        batcher.stop_renewal(renewal)

    asyncio.run(main())

    renewals = store.writes_of("k")[1:]
    assert all(isinstance(write, Move) and write.verb is Verb.RENEW for write in renewals)


def test_a_claim_is_renewed_no_longer_than_its_maximum_run_time(store: BlockableStore, batcher: Batcher) -> None:
    result = block(batcher.write(begin("k", lease=3_000)))
    assert result.entry is not None

    batcher.start_renewal(result.entry, 3_000, SECOND, seconds=0)
    block(batcher.sleep(0.02))

    assert len(store.writes_of("k")) == 1


def test_a_lost_claim_is_not_renewed_forever(store: BlockableStore, batcher: Batcher) -> None:
    result = block(batcher.write(begin("k", lease=3_000)))
    assert result.entry is not None
    block(batcher.write(settle("k", result.entry.version)))

    batcher.start_renewal(result.entry, 3_000, SECOND, seconds=60)
    block(batcher.sleep(0.05))

    assert len(store.writes_of("k")) == 3, "one renewal was refused, and that was the last"


def test_a_settle_in_this_process_wakes_local_waiters_at_once(store: BlockableStore, batcher: Batcher) -> None:
    result = block(batcher.write(begin("k")))
    assert result.entry is not None
    watch = batcher.watch(Ref("s", "k"), 60)
    watch.next_at += 3600  # polling cannot be what wakes it
    block(batcher.write(settle("k", result.entry.version)))

    seen = block(watch)

    assert seen.entry is not None
    assert seen.entry.status is Status.COMPLETED
    assert store.reads == []


def test_all_waiting_callers_share_one_read(store: BlockableStore, batcher: Batcher) -> None:
    for n in range(20):
        block(batcher.write(begin(f"k{n}", lease=20_000)))
    watches = [batcher.watch(Ref("s", f"k{n}"), 60) for n in range(20) for _ in range(5)]

    for watch in watches:
        assert block(watch).over

    assert all(len(refs) == len(set(refs)) for refs in store.reads)
    assert len(store.reads) < 20


def test_a_watch_ends_with_its_timeout(batcher: Batcher) -> None:
    block(batcher.write(begin("k")))

    seen = block(batcher.watch(Ref("s", "k"), 0.01))

    assert not seen.over


def test_a_watch_ends_when_the_holder_is_proved_dead(store: BlockableStore) -> None:
    batcher = Batcher(store, lambda holder: holder == "dead")
    block(batcher.write(begin("k", holder="dead")))

    seen = block(batcher.watch(Ref("s", "k"), 60))

    assert seen.dead
    batcher.close()


def test_a_watch_gets_the_error_of_a_failing_store(store: BlockableStore, batcher: Batcher) -> None:
    block(batcher.write(begin("k")))

    def fail(refs: Sequence[Ref]) -> None:
        raise errors.StoreUnavailable(f"gone, with {refs}")

    store.read = fail  # type: ignore[method-assign,assignment]  # only this once

    with pytest.raises(errors.StoreUnavailable, match="gone"):
        block(batcher.watch(Ref("s", "k"), 60))
