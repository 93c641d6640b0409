"""Looks that are shared: few of them, never an old one, and nobody takes another one's away."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.waiting import SECONDS_MAX, soon

from onceward.errors import NotFound
from onceward.hub.looks import Looks


class Sight:
    """Counts the looks; each stays until it is let go, and shows what was there when it began."""

    def __init__(self) -> None:
        self.there = 0
        self.count = 0
        self.let_go = threading.Event()

    def look(self) -> int:
        seen = self.there
        self.count += 1
        assert self.let_go.wait(SECONDS_MAX)
        return seen


def test_who_wants_to_see_the_same_looks_together_unless_there_is_news() -> None:
    sight, looks = Sight(), Looks()

    async def main() -> list[int]:
        early = [asyncio.create_task(looks.see("turn", sight.look)) for _ in range(20)]
        await soon(lambda: sight.count == 1)
        sight.there = 1
        looks.news()
        late = [asyncio.create_task(looks.see("turn", sight.look)) for _ in range(20)]
        other = asyncio.create_task(looks.see("another", sight.look))
        await soon(lambda: sight.count == 3)
        sight.let_go.set()
        return await asyncio.gather(*early, *late, other)

    assert asyncio.run(main()) == [0] * 20 + [1] * 21
    assert sight.count == 3


def test_a_look_that_is_over_is_not_shared() -> None:
    sight, looks = Sight(), Looks()
    sight.let_go.set()

    async def main() -> list[int]:
        first = await looks.see("turn", sight.look)
        sight.there = 1
        return [first, await looks.see("turn", sight.look)]

    assert asyncio.run(main()) == [0, 1]


def test_who_leaves_takes_the_look_of_nobody_else_away_and_the_end_waits_for_it() -> None:
    sight, looks = Sight(), Looks()

    async def main() -> int:
        leaving, staying = (asyncio.create_task(looks.see("turn", sight.look)) for _ in range(2))
        await soon(lambda: sight.count == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        end = asyncio.create_task(looks.end())
        assert not (await asyncio.wait({end, staying}, timeout=0.05))[0]
        sight.let_go.set()
        await end
        return await staying

    assert asyncio.run(main()) == 0


def test_what_is_wrong_is_told_to_everybody_and_left_with_nobody() -> None:
    looks = Looks()
    told: list[object] = []

    def look() -> None:
        raise NotFound("no such turn")

    async def main() -> list[None | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        gone = asyncio.create_task(looks.see("other", look))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.gather(*(looks.see("turn", look) for _ in range(3)), return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [NotFound] * 3
    assert told == []
