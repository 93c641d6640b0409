"""Brains that raise, channels that refuse, stores that are down: retries and their limits."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.hub.turns.turn_harness import BlockingBrain, RecordingChannel, TurnHarness, decides, echo, opened
from tests.waiting import SECONDS_MAX, soon

from onceward.errors import NotDone, StoreUnavailable
from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.engine import BROKEN_OFF_MAX
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.ledger.terms import Effect
from onceward.turns import Brain, Context, Decision, State, Turn


class FailingBrain:
    """A brain that raises the given errors, one in each run, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.attempts: list[tuple[int, int]] = []
        self.brain = Brain(self._run)

    async def _run(self, context: Context) -> str:
        self.attempts.append((context.attempt, context.turn.epoch))
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def test_a_brain_that_raises_runs_again_under_a_new_epoch(database: Database, ledger: Ledger) -> None:
    failing = FailingBrain(RuntimeError("1"), asyncio.CancelledError(), ValueError("a\0\ud800"))

    async def story() -> None:
        async with opened(TurnHarness(database, ledger, failing.brain, max_attempts=4)) as harness:
            turn = harness.turn((await harness.say("hello")).turn_id)
            await harness.idle()

            turn = harness.turn(turn.id)
            assert (turn.state, turn.answer, turn.failures) == (State.COMPLETE, "done", 3)
            assert failing.attempts == [(1, 1), (2, 2), (3, 3), (4, 4)]

    asyncio.run(story())


def test_a_turn_fails_after_its_attempts_and_the_next_one_runs(database: Database, ledger: Ledger) -> None:
    failing = FailingBrain(*(RuntimeError(str(number)) for number in range(3)))

    async def story() -> None:
        is_queued = asyncio.Event()

        async def run(context: Context) -> object:
            await is_queued.wait()
            return await failing.brain.run(context)

        brain = Brain(run, decide=decides(Decision.QUEUE))
        async with opened(TurnHarness(database, ledger, brain)) as harness:
            first = await harness.say("one")
            second = await harness.say("two")
            is_queued.set()
            await harness.idle()

            failed = harness.turn(first.turn_id)
            assert (failed.state, failed.failure, failed.failures) == (State.FAILED, "RuntimeError: 2", 3)
            assert (failed.response, failed.delivered_at) == (None, None)
            assert harness.turn(second.turn_id).answer == "done"
            assert [event.name for event in harness.events()][2:] == ["turn.failed", "turn.completed"]

    asyncio.run(story())


def test_a_value_without_a_json_form_is_not_a_response(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            harness = TurnHarness(database, ledger, Brain(lambda _context: object()), max_attempts=1)
            async with opened(harness):
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                assert harness.turn(turn_id).state is State.FAILED

    asyncio.run(story())


@pytest.mark.parametrize("answer", [None, "", 0, [], {"text": "hé\0llo", "buttons": [1, 2.5, True]}], ids=repr)
def test_every_json_value_is_a_response(database: Database, answer: object) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(lambda _context: answer))) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                assert (harness.turn(turn_id).state, harness.turn(turn_id).answer) == (State.COMPLETE, answer)

    asyncio.run(story())


def test_a_store_outage_does_not_count_as_an_attempt_of_the_turn(database: Database, ledger: Ledger) -> None:
    failing = FailingBrain(*(StoreUnavailable("down") for _ in range(5)))

    async def story() -> None:
        async with opened(TurnHarness(database, ledger, failing.brain)) as harness:
            turn_id = (await harness.say("hello")).turn_id
            await harness.idle()
            for _ in range(5):
                await harness.sweep()

            turn = harness.turn(turn_id)
            assert (turn.state, turn.failures, turn.attempts) == (State.COMPLETE, 0, 6)

    asyncio.run(story())


def test_a_turn_pauses_after_a_failure_and_no_runner_runs_it_earlier(database: Database) -> None:
    failing = FailingBrain(RuntimeError("1"))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            harness = TurnHarness(database, ledger, failing.brain, retry_seconds=(30.0,))
            async with opened(harness):
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()
                harness.runner.wake(turn_id)
                await harness.sweep()
                assert len(failing.attempts) == 1
                harness.now.advance(30)
                await harness.runner.stop()
            other = TurnHarness(database, ledger, failing.brain, harness.now)
            async with opened(other):
                await other.sweep()
                assert other.turn(turn_id).answer == "done"

    asyncio.run(story())


def test_a_turn_that_crashes_its_processes_is_given_up(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(echo))) as harness:
                await harness.runner.stop()
                turn_id = (await harness.say("hello")).turn_id
            for attempts, state in ((BROKEN_OFF_MAX, State.FAILED), (BROKEN_OFF_MAX - 1, State.COMPLETE)):
                harness.write("UPDATE turns SET state = 'processing', attempts = :attempts", attempts=attempts)
                async with opened(TurnHarness(database, ledger, Brain(echo), harness.now)) as other:
                    await other.sweep()
                    assert other.turn(turn_id).state is state

    asyncio.run(story())


# Delivery.


class FailingChannel(RecordingChannel):
    """Raises the given errors, one for each try, and then sends."""

    def __init__(self, *errors: Exception, effect: Effect = Effect.IRREVERSIBLE) -> None:
        self._errors = list(errors)
        self.tries = 0
        super().__init__(self._refuse)
        self.effect = effect

    async def _refuse(self, _turn: Turn) -> None:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)


