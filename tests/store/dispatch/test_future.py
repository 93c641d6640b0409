"""No caller waits on a loop forever: one timer ends every wait that timed out, and no other."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from onceward.errors import StoreUnavailable
from onceward.store.dispatch import future
from onceward.store.dispatch.future import StoreFuture, driven, driving, resolve_all

SECONDS = 0.05


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short wait timeout, because these tests wait for it."""
    monkeypatch.setattr(future, "RESULT_SECONDS", SECONDS)


def waiting() -> StoreFuture[str]:
    return StoreFuture(threading.Lock(), SECONDS)


async def outcome(one: StoreFuture[str]) -> str:
    try:
        return await one
    except StoreUnavailable:
        return "given up"


def test_a_wait_without_a_result_times_out() -> None:
    async def main() -> str:
        async with asyncio.timeout(10):
            return await outcome(waiting())

    assert asyncio.run(main()) == "given up"


def test_waits_that_began_later_time_out_too() -> None:
    async def main() -> list[str]:
        async with asyncio.timeout(10):
            first = asyncio.ensure_future(outcome(waiting()))
            await asyncio.to_thread(threading.Event().wait, SECONDS / 2)
            return await asyncio.gather(first, *(outcome(waiting()) for _ in range(3)))

    assert asyncio.run(main()) == ["given up"] * 4


def test_a_timely_result_is_unaffected_by_one_that_never_comes() -> None:
    async def main() -> list[str]:
        answered = waiting()
        both = asyncio.gather(outcome(waiting()), outcome(answered))
        await asyncio.sleep(0)
        resolve_all([(answered, "here", None)])
        async with asyncio.timeout(10):
            return list(await both)

    assert asyncio.run(main()) == ["given up", "here"]


def test_a_result_is_complete_whenever_the_future_is_done() -> None:
    """A waiting thread checks without the mutex, between any two steps."""
    one = waiting()
    seen: list[str] = []

    def look(frame: FrameType, _event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        if one.done:
            seen.append(one.result())
        return look

    outer = sys.gettrace()
    sys.settrace(look)
    try:
        one.resolve("the answer", None)
    finally:
        sys.settrace(outer)

    assert set(seen) == {"the answer"}


def test_a_driver_is_not_mistaken_for_a_loop_that_an_effect_starts_inside_it() -> None:
    async def inside() -> bool:
        return driven()

    with driving():
        assert driven()
        assert not asyncio.run(inside())
        assert driven()
    assert not driven()
