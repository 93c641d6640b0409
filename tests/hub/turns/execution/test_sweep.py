"""The sweep: it finds every turn that is due, a page at a time."""

from __future__ import annotations

import asyncio

from tests.hub.turns.turn_harness import RecordingChannel, TurnHarness, echo

from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.sweep import SweepCursor, find_due
from onceward.ledger.open import open_ledger
from onceward.turns import Brain


def test_a_sweep_reaches_every_turn_however_many_there_are(database: Database) -> None:
    async def story() -> None:
        with open_ledger("memory:") as ledger:
            harness = TurnHarness(database, ledger, Brain(echo), adapter=RecordingChannel())
            await harness.runner.stop()  # so that nothing begins by itself
            turn_ids = [(await harness.say("hello", session_key=f"{number}")).turn_id for number in range(7)]
            harness.write("UPDATE turns SET state = 'complete' WHERE seq % 2 = 0")
            found: list[str] = []
            cursor = SweepCursor()
            for _ in range(6):
                with database.read() as tx:
                    swept = find_due(tx, "9", {}, cursor, limit=2)
                assert len(swept.due) <= 4
                found += swept.due
                cursor = swept.cursor

            # And then from the beginning again.
            assert set(found) == set(turn_ids)
            assert len(found) > len(turn_ids)

    asyncio.run(story())