def delivered(database: Database, ledger: Ledger, channel: FailingChannel, sweeps: int) -> Turn:
    async def story() -> Turn:
        async with opened(TurnHarness(database, ledger, Brain(echo), adapter=channel)) as harness:
            turn_id = (await harness.say("hello")).turn_id
            await harness.idle()
            assert harness.turn(turn_id).state is State.COMPLETE
            for _ in range(sweeps):
                # Instead of waiting until it has rested.
                harness.runner.wake(turn_id)
                await harness.idle()
            return harness.turn(turn_id)

    return asyncio.run(story())


def test_a_response_that_a_channel_did_not_accept_is_sent_later(database: Database, ledger: Ledger) -> None:
    channel = FailingChannel(NotDone("busy"), NotDone("busy"))
    turn = delivered(database, ledger, channel, 3)

    assert turn.delivered_at is not None
    assert (channel.tries, len(channel.sent)) == (3, 1)


def test_a_response_that_may_have_been_sent_is_not_sent_again(database: Database, ledger: Ledger) -> None:
    """An operator sees it among the claims in doubt."""
    channel = FailingChannel(RuntimeError("the line broke"))
    turn = delivered(database, ledger, channel, 3)

    assert turn.delivered_at is None
    assert channel.tries == 1
    page = ledger.blocking.scan(status="in_doubt")
    assert [entry.key for entry in page.entries] == [f"{turn.tenant_id}:{turn.id}"]


def test_a_channel_that_recognises_its_messages_gets_them_again(database: Database, ledger: Ledger) -> None:
    channel = FailingChannel(RuntimeError("the line broke"), effect=Effect.IDEMPOTENT)
    turn = delivered(database, ledger, channel, 1)

    assert turn.delivered_at is not None
    assert (channel.tries, len(channel.sent)) == (2, 1)


def test_a_response_that_a_channel_refuses_is_retried_with_growing_pauses(database: Database) -> None:
    channel = FailingChannel(*(NotDone("busy") for _ in range(9)))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(echo), adapter=channel)) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()
                rests = []
                for _ in range(8):
                    (timer,) = harness.runner._timers.values()
                    rests.append(round(timer.when() - asyncio.get_running_loop().time()))
                    await harness.sweep()
                    assert channel.tries == len(rests)
                    harness.runner.wake(turn_id)
                    await harness.idle()

                assert rests == [1, 2, 4, 8, 16, 32, 60, 60]

    asyncio.run(story())


# Runs and their runner.


def test_a_stopping_runner_hands_its_turns_over_at_once(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story() -> None:
        first = TurnHarness(database, ledger, blocking.brain)
        turn_id = (await first.say("hello")).turn_id
        run = await blocking.began()
        await first.runner.stop()
        assert run.cancelled.is_set()
        assert first.turn(turn_id).state is State.PROCESSING
        async with opened(TurnHarness(database, ledger, Brain(echo), first.now)) as second:
            await second.sweep()
            assert second.turn(turn_id).answer == "You said: hello"

    asyncio.run(story())


def test_a_stopping_runner_may_finish_its_runs_and_starts_no_new_ones(database: Database) -> None:
    blocking = BlockingBrain(decides(Decision.QUEUE))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            harness = TurnHarness(database, ledger, blocking.brain)
            first = await harness.say("one")
            second = await harness.say("two")
            run = await blocking.began()
            await soon(lambda: list(harness.runner._tasks) == [first.turn_id], "the second message does not wait")
            asyncio.get_running_loop().call_soon(run.answer.set_result, "done")
            await harness.runner.stop(grace_seconds=30)
            harness.runner.wake(second.turn_id)

            assert harness.turn(first.turn_id).answer == "done"
            assert harness.turn(second.turn_id).state is State.ACCUMULATING
            assert len(blocking.runs) == 1

    asyncio.run(story())


def test_a_run_superseded_on_another_hub_learns_of_it_by_the_sweep(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story() -> None:
        here = TurnHarness(database, ledger, blocking.brain)
        elsewhere = TurnHarness(database, ledger, Brain(echo), here.now)
        async with opened(here), opened(elsewhere):
            await here.say("one")
            run = await blocking.began()
            second = await elsewhere.say("two")
            await elsewhere.idle()
            assert not run.cancelled.is_set()
            await here.runner.sweep_once()
            await asyncio.wait_for(run.cancelled.wait(), SECONDS_MAX)
            await here.idle()

            assert second.decision is Decision.SUPERSEDE
            assert here.turn(second.turn_id).answer == "You said: one\ntwo"

    asyncio.run(story())


def test_brains_that_block_their_threads_do_not_delay_the_storing_of_messages(database: Database) -> None:
    """A `def` brain runs in a thread, and the number of threads is limited."""
    release = threading.Event()

    def slow(_context: Context) -> str:
        release.wait()
        return "done"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(slow), workers=64)) as harness:
                try:
                    every = [harness.say("hello", session_key=f"{number}") for number in range(48)]
                    received = await asyncio.wait_for(asyncio.gather(*every), SECONDS_MAX)
                finally:
                    release.set()
                await harness.idle()

                assert {harness.turn(one.turn_id).answer for one in received} == {"done"}

    asyncio.run(story())
