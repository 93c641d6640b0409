"""Two hubs on one database; from time to time one is killed and started again. One of them is always up."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tests.faults.turns.brain import THOUGHT_SECONDS_MAX, WORLD
from tests.hub.hub_process import RunningHub, started_hub

BRAIN = ("--brain", "tests.faults.turns.brain:brain")
NAMES = ("a", "b")
# How long both of them are up before one is killed.
ALIVE_SECONDS = (0.3, 2.0)


class Hubs:
    """Two hubs that run inside the `with` block; they are killed at random between `kill` and `spare`."""

    def __init__(self, database_url: str, folder: Path, *, thought_seconds_max: float, seed: int) -> None:
        self._url = database_url
        self._folder = folder
        self._chance = random.Random(seed)
        self._stacks = {name: contextlib.ExitStack() for name in NAMES}
        self._hubs: dict[str, RunningHub] = {}
        self._spared = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._killing: Future[None] | None = None
        self.world = folder / "world"
        self._env = {
            WORLD: str(self.world),
            THOUGHT_SECONDS_MAX: str(thought_seconds_max),
            # A run that is superseded from another hub has time to do something it must not do.
            "ONCEWARD_TURNS__SWEEP_SECONDS": "1",
            "ONCEWARD_TURNS__WORKERS": "100",
        }
        self.up: dict[str, str] = {}
        self.kills = 0
        # Unexpected lines in the logs.
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        self.world.mkdir()
        with contextlib.ExitStack() as stack:
            # One that does not start takes the other one with it.
            stack.push(self.__exit__)
            for name in NAMES:
                self._start(name)
            for name in NAMES:
                self._wait_for(name)
            stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._spared.set()
        self._thread.shutdown()
        for name in NAMES:
            self._end(name)

    @property
    def urls(self) -> list[str]:
        return list(self.up.values())

    def kill(self) -> None:
        self._killing = self._thread.submit(self._kill)

    def spare(self) -> None:
        """Stop the kills, and wait until both hubs are up."""
        self._spared.set()
        assert self._killing is not None
        self._killing.result()

    def _kill(self) -> None:
        while not self._spared.wait(self._chance.uniform(*ALIVE_SECONDS)):
            name = self._chance.choice(NAMES)
            del self.up[name]
            self._hubs[name].process.kill()
            self.kills += 1
            self._end(name)
            self._start(name)
            self._wait_for(name)

    def _start(self, name: str) -> None:
        started = started_hub(
            data_dir=self._folder / name,
            args=(*BRAIN, "--database", self._url),
            env=self._env,
        )
        self._hubs[name] = self._stacks[name].enter_context(started)

    def _wait_for(self, name: str) -> None:
        self.up[name] = self._hubs[name].wait_for_line(r"onceward: listening on (http://\S+)")[1]

    def _end(self, name: str) -> None:
        self._stacks[name].close()
        if name in self._hubs:
            self.complaints += _complaints(self._hubs[name].log_lines())


def _complaints(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if "Traceback" in line:
            # The last line of the traceback says what it is.
            yield line[:200] + " … " + line[-400:]
