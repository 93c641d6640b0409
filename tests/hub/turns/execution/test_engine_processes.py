"""Several processes with one database and one ledger: each turn runs once, and each session in its order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from tests.hub.turns.turn_harness import ManualClock, TurnHarness, opened

from onceward.hub.db.engine import Database
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Context, Decision, State, Turn

SESSIONS = 6
MESSAGES = 36


class OneRunPerSessionBrain:
    """A brain that records the messages of each session, and checks that it runs only once in a session at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.texts: dict[str, list[str]] = defaultdict(list)
        self.at_work: set[str] = set()
        self.brain = Brain(self._run, decide=lambda *_: Decision.QUEUE)

    async def _run(self, context: Context) -> str:
        session = context.turn.session_key
        assert session not in self.at_work
        self.at_work.add(session)
        try:
            for _ in range(self._rng.randrange(4)):
                await asyncio.sleep(0)
            self.texts[session].append(context.text)
            return context.text
        finally:
            self.at_work.remove(session)


def test_messages_sent_to_any_process_are_answered_once_and_in_order(database: Database, durable_url: str) -> None:
    rng = random.Random(7)
    watching = OneRunPerSessionBrain(rng)
    now = ManualClock()

    async def sweeping(harness: TurnHarness) -> None:
        while True:
            await harness.runner.sweep_once()
            await asyncio.sleep(0)

    async def story(ledger: Ledger) -> None:
        harnesses = [TurnHarness(database, ledger, watching.brain, now, workers=4) for _ in range(3)]
        async with opened(harnesses[0]), opened(harnesses[1]), opened(harnesses[2]):
            sweeps = [asyncio.create_task(sweeping(harness)) for harness in harnesses]
            sent: dict[str, list[str]] = defaultdict(list)

            async def talk(session: str) -> None:
                for number in range(MESSAGES // SESSIONS):
                    received = await rng.choice(harnesses).say(f"{number}", session_key=session)
                    sent[session].append(received.turn_id)

            await asyncio.gather(*(talk(f"{number}") for number in range(SESSIONS)))
            while any(turn.state is not State.COMPLETE for turn in every(harnesses[0], sent)):
                await harnesses[0].sweep()
            for sweep in sweeps:
                sweep.cancel()
            await asyncio.wait(sweeps)

            assert len(every(harnesses[0], sent)) == MESSAGES
            for session, turn_ids in sent.items():
                texts = [str(number) for number in range(MESSAGES // SESSIONS)]
                assert watching.texts[session] == texts
                assert [harnesses[0].turn(turn_id).answer for turn_id in turn_ids] == texts
            completed = [event.entity_id for event in harnesses[0].events() if event.name == "turn.completed"]
            assert len(completed) == len(set(completed)) == MESSAGES

    def every(harness: TurnHarness, sent: dict[str, list[str]]) -> list[Turn]:
        return [harness.turn(turn_id) for turn_ids in sent.values() for turn_id in turn_ids]

    with open_ledger(durable_url) as ledger:
        asyncio.run(story(ledger))
