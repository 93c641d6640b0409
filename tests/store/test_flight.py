"""Batches that a loop sends itself: who sends, who brings them home, and that nobody waits for a loop that is busy."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.store.flying import FlyingStore, run, write_on
from tests.store.gate import begin, block, refuse_key
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Answer, Ref, Status
from onceward.store.batch import Batcher
from onceward.store.flights import EARLY_MIN


@pytest.fixture
def store() -> FlyingStore:
    return FlyingStore()


@pytest.mark.usefixtures("patient")
@pytest.mark.usefixtures("patient")
def test_a_loop_sends_and_takes_in_without_a_thread(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        for number in range(3):
            assert (await write_on(line, begin(f"k{number}"))).applied

    run(main)

    assert store.finished == ["MainThread"] * 3
    assert store.batches == []


def test_what_comes_in_pieces_is_taken_in_piece_by_piece(store: FlyingStore, line: Batcher) -> None:
    store.pieces = 3

    async def main() -> None:
        assert (await write_on(line, begin("k"))).applied

    run(main)

    assert store.flights[0].polls == 3


def test_a_flight_whose_loop_is_busy_is_brought_home_by_the_thread(store: FlyingStore, line: Batcher) -> None:
    store.lands = False
    answers: list[Answer] = []

    async def main() -> None:
        first = asyncio.ensure_future(write_on(line, begin("first")))
        await soon(lambda: bool(store.flights))
        other = threading.Thread(target=lambda: answers.append(block(line.write(begin("second")))))
        other.start()
        other.join(10)  # the loop does nothing else meanwhile
        assert answers[0].applied
        assert (await first).applied
        # The loop hears of it, and lets go of its ear.
        store.lands = True
        assert (await write_on(line, begin("third"))).applied

    run(main)

    assert store.finished[0] == "onceward-store"


def test_a_claim_is_renewed_while_the_loop_that_sent_something_is_busy(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        held = await write_on(line, begin("held"))
        assert held.entry is not None
        store.lands = False
        asyncio.ensure_future(write_on(line, begin("other")))  # noqa: RUF006  # ends with the loop
        await soon(lambda: len(store.flights) == 2)
        kept = line.keep(held.entry, lease=150_000, retain=1_000_000, seconds=60)
        until(lambda: store.writes_of("held"), "nobody renewed it")  # the loop does nothing else meanwhile
        line.drop(kept)

    run(main)


def test_a_flight_whose_loop_was_closed_is_brought_home_before_the_next(store: FlyingStore, line: Batcher) -> None:
    store.lands = False

    async def leave() -> None:
        asyncio.ensure_future(write_on(line, begin("left")))  # noqa: RUF006  # nobody waits for it
        await soon(lambda: bool(store.flights))

    async def come() -> None:
        store.lands = True
        began = time.monotonic()
        assert (await write_on(line, begin("next"))).applied
        assert time.monotonic() - began < 5

    run(leave)
    run(come)

    # Its caller was cancelled with the loop: what it claimed is free again.
    until(lambda: [write.__class__.__name__ for write in store.writes_of("left")] == ["Move"])
    (entry,) = store.read([Ref("s", "left")]).entries
    assert entry is None or entry.status is not Status.IN_PROGRESS


def test_what_spoils_a_flight_is_found_by_the_thread(store: FlyingStore, line: Batcher) -> None:
    store.spoil = refuse_key("k3")

    async def main() -> list[object]:
        return await asyncio.gather(
            *(write_on(line, begin(f"k{number}")) for number in range(EARLY_MIN)), return_exceptions=True
        )

    answers: list[object] = []

    async def gathered() -> None:
        answers.extend(await main())

    run(gathered)

    assert [type(answer) for answer in answers] == [
        errors.WriteRefused if number == 3 else Answer for number in range(EARLY_MIN)
    ]
    assert store.finished == ["MainThread"]
    assert store.batches, "the thread takes it apart"


def test_a_lone_write_that_is_refused_in_flight_is_told(store: FlyingStore, line: Batcher) -> None:
    store.spoil = refuse_key("bad")

    async def main() -> None:
        with pytest.raises(errors.WriteRefused, match="the data of bad is bad"):
            await write_on(line, begin("bad"))
        assert (await write_on(line, begin("good"))).applied

    run(main)


@pytest.mark.parametrize("error", [errors.StoreUnavailable("gone"), ValueError("a bug")])
def test_each_aboard_hears_what_went_wrong(store: FlyingStore, line: Batcher, error: Exception) -> None:
    def spoil(_: object) -> None:
        raise error

    async def main() -> None:
        store.spoil = spoil
        failed = await asyncio.gather(
            *(write_on(line, begin(f"k{number}")) for number in range(3)), return_exceptions=True
        )
        assert {type(one) for one in failed} == {errors.StoreUnavailable}
        assert len({id(one) for one in failed}) == 3
        store.spoil = lambda _: None
        assert (await write_on(line, begin("k"))).applied

    run(main)


@pytest.mark.parametrize("error", [errors.StoreUnavailable("gone"), ValueError("a bug")])
def test_what_cannot_be_sent_is_told_and_the_store_is_free(store: FlyingStore, line: Batcher, error: Exception) -> None:
    async def main() -> None:
        store.raises = error
        with pytest.raises(errors.StoreUnavailable):
            await write_on(line, begin("k"))
        store.raises = None
        assert (await write_on(line, begin("k", "again"))).applied

    run(main)


def test_an_interrupt_while_sending_leaves_the_store_free(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        store.raises = KeyboardInterrupt()  # type: ignore[assignment]
        await write_on(line, begin("k"))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    store.raises = None

    async def after() -> None:
        assert (await write_on(line, begin("k", "again"))).applied

    run(after)


def test_what_has_to_wait_first_goes_through_the_thread(store: FlyingStore, line: Batcher) -> None:
    store.connected = False

    async def main() -> None:
        assert (await write_on(line, begin("k0"))).applied
        many = await asyncio.gather(*(write_on(line, begin(f"n{number}")) for number in range(100)))
        assert all(answer.applied for answer in many)
        store.connected = True
        number = 0
        while not store.sizes:  # the thread may be awake still, and serve some
            number += 1
            assert (await write_on(line, begin(f"k{number}"))).applied

    run(main)

    by_thread = {write.key for batch in store.batches for write in batch}
    assert {"k0", *(f"n{number}" for number in range(100))} <= by_thread
    assert len(store.batches) < 50, "they do not share batches"


def test_a_flight_that_has_to_wait_for_more_is_finished_by_the_thread(store: FlyingStore, line: Batcher) -> None:
    store.grounds = True

    async def main() -> None:
        assert (await write_on(line, begin("k0"))).applied
        assert (await write_on(line, begin("k1"))).applied

    run(main)

    assert set(store.finished) == {"onceward-store"}


def test_a_loop_without_readers_leaves_its_flights_to_the_thread(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        def no_readers(*_: object) -> None:
            raise NotImplementedError

        asyncio.get_running_loop().add_reader = no_readers  # type: ignore[assignment, method-assign]
        assert (await write_on(line, begin("k"))).applied

    run(main)

    assert store.finished == ["onceward-store"]


def test_who_is_cancelled_in_the_air_gives_its_claim_back(store: FlyingStore, line: Batcher) -> None:
    store.lands = False

    async def main() -> None:
        task = asyncio.ensure_future(write_on(line, begin("k")))
        await soon(lambda: bool(store.flights))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.lands = True
        store.flights[0].land()
        await soon(lambda: store.read([Ref("s", "k")]).entries == (None,))

    run(main)


def test_a_read_does_not_overtake_a_flight(line: Batcher) -> None:
    async def main() -> None:
        written = asyncio.ensure_future(write_on(line, begin("k")))
        await asyncio.sleep(0)
        reading = await line.read([Ref("s", "k")])
        assert reading.entries[0] is not None
        assert (await written).applied

    run(main)


def test_a_thread_gets_the_store_from_loops_that_never_rest(line: Batcher) -> None:
    over = threading.Event()
    waited: list[float] = []

    def blocking() -> None:
        for number in range(20):
            began = time.monotonic()
            block(line.write(begin(f"thread-{number}")))
            waited.append(time.monotonic() - began)
        over.set()

    async def busy(caller: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            await write_on(line, begin(f"loop-{caller}-{number}"))

    async def main() -> None:
        thread = threading.Thread(target=blocking)
        thread.start()
        await asyncio.gather(*(busy(caller) for caller in range(32)))
        thread.join()

    run(main)

    assert len(waited) == 20
    assert sorted(waited)[10] < 1


def test_closing_waits_for_what_is_in_the_air(store: FlyingStore, line: Batcher) -> None:
    store.lands = False

    async def main() -> None:
        task = asyncio.ensure_future(write_on(line, begin("k")))
        await soon(lambda: bool(store.flights))
        await asyncio.to_thread(line.close)
        assert (await task).applied

    run(main)


@pytest.mark.parametrize("number", [1, EARLY_MIN - 1, EARLY_MIN, EARLY_MIN + 1])
@pytest.mark.parametrize("readers", [True, False], ids=["", "no readers"])
def test_as_many_as_are_sent_early_do_not_wait_when_the_thread_has_to_finish(
    store: FlyingStore, line: Batcher, number: int, readers: bool
) -> None:
    store.grounds = readers

    async def main() -> None:
        if not readers:
            asyncio.get_running_loop().add_reader = refused  # type: ignore[assignment, method-assign]
        began = time.monotonic()
        await asyncio.gather(*(write_on(line, begin(f"k{n}")) for n in range(number)))
        assert time.monotonic() - began < 3

    def refused(*_: object) -> None:
        raise NotImplementedError

    run(main)


@pytest.mark.usefixtures("patient")
def test_a_thread_that_waits_for_the_store_comes_before_the_next_flight(store: FlyingStore, line: Batcher) -> None:
    async def main() -> None:
        store.lands = False
        first = asyncio.ensure_future(write_on(line, begin("first")))
        await soon(lambda: bool(store.flights))
        reading = line.read([Ref("s", "first")])
        await soon(lambda: line._flights._wanted == 1)
        second = asyncio.ensure_future(write_on(line, begin("second")))
        await asyncio.sleep(0)
        store.lands = True
        store.flights[0].land()
        assert (await first).applied
        assert (await second).applied
        assert (await reading).entries[0] is not None

    run(main)

    assert [write.key for batch in store.batches for write in batch] == ["second"]
    assert store.sizes == [1]


def test_what_was_put_back_keeps_its_order(line: Batcher) -> None:
    sent = [line.write(begin(f"k{number}")) for number in range(5)]

    line.queue.restore(line.queue.gather())

    assert line.queue.gather() == sent
    line.queue.restore(sent)
