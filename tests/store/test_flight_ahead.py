"""What follows a flight is packed while that is in the air, so that the store waits for nothing in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.flying import FlyingStore, answered, run, write_on
from tests.store.gate import begin, block, refuse_key
from tests.waiting import soon

from onceward import errors
from onceward.core.claim import Answer, Ref, Write
from onceward.store import BatchFailed, Reading
from onceward.store.batch import Batcher
from onceward.store.pending import Pending
from onceward.store.queue import Queue, Sent

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def store() -> FlyingStore:
    store = FlyingStore()
    store.lands = False
    return store


async def flying(store: FlyingStore, line: Batcher) -> asyncio.Task[Answer]:
    """One flight that is in the air, with `first` aboard."""
    first = asyncio.ensure_future(write_on(line, begin("first")))
    await soon(lambda: bool(store.flights))
    return first


async def queued(line: Batcher, *writes: Write) -> list[asyncio.Task[Answer]]:
    """Waited for, and at the end of the loop's turn seen to."""
    tasks = [asyncio.ensure_future(write_on(line, write)) for write in writes]
    await soon(
        lambda: [sent.write for sent in line.queue._waiting][-len(writes) :] == list(writes) and not line._nudged
    )
    return tasks


async def landed(store: FlyingStore) -> None:
    """The first, and everything behind it."""
    store.lands = True
    store.flights[0].land()


