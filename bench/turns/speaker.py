"""A brain that says as much as it is told to, once it is told to begin: what the hub of the fan-out runs.

The message is JSON: `go` is a file that appears when everybody listens, `deltas` how much is said then.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from onceward.turns import Brain, Context

# As long as a few words of a model.
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
