"""Turns as DBOS workflows, on a real PostgreSQL: answered once, whoever is killed and whatever DBOS is told to do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dbos import DBOS
from tests.backends import Servers
from tests.system.nursery import Nursery
from tests.turns.core.house import Held, HeldRun, echo
from tests.turns.core.worker import FilePost
from tests.turns.runners.desk import at_desk
from tests.waiting import SECONDS_MAX, soon

from onceward.turns import Brain, State
from onceward.turns.runners.dbos import workflow_id


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with closing(Nursery("tests.turns.runners.desk")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def url(nursery: Nursery, servers: Servers, postgres_template: str) -> str:  # noqa: ARG001  # it imports meanwhile
    """One for all of these tests: DBOS makes many tables. Each test has a session of its own and finishes its turns."""
    return servers.postgres.create_database(postgres_template)


def test_each_attempt_of_a_turn_is_a_workflow(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail_first(run: HeldRun) -> str:
        if run.turn.attempts == 1:
            raise ValueError("not today")
        return f"{run.context.text}, at last"

    async def story() -> None:
        async with at_desk(url, Held(act=fail_first).brain) as desk:
            turn_id = (await desk.say("hello", "attempts")).turn_id
            await soon(lambda: desk.turn(turn_id).state is State.COMPLETE)
            await desk.idle()

            assert desk.turn(turn_id).answer == "hello, at last"
            me = desk.runner.executor_id
            assert desk.workflows(turn_id) == [(":1", "SUCCESS", me), (":2", "SUCCESS", me)]
        # The threads of the loop, which DBOS makes its own, are there for others when it is gone.
        assert await asyncio.to_thread(os.getpid) == os.getpid()

    asyncio.run(story())
    assert "not today" in caplog.text


def test_however_often_a_turn_is_woken_it_runs_once(url: str) -> None:
    async def story() -> None:
        held = Held()
        async with at_desk(url, held.brain) as desk:
            turn_id = (await desk.say("hello", "woken")).turn_id
            desk.runner.wake(turn_id)
            run = await held.began()
            desk.runner.wake(turn_id)
            await desk.runner.sweep_once()
            run.answer.set_result("once")
            await desk.idle()
            desk.runner.wake(turn_id)
            await desk.idle()

            assert desk.turn(turn_id).answer == "once"
            assert len(held.runs) == 1
            assert desk.workflows(turn_id) == [(":1", "SUCCESS", desk.runner.executor_id)]

    asyncio.run(story())


def test_a_superseded_run_is_cancelled_within_its_workflow(url: str) -> None:
    async def story() -> None:
        held = Held()
        async with at_desk(url, held.brain) as desk:
            first = (await desk.say("a red one", "superseded")).turn_id
            run = await held.began()
            second = (await desk.say("no, a blue one", "superseded")).turn_id
            await asyncio.wait_for(run.cancelled.wait(), SECONDS_MAX)
            (await held.began()).answer.set_result("a blue one")
            await desk.idle()

            assert (desk.turn(first).state, desk.turn(second).answer) == (State.SUPERSEDED, "a blue one")

    asyncio.run(story())


def test_a_turn_whose_runner_stopped_goes_on_with_the_next_and_what_dbos_resumes_runs_nothing(url: str) -> None:
    async def story() -> None:
        held = Held()
        async with at_desk(url, held.brain) as desk:
            turn_id = (await desk.say("hello", "stopped")).turn_id
            await held.began()
        left = desk.runner.executor_id
        async with at_desk(url, held.brain) as desk:
            assert desk.runner.executor_id != left
            (await held.began()).answer.set_result("hello again")
            await soon(lambda: desk.turn(turn_id).state is State.COMPLETE)
            await desk.idle()
            attempts = [(":1", "CANCELLED", left), (":2", "SUCCESS", desk.runner.executor_id)]
            assert desk.workflows(turn_id) == attempts

            resumed = await asyncio.to_thread(DBOS.resume_workflow, workflow_id(turn_id, 1))
            assert await asyncio.to_thread(resumed.get_result) == {"ending": "over", "at": None, "next_turn": None}

            assert (len(held.runs), desk.turn(turn_id).answer) == (2, "hello again")

    asyncio.run(story())


def test_a_second_process_takes_over_from_one_that_was_killed_and_not_before(
    url: str, nursery: Nursery, tmp_path: Path
) -> None:
    post = FilePost(tmp_path / "post")
    reads, writes = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    pid = nursery.bear([url, str(tmp_path / "post"), "killed"], nothing, writes)
    os.close(nothing)
    os.close(writes)
    with os.fdopen(reads) as said:
        turn_id = said.readline().strip()

    async def story() -> None:
        async with at_desk(url, Brain(echo), adapter=post) as desk:
            # It lives, and what it began is its own.
            await desk.runner.sweep_once()
            desk.runner.wake(turn_id)
            await desk.idle()
            assert (desk.turn(turn_id).state, desk.turn(turn_id).attempts) == (State.PROCESSING, 1)
            ((_, status, theirs),) = desk.workflows(turn_id)
            assert (status, theirs == desk.runner.executor_id) == ("PENDING", False)

            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(SECONDS_MAX):
                while desk.turn(turn_id).delivered_at is None:
                    await desk.runner.sweep_once()
                    await desk.idle()
            assert desk.turn(turn_id).answer == "You said: hello"
            assert desk.workflows(turn_id) == [(":1", "CANCELLED", theirs), (":2", "SUCCESS", desk.runner.executor_id)]
            assert post.sent == [(turn_id, "You said: hello")]

    asyncio.run(story())
