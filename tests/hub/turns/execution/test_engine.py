"""The normal course of a turn: a message arrives, a brain answers, and the response is delivered."""

from __future__ import annotations

import asyncio
import json

from tests.hub.turns.turn_harness import TurnHarness, echo, opened

from onceward.hub.db.engine import Database
from onceward.ledger import Ledger
from onceward.turns import Brain, State


def test_a_message_is_answered_by_the_brain(database: Database, ledger: Ledger) -> None:
    async def story() -> None:
        async with opened(TurnHarness(database, ledger, Brain(echo))) as harness:
            received = await harness.say("hello")
            assert received.status == "new"
            await harness.idle()

            turn = harness.turn(received.turn_id)
            assert (turn.state, turn.answer) == (State.COMPLETE, "You said: hello")
            assert (turn.epoch, turn.attempts, turn.effects_started) == (1, 1, 0)
            assert turn.delivered_at is not None
            assert [event.name for event in harness.events()] == ["turn.message_received", "turn.completed"]
            assert json.loads(harness.events()[-1].data)["turn_id"] == turn.id

    asyncio.run(story())
