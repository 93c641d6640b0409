"""A task is cancelled, or a thread interrupted, at every point. An effect that did not run leaves its key free; one
that ran is recorded or in doubt; none runs twice by accident.
"""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.backends import Opener
from tests.faults.ledger.observed_store import ObservedStore

from onceward import Ledger, errors
from onceward.ledger.terms import EffectClass
from onceward.testing import PinnedClock


class BlockedPoint:
    """Blocks the store at one named point, the first time it is reached, until it is released."""

    def __init__(self, point: str) -> None:
        self.reached = threading.Event()
        self._point = point
        self._open = threading.Event()

    def __call__(self, name: str) -> None:
        if name == self._point and not self.reached.is_set():
            self.reached.set()
            assert self._open.wait(10), "the test never let the store go on"

    def let_go(self) -> None:
        self._open.set()


class Work:
    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self) -> str:
        self.runs += 1
        return f"run {self.runs}"


@pytest.fixture
def open_blocked(make_store: Opener, clock: PinnedClock) -> Iterator[Callable[[str], tuple[Ledger, BlockedPoint]]]:
    """A ledger whose store is blocked at a point."""
    opened: list[Ledger] = []

    def open_one(point: str) -> tuple[Ledger, BlockedPoint]:
        blocked = BlockedPoint(point)
        opened.append(Ledger(ObservedStore(make_store(clock), blocked), wait_seconds=0.0))
        return opened[-1], blocked

    yield open_one
    for ledger in opened:
        ledger.close()


