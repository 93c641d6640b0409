"""Threads and tasks of one process race for one key: one effect, one result for all."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Ledger
from onceward.ledger.terms import EffectClass

RACERS = 8


@pytest.mark.parametrize("effect", ["pure", "irreversible"])
def test_racing_threads_share_one_effect(open_ledger: Callable[[], Ledger], effect: EffectClass) -> None:
    ledgers = [open_ledger(), open_ledger()]
    runs = itertools.count(1)
    start = threading.Barrier(RACERS)

    def call(number: int) -> list[int]:
        start.wait()
        ledger = ledgers[number % 2]
        return [ledger.blocking.run(f"order {key}", lambda: next(runs), effect=effect) for key in range(10)]

    with ThreadPoolExecutor(RACERS) as threads:
        results = list(threads.map(call, range(RACERS)))

    assert all(result == results[0] for result in results)
    assert next(runs) == 11


@pytest.mark.parametrize("effect", ["pure", "irreversible"])
def test_racing_tasks_share_one_effect_with_a_thread(ledger: Ledger, effect: EffectClass) -> None:
    runs = itertools.count(1)

    async def work() -> int:
        await asyncio.sleep(0)
        return next(runs)

    async def main() -> list[int]:
        tasks = [ledger.run("order 1", work, effect=effect) for _ in range(RACERS)]
        thread = asyncio.to_thread(ledger.blocking.run, "order 1", lambda: next(runs), effect=effect)
        return await asyncio.gather(*tasks, thread)

    assert asyncio.run(main()) == [1] * (RACERS + 1)


def test_a_waiting_caller_takes_over_when_the_winner_fails(ledger: Ledger) -> None:
    started, go_on = threading.Event(), threading.Event()

    def fail() -> int:
        started.set()
        assert go_on.wait(10)
        raise RuntimeError("the winner fails")

    with ThreadPoolExecutor(2) as threads:
        winner = threads.submit(ledger.blocking.run, "order 1", fail, effect="idempotent")
        assert started.wait(10)
        other = threads.submit(ledger.blocking.run, "order 1", lambda: 2, effect="idempotent")
        go_on.set()
        error = winner.exception()

    assert isinstance(error, RuntimeError)
    assert other.result() == 2
