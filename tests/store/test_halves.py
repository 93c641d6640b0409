"""A store that works in another process gets its batches in halves, so that its callers work meanwhile."""

from __future__ import annotations

import asyncio
import math

from tests.store.gate import GateStore, begin
from tests.waiting import soon

from onceward.core.claim import Answer, Write
from onceward.store.batch import Batcher


class Apart(GateStore):
    works_apart = True


async def all_at_once(line: Batcher, writes: list[Write]) -> list[Answer]:
    async def answer(write: Write) -> Answer:
        return await line.write(write)

    return await asyncio.gather(*(answer(write) for write in writes))


def sizes(store: GateStore, *rounds: list[Write]) -> list[int]:
    line = Batcher(store, lambda _holder: False)

    def rests() -> bool:
        return line._thread is None or line._asleep_until > -math.inf

    async def main() -> None:
        for writes in rounds:
            # One that is still awake from the last batch would take the first of these by themselves.
            await soon(rests, "the thread does not rest")
            await all_at_once(line, writes)

    asyncio.run(main())
    line.close()
    return [len(batch) for batch in store.batches]


def fresh(first: int, count: int) -> list[Write]:
    return [begin(f"k{number}") for number in range(first, first + count)]


def test_writes_that_are_applied_go_in_halves_from_the_second_batch_on() -> None:
    assert sizes(Apart(), fresh(0, 64), fresh(64, 64))[:2] == [64, 32]


def test_every_write_of_a_halved_batch_is_answered() -> None:
    assert sum(sizes(Apart(), fresh(0, 64), fresh(64, 100))) == 164


def test_few_writes_stay_together() -> None:
    assert sizes(Apart(), fresh(0, 15), fresh(15, 15)) == [15, 15]


def test_replays_stay_together() -> None:
    assert sizes(Apart(), fresh(0, 64), fresh(0, 64), fresh(0, 64))[-1] == 64


def test_a_store_in_this_process_gets_whole_batches() -> None:
    assert sizes(GateStore(), fresh(0, 64), fresh(64, 64)) == [64, 64]
