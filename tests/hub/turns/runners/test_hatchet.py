"""The steps of the Hatchet workflow, run by the SDK's own mock: one after the other, again, and out of order."""

from __future__ import annotations

import asyncio
import datetime
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.turns.runners.hatchet_token import TOKEN
from tests.hub.turns.turn_harness import BlockedRun, BlockingBrain, ManualClock, RecordingChannel, decides, echo
from tests.waiting import SECONDS_MAX, soon

from onceward.core.canonical import Json
from onceward.errors import NotDone
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.turns.model.turn import find_turn
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Decision, Engine, State, Turn, TurnGateway, UserMessage

with warnings.catch_warnings():
    # The SDK's: it calls what its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from hatchet_sdk import ClientConfig, Hatchet, NonRetryableException
    from hatchet_sdk.config import ClientTLSConfig, TenacityConfig

    from onceward.hub.turns.runners.hatchet import TurnInput, Undelivered
    from onceward.turns.runners.hatchet import HatchetRunner, turn_workflow


@pytest.fixture(scope="module")
def hatchet() -> Hatchet:
    """A client of an engine that does not exist."""
    nowhere = ClientConfig(
        token=TOKEN,
        tls_config=ClientTLSConfig(strategy="none"),
        tenacity=TenacityConfig(max_attempts=1),
    )
    return Hatchet(config=nowhere)


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    (tmp_path / "hub.db").write_bytes(sqlite_template.read_bytes())
    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database:
        migrate(database)
        yield database


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger("memory:") as ledger:
        yield ledger


class HatchetHarness:
    """One process whose turns run step by step."""

    def __init__(
        self,
        hatchet: Hatchet,
        database: Database,
        ledger: Ledger,
        brain: Brain,
        clock: ManualClock | None = None,
        **options: Any,
    ) -> None:
        now = clock or ManualClock()
        self.engine = Engine(database, ledger, brain, **{"retry_seconds": (0.0,), "now": now, **options})
        self.steps = turn_workflow(hatchet, self.engine)
        self.gateway = TurnGateway(database, brain, now=now)
        self._database = database

    async def say(self, content: str, channel: str = "api") -> str:
        return (await self.gateway.receive_message(UserMessage(content=content, channel=channel))).turn_id

    def turn(self, turn_id: str) -> Turn:
        with self._database.read() as tx:
            found = find_turn(tx, turn_id)
        assert found is not None
        return found

    async def all_steps(self, turn_id: str) -> dict[str, Any]:
        """Run the steps as Hatchet would: each one gets the results of those before it. Return the result of the last
        one.
        """
        given: dict[str, Any] = {}
        for task in (self.steps.acquire, self.steps.accumulate, self.steps.run_agent, self.steps.commit_and_respond):
            given[task.name] = await step(task, turn_id, given)
        assert list(given) == ["acquire", "accumulate", "run_agent", "commit_and_respond"]
        found: dict[str, Any] = given["commit_and_respond"]
        return found


async def step(task: Any, turn_id: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    running = task.aio_mock_run(TurnInput(turn_id), parent_outputs=given or {})
    output: dict[str, Any] = await asyncio.wait_for(running, SECONDS_MAX)
    return output


def test_the_steps_answer_a_turn_and_give_the_same_answer_when_repeated(
    hatchet: Hatchet, database: Database, ledger: Ledger
) -> None:
    async def answer(run: BlockedRun) -> Json:
        return {"you said": run.context.text}

    async def story() -> None:
        blocking, channel = BlockingBrain(act=answer), RecordingChannel()
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain, adapter=channel)
        turn_id = await harness.say("hello")
        first = await harness.all_steps(turn_id)

        assert first == {
            "turn_id": turn_id,
            "state": "complete",
            "epoch": 1,
            "response": {"you said": "hello"},
            "failure": None,
            "superseded_by": None,
        }
        assert await harness.all_steps(turn_id) == first
        assert (len(blocking.runs), channel.sent) == (1, [(turn_id, {"you said": "hello"})])

    asyncio.run(story())


