"""Single-flight reads: few of them, never an outdated one, and a waiter that is cancelled cancels no other."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.waiting import SECONDS_MAX, soon

from onceward.errors import NotFound
from onceward.hub.chat.single_flight import SharedReads


class BlockedRead:
    """A query that counts its calls; each blocks until it is released, and returns the value from its start."""

    def __init__(self) -> None:
        self.value = 0
        self.count = 0
        self.let_go = threading.Event()

    def read(self) -> int:
        value = self.value
        self.count += 1
        assert self.let_go.wait(SECONDS_MAX)
        return value


def test_concurrent_callers_share_one_read_until_it_is_invalidated() -> None:
    blocked, reads = BlockedRead(), SharedReads()

    async def main() -> list[int]:
        early = [asyncio.create_task(reads.read("turn", blocked.read)) for _ in range(20)]
        await soon(lambda: blocked.count == 1)
        blocked.value = 1
        reads.invalidate()
        late = [asyncio.create_task(reads.read("turn", blocked.read)) for _ in range(20)]
        other = asyncio.create_task(reads.read("another", blocked.read))
        await soon(lambda: blocked.count == 3)
        blocked.let_go.set()
        return await asyncio.gather(*early, *late, other)

    assert asyncio.run(main()) == [0] * 20 + [1] * 21
    assert blocked.count == 3


def test_a_finished_read_is_not_shared() -> None:
    blocked, reads = BlockedRead(), SharedReads()
    blocked.let_go.set()

    async def main() -> list[int]:
        first = await reads.read("turn", blocked.read)
        blocked.value = 1
        return [first, await reads.read("turn", blocked.read)]

    assert asyncio.run(main()) == [0, 1]


def test_a_cancelled_caller_does_not_cancel_the_read_and_close_waits_for_it() -> None:
    blocked, reads = BlockedRead(), SharedReads()

    async def main() -> int:
        leaving, staying = (asyncio.create_task(reads.read("turn", blocked.read)) for _ in range(2))
        await soon(lambda: blocked.count == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        end = asyncio.create_task(reads.drain())
        assert not (await asyncio.wait({end, staying}, timeout=0.05))[0]
        blocked.let_go.set()
        await end
        return await staying

    assert asyncio.run(main()) == 0


def test_an_exception_reaches_every_caller_and_is_never_unhandled() -> None:
    reads = SharedReads()
    unhandled: list[object] = []

    def raising() -> None:
        raise NotFound("no such turn")

    async def main() -> list[None | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        gone = asyncio.create_task(reads.read("other", raising))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.gather(*(reads.read("turn", raising) for _ in range(3)), return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [NotFound] * 3
    assert unhandled == []
