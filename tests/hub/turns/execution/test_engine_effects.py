"""Every decision, for every class of side effect, before, during and after the effect: in the world there is one."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.hub.turns.turn_harness import ManualClock, TurnHarness, opened
from tests.waiting import SECONDS_MAX

from onceward.hub.db.engine import Database
from onceward.hub.turns.model.turn import tools_of
from onceward.ledger.open import open_ledger
from onceward.ledger.terms import Effect
from onceward.tools.call import Call
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox
from onceward.turns import Brain, Context, Decision, Received, State

SUPERSEDE, ABSORB, QUEUE, FORCE = Decision.SUPERSEDE, Decision.ABSORB, Decision.QUEUE, Decision.FORCE_COMPLETE
WANTED = (None, SUPERSEDE, ABSORB, QUEUE, FORCE)
POINTS = ("before", "during", "after")


@dataclass
class World:
    """External effects by session, and a brain that stops at the point that the test names."""

    effect: Effect
    point: str
    wanted: Decision | None
    happened: Counter[str] = field(default_factory=Counter)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def at(self, point: str) -> None:
        if point == self.point:
            self.reached.set()
            await self.go_on.wait()

    async def act(self, thing: str) -> str:
        self.happened["begun"] += 1
        await self.at("during")
        self.happened["done"] += 1
        return f"did {thing}"

    async def take_back(self, thing: str, call: Call) -> None:
        assert call.arguments == {"thing": thing}
        self.happened["undone"] += 1

    async def run(self, context: Context) -> str:
        if "act" not in context.text:
            return "nothing to do"
        await self.at("before")
        envelope = await context.call("act", thing="x")
        await self.at("after")
        return f"{envelope.status}: {envelope.result}"

    def brain(self) -> Brain:
        undo = self.take_back if self.effect is Effect.COMPENSATABLE else None
        declared = tool(effect=self.effect, name="act", key_fields=["thing"], undo=undo)(self.act)
        return Brain(self.run, Toolbox([declared]), decide=lambda *_: self.wanted)


def expected(effect: Effect, point: str, wanted: Decision | None) -> Decision:
    """Return the expected decision: pure calls are not side effects, and an irreversible call that has begun is the
    commit point.
    """
    fired = point != "before" and effect is not Effect.PURE
    if wanted is None:
        return QUEUE if fired else SUPERSEDE
    if wanted in {SUPERSEDE, ABSORB} and fired and effect is Effect.IRREVERSIBLE:
        return QUEUE
    return wanted


async def story(database: Database, world: World, session: str) -> None:
    with open_ledger("memory:") as ledger:
        async with opened(TurnHarness(database, ledger, world.brain(), ManualClock())) as harness:
            first = await harness.say("act", session_key=session)
            await asyncio.wait_for(world.reached.wait(), SECONDS_MAX)
            second = await harness.say("more", session_key=session)
            world.go_on.set()
            await harness.idle()

            assert second.decision is expected(world.effect, world.point, world.wanted)
            check_world(world, second.decision)
            check_rows(harness, world, first, second)


def check_world(world: World, decision: Decision) -> None:
    happened = world.happened
    if world.effect is Effect.PURE:
        return
    assert happened["done"] - happened["undone"] <= 1
    if world.effect is Effect.IRREVERSIBLE:
        assert (happened["begun"], happened["done"]) == (1, 1)
    elif decision in {QUEUE, FORCE} or world.point == "before":
        assert (happened["begun"], happened["done"], happened["undone"]) == (1, 1, 0)
    elif world.effect is Effect.IDEMPOTENT:
        # A cancelled effect runs again; a finished one does not.
        assert (happened["begun"], happened["done"]) == ((2, 1) if world.point == "during" else (1, 1))
    else:
        # Everything that the superseded run did, or may have done, is undone once before it runs again.
        assert (happened["begun"], happened["undone"]) == (2, 1)
        assert happened["done"] == (1 if world.point == "during" else 2)


def check_rows(harness: TurnHarness, world: World, first: Received, second: Received) -> None:
    waiting = second.decision in {QUEUE, FORCE}
    turns = [harness.turn(one.turn_id) for one in (first, second)]
    finished = turns if waiting else turns[1:]
    assert [turn.state for turn in finished] == [State.COMPLETE] * len(finished)
    replayed = world.effect is Effect.IDEMPOTENT and world.point == "after" and not waiting
    assert finished[0].answer == ("replayed: did x" if replayed else "done: did x")
    irreversible = world.effect is Effect.IRREVERSIBLE and second.decision is not SUPERSEDE
    assert turns[0].commit_point == (irreversible or second.decision is FORCE)
    with harness.database.read() as tx:
        calls = [call for turn in dict.fromkeys(turn.id for turn in turns) for call in tools_of(tx, harness.turn(turn))]
    if world.effect is Effect.PURE:
        assert calls == []
        assert [turn.effects_started for turn in turns] == [0, 0]
    else:
        assert [call.status for call in calls][-1] == "done"
        assert calls[-1].receipt is not None
    if world.happened["undone"]:
        assert calls[0].status == ("failed" if world.point == "during" else "undone")


@pytest.mark.parametrize("effect", list(Effect), ids=str)
def test_there_is_one_effect_for_every_decision_at_every_step(database: Database, effect: Effect) -> None:
    for point in POINTS:
        for wanted in WANTED:
            world = World(effect, point, wanted)
            try:
                asyncio.run(story(database, world, f"{point} {wanted}"))
            except AssertionError as error:
                error.add_note(f"{effect}, {point} the effect, the brain wants {wanted}: {world.happened}")
                raise


def test_nothing_runs_again_before_its_effect_is_undone(database: Database) -> None:
    """An undo that fails is repeated with the next attempt; until it succeeds, the brain does not start."""
    world = World(Effect.COMPENSATABLE, "after", SUPERSEDE)
    log: list[str] = []
    failures = [RuntimeError("not now")]

    async def act(thing: str) -> str:
        log.append("done")
        return await world.act(thing)

    async def take_back(thing: str) -> None:
        log.append("undo")
        if failures:
            raise failures.pop()
        assert thing == "x"

    async def whole() -> None:
        declared = tool(effect="compensatable", name="act", key_fields=["thing"], undo=take_back)(act)
        brain = Brain(world.run, Toolbox([declared]), decide=lambda *_: SUPERSEDE)
        with open_ledger("memory:") as ledger:
            async with opened(TurnHarness(database, ledger, brain, ManualClock())) as harness:
                await harness.say("act")
                await asyncio.wait_for(world.reached.wait(), SECONDS_MAX)
                second = await harness.say("more")
                world.go_on.set()
                await harness.idle()

                turn = harness.turn(second.turn_id)
                assert (turn.state, turn.failures, turn.answer) == (State.COMPLETE, 1, "done: did x")
                assert log == ["done", "undo", "undo", "done"]

    asyncio.run(whole())
