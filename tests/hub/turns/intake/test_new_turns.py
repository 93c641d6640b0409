"""Messages of idle sessions: each begins a turn, many in one transaction; a turn that can run is stored as started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.hub.turns.statement_trace import StatementTrace
from tests.hub.turns.turn_harness import BlockingBrain, ManualClock, TurnHarness, echo, opened
from tests.waiting import SECONDS_MAX

from onceward.errors import StoreClosed
from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.repository import LoadedTurn
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import now_utc
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Decision, Received, State, TurnGateway, UserMessage

# As many as a batch can have and more, so that some wait for the next one.
MANY = 150
COUNTS = "SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM turn_messages)"
# One message and its response, without BEGIN and COMMIT. Before there were batches, it took 37.
STATEMENTS_SQLITE_MAX = 8
STATEMENTS_POSTGRES_MAX = 6


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("memory:")


def run_story(
    database: Database,
    ledger: Ledger,
    story: Callable[[TurnHarness], Awaitable[None]],
    brain: Brain | None = None,
    **options: Any,
) -> None:
    async def whole() -> None:
        with ledger:
            async with opened(TurnHarness(database, ledger, brain or Brain(echo), ManualClock(), **options)) as harness:
                await story(harness)

    asyncio.run(whole())


class RecordingRunner:
    """A runner that records the turns that it gets, and runs none."""

    def __init__(self, *, free: bool = True) -> None:
        self.free = free
        self.reserved: set[str] = set()
        self.started: list[LoadedTurn] = []
        self.woken: list[str] = []

    def reserve(self, turn_id: str) -> bool:
        self.reserved |= {turn_id} if self.free else set()
        return self.free

    def run_started(self, loaded: LoadedTurn) -> None:
        self.reserved.remove(loaded.turn.id)
        self.started.append(loaded)

    def give_up(self, turn_id: str) -> None:
        self.reserved.remove(turn_id)

    def wake(self, turn_id: str) -> None:
        self.woken.append(turn_id)

    def interrupt(self, turn_id: str) -> None:
        pass


class WakingRunner:
    """A runner that hands turns to another process."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, turn_id: str) -> None:
        self.woken.append(turn_id)

    def interrupt(self, turn_id: str) -> None:
        pass


def receive(
    database: Database, runner: RecordingRunner | WakingRunner | None, *messages: UserMessage
) -> list[Received]:
    """Send messages at the same time."""
    gateway = TurnGateway(database, Brain(echo), runner)

    async def all_of_them() -> list[Received]:
        return await asyncio.gather(*map(gateway.receive_message, messages))

    return asyncio.run(all_of_them())


def test_a_turn_that_can_run_is_started_by_the_transaction_that_stores_its_message(
    database: Database, ledger: Ledger
) -> None:
    runner = RecordingRunner()
    (received,) = receive(database, runner, UserMessage(content="hello", metadata={"lang": ["en"]}))
    harness = TurnHarness(database, ledger, Brain(echo))

    (loaded,) = runner.started
    assert runner.woken == []
    assert loaded.fresh
    assert loaded.turn == received.turn == harness.turn(received.turn_id)
    assert (loaded.turn.state, loaded.turn.attempts, loaded.turn.epoch) == (State.PROCESSING, 1, 1)
    assert list(loaded.messages) == harness.messages(received.turn_id)
    assert [event.event_id for event in harness.events()] == [received.event_id]


@pytest.mark.parametrize(
    ("make", "channel"),
    [
        (RecordingRunner, "web"),
        (lambda: RecordingRunner(free=False), "api"),
        (WakingRunner, "api"),
        (lambda: None, "api"),
    ],
    ids=["window", "no-worker", "elsewhere", "no-runner"],
)
def test_a_turn_that_must_wait_is_stored_without_an_attempt(
    database: Database, ledger: Ledger, make: Callable[[], RecordingRunner | WakingRunner | None], channel: str
) -> None:
    runner = make()
    (received,) = receive(database, runner, UserMessage(content="hello", channel=channel))
    harness = TurnHarness(database, ledger, Brain(echo))

    assert received.turn == harness.turn(received.turn_id)
    assert (received.turn.state, received.turn.attempts) == (State.ACCUMULATING, 0)
    assert runner is None or runner.woken == [received.turn_id]


def test_messages_of_many_sessions_at_once_have_their_own_turns_in_the_order_of_the_log(
    database: Database, ledger: Ledger
) -> None:
    runner = RecordingRunner()
    sent = [UserMessage(content=f"text {number}", session_key=f"s{number}") for number in range(MANY)]
    received = receive(database, runner, *sent)
    harness = TurnHarness(database, ledger, Brain(echo))

    for one, message in zip(received, sent, strict=True):
        assert harness.turn(one.turn_id) == one.turn
        assert one.turn.session_key == message.session_key
        assert harness.message_texts(one.turn_id) == [message.content]
    stored = {loaded.turn.id: list(loaded.messages) for loaded in runner.started}
    assert stored == {one.turn_id: harness.messages(one.turn_id) for one in received}
    events = {event.event_id: event.entity_id for event in harness.events()}
    assert events == {one.event_id: one.turn_id for one in received}
    assert len(events) == MANY


