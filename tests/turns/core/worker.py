"""A process that receives two messages, answers them, and kills itself after a step of its choice.

Run by a nursery as `main(DATABASE, LEDGER, POST, STEP)`: POST is the file that every sent response adds a line to.
The id of the turn goes to standard output as soon as both messages are acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from contextlib import closing
from pathlib import Path

from tests.system.nursery import Nursery
from tests.turns.core.house import House, Now, echo
from tests.waiting import SECONDS_MAX

from onceward.core.canonical import Json
from onceward.db.engine import open_database
from onceward.open import open_ledger
from onceward.terms import Effect
from onceward.turns import Brain, Turn

WORDS = ("one", "two")


class FilePost:
    """A channel that many processes write to."""

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


async def two_messages(house: House, session: str) -> str:
    """Say two things that make one turn, and have it begin."""
    for word in WORDS:
        received = await house.say(word, channel="web", session_key=session)
    house.now.advance(1)
    return received.turn_id


def main(database_url: str, ledger_url: str, post: str, step: str) -> None:
    async def die(name: str, _turn: Turn) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    async def live() -> None:
        with closing(open_database(database_url)) as database, open_ledger(ledger_url) as ledger:
            house = House(database, ledger, Brain(echo), Now(), adapter=FilePost(Path(post)), step=die)
            turn_id = await two_messages(house, step)
            os.write(1, turn_id.encode() + b"\n")
            await die("acknowledged", house.turn(turn_id))
            house.runner.wake(turn_id)
            await house.idle()

    asyncio.run(live())


def killed_after(nursery: Nursery, step: str, database_url: str, ledger_url: str, post: Path) -> str:
    """Let a process live until the step; gives the id of its turn when it is dead."""
    reads, writes = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    pid = nursery.bear([database_url, ledger_url, str(post), step], nothing, writes)
    os.close(nothing)
    os.close(writes)
    said = b""
    # The pipe ends when the process does.
    while select.select([reads], [], [], SECONDS_MAX)[0] and (data := os.read(reads, 4096)):
        said += data
    os.close(reads)
    assert said.endswith(b"\n"), f"{pid} died before its messages were acknowledged"
    return said.decode().strip()
