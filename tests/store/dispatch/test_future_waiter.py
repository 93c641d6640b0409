"""A task that waits for a result is stepped by the thread or loop that delivers it: once, however it ends, whatever
other tasks do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from contextvars import ContextVar

import pytest
from tests.waiting import SECONDS_MAX

from onceward.store.dispatch.future import RESULT_SECONDS, StoreFuture, resolve_all


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def future(timeout: float = RESULT_SECONDS) -> StoreFuture[int]:
    return StoreFuture(threading.Lock(), timeout)


def waiting(loop: asyncio.AbstractEventLoop, *wanted: StoreFuture[int]) -> list[asyncio.Task[int]]:
    """Start tasks that wait, one for each future."""

    async def result(one: StoreFuture[int]) -> int:
        return await one

    tasks = [loop.create_task(result(one)) for one in wanted]
    turn(loop)
    return tasks


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_a_task_continues_in_the_loop_iteration_of_its_result(loop: asyncio.AbstractEventLoop) -> None:
    one, other = future(), future()
    tasks = waiting(loop, one, other)

    resolve_all([(one, 1, None), (other, 2, None)])
    turn(loop)

    assert [task.done() and task.result() for task in tasks] == [1, 2]


def test_a_cancelled_task_is_stepped_once_and_abandons_its_result(loop: asyncio.AbstractEventLoop) -> None:
    one = future()
    (task,) = waiting(loop, one)

    task.cancel()
    resolve_all([(one, 1, None)])
    turn(loop)
    turn(loop)

    assert (task.cancelled(), one.abandoned, one.result()) == (True, True, 1)


def test_a_cancelled_task_gets_the_message_of_its_cancellation(loop: asyncio.AbstractEventLoop) -> None:
    """By the message, anyio recognises the timeout of its own scope (`move_on_after`)."""
    (task,) = waiting(loop, future())

    task.cancel("of this scope")
    turn(loop)

    with pytest.raises(asyncio.CancelledError, match="of this scope"):
        loop.run_until_complete(task)


def test_a_task_that_has_its_result_is_not_cancelled_through_its_waiter(loop: asyncio.AbstractEventLoop) -> None:
    one = future()

    async def answer_and_rest() -> int:
        found = await one
        await asyncio.Event().wait()
        return found

    task = loop.create_task(answer_and_rest())
    turn(loop)
    resolve_all([(one, 1, None)])
    turn(loop)
    assert one.waiter is not None
    assert one.waiter.cancel() is False
    task.cancel()
    turn(loop)

    assert (task.cancelled(), one.abandoned) == (True, False)


def test_an_interrupt_in_one_step_leaves_no_other_task_waiting(loop: asyncio.AbstractEventLoop) -> None:
    one, other = future(), future(SECONDS_MAX)

    async def interrupted() -> None:
        await one
        raise KeyboardInterrupt

    first = loop.create_task(interrupted())
    (second,) = waiting(loop, other)
    resolve_all([(one, 1, None), (other, 2, None)])

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(second)

    assert loop.run_until_complete(asyncio.wait_for(second, RESULT_SECONDS)) == 2
    with pytest.raises(KeyboardInterrupt):
        first.result()


def test_a_task_keeps_its_own_context(loop: asyncio.AbstractEventLoop) -> None:

    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def ask(name: str, one: StoreFuture[int]) -> None:
        who.set(name)
        await one
        seen.append(who.get())

    one, other = future(), future()
    tasks = [loop.create_task(ask("ada", one)), loop.create_task(ask("bob", other))]
    turn(loop)
    resolve_all([(one, 1, None), (other, 2, None)])
    loop.run_until_complete(asyncio.gather(*tasks))

    assert seen == ["ada", "bob"]


class PinnedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock only the test moves."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_a_result_in_the_loop_iteration_of_the_timeout_is_used() -> None:
    """Like the end of a machine's sleep, when all timers are due at once."""
    with closing(PinnedLoop()) as loop:
        one = future(timeout=1)
        (task,) = waiting(loop, one)
        loop.call_later(2, resolve_all, [(one, 1, None)])
        loop.now += 10

        assert loop.run_until_complete(task) == 1