@pytest.mark.parametrize("same", [{"message_id": "m"}, {"idempotency_key": "k"}, {}], ids=["id", "key", "content"])
def test_the_same_message_at_once_is_stored_once(database: Database, ledger: Ledger, same: dict[str, Any]) -> None:
    runner = RecordingRunner()
    received = receive(database, runner, *(UserMessage(content="hello", **same) for _ in range(20)))
    harness = TurnHarness(database, ledger, Brain(echo))

    assert not runner.reserved
    assert sorted(one.status for one in received) == ["new"] + ["processing"] * 19
    assert len({one.turn_id for one in received}) == 1
    assert harness.rows(COUNTS) == [(1, 1)]
    assert len(harness.events()) == 1


def test_one_key_in_several_sessions_at_once_belongs_to_one_of_them(database: Database, ledger: Ledger) -> None:
    received = receive(
        database,
        RecordingRunner(),
        *(UserMessage(content="hello", session_key=f"s{number}", idempotency_key="k") for number in range(20)),
    )
    harness = TurnHarness(database, ledger, Brain(echo))

    assert sorted(one.status for one in received) == ["mismatch"] * 19 + ["new"]
    assert harness.rows(COUNTS) == [(1, 1)]


def test_two_messages_of_one_idle_session_at_once_are_decided_about_one_after_the_other(
    database: Database, ledger: Ledger
) -> None:
    first, second = sorted(
        receive(database, RecordingRunner(), UserMessage(content="one"), UserMessage(content="two")),
        key=lambda one: one.event_id or 0,
    )
    harness = TurnHarness(database, ledger, Brain(echo))

    assert (first.decision, second.decision) == (None, Decision.SUPERSEDE)
    assert harness.turn(first.turn_id).superseded_by == second.turn_id
    assert sorted(harness.message_texts(second.turn_id)) == ["one", "two"]


def test_a_session_that_another_transaction_has_locked_is_waited_for(database: Database, ledger: Ledger) -> None:
    """On PostgreSQL the batch does not wait; the message is stored alone."""
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        session = {"principal": "local", "tenant_id": "local", "session_key": "s"}
        with database.write() as tx:
            transitions.lock_session(tx, session)
            locked.set()
            release.wait(SECONDS_MAX)

    async def story(harness: TurnHarness) -> None:
        holding = asyncio.create_task(asyncio.to_thread(hold))
        await asyncio.to_thread(locked.wait, SECONDS_MAX)
        saying = asyncio.create_task(harness.say("hello", session_key="s"))
        done, _ = await asyncio.wait({saying}, timeout=0.2)
        assert not done
        release.set()
        received = await asyncio.wait_for(saying, SECONDS_MAX)
        await holding
        await harness.idle()

        assert harness.turn(received.turn_id).state is State.COMPLETE
        assert harness.message_texts(received.turn_id) == ["hello"]

    run_story(database, ledger, story)


def test_a_started_turn_that_waits_for_a_worker_and_is_superseded_does_not_run(
    database: Database, ledger: Ledger
) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        await harness.say("first", session_key="a")
        run = await blocking.began()
        waiting = await harness.say("one", session_key="b")
        assert waiting.turn.state is State.PROCESSING
        newer = await harness.say("two", session_key="b")
        run.answer.set_result("done")
        second = await blocking.began()
        second.answer.set_result("both")
        await harness.idle()

        assert newer.decision is Decision.SUPERSEDE
        assert second.message_texts == ["one", "two"]
        assert len(blocking.runs) == 2
        assert harness.turn(waiting.turn_id).state is State.SUPERSEDED
        assert harness.turn(newer.turn_id).answer == "both"

    run_story(database, ledger, story, blocking.brain, workers=1)


def test_a_busy_runner_does_not_start_a_turn_that_would_wait_behind_many(database: Database, ledger: Ledger) -> None:
    blocking = BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        received = [await harness.say("hello", session_key=f"s{number}") for number in range(4)]
        assert [one.turn.state for one in received] == [State.PROCESSING] * 3 + [State.ACCUMULATING]
        for _ in received:
            (await blocking.began()).answer.set_result("done")
        await harness.idle()
        assert {harness.turn(one.turn_id).state for one in received} == {State.COMPLETE}

    run_story(database, ledger, story, blocking.brain, workers=1)