async def cancel_at(blocked: BlockedPoint, call: Coroutine[Any, Any, object]) -> None:
    """Cancel a call while the store is blocked, then release the store."""
    task = asyncio.create_task(call)
    await asyncio.to_thread(blocked.reached.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    blocked.let_go()


effects = pytest.mark.parametrize("effect", ["idempotent", "irreversible"])


@effects
@pytest.mark.parametrize("point", ["before begin", "after begin"])
def test_a_caller_cancelled_during_its_begin_leaves_the_key_free(
    open_blocked: Callable[[str], tuple[Ledger, BlockedPoint]], effect: EffectClass, point: str
) -> None:
    (ledger, blocked), work = open_blocked(point), Work()

    async def main() -> str:
        await cancel_at(blocked, ledger.run("order 1", work, effect=effect))
        return await ledger.run("order 1", work, effect=effect, wait_seconds=10)

    assert asyncio.run(main()) == "run 1"
    assert work.runs == 1


@effects
def test_a_caller_cancelled_after_the_result_of_its_begin_leaves_the_key_free(
    open_blocked: Callable[[str], tuple[Ledger, BlockedPoint]], effect: EffectClass
) -> None:
    (ledger, _), work = open_blocked("never"), Work()

    async def main() -> str:
        task = asyncio.create_task(ledger.run("order 1", work, effect=effect))
        await asyncio.sleep(0)
        # The loop is blocked here, so the result of the task's begin has arrived but the task does not have it.
        ledger.blocking.read("call", "another")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await ledger.run("order 1", work, effect=effect, wait_seconds=10)

    assert asyncio.run(main()) == "run 1"
    assert work.runs == 1


@effects
def test_a_caller_cancelled_while_its_large_result_is_stored_leaves_the_key_settled(
    open_blocked: Callable[[str], tuple[Ledger, BlockedPoint]], effect: EffectClass
) -> None:
    """The effect happened and is recorded; only its value is lost."""
    (ledger, blocked), runs = open_blocked("before append"), []

    async def work() -> str:
        runs.append(1)
        return "x" * 200_000

    async def main() -> None:
        task = asyncio.create_task(ledger.run("order 1", work, effect=effect))
        await asyncio.to_thread(blocked.reached.wait, 10)
        task.cancel()
        blocked.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(errors.OutcomeNotKept):
            await ledger.run("order 1", work, effect=effect)

    asyncio.run(main())

    assert len(runs) == 1


def test_an_irreversible_effect_cancelled_in_the_middle_is_in_doubt(ledger: Ledger) -> None:
    started = threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(ledger.run("order 1", work, effect="irreversible"))
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(errors.InDoubt):
            await ledger.run("order 1", Work(), effect="irreversible")

    asyncio.run(main())


@effects
@pytest.mark.parametrize("point", ["before settle", "after settle"])
def test_a_finished_effect_is_recorded_even_if_the_caller_is_cancelled(
    open_blocked: Callable[[str], tuple[Ledger, BlockedPoint]], effect: EffectClass, point: str
) -> None:
    (ledger, blocked), work = open_blocked(point), Work()

    async def main() -> str:
        await cancel_at(blocked, ledger.run("order 1", work, effect=effect))
        return await ledger.run("order 1", work, effect=effect, wait_seconds=10)

    assert asyncio.run(main()) == "run 1"
    assert work.runs == 1


@pytest.mark.parametrize("point", ["before doubt", "after doubt"])
def test_a_caller_cancelled_while_it_records_a_doubt_has_recorded_it(
    open_blocked: Callable[[str], tuple[Ledger, BlockedPoint]], point: str
) -> None:
    (ledger, blocked), work = open_blocked(point), Work()

    async def fail() -> None:
        await work()
        raise RuntimeError("after the work")

    async def main() -> None:
        await cancel_at(blocked, ledger.run("order 1", fail, effect="irreversible"))
        with pytest.raises(errors.InDoubt):
            await ledger.run("order 1", fail, effect="irreversible", wait_seconds=10)

    asyncio.run(main())
    assert work.runs == 1


def test_cancelling_a_waiting_caller_changes_nothing(ledger: Ledger) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        await go_on.wait()
        return "the winner's"

    async def main() -> list[str]:
        winner = asyncio.create_task(ledger.run("order 1", work, effect="irreversible"))
        await started.wait()
        loser = asyncio.create_task(ledger.run("order 1", work, effect="irreversible"))
        patient = asyncio.create_task(ledger.run("order 1", work, effect="irreversible"))
        # When this later read has its result, both callers have been refused and wait.
        await ledger.read("call", "another")
        loser.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loser
        go_on.set()
        return [await winner, await patient]

    assert asyncio.run(main()) == ["the winner's"] * 2


class Interrupt:
    """Interrupts the main thread once, when the store reaches one named point on any thread."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __call__(self, name: str) -> None:
        if name == self._point:
            self._point = ""
            _thread.interrupt_main()


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Restore the default handler of an ordinary program; a worker of the test runner may have another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def open_interrupted(make_store: Opener, clock: PinnedClock) -> Iterator[Callable[[str], Ledger]]:
    """Opens ledgers whose caller is interrupted at a point."""
    opened: list[Ledger] = []

    def open_one(point: str) -> Ledger:
        opened.append(Ledger(ObservedStore(make_store(clock), Interrupt(point)), wait_seconds=10.0))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


@effects
@pytest.mark.parametrize("point", ["before begin", "after begin"])
def test_a_thread_interrupted_during_its_begin_leaves_the_key_free(
    open_interrupted: Callable[[str], Ledger], effect: EffectClass, point: str
) -> None:
    ledger, runs = open_interrupted(point), []

    with pytest.raises(KeyboardInterrupt):
        ledger.blocking.run("order 1", lambda: runs.append(1), effect=effect)

    ledger.blocking.run("order 1", lambda: runs.append(1), effect=effect)
    assert runs == [1]


@effects
@pytest.mark.parametrize("point", ["before settle", "after settle"])
def test_a_finished_effect_is_recorded_even_if_its_thread_is_interrupted(
    open_interrupted: Callable[[str], Ledger], effect: EffectClass, point: str
) -> None:
    ledger, runs = open_interrupted(point), []

    with pytest.raises(KeyboardInterrupt):
        ledger.blocking.run("order 1", lambda: runs.append(1), effect=effect)

    assert ledger.blocking.run("order 1", lambda: runs.append(1), effect=effect) is None
    assert runs == [1]
