"""Turns with an empty brain, from the received message to the recorded response and its notification."""

from __future__ import annotations

import asyncio
import itertools
import time

from bench.load import Effects, Mode, Scenario
from bench.names import TURNS
from onceward import open_ledger
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.turns import Brain, Context, Engine, LocalRunner, TurnGateway, UserMessage

SCENARIOS = (Scenario(Mode.FRESH, 1), Scenario(Mode.FRESH, 64))


class Turns:
    """Contestant whose callers are sessions: each sends its next message after the response to the last one."""

    name = TURNS

    def __init__(self, url: str, ledger_url: str) -> None:
        self._database = open_database(url)
        self._ledger = open_ledger(ledger_url)
        self._effects = Effects()
        self._numbers = itertools.count()

    def warm(self) -> None:
        migrate(self._database)
        for scenario in SCENARIOS:
            self.rate(scenario, 0.0)

    def rate(self, scenario: Scenario, seconds: float) -> float:
        self._effects.forget()
        count, took = asyncio.run(self._talk(scenario.callers, seconds))
        self._effects.check(Mode.FRESH, count)
        return count / took

    def close(self) -> None:
        self._ledger.close()
        self._database.close()

    async def _talk(self, sessions: int, seconds: float) -> tuple[int, float]:
        answered: dict[str, asyncio.Event] = {}

        def answered_of(turn_id: str) -> asyncio.Event:
            return answered.setdefault(turn_id, asyncio.Event())

        async def think(_context: Context) -> str:
            self._effects()
            return ""

        brain = Brain(think)
        engine = Engine(self._database, self._ledger, brain, told=lambda turn_id: answered_of(turn_id).set())
        runner = LocalRunner(engine, sweep_seconds=3600.0)
        gateway = TurnGateway(self._database, brain, runner)
        await runner.start()
        began = time.perf_counter()

        async def session(number: int) -> int:
            count = 0
            while not count or time.perf_counter() - began < seconds:
                received = await gateway.receive_message(
                    UserMessage(content="x", session_key=f"s{number}", message_id=f"m{next(self._numbers)}")
                )
                await answered_of(received.turn_id).wait()
                count += 1
            return count

        counts = await asyncio.gather(*map(session, range(sessions)))
        await runner.idle()
        took = time.perf_counter() - began
        await runner.stop()
        return sum(counts), took