def test_a_turn_takes_two_transactions_and_few_statements(database: Database, ledger: Ledger) -> None:
    trace = StatementTrace(database)

    async def story(harness: TurnHarness) -> None:
        await harness.say("open the connections", session_key="other")
        await harness.idle()
        trace.clear()
        received = await harness.say("hello", session_key="s")
        await harness.idle()
        commits, statements = trace.commits, list(trace.statements)

        assert harness.turn(received.turn_id).state is State.COMPLETE
        assert commits == 2
        assert len(statements) <= (STATEMENTS_SQLITE_MAX if database.is_sqlite else STATEMENTS_POSTGRES_MAX), statements

    run_story(database, ledger, story)


def test_many_turns_at_once_take_hardly_more_statements_than_one(database: Database, ledger: Ledger) -> None:
    trace = StatementTrace(database)

    async def story(harness: TurnHarness) -> None:
        received = await asyncio.gather(*(harness.say("hello", session_key=f"s{number}") for number in range(32)))
        await harness.idle()
        commits, statements = trace.commits, list(trace.statements)

        assert {harness.turn(one.turn_id).state for one in received} == {State.COMPLETE}
        # On SQLite, each message is looked up by itself, on the event loop.
        lookups = 32 if database.is_sqlite else 0
        assert len(statements) - lookups < 4 * 32
        assert commits < 32

    run_story(database, ledger, story, workers=32)


def test_a_known_message_takes_one_read_and_no_transaction(database: Database, ledger: Ledger) -> None:
    trace = StatementTrace(database)

    async def story(harness: TurnHarness) -> None:
        await harness.say("hello", idempotency_key="k")
        await harness.idle()
        trace.clear()
        duplicate = await harness.say("hello", idempotency_key="k")

        assert duplicate.status == "complete"
        (statement,) = trace.statements
        assert statement.startswith("SELECT")
        assert trace.commits == 0

    run_story(database, ledger, story)


def test_a_duplicate_is_recognised_while_another_process_holds_the_write_lock(
    database: Database, ledger: Ledger
) -> None:
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write() as tx:
            transitions.lock_session(tx, {"principal": "local", "tenant_id": "local", "session_key": "s"})
            locked.set()
            release.wait(SECONDS_MAX)

    async def story(harness: TurnHarness) -> None:
        await harness.say("hello", session_key="s", message_id="m")
        await harness.idle()
        holding = asyncio.create_task(asyncio.to_thread(hold))
        await asyncio.to_thread(locked.wait, SECONDS_MAX)
        duplicate = await asyncio.wait_for(harness.say("hello", session_key="s", message_id="m"), SECONDS_MAX)
        assert not holding.done()
        release.set()
        await holding
        assert duplicate.status == "complete"

    run_story(database, ledger, story)


def test_a_started_turn_whose_process_died_before_the_claim_is_run_by_the_sweep(
    database: Database, ledger: Ledger
) -> None:
    (received,) = receive(database, RecordingRunner(), UserMessage(content="hello"))

    async def story(harness: TurnHarness) -> None:
        harness.now.time = now_utc()
        await harness.sweep()
        turn = harness.turn(received.turn_id)
        assert (turn.state, turn.attempts, turn.epoch) == (State.COMPLETE, 2, 2)
        assert turn.answer == "You said: hello"

    run_story(database, ledger, story)


def test_a_sweep_leaves_a_turn_alone_that_its_own_process_is_about_to_run(database: Database, ledger: Ledger) -> None:
    """Between the commit and the runner, the row looks like one whose process has died."""

    async def story(harness: TurnHarness) -> None:
        runner = harness.runner
        run_started = runner.run_started
        held: list[LoadedTurn] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "run_started", held.append)
            received = await harness.say("hello")
        (loaded,) = held
        await harness.sweep()
        assert harness.turn(received.turn_id) == received.turn
        run_started(loaded)
        await harness.idle()
        turn = harness.turn(received.turn_id)
        assert (turn.state, turn.attempts, turn.epoch) == (State.COMPLETE, 1, 1)

    run_story(database, ledger, story)


def test_a_turn_that_another_process_took_between_commit_and_claim_is_answered_once(
    database: Database, ledger: Ledger
) -> None:
    first, second = BlockingBrain(), BlockingBrain()

    async def story(harness: TurnHarness) -> None:
        async with opened(TurnHarness(database, ledger, second.brain, harness.now)) as other:
            held: list[LoadedTurn] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(harness.runner, "run_started", held.append)
                received = await harness.say("hello")
            await other.runner.sweep_once()
            run = await second.began()
            harness.runner.run_started(held[0])
            await harness.idle()
            run.answer.set_result("theirs")
            await other.idle()

            turn = harness.turn(received.turn_id)
            assert (turn.state, turn.answer, turn.epoch) == (State.COMPLETE, "theirs", 2)
            assert first.runs == []

    run_story(database, ledger, story, first.brain)


def test_a_message_that_could_not_be_stored_leaves_no_reservation(database: Database) -> None:
    runner = RecordingRunner()
    database.writer.close()

    with pytest.raises(StoreClosed):
        receive(database, runner, UserMessage(content="hello"))
    assert not runner.reserved