def test_messages_that_join_an_accumulating_turn_are_waited_for(
    hatchet: Hatchet, database: Database, ledger: Ledger
) -> None:
    async def story() -> None:
        clock, clock_read = ManualClock(), asyncio.Event()

        def read_clock() -> datetime.datetime:
            clock_read.set()
            return clock()

        harness = HatchetHarness(hatchet, database, ledger, Brain(echo), clock, now=read_clock)
        turn_id = await harness.say("one", "web")
        assert (await step(harness.steps.acquire, turn_id))["state"] == "accumulating"
        waiting = asyncio.create_task(step(harness.steps.accumulate, turn_id))
        await asyncio.wait_for(clock_read.wait(), SECONDS_MAX)
        clock.advance(0.3)
        assert await harness.say("two", "web") == turn_id
        # By now, the first message alone would be due.
        clock.advance(0.4)
        clock_read.clear()
        await asyncio.wait_for(clock_read.wait(), SECONDS_MAX)
        assert not waiting.done()
        clock.advance(0.5)
        await waiting

        assert (await harness.all_steps(turn_id))["response"] == "You said: one\ntwo"

    asyncio.run(story())


def test_a_step_of_a_dead_worker_is_run_again_by_another(hatchet: Hatchet, database: Database, ledger: Ledger) -> None:
    async def story() -> None:
        blocking = BlockingBrain()
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain)
        turn_id = await harness.say("hello")
        lost = asyncio.create_task(step(harness.steps.run_agent, turn_id))
        await blocking.began()
        lost.cancel()
        await asyncio.wait({lost})
        again = asyncio.create_task(harness.all_steps(turn_id))
        (await blocking.began()).answer.set_result("here I am")

        assert (await again)["response"] == "here I am"
        assert harness.turn(turn_id).attempts == 2

    asyncio.run(story())


class ClosedChannel:
    """A channel that refuses messages while it is closed."""

    is_closed = True

    async def __call__(self, _turn: Turn) -> None:
        if self.is_closed:
            raise NotDone("the channel is closed")


