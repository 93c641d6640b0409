"""A hub under load from retrying clients, while its workers are killed one after the other.

At the end, each keyed request has one row and one event, and every follower has the whole log, once and in order.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from tests.faults.hub.followers import KINDS
from tests.faults.hub.writers import write_all
from tests.faults.hub_database import connected_to, event_ids, written
from tests.hub.hub_process import SERVE, RunningHub, running_hub
from tests.hub.raw_client import Caller, HubResponse, workers_of
from tests.waiting import until

from onceward.hub.db.engine import Database
from onceward.hub.db.tables import events

CLIENTS = 12
# Everyone asks for a key at the same time as this many others.
RIVALS = 2
# The pause before a worker is killed; another one is there about a second later.
ALIVE_SECONDS = (0.5, 2.5)
# Workers are killed all the while, so it can take some time; who is not answered then never will be.
ANSWER_SECONDS_MAX = 60.0
# Attachments are few, so that many post the same.
THINGS = 40
# Messages that are written past the hub, now and then.
WRITTEN_EACH = 3


@dataclass
class Figures:
    """Counts of one load run."""

    seconds: float = 0.0
    kills: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    replays: int = 0
    cut: int = 0
    reconnects: int = 0
    events: int = 0

    def lines(self) -> list[str]:
        """Return the figures as a line for people."""
        keys = ", ".join(f"{count} {kind}" for kind, count in sorted(self.keys.items()))
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return [
            f"{self.seconds:.0f} s, 2 workers, {CLIENTS} clients, {self.kills} kill -9",
            f"keys       {sum(self.keys.values())} ({keys})",
            f"answers    {statuses}, of which {self.replays} replayed; {self.cut} cut off by a kill",
            f"events     {self.events}; followers were cut off and came back {self.reconnects} times",
        ]


class Load:
    """One run."""

    def __init__(self, data_dir: Path, database_url: str, args: list[str], *, seed: int = 0) -> None:
        self.figures = Figures()
        self._data_dir = data_dir
        self._url = database_url
        self._args = [*args, "--workers", "2"]
        self._seed = seed
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._answers: dict[tuple[str, str], set[tuple[int, bytes]]] = {}

    def run(self, seconds: float) -> Figures:
        """Run the load, then check the result. Raises `AssertionError` if a guarantee is broken."""
        with ExitStack() as stack:
            hub = stack.enter_context(running_hub(data_dir=self._data_dir, args=self._args, command=SERVE))
            database = stack.enter_context(connected_to(self._url))
            ask = Caller(hub.port)
            topic = ask.topic("load")
            followers = [stack.enter_context(kind(hub.port)) for kind in (*KINDS, *KINDS)]
            start = time.monotonic()
            with ThreadPoolExecutor(CLIENTS + 1) as threads:
                clients = [threads.submit(self._client, ask, topic) for _ in range(CLIENTS)]
                clients.append(threads.submit(self._write_past_the_hub, topic))
                for client in clients:
                    client.add_done_callback(self._end_if_broken)
                try:
                    self._kill(hub, start + seconds)
                finally:
                    self._over.set()
                for client in clients:
                    client.result()
            self.figures.seconds = time.monotonic() - start
            self._check_rows(database)
            log = event_ids(database)
            self.figures.events = len(log)
            assert log == list(range(1, len(log) + 1)) or not database.is_sqlite, "SQLite leaves no id out"
            for follower in followers:
                given = follower.wait_for(log[-1])
                assert given == log, f"{type(follower).__name__} has {len(given)} of {len(log)} events"
                self.figures.reconnects += follower.sessions - 1
        return self.figures

    def _end_if_broken(self, client: Future[None]) -> None:
        """Raise the failure of a client at once, and not at the end of the run."""
        if client.exception() is not None:
            self._over.set()

    def _kill(self, hub: RunningHub, end: float) -> None:
        while time.monotonic() < end:
            if self._over.wait(self._chance.uniform(*ALIVE_SECONDS)):
                return
            # Not the parent, which is all that is left when both have just been killed.
            workers = [worker for worker in workers_of(hub) if worker != hub.process.pid]
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(workers), signal.SIGKILL)
                self.figures.kills += 1

    def _write_past_the_hub(self, topic: str) -> None:
        while not self._over.is_set():
            write_all(self._url, topic, WRITTEN_EACH, seed=next(self._numbers), over=self._over)
            self._over.wait(0.5)

    def _client(self, ask: Caller, topic: str) -> None:
        while not self._over.is_set():
            with self._mutex:
                nth = next(self._numbers) // RIVALS
            kind = ("topic", "message", "message", "attachment")[nth % 4]
            path, content = _request(kind, nth, topic)
            key = f"{kind}-{nth}"
            answer = self._ask(ask, path, content, key)
            with self._mutex:
                self._answers.setdefault((kind, key), set()).add((answer.status, answer.body))

    def _ask(self, ask: Caller, path: str, content: Any, key: str) -> HubResponse:
        tries = itertools.count()

        def once() -> HubResponse | None:
            try:
                answer = ask.post(path, content, key=key, headers={"Prefer": "wait=2"} if next(tries) % 2 else {})
            except OSError:
                with self._mutex:
                    self.figures.cut += 1
                return None
            with self._mutex:
                self.figures.statuses[answer.status] += 1
                self.figures.replays += answer.replayed
            return answer if answer.is_final else None

        return until(once, f"{key} was lost: asked again and again, and no answer", seconds=ANSWER_SECONDS_MAX)

    # The reckoning.

    def _check_rows(self, database: Database) -> None:
        figures = self.figures
        assert set(figures.statuses) <= {200, 201, 409, 503}, figures.statuses
        made: dict[str, set[str]] = {"topic": set(), "message": set(), "attachment": set()}
        for (kind, key), answers in self._answers.items():
            figures.keys[kind] += 1
            assert len(answers) == 1, f"{key} has {len(answers)} answers"
            ((status, body),) = answers
            shown = HubResponse(status, {}, body).json
            assert status == 201 or kind == "attachment", (key, shown)
            assert shown[kind]["id"] not in made[kind] or kind == "attachment", f"{key} has the row of another"
            made[kind].add(shown[kind]["id"])
        counted = written(database)
        rows = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.text("messages"))
        with database.read() as tx:
            past = tx.execute(rows.where(sqlalchemy.text("sender = 'writer'"))).scalar_one()
            twice = tx.execute(
                sqlalchemy.select(events.c.entity_id, events.c.name)
                .group_by(events.c.entity_id, events.c.name)
                .having(sqlalchemy.func.count() > 1)
            ).all()
        # One more topic: the one that everything is in.
        found = (counted["topics"] - 1, counted["messages"] - past, counted["topic_attachments"])
        assert found == tuple(len(ids) for ids in made.values()), f"rows {found} for {figures.keys}"
        assert twice == []
        assert counted["events"] == counted["topics"] + counted["messages"] + counted["topic_attachments"]


def _request(kind: str, nth: int, topic: str) -> tuple[str, Any]:
    match kind:
        case "topic":
            return "/api/v1/topics", {"title": f"topic {nth}"}
        case "message":
            return f"/api/v1/topics/{topic}/messages", {"sender": "client", "content": f"message {nth}"}
        case _:
            value = {"number": nth % THINGS}
            return f"/api/v1/topics/{topic}/attachments", {"kind": "thing", "value_json": value}
