"""Flights one behind the other: in two parts, each departing as soon as the one before it has come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.store.flying import FlyingStore, run, write_on
from tests.store.gate import begin, refuse_key, settle
from tests.waiting import soon

from onceward import errors
from onceward.core.claim import Write
from onceward.store.batch import Batcher
from onceward.store.flights import EARLY_MIN

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def store() -> FlyingStore:
    return FlyingStore()


def test_a_crowd_is_sent_in_two_parts_so_that_server_and_callers_work_at_the_same_time(
    store: FlyingStore, line: Batcher
) -> None:
    async def twice(number: int) -> None:
        first = await write_on(line, begin(f"k{number}"))
        assert first.entry is not None
        await write_on(line, settle(f"k{number}", first.entry.version))

    async def main() -> None:
        await asyncio.gather(*(twice(number) for number in range(64)))

    run(main)

    assert store.sizes[:3] == [EARLY_MIN, 32, 32]
    assert sum(store.sizes) == 128
    assert len(store.sizes) <= 7


def test_what_is_queued_departs_before_the_answers_of_the_flight_before_it_are_worked_out(
    store: FlyingStore, line: Batcher
) -> None:
    departed_before = []
    store.lands = False

    async def main() -> None:
        first = asyncio.ensure_future(write_on(line, begin("first")))
        await soon(lambda: bool(store.flights))
        behind = asyncio.ensure_future(write_on(line, begin("behind")))
        await soon(lambda: bool(line.queue) and not line._nudged)
        store.spoil = lambda writes: departed_before.append((writes[0].key, len(store.flights)))
        store.flights[0].land()
        assert (await first).applied
        store.flights[1].land()
        assert (await behind).applied

    run(main)

    assert departed_before == [("first", 2), ("behind", 2)]
    assert store.finished == ["MainThread"] * 2


def test_nothing_departs_behind_a_flight_that_went_wrong_until_that_is_known(store: FlyingStore, line: Batcher) -> None:
    departed_before = []
    store.lands = store.goes_well = False

    def fail(writes: Sequence[Write]) -> None:
        departed_before.append((writes[0].key, len(store.flights)))
        store.spoil, store.lands, store.goes_well = lambda _: None, True, True
        raise errors.StoreUnavailable("gone")

    async def main() -> None:
        first = asyncio.ensure_future(write_on(line, begin("first")))
        await soon(lambda: bool(store.flights))
        behind = asyncio.ensure_future(write_on(line, begin("behind")))
        await soon(lambda: bool(line.queue) and not line._nudged)
        store.spoil = fail
        store.flights[0].land()
        with pytest.raises(errors.StoreUnavailable, match="gone"):
            await first
        assert (await behind).applied

    run(main)

    assert departed_before == [("first", 1)]


def test_what_hangs_on_those_answers_waits_for_them(store: FlyingStore, line: Batcher) -> None:
    """A second `begin` of the same key is refused by the answer to the first: it is never sent."""
    store.lands = False

    async def main() -> None:
        first = asyncio.ensure_future(write_on(line, begin("k")))
        await soon(lambda: bool(store.flights))
        again = asyncio.ensure_future(write_on(line, begin("k", "other")))
        await soon(lambda: bool(line.queue) and not line._nudged)
        store.flights[0].land()
        assert (await first).applied
        assert not (await again).applied

    run(main)

    assert store.sizes == [1]


def test_a_batch_that_is_taken_apart_is_not_mixed_up_with_the_one_that_followed_it(
    store: FlyingStore, line: Batcher
) -> None:
    store.lands = False
    store.spoil = refuse_key("bad")

    async def main() -> None:
        mixed = [asyncio.ensure_future(write_on(line, begin(key))) for key in ("good", "bad")]
        await soon(lambda: bool(store.flights))
        behind = asyncio.ensure_future(write_on(line, begin("behind")))
        await soon(lambda: bool(line.queue) and not line._nudged)
        store.flights[0].land()
        await soon(lambda: len(store.flights) == 2)
        store.flights[1].land()
        assert (await behind).applied
        assert (await mixed[0]).applied
        with pytest.raises(errors.WriteRefused):
            await mixed[1]

    run(main)


def test_an_unbalanced_pair_of_flights_is_balanced(store: FlyingStore, line: Batcher) -> None:
    """Otherwise few would fly and many wait, for ever: who lands together is queued together again."""
    store.lands = False

    async def main() -> None:
        few = [asyncio.ensure_future(write_on(line, begin(f"few{n}"))) for n in range(2)]
        await soon(lambda: bool(store.flights))
        many = [asyncio.ensure_future(write_on(line, begin(f"many{n}"))) for n in range(62)]
        await soon(lambda: len(line.queue) == 62 and not line._nudged)
        store.lands = True
        store.flights[0].land()
        assert all(answer.applied for answer in await asyncio.gather(*few, *many))

    run(main)

    assert store.sizes == [2, 32, 30]