class Statuses:
    """Records the results of the checks of beats and tool calls."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def checked(self, _key: str, status: str, **_rest: Any) -> None:
        self.found.append(status)


def test_two_workers_with_the_same_step_run_the_brain_once(
    hatchet: Hatchet, database: Database, ledger: Ledger
) -> None:
    async def story() -> None:
        blocking, statuses = BlockingBrain(), Statuses()
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain, observer=statuses)
        turn_id = await harness.say("hello")
        one = asyncio.create_task(harness.all_steps(turn_id))
        run = await blocking.began()
        other = asyncio.create_task(harness.all_steps(turn_id))
        await soon(lambda: "duplicate_processing" in statuses.found)
        run.answer.set_result("once")

        assert (await one) == (await other)
        assert len(blocking.runs) == 1

    asyncio.run(story())


def test_a_failing_brain_is_retried_within_the_step_up_to_its_attempts(
    hatchet: Hatchet, database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_run: BlockedRun) -> Json:
        raise ValueError("not today")

    async def story() -> None:
        blocking = BlockingBrain(act=fail)
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain, max_attempts=2)
        done = await harness.all_steps(await harness.say("hello"))

        assert (done["state"], done["failure"], len(blocking.runs)) == ("failed", "ValueError: not today", 2)

    asyncio.run(story())
    assert "not today" in caplog.text


def test_a_turn_that_waits_for_an_older_one_is_left_to_the_run_of_that_turn(
    hatchet: Hatchet, database: Database, ledger: Ledger
) -> None:
    async def story() -> None:
        blocking = BlockingBrain(decides(Decision.QUEUE))
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain)
        older = await harness.say("one")
        running = asyncio.create_task(step(harness.steps.run_agent, older))
        run = await blocking.began()
        newer = await harness.say("two")
        assert await step(harness.steps.run_agent, newer) == {"ending": "waiting", "next_turn": None}
        run.answer.set_result("the first")

        assert await running == {"ending": "complete", "next_turn": newer}

    asyncio.run(story())


@pytest.mark.parametrize("ending", ["complete", "failed"])
def test_a_repeated_agent_run_gives_the_same_ending_and_the_same_next_turn(
    hatchet: Hatchet, database: Database, ledger: Ledger, ending: str
) -> None:
    """Its worker died after the turn was finished and before Hatchet knew. No other worker starts the next turn."""

    async def story() -> None:
        blocking = BlockingBrain(decides(Decision.QUEUE))
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain, max_attempts=1)
        older = await harness.say("one")
        running = asyncio.create_task(step(harness.steps.run_agent, older))
        run = await blocking.began()
        newer = await harness.say("two")
        if ending == "complete":
            run.answer.set_result("the first")
        else:
            run.answer.set_exception(ValueError("not today"))
        first = await running

        assert first == {"ending": ending, "next_turn": newer}
        assert [await step(harness.steps.run_agent, older) for _ in range(2)] == [first, first]
        # When the next one is finished, too, there is nothing left to start.
        last = asyncio.create_task(step(harness.steps.run_agent, newer))
        (await blocking.began()).answer.set_result("the second")
        assert await last == {"ending": "complete", "next_turn": None}
        assert await step(harness.steps.run_agent, older) == {"ending": ending, "next_turn": None}
        assert len(blocking.runs) == 2

    asyncio.run(story())


def test_a_repeated_agent_run_with_a_pending_delivery_gives_the_next_turn(
    hatchet: Hatchet, database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    closed_channel = ClosedChannel()

    async def story() -> None:
        blocking = BlockingBrain(decides(Decision.QUEUE))
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain, adapter=RecordingChannel(closed_channel))
        older = await harness.say("one")
        running = asyncio.create_task(step(harness.steps.run_agent, older))
        run = await blocking.began()
        newer = await harness.say("two")
        run.answer.set_result("the first")

        assert await running == {"ending": "undelivered", "next_turn": newer}
        closed_channel.is_closed = False
        assert await step(harness.steps.run_agent, older) == {"ending": "complete", "next_turn": newer}

    asyncio.run(story())
    assert "response_not_delivered" in caplog.text


def test_a_repeated_run_of_a_superseded_turn_says_so(hatchet: Hatchet, database: Database, ledger: Ledger) -> None:
    async def story() -> None:
        blocking = BlockingBrain(decides(Decision.SUPERSEDE))
        harness = HatchetHarness(hatchet, database, ledger, blocking.brain)
        older = await harness.say("one")
        running = asyncio.create_task(step(harness.steps.run_agent, older))
        await blocking.began()
        newer = await harness.say("two")
        harness.engine.interrupt(older)
        first = await running

        # The one that took its place was woken with the message that made it.
        assert first == {"ending": "superseded", "next_turn": None}
        assert await step(harness.steps.run_agent, older) == first
        assert harness.turn(newer).state is State.ACCUMULATING

    asyncio.run(story())


def test_a_response_that_the_channel_does_not_accept_is_retried_by_hatchet(
    hatchet: Hatchet, database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    closed_channel = ClosedChannel()

    async def story() -> None:
        channel = RecordingChannel(closed_channel)
        harness = HatchetHarness(hatchet, database, ledger, Brain(echo), adapter=channel)
        turn_id = await harness.say("hello")
        with pytest.raises(Undelivered):
            await harness.all_steps(turn_id)
        closed_channel.is_closed = False

        assert (await harness.all_steps(turn_id))["response"] == "You said: hello"
        assert channel.sent == [(turn_id, "You said: hello")]

    asyncio.run(story())
    assert "response_not_delivered" in caplog.text


def test_an_unknown_turn_is_not_retried(hatchet: Hatchet, database: Database, ledger: Ledger) -> None:
    harness = HatchetHarness(hatchet, database, ledger, Brain(echo))
    with pytest.raises(NonRetryableException, match="turn_none"):
        asyncio.run(harness.all_steps("turn_none"))


def test_a_turn_woken_before_the_runner_stops_is_started_in_hatchet(
    hatchet: Hatchet, database: Database, ledger: Ledger
) -> None:
    async def story() -> None:
        harness = HatchetHarness(hatchet, database, ledger, Brain(echo))

        async def begin(turn_id: str) -> None:
            await harness.all_steps(turn_id)

        runner = HatchetRunner(harness.engine, begin)
        turn_id = await harness.say("hello")
        runner.wake(turn_id)
        await runner.idle()
        await runner.stop()
        late = await harness.say("too late")
        runner.wake(late)
        await runner.idle()

        assert (harness.turn(turn_id).answer, harness.turn(late).answer) == ("You said: hello", None)

    asyncio.run(story())


def test_while_hatchet_is_down_the_sweep_runs_turns(
    hatchet: Hatchet, database: Database, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        harness = HatchetHarness(hatchet, database, ledger, Brain(echo))
        runner = HatchetRunner(harness.engine, harness.steps.start)
        turn_id = await harness.say("hello")
        runner.wake(turn_id)
        await asyncio.wait_for(runner.idle(), SECONDS_MAX)
        assert harness.turn(turn_id).state is State.ACCUMULATING
        await runner.sweep_once()
        await runner.idle()
        await runner.stop()

        assert harness.turn(turn_id).answer == "You said: hello"

    asyncio.run(story())
    assert "hatchet_start_failed" in caplog.text
    assert "the next sweep runs the turn" in caplog.text
