"""A task that waits for an answer is stepped by whoever brings it: once, however it ends, and whatever the others do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from tests.waiting import SECONDS_MAX

from onceward.store.pending import ANSWER_SECONDS, Pending, tell


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def pending(patience: float = ANSWER_SECONDS) -> Pending[int]:
    return Pending(threading.Lock(), patience)


def waiting(loop: asyncio.AbstractEventLoop, *wanted: Pending[int]) -> list[asyncio.Task[int]]:
    """Tasks that have begun to wait, one for each."""

    async def answer(one: Pending[int]) -> int:
        return await one

    tasks = [loop.create_task(answer(one)) for one in wanted]
    turn(loop)
    return tasks


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_the_step_comes_in_the_turn_in_which_the_answer_does(loop: asyncio.AbstractEventLoop) -> None:
    one, other = pending(), pending()
    tasks = waiting(loop, one, other)

    tell([(one, 1, None), (other, 2, None)])
    turn(loop)

    assert [task.done() and task.result() for task in tasks] == [1, 2]


def test_a_task_that_is_cancelled_is_stepped_once_and_abandons_its_answer(loop: asyncio.AbstractEventLoop) -> None:
    one = pending()
    (task,) = waiting(loop, one)

    task.cancel()
    tell([(one, 1, None)])
    turn(loop)
    turn(loop)

    assert (task.cancelled(), one.abandoned, one.result()) == (True, True, 1)


def test_a_task_that_was_told_is_not_cancelled_by_what_it_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    one = pending()

    async def answer_and_rest() -> int:
        found = await one
        await asyncio.Event().wait()
        return found

    task = loop.create_task(answer_and_rest())
    turn(loop)
    tell([(one, 1, None)])
    turn(loop)
    assert one.waiter is not None
    assert one.waiter.cancel() is False
    task.cancel()
    turn(loop)

    assert (task.cancelled(), one.abandoned) == (True, False)


def test_an_interrupt_in_one_step_keeps_nobody_else_waiting(loop: asyncio.AbstractEventLoop) -> None:
    one, other = pending(), pending(SECONDS_MAX)

    async def interrupted() -> None:
        await one
        raise KeyboardInterrupt

    first = loop.create_task(interrupted())
    (second,) = waiting(loop, other)
    tell([(one, 1, None), (other, 2, None)])

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(second)

    assert loop.run_until_complete(asyncio.wait_for(second, ANSWER_SECONDS)) == 2
    with pytest.raises(KeyboardInterrupt):
        first.result()


def test_a_task_keeps_its_own_context(loop: asyncio.AbstractEventLoop) -> None:

    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def ask(name: str, one: Pending[int]) -> None:
        who.set(name)
        await one
        seen.append(who.get())

    one, other = pending(), pending()
    tasks = [loop.create_task(ask("ada", one)), loop.create_task(ask("bob", other))]
    turn(loop)
    tell([(one, 1, None), (other, 2, None)])
    loop.run_until_complete(asyncio.gather(*tasks))

    assert seen == ["ada", "bob"]


def test_an_answer_that_comes_in_the_turn_in_which_patience_ends_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    """As after a long sleep of the machine, when everything is due at once."""
    one = pending(patience=0.001)
    (task,) = waiting(loop, one)
    loop.call_later(0.002, tell, [(one, 1, None)])
    threading.Event().wait(0.01)  # the loop stands still meanwhile

    assert loop.run_until_complete(task) == 1
