"""Deltas of a brain, and the calls of its tools, are recorded before they are visible, and only for their own run."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import text
from tests.hub.turns.turn_harness import BlockedRun, BlockingBrain, TurnHarness, decides, opened
from tests.waiting import SECONDS_MAX

from onceward.core.canonical import Json
from onceward.errors import InvalidOption, NotFound
from onceward.hub.db.engine import Database
from onceward.hub.turns.model.stream import append_chunks, read_chunks
from onceward.ledger.open import open_ledger
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox
from onceward.turns import Brain, Context, Decision, State, StreamPage, stream_page, tools_of


def page(database: Database, turn_id: str, version: int = 0, after: int = 0, limit: int = 500) -> StreamPage:
    with database.read() as tx:
        return stream_page(tx, "local", turn_id, version, after, limit)


def texts(found: StreamPage) -> list[Json]:
    return [json.loads(chunk.data)["text"] for chunk in found.chunks]


def test_a_delta_is_stored_before_the_brain_continues_and_notified(database: Database) -> None:
    seen: list[tuple[list[Json], State]] = []
    notified: list[str] = []

    async def say_parts(context: Context) -> str:
        for word in ("one", "two", "three"):
            await context.say(word)
            found = page(database, context.turn.id)
            seen.append((texts(found), found.turn.state))
        return "one two three"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(say_parts), told=notified.append)) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                assert [words for words, _ in seen] == [["one"], ["one", "two"], ["one", "two", "three"]]
                assert {state for _, state in seen} == {State.PROCESSING}
                assert notified == [turn_id] * 4
                found = page(database, turn_id)
                assert (found.turn.state, found.version) == (State.COMPLETE, 1)
                assert [(chunk.seq, chunk.event) for chunk in found.chunks] == [
                    (1, "delta"),
                    (2, "delta"),
                    (3, "delta"),
                ]
                assert texts(page(database, turn_id, 1, 2)) == ["three"]
                assert texts(page(database, turn_id, 1, 0, 2)) == ["one", "two"]
                with harness.database.read() as tx, pytest.raises(NotFound):
                    stream_page(tx, "somebody else", turn_id)

    asyncio.run(story())


def test_a_restarted_run_starts_a_new_stream(database: Database) -> None:
    """A follower that has read half of the first stream gets the second one from its start."""

    async def say_parts(run: BlockedRun) -> Json:
        await run.context.say(f"to {' and '.join(run.message_texts)}")
        if len(run.message_texts) == 1:
            return await run.answer
        return "both"

    blocking = BlockingBrain(decides(Decision.ABSORB), act=say_parts)

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, blocking.brain, told=lambda _: notified.set())) as harness:
                turn_id = (await harness.say("one")).turn_id
                await asyncio.wait_for(notified.wait(), SECONDS_MAX)
                assert texts(page(database, turn_id, 1, 0)) == ["to one"]
                await harness.say("two")
                await harness.idle()

                found = page(database, turn_id, 1, 1)
                assert (found.version, texts(found)) == (2, ["to one and two"])
                with harness.database.read() as tx:
                    assert len(read_chunks(tx, turn_id, 1)) == 1
                with harness.database.write() as tx:
                    assert append_chunks(tx, turn_id, 2, [("delta", "{}")]) == 0
                    assert append_chunks(tx, turn_id, 1, [("delta", "{}")]) == 0

    notified = asyncio.Event()
    asyncio.run(story())


def test_a_brain_that_sends_many_deltas_concurrently_loses_none(database: Database) -> None:
    async def say_parts(context: Context) -> str:
        await asyncio.gather(*(context.say(str(number)) for number in range(20)))
        # A cancelled call does not disturb later ones.
        late = asyncio.create_task(context.say("late"))
        await asyncio.sleep(0)
        late.cancel()
        await context.say("last")
        return "done"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(say_parts))) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                assert harness.turn(turn_id).answer == "done"
                chunks = [one for one in texts(page(database, turn_id)) if one != "late"]
                assert chunks[-1] == "last"
                assert {str(one) for one in chunks[:-1]} == {str(number) for number in range(20)}

    asyncio.run(story())


def test_a_tool_call_is_shown_with_its_result_and_a_repeated_one_as_replayed(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        return f"refunded {order}"

    async def refund_brain(context: Context) -> Json:
        return [(await context.call("refund", order="7")).json() for _ in range(2)]

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(refund_brain, Toolbox([refund])))) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                turn = harness.turn(turn_id)
                shown = [(chunk.event, json.loads(chunk.data)) for chunk in page(database, turn_id).chunks]
                assert [event for event, _ in shown] == ["tool", "tool"]
                assert [data for _, data in shown] == turn.answer
                assert [(data["status"], data["result"]) for _, data in shown] == [
                    ("done", "refunded 7"),
                    ("replayed", "refunded 7"),
                ]
                assert calls == ["7"]
                # A replayed call records none.
                assert (turn.effects_started, turn.commit_point) == (1, True)
                assert harness.rows("SELECT count(*) FROM turn_tools") == [(1,)]

    asyncio.run(story())


def test_a_call_that_a_run_could_not_finish_recording_is_recorded_by_its_replay(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        return f"refunded {order}"

    async def refund_brain(context: Context) -> Json:
        envelope = await context.call("refund", order="7")
        if context.attempt == 1:
            # Leftovers of a process that dies between its effect and its record.
            with database.write() as tx:
                tx.execute(text("UPDATE turn_tools SET status = 'started', receipt = NULL"))
            raise RuntimeError("gone")
        return envelope.json()

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(refund_brain, Toolbox([refund])))) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                turn = harness.turn(turn_id)
                with database.read() as tx:
                    (call,) = tools_of(tx, turn)
                assert isinstance(turn.answer, dict)
                assert (turn.answer["status"], calls) == ("replayed", ["7"])
                assert (call.status, call.epoch, call.receipt) == ("done", 1, turn.answer["receipt"])

    asyncio.run(story())


def test_a_call_found_in_doubt_is_recorded_as_such(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        raise OSError("the line broke")

    async def refund_brain(context: Context) -> Json:
        envelope = await context.call("refund", order="7")
        if context.attempt == 1:
            # Leftovers of a process that dies inside its effect.
            with database.write() as tx:
                tx.execute(text("UPDATE turn_tools SET status = 'started'"))
            raise RuntimeError("gone")
        return envelope.json()

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, Brain(refund_brain, Toolbox([refund])))) as harness:
                turn_id = (await harness.say("hello")).turn_id
                await harness.idle()

                turn = harness.turn(turn_id)
                with database.read() as tx:
                    (call,) = tools_of(tx, turn)
                assert isinstance(turn.answer, dict)
                assert (turn.answer["status"], calls) == ("unknown", ["7"])
                assert (call.status, call.epoch, call.receipt) == ("unknown", 1, None)

    asyncio.run(story())


def test_a_context_has_the_messages_and_the_turn(database: Database) -> None:
    seen: list[Context] = []

    async def compute(context: Context) -> object:
        seen.append(context)
        with pytest.raises(InvalidOption):
            await context.call("anything")
        return await context.artifact("parsing", lambda: {"words": context.text.split()})

    async def story() -> None:
        brain = Brain(compute, versions={"rules_version": "3"}, reuse={"parsing": {"scope": "same_input"}})
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, brain)) as harness:
                turn_id = (await harness.say("to be", metadata={"mood": "sad"}, message_id="m")).turn_id
                await harness.idle()

                (context,) = seen
                assert harness.turn(turn_id).answer == {"words": ["to", "be"]}
                assert (context.text, context.attempt, context.versions) == ("to be", 1, {"rules_version": "3"})
                (message,) = context.messages
                assert (message.message_id, message.metadata) == ("m", {"mood": "sad"})
                assert harness.rows("SELECT name FROM artifacts") == [("parsing",)]

    asyncio.run(story())
