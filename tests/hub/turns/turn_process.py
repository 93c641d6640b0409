"""A process that receives messages, answers them, and kills itself after a step of its choice.

Run by a fork_server as `main(DATABASE, LEDGER, CHANNEL, STEP, WAY)`: CHANNEL is the file that every sent response adds a
line to, and WAY is how the turn begins. The id of the turn goes to standard output as soon as it is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from contextlib import closing
from pathlib import Path

from tests.faults.fork_server import ForkServer
from tests.hub.turns.turn_harness import ManualClock, TurnHarness, echo
from tests.waiting import SECONDS_MAX

from onceward.core.canonical import Json
from onceward.hub.db.engine import open_database
from onceward.ledger.open import open_ledger
from onceward.ledger.terms import Effect
from onceward.turns import Brain, Turn

# How a turn begins, and its messages: two that it waits for, or one that it is stored and started with.
WAYS = {"waits": ("one", "two"), "at-once": ("one\ntwo",)}
ANSWER = "You said: one\ntwo"


class FileChannel:
    """A channel to which many processes write."""

    effect = Effect.IRREVERSIBLE

    def __init__(self, file: Path) -> None:
        self._file = file

    async def send_response(self, turn: Turn, response: Json) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps([turn.id, response]) + "\n")

    @property
    def sent(self) -> list[tuple[str, Json]]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [(turn_id, response) for turn_id, response in map(json.loads, lines)]


async def say_all(harness: TurnHarness, session: str, way: str) -> str:
    """Send the messages of one turn. A turn that waits is due afterwards, and is not woken."""
    channel = "web" if way == "waits" else "api"
    for word in WAYS[way]:
        received = await harness.say(word, channel=channel, session_key=f"{session} {way}")
    harness.now.advance(1)
    return received.turn_id


def main(database_url: str, ledger_url: str, channel: str, step: str, way: str) -> None:
    async def die(name: str, _turn: Turn) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    async def live() -> None:
        with closing(open_database(database_url)) as database, open_ledger(ledger_url) as ledger:
            harness = TurnHarness(
                database, ledger, Brain(echo), ManualClock(), adapter=FileChannel(Path(channel)), step=die
            )
            turn_id = await say_all(harness, step, way)
            os.write(1, turn_id.encode() + b"\n")
            await die("acknowledged", harness.turn(turn_id))
            harness.runner.wake(turn_id)
            await harness.idle()

    asyncio.run(live())


def killed_after(
    fork_server: ForkServer, step: str, way: str, database_url: str, ledger_url: str, channel: Path
) -> str:
    """Run a process until the step. Return the id of its turn once it is dead."""
    reads, writes = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    pid = fork_server.fork([database_url, ledger_url, str(channel), step, way], nothing, writes)
    os.close(nothing)
    os.close(writes)
    output = b""
    # The pipe ends when the process does.
    while select.select([reads], [], [], SECONDS_MAX)[0] and (data := os.read(reads, 4096)):
        output += data
    os.close(reads)
    assert output.endswith(b"\n"), f"{pid} died before its messages were acknowledged"
    return output.decode().strip()
