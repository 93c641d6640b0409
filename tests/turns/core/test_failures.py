"""Brains that raise, channels that refuse, stores that do not answer: what is tried again, how often, and by whom."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.turns.core.house import Held, House, Post, decides, echo, opened
from tests.waiting import SECONDS_MAX, soon

from onceward.db.engine import Database
from onceward.errors import NotDone, StoreUnavailable
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.terms import Effect
from onceward.turns import Brain, Context, Decision, State, Turn
from onceward.turns.engine import BROKEN_OFF_MAX
from onceward.turns.sweep import Place, look


class Failing:
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


def test_a_brain_that_raises_is_tried_again_under_a_new_epoch(database: Database, ledger: Ledger) -> None:
    failing = Failing(RuntimeError("1"), asyncio.CancelledError(), ValueError("a\0\ud800"))

    async def story() -> None:
        async with opened(House(database, ledger, failing.brain, max_attempts=4)) as house:
            turn = house.turn((await house.say("hello")).turn_id)
            await house.idle()

            turn = house.turn(turn.id)
            assert (turn.state, turn.answer, turn.failures) == (State.COMPLETE, "done", 3)
            assert failing.attempts == [(1, 1), (2, 2), (3, 3), (4, 4)]

    asyncio.run(story())


def test_a_turn_fails_after_its_attempts_and_the_next_one_goes_on(database: Database, ledger: Ledger) -> None:
    failing = Failing(*(RuntimeError(str(number)) for number in range(3)))
    brain = Brain(failing.brain.run, decide=decides(Decision.QUEUE))

    async def story() -> None:
        async with opened(House(database, ledger, brain)) as house:
            first = await house.say("one")
            second = await house.say("two")
            await house.idle()

            failed = house.turn(first.turn_id)
            assert (failed.state, failed.failure, failed.failures) == (State.FAILED, "RuntimeError: 2", 3)
            assert (failed.response, failed.delivered_at) == (None, None)
            assert house.turn(second.turn_id).answer == "done"
            assert [event.name for event in house.events()][2:] == ["turn.failed", "turn.completed"]

    asyncio.run(story())


def test_what_has_no_json_form_is_no_response(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            house = House(database, ledger, Brain(lambda _context: object()), max_attempts=1)
            async with opened(house):
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                assert house.turn(turn_id).state is State.FAILED

    asyncio.run(story())


@pytest.mark.parametrize("answer", [None, "", 0, [], {"text": "hé\0llo", "buttons": [1, 2.5, True]}], ids=repr)
def test_every_json_value_is_a_response(database: Database, answer: object) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(lambda _context: answer))) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                assert (house.turn(turn_id).state, house.turn(turn_id).answer) == (State.COMPLETE, answer)

    asyncio.run(story())


def test_a_store_that_does_not_answer_is_not_the_fault_of_the_turn(database: Database, ledger: Ledger) -> None:
    failing = Failing(*(StoreUnavailable("down") for _ in range(5)))

    async def story() -> None:
        async with opened(House(database, ledger, failing.brain)) as house:
            turn_id = (await house.say("hello")).turn_id
            await house.idle()
            for _ in range(5):
                await house.sweep()

            turn = house.turn(turn_id)
            assert (turn.state, turn.failures, turn.attempts) == (State.COMPLETE, 0, 6)

    asyncio.run(story())


def test_a_turn_rests_after_a_failure_and_nobody_tries_it_before(database: Database) -> None:
    failing = Failing(RuntimeError("1"))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            house = House(database, ledger, failing.brain, retry_seconds=(30.0,))
            async with opened(house):
                turn_id = (await house.say("hello")).turn_id
                await house.idle()
                house.runner.wake(turn_id)
                await house.sweep()
                assert len(failing.attempts) == 1
                house.now.advance(30)
                await house.runner.stop()
            other = House(database, ledger, failing.brain, house.now)
            async with opened(other):
                await other.sweep()
                assert other.turn(turn_id).answer == "done"

    asyncio.run(story())


def test_a_turn_that_takes_its_processes_down_with_it_is_given_up(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(echo))) as house:
                await house.runner.stop()
                turn_id = (await house.say("hello")).turn_id
            for attempts, state in ((BROKEN_OFF_MAX, State.FAILED), (BROKEN_OFF_MAX - 1, State.COMPLETE)):
                house.write("UPDATE turns SET state = 'processing', attempts = :attempts", attempts=attempts)
                async with opened(House(database, ledger, Brain(echo), house.now)) as other:
                    await other.sweep()
                    assert other.turn(turn_id).state is state

    asyncio.run(story())


# Delivery.


class Refusing(Post):
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


def delivered(database: Database, ledger: Ledger, post: Refusing, sweeps: int) -> Turn:
    async def story() -> Turn:
        async with opened(House(database, ledger, Brain(echo), adapter=post)) as house:
            turn_id = (await house.say("hello")).turn_id
            await house.idle()
            assert house.turn(turn_id).state is State.COMPLETE
            for _ in range(sweeps):
                # Instead of waiting until it has rested.
                house.runner.wake(turn_id)
                await house.idle()
            return house.turn(turn_id)

    return asyncio.run(story())


def test_what_a_channel_did_not_take_is_sent_later(database: Database, ledger: Ledger) -> None:
    post = Refusing(NotDone("busy"), NotDone("busy"))
    turn = delivered(database, ledger, post, 3)

    assert turn.delivered_at is not None
    assert (post.tries, len(post.sent)) == (3, 1)


def test_what_may_have_been_sent_is_not_sent_again(database: Database, ledger: Ledger) -> None:
    """An operator finds it among the claims in doubt."""
    post = Refusing(RuntimeError("the line broke"))
    turn = delivered(database, ledger, post, 3)

    assert turn.delivered_at is None
    assert post.tries == 1
    page = ledger.blocking.scan(status="in_doubt")
    assert [entry.key for entry in page.entries] == [f"{turn.tenant_id}:{turn.id}"]


def test_a_channel_that_recognises_its_messages_gets_them_again(database: Database, ledger: Ledger) -> None:
    post = Refusing(RuntimeError("the line broke"), effect=Effect.IDEMPOTENT)
    turn = delivered(database, ledger, post, 1)

    assert turn.delivered_at is not None
    assert (post.tries, len(post.sent)) == (2, 1)


def test_a_response_that_a_channel_refuses_rests_longer_and_longer(database: Database) -> None:
    post = Refusing(*(NotDone("busy") for _ in range(9)))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(echo), adapter=post)) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()
                rests = []
                for _ in range(8):
                    (timer,) = house.runner._timers.values()
                    rests.append(round(timer.when() - asyncio.get_running_loop().time()))
                    await house.sweep()
                    assert post.tries == len(rests)
                    house.runner.wake(turn_id)
                    await house.idle()

                assert rests == [1, 2, 4, 8, 16, 32, 60, 60]

    asyncio.run(story())


# Runs and their runner.


def test_a_runner_that_stops_gives_its_turns_to_others_at_once(database: Database, ledger: Ledger) -> None:
    held = Held()

    async def story() -> None:
        first = House(database, ledger, held.brain)
        turn_id = (await first.say("hello")).turn_id
        run = await held.began()
        await first.runner.stop()
        assert run.cancelled.is_set()
        assert first.turn(turn_id).state is State.PROCESSING
        async with opened(House(database, ledger, Brain(echo), first.now)) as second:
            await second.sweep()
            assert second.turn(turn_id).answer == "You said: hello"

    asyncio.run(story())


def test_a_runner_may_let_runs_finish_before_it_stops_and_takes_on_no_more(database: Database) -> None:
    held = Held(decides(Decision.QUEUE))

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            house = House(database, ledger, held.brain)
            first = await house.say("one")
            second = await house.say("two")
            run = await held.began()
            await soon(lambda: list(house.runner._tasks) == [first.turn_id], "the second message does not wait")
            asyncio.get_running_loop().call_soon(run.answer.set_result, "done")
            await house.runner.stop(grace_seconds=30)
            house.runner.wake(second.turn_id)

            assert house.turn(first.turn_id).answer == "done"
            assert house.turn(second.turn_id).state is State.ACCUMULATING
            assert len(held.runs) == 1

    asyncio.run(story())


def test_a_run_that_is_superseded_elsewhere_hears_of_it_by_the_sweep(database: Database, ledger: Ledger) -> None:
    held = Held()

    async def story() -> None:
        here = House(database, ledger, held.brain)
        elsewhere = House(database, ledger, Brain(echo), here.now)
        async with opened(here), opened(elsewhere):
            await here.say("one")
            run = await held.began()
            second = await elsewhere.say("two")
            await elsewhere.idle()
            assert not run.cancelled.is_set()
            await here.runner.sweep_once()
            await asyncio.wait_for(run.cancelled.wait(), SECONDS_MAX)
            await here.idle()

            assert second.decision is Decision.SUPERSEDE
            assert here.turn(second.turn_id).answer == "You said: one\ntwo"

    asyncio.run(story())


def test_brains_that_block_their_threads_keep_no_message_from_being_stored(database: Database) -> None:
    """A `def` brain runs in a thread, and of these there are not many."""
    release = threading.Event()

    def slow(_context: Context) -> str:
        release.wait()
        return "done"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(slow), workers=64)) as house:
                try:
                    every = [house.say("hello", session_key=f"{number}") for number in range(48)]
                    received = await asyncio.wait_for(asyncio.gather(*every), SECONDS_MAX)
                finally:
                    release.set()
                await house.idle()

                assert {house.turn(one.turn_id).answer for one in received} == {"done"}

    asyncio.run(story())


def test_a_sweep_comes_to_every_turn_however_many_there_are(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            house = House(database, ledger, Brain(echo), adapter=Post())
            await house.runner.stop()  # so that nothing begins by itself
            turn_ids = [(await house.say("hello", session_key=f"{number}")).turn_id for number in range(7)]
            house.write("UPDATE turns SET state = 'complete' WHERE seq % 2 = 0")
            found: list[str] = []
            place = Place()
            for _ in range(6):
                with database.read() as tx:
                    looked = look(tx, "9", {}, place, limit=2)
                assert len(looked.due) <= 4
                found += looked.due
                place = looked.place

            # And then from the beginning again.
            assert set(found) == set(turn_ids)
            assert len(found) > len(turn_ids)

    asyncio.run(story())
