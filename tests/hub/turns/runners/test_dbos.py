"""Turns as DBOS workflows, on a real PostgreSQL: answered once, whatever is killed and whatever DBOS resumes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS
from tests.backends import Servers
from tests.faults.fork_server import ForkServer
from tests.hub.turns.runners.dbos_process import running_harness, workflows
from tests.hub.turns.turn_harness import BlockedRun, BlockingBrain, echo
from tests.hub.turns.turn_process import FileChannel
from tests.unrun_blocks import execute, unrun_block
from tests.waiting import SECONDS_MAX, soon

from onceward.hub.db.engine import open_database
from onceward.hub.turns.runners.dbos import DbosRunner, workflow_id
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Engine, State, TurnGateway, UserMessage, get_turn


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer("tests.hub.turns.runners.dbos_process")) as fork_server:
        yield fork_server


@pytest.fixture(scope="module")
def url(fork_server: ForkServer, servers: Servers, postgres_template: str) -> str:  # noqa: ARG001  # it imports meanwhile
    """One for all of these tests: DBOS makes many tables. Each test has a session of its own and finishes its turns."""
    return servers.postgres.create_database(postgres_template)


def test_each_attempt_of_a_turn_is_a_workflow(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail_first(run: BlockedRun) -> str:
        if run.turn.attempts == 1:
            raise ValueError("not today")
        return f"{run.context.text}, at last"

    async def story() -> None:
        async with running_harness(url, BlockingBrain(act=fail_first).brain) as harness:
            turn_id = (await harness.say("hello", "attempts")).turn_id
            await soon(lambda: harness.turn(turn_id).state is State.COMPLETE)
            await harness.idle()

            assert harness.turn(turn_id).answer == "hello, at last"
            me = harness.runner.executor_id
            assert harness.workflows(turn_id) == [(":1", "SUCCESS", me), (":2", "SUCCESS", me)]
        # DBOS uses the threads of the loop; later tests need them again.
        assert await asyncio.to_thread(os.getpid) == os.getpid()

    asyncio.run(story())
    assert "not today" in caplog.text


def test_the_runner_of_the_guide_answers_a_turn(url: str) -> None:
    async def story() -> None:
        with closing(open_database(url)) as database, open_ledger(url) as ledger:
            brain = Brain(echo)
            names: dict[str, Any] = {"engine": Engine(database, ledger, brain)}
            block = unrun_block("docs/guides/turns-runners.md", "DbosRunner")
            execute(block, names, {"postgresql://localhost/hub": url})
            runner: DbosRunner = names["runner"]
            gateway = TurnGateway(database, brain, runner)
            await runner.start()
            try:
                turn_id = (await gateway.receive_message(UserMessage(content="hello", session_key="guide"))).turn_id
                await asyncio.wait_for(runner.idle(), SECONDS_MAX)
            finally:
                await runner.stop()
            with database.read() as tx:
                assert get_turn(tx, "local", turn_id).answer == "You said: hello"
        found = await asyncio.to_thread(workflows, url, turn_id)
        assert found == [(":1", "SUCCESS", runner.executor_id)]

    asyncio.run(story())


def test_however_often_a_turn_is_woken_it_runs_once(url: str) -> None:
    async def story() -> None:
        blocking = BlockingBrain()
        async with running_harness(url, blocking.brain) as harness:
            turn_id = (await harness.say("hello", "woken")).turn_id
            harness.runner.wake(turn_id)
            run = await blocking.began()
            harness.runner.wake(turn_id)
            await harness.runner.sweep_once()
            run.answer.set_result("once")
            await harness.idle()
            harness.runner.wake(turn_id)
            await harness.idle()

            assert harness.turn(turn_id).answer == "once"
            assert len(blocking.runs) == 1
            assert harness.workflows(turn_id) == [(":1", "SUCCESS", harness.runner.executor_id)]

    asyncio.run(story())


def test_a_superseded_run_is_cancelled_within_its_workflow(url: str) -> None:
    async def story() -> None:
        blocking = BlockingBrain()
        async with running_harness(url, blocking.brain) as harness:
            first = (await harness.say("a red one", "superseded")).turn_id
            run = await blocking.began()
            second = (await harness.say("no, a blue one", "superseded")).turn_id
            await asyncio.wait_for(run.cancelled.wait(), SECONDS_MAX)
            (await blocking.began()).answer.set_result("a blue one")
            await harness.idle()

            assert (harness.turn(first).state, harness.turn(second).answer) == (State.SUPERSEDED, "a blue one")

    asyncio.run(story())


def test_a_turn_of_a_stopped_runner_continues_with_the_next_and_a_resumed_workflow_runs_nothing(url: str) -> None:
    async def story() -> None:
        blocking = BlockingBrain()
        async with running_harness(url, blocking.brain) as harness:
            turn_id = (await harness.say("hello", "stopped")).turn_id
            await blocking.began()
        left = harness.runner.executor_id
        async with running_harness(url, blocking.brain) as harness:
            assert harness.runner.executor_id != left
            (await blocking.began()).answer.set_result("hello again")
            await soon(lambda: harness.turn(turn_id).state is State.COMPLETE)
            await harness.idle()
            attempts = [(":1", "CANCELLED", left), (":2", "SUCCESS", harness.runner.executor_id)]
            assert harness.workflows(turn_id) == attempts

            resumed = await asyncio.to_thread(DBOS.resume_workflow, workflow_id(turn_id, 1))
            assert await asyncio.to_thread(resumed.get_result) == {"ending": "over", "at": None, "next_turn": None}

            assert (len(blocking.runs), harness.turn(turn_id).answer) == (2, "hello again")

    asyncio.run(story())


def test_a_second_process_takes_over_only_from_a_killed_one(url: str, fork_server: ForkServer, tmp_path: Path) -> None:
    channel = FileChannel(tmp_path / "post")
    reads, writes = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    pid = fork_server.fork([url, str(tmp_path / "post"), "killed"], nothing, writes)
    os.close(nothing)
    os.close(writes)
    with os.fdopen(reads) as output:
        turn_id = output.readline().strip()

    async def story() -> None:
        async with running_harness(url, Brain(echo), adapter=channel) as harness:
            # It lives, and what it began is its own.
            await harness.runner.sweep_once()
            harness.runner.wake(turn_id)
            await harness.idle()
            assert (harness.turn(turn_id).state, harness.turn(turn_id).attempts) == (State.PROCESSING, 1)
            ((_, status, theirs),) = harness.workflows(turn_id)
            assert (status, theirs == harness.runner.executor_id) == ("PENDING", False)

            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(SECONDS_MAX):
                while harness.turn(turn_id).delivered_at is None:
                    await harness.runner.sweep_once()
                    await harness.idle()
            assert harness.turn(turn_id).answer == "You said: hello"
            assert harness.workflows(turn_id) == [
                (":1", "CANCELLED", theirs),
                (":2", "SUCCESS", harness.runner.executor_id),
            ]
            assert channel.sent == [(turn_id, "You said: hello")]

    asyncio.run(story())
