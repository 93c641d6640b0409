"""Brain of the fan-out benchmark: it waits for a start signal and then sends a given number of deltas.

The message is JSON: `go` is a file that is created when all clients are connected, `deltas` the number of deltas.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from onceward.turns import Brain, Context

# About as long as a delta of a model.
_DELTA = "a few words of "


def _appeared(go: Path) -> None:
    while not go.exists():
        time.sleep(0.002)


async def speak(context: Context) -> str:
    order = json.loads(context.text)
    await asyncio.to_thread(_appeared, Path(order["go"]))
    for _ in range(order["deltas"]):
        await context.say(_DELTA)
    return ""


brain = Brain(speak)
