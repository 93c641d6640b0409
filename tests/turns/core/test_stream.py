"""What a brain says on the way, and what its tools do, is recorded before anybody sees it, and only for its own run."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import text
from tests.turns.core.house import Held, HeldRun, House, decides, opened
from tests.waiting import SECONDS_MAX

from onceward.core.canonical import Json
from onceward.db.engine import Database
from onceward.errors import InvalidOption, NotFound
from onceward.open import open_ledger
from onceward.turns import Brain, Context, Decision, State, StreamPage, stream_page, tools_of
from onceward.turns.stream import append_chunks, read_chunks
from onceward.turns.tool import tool
from onceward.turns.toolbox import Toolbox


def page(database: Database, turn_id: str, version: int = 0, after: int = 0, limit: int = 500) -> StreamPage:
    with database.read() as tx:
        return stream_page(tx, "local", turn_id, version, after, limit)


def texts(found: StreamPage) -> list[Json]:
    return [json.loads(chunk.data)["text"] for chunk in found.chunks]


def test_what_a_brain_says_is_stored_before_it_goes_on_and_told_to_whoever_listens(database: Database) -> None:
    seen: list[tuple[list[Json], State]] = []
    told: list[str] = []

    async def speak(context: Context) -> str:
        for word in ("one", "two", "three"):
            await context.say(word)
            found = page(database, context.turn.id)
            seen.append((texts(found), found.turn.state))
        return "one two three"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(speak), told=told.append)) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                assert [words for words, _ in seen] == [["one"], ["one", "two"], ["one", "two", "three"]]
                assert {state for _, state in seen} == {State.PROCESSING}
                assert told == [turn_id] * 4
                found = page(database, turn_id)
                assert (found.turn.state, found.version) == (State.COMPLETE, 1)
                assert [(chunk.seq, chunk.event) for chunk in found.chunks] == [
                    (1, "delta"),
                    (2, "delta"),
                    (3, "delta"),
                ]
                assert texts(page(database, turn_id, 1, 2)) == ["three"]
                assert texts(page(database, turn_id, 1, 0, 2)) == ["one", "two"]
                with house.database.read() as tx, pytest.raises(NotFound):
                    stream_page(tx, "somebody else", turn_id)

    asyncio.run(story())


def test_a_run_that_begins_anew_begins_a_new_stream(database: Database) -> None:
    """Whoever has read half of the first one is shown the second one from its beginning."""

    async def speak(run: HeldRun) -> Json:
        await run.context.say(f"to {' and '.join(run.said)}")
        if len(run.said) == 1:
            return await run.answer
        return "both"

    held = Held(decides(Decision.ABSORB), act=speak)

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, held.brain, told=lambda _: spoken.set())) as house:
                turn_id = (await house.say("one")).turn_id
                await asyncio.wait_for(spoken.wait(), SECONDS_MAX)
                assert texts(page(database, turn_id, 1, 0)) == ["to one"]
                await house.say("two")
                await house.idle()

                found = page(database, turn_id, 1, 1)
                assert (found.version, texts(found)) == (2, ["to one and two"])
                with house.database.read() as tx:
                    assert len(read_chunks(tx, turn_id, 1)) == 1
                with house.database.write() as tx:
                    assert append_chunks(tx, turn_id, 2, [("delta", "{}")]) == 0
                    assert append_chunks(tx, turn_id, 1, [("delta", "{}")]) == 0

    spoken = asyncio.Event()
    asyncio.run(story())


def test_a_brain_that_says_many_things_at_once_loses_none(database: Database) -> None:
    async def speak(context: Context) -> str:
        await asyncio.gather(*(context.say(str(number)) for number in range(20)))
        # What is given up in the middle does not disturb what follows.
        late = asyncio.create_task(context.say("late"))
        await asyncio.sleep(0)
        late.cancel()
        await context.say("last")
        return "done"

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(speak))) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                assert house.turn(turn_id).answer == "done"
                said = [one for one in texts(page(database, turn_id)) if one != "late"]
                assert said[-1] == "last"
                assert {str(one) for one in said[:-1]} == {str(number) for number in range(20)}

    asyncio.run(story())


def test_a_tool_call_is_shown_with_its_result_and_a_repeated_one_as_replayed(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        return f"refunded {order}"

    async def desk(context: Context) -> Json:
        return [(await context.call("refund", order="7")).json() for _ in range(2)]

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(desk, Toolbox([refund])))) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                turn = house.turn(turn_id)
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
                assert house.rows("SELECT count(*) FROM turn_tools") == [(1,)]

    asyncio.run(story())


def test_what_a_run_could_not_finish_recording_is_recorded_by_the_run_that_replays_it(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        return f"refunded {order}"

    async def desk(context: Context) -> Json:
        envelope = await context.call("refund", order="7")
        if context.attempt == 1:
            # What a process leaves that dies between its effect and the record of it.
            with database.write() as tx:
                tx.execute(text("UPDATE turn_tools SET status = 'started', receipt = NULL"))
            raise RuntimeError("gone")
        return envelope.json()

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(desk, Toolbox([refund])))) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                turn = house.turn(turn_id)
                with database.read() as tx:
                    (call,) = tools_of(tx, turn)
                assert isinstance(turn.answer, dict)
                assert (turn.answer["status"], calls) == ("replayed", ["7"])
                assert (call.status, call.epoch, call.receipt) == ("done", 1, turn.answer["receipt"])

    asyncio.run(story())


def test_a_call_that_is_found_in_doubt_is_recorded_so(database: Database) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order"])
    def refund(order: str) -> str:
        calls.append(order)
        raise OSError("the line broke")

    async def desk(context: Context) -> Json:
        envelope = await context.call("refund", order="7")
        if context.attempt == 1:
            # What a process leaves that dies inside of its effect.
            with database.write() as tx:
                tx.execute(text("UPDATE turn_tools SET status = 'started'"))
            raise RuntimeError("gone")
        return envelope.json()

    async def story() -> None:
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, Brain(desk, Toolbox([refund])))) as house:
                turn_id = (await house.say("hello")).turn_id
                await house.idle()

                turn = house.turn(turn_id)
                with database.read() as tx:
                    (call,) = tools_of(tx, turn)
                assert isinstance(turn.answer, dict)
                assert (turn.answer["status"], calls) == ("unknown", ["7"])
                assert (call.status, call.epoch, call.receipt) == ("unknown", 1, None)

    asyncio.run(story())


def test_a_context_has_what_the_turn_is_about(database: Database) -> None:
    seen: list[Context] = []

    async def look(context: Context) -> object:
        seen.append(context)
        with pytest.raises(InvalidOption):
            await context.call("anything")
        return await context.artifact("parsing", lambda: {"words": context.text.split()})

    async def story() -> None:
        brain = Brain(look, versions={"rules_version": "3"}, reuse={"parsing": {"scope": "same_input"}})
        with open_ledger("memory:") as ledger:
            async with opened(House(database, ledger, brain)) as house:
                turn_id = (await house.say("to be", metadata={"mood": "sad"}, message_id="m")).turn_id
                await house.idle()

                (context,) = seen
                assert house.turn(turn_id).answer == {"words": ["to", "be"]}
                assert (context.text, context.attempt, context.versions) == ("to be", 1, {"rules_version": "3"})
                (message,) = context.messages
                assert (message.message_id, message.metadata) == ("m", {"mood": "sad"})
                assert house.rows("SELECT name FROM artifacts") == [("parsing",)]

    asyncio.run(story())
