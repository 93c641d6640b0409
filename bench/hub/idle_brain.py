"""Brain of the load benchmark: it answers at once, so that only the hub's own cost of a turn is measured."""

from __future__ import annotations

from onceward.turns import Brain, Context


async def answer(_context: Context) -> str:
    return "ok"


brain = Brain(answer)