def test_what_is_queued_is_packed_while_a_flight_is_in_the_air_and_not_again(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        behind = await queued(line, begin("a"), begin("b"))
        assert store.packed == ["first", "a", "b"]
        await landed(store)
        assert (await first).applied
        assert all(answer.applied for answer in await asyncio.gather(*behind))

    run(main)

    assert store.packed == ["first", "a", "b"]
    assert store.sizes == [1, 2]


def test_what_follows_the_one_that_followed_is_packed_ahead_too(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        many = await queued(line, *(begin(f"k{number}") for number in range(8)))
        store.flights[0].land()
        await first
        assert len(store.flights) == 2
        (last,) = await queued(line, begin("last"))
        assert store.packed[-1] == "last"
        store.lands = True
        store.flights[1].land()
        await asyncio.gather(*many, last)

    run(main)

    assert store.sizes == [1, 8, 1]


def test_what_comes_later_is_added_to_what_is_packed(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        behind = [*await queued(line, begin("a")), *await queued(line, begin("b"))]
        await landed(store)
        await asyncio.gather(first, *behind)

    run(main)

    assert store.packed == ["first", "a", "b"]
    assert store.sizes == [1, 2]


def test_what_nobody_waits_for_any_more_is_not_sent_although_it_was_packed(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        gone, stays = await queued(line, begin("gone"), begin("stays"))
        gone.cancel()
        await asyncio.wait([gone])
        await landed(store)
        assert (await first).applied
        assert (await stays).applied

    run(main)

    assert store.sizes == [1, 1]
    assert store.read([Ref("s", "gone")]).entries == (None,)


def test_what_was_packed_is_of_no_use_when_the_batch_begins_with_another(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        gone, stays = await queued(line, begin("gone"), begin("stays"))
        gone.cancel()
        await asyncio.wait([gone])
        (later,) = await queued(line, begin("later"))
        await landed(store)
        assert all(answer.applied for answer in await asyncio.gather(first, stays, later))

    run(main)

    assert store.packed == ["first", "gone", "stays", "stays", "later"]
    assert store.read([Ref("s", "gone")]).entries == (None,)


def test_a_batch_is_taken_only_while_it_is_the_next(line: Batcher) -> None:
    sent = [line.write(begin(f"k{number}")) for number in range(3)]
    batch = line.queue.first(2)
    assert batch == sent[:2]
    urgent = line.write(begin("urgent"))
    line.queue.restore([*line.queue.gather()][::-1])

    assert not line.queue.take(batch)
    assert len(line.queue) == 4, "nothing was taken"
    assert line.queue.take([urgent, *sent[:1:-1]])
    line.queue.gather()


def test_what_hangs_on_the_answers_is_not_packed_before_they_come(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        (again,) = await queued(line, begin("first", "another write"))
        assert store.packed == ["first"]
        await landed(store)
        assert (await first).applied
        assert not (await again).applied

    run(main)


def test_a_write_that_cannot_be_packed_is_found_out_and_the_others_are_not(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        store.raises = BatchFailed("not in this form")
        store.spoil = refuse_key("bad")
        good, bad = await queued(line, begin("good"), begin("bad"))
        await landed(store)
        assert (await first).applied
        assert (await good).applied
        with pytest.raises(errors.WriteRefused):
            await bad

    run(main)

    assert store.sizes == [1], "the rest was the thread's to do"


def test_what_goes_wrong_while_others_are_packed_does_not_reach_those_who_fly(
    store: FlyingStore, line: Batcher
) -> None:
    async def main() -> None:
        first = await flying(store, line)
        store.raises = RuntimeError("a bug of the store's")
        (behind,) = await queued(line, begin("behind"))
        await landed(store)
        assert (await first).applied
        with pytest.raises(errors.StoreUnavailable, match="a bug of the store's"):
            await behind
        store.raises = None
        assert (await write_on(line, begin("next"))).applied

    run(main)


def test_a_thread_that_wants_the_store_gets_what_was_packed_and_it_is_sent_once(
    store: FlyingStore, line: Batcher
) -> None:
    async def main() -> None:
        first = await flying(store, line)
        (behind,) = await queued(line, begin("behind"))
        reading = line.read([Ref("s", "behind")])
        await soon(lambda: line._flights._wanted > 0)
        await landed(store)
        assert (await first).applied
        assert (await behind).applied
        assert (await reading).entries[0] is not None, "a read does not overtake what was queued before it"

    run(main)

    assert store.sizes == [1]
    assert len(store.writes_of("behind")) == 1


def test_another_thread_may_be_served_with_what_was_packed(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        first = await flying(store, line)
        (behind,) = await queued(line, begin("behind"))
        thread, answers = answered(lambda: block(line.write(begin("from a thread"))))
        await soon(lambda: len(line.queue) == 2)
        await landed(store)
        assert (await first).applied
        assert (await behind).applied
        await asyncio.to_thread(thread.join, 10)
        assert answers[0].applied

    run(main)

    assert store.packed.count("behind") == 1


def test_a_queue_that_grows_turn_by_turn_is_not_looked_through_at_each(
    store: FlyingStore, line: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    first = Queue.first

    def counted(queue: Queue, most: int) -> list[Sent]:
        looks.append(len(queue))
        return first(queue, most)

    async def main() -> None:
        flight = await flying(store, line)
        monkeypatch.setattr(Queue, "first", counted)
        behind = [task for number in range(300) for task in await queued(line, begin(f"k{number}"))]
        assert len(looks) < 30
        await landed(store)
        await asyncio.gather(flight, *behind)

    run(main)

    assert len(store.packed) < 2 * 301


@pytest.mark.parametrize("by", ["the thread", "its loop"])
def test_what_was_packed_and_is_of_no_use_any_more_is_let_go(store: FlyingStore, line: Batcher, by: str) -> None:
    async def main() -> None:
        first = await flying(store, line)
        (behind,) = await queued(line, begin("behind"))
        if by == "the thread":
            store.flights[0].grounded = True  # its loop leaves it to one who can wait
            await landed(store)
            await asyncio.gather(first, behind)
        else:
            reading = line.read([Ref("s", "behind")])
            await soon(lambda: line._flights._wanted > 0)
            await landed(store)
            await asyncio.gather(first, behind, reading_of(reading))

    run(main)

    assert line._flights._ahead is None


async def reading_of(reading: Pending[Reading]) -> Reading:
    return await reading
