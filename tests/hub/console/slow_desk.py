"""A refund desk that waits for the number of the order: the next message supersedes its turn."""

from __future__ import annotations

import asyncio

from onceward.hub import refund_desk
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context

_FOREVER_SECONDS = 600


async def answer(context: Context) -> str:
    if not any(one.isdigit() for one in context.text):
        await asyncio.sleep(_FOREVER_SECONDS)
    return await refund_desk.answer(context)


brain = Brain(answer, toolbox=refund_desk.brain.toolbox)
