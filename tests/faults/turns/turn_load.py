"""Sessions that chat with two hubs until the time is over, while the hubs are killed one after the other.

At the end: every message is in one beat, every beat has one response, sessions kept their order, and nothing was done
twice, or by a turn that was superseded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.faults.hub_database import connected_to
from tests.faults.turns import invariants
from tests.faults.turns.hub_pair import Hubs
from tests.waiting import soon

# The pause before a session sends its next message.
PAUSE_SECONDS_MAX = 0.2
# The more sessions there are, the longer a request takes, and the longer a thought must be that others interrupt.
THOUGHT_SECONDS_MIN = 0.4
THOUGHT_SECONDS_EACH = 0.02
# After this time a client that is in a hurry asks again.
HURRY_SECONDS = (0.01, 0.1)
ANSWER_SECONDS_MAX = 20.0
# Hubs are killed all the while, so it can take some time; who is not answered then never will be.
WAIT_SECONDS_MAX = 90.0
RETRY_SECONDS = 0.05

# How often a session changes the hub, gives up a message, and repeats one of its last messages.
OTHER_HUB = 0.8
INSTEAD = 0.5
ONCE_MORE = 0.2

ACTS = ("refund", "provide", "reserve")
# Messages that restart the running turn are more frequent; without a decision the default rule applies.
MOODS = ("SUPERSEDE", "ABSORB", "SUPERSEDE", "ABSORB", "QUEUE", "FORCE_COMPLETE", None, None)
# Most have no window; the others accumulate briefly.
CHANNELS = ("api", "api", "web")
# How a session sends: it waits for the response, does not wait, sends to both hubs at once, or repeats too soon.
WAYS = ("patient", "hasty", "hasty", "hasty", "twice", "hurried")
# How a message is known again.
KNOWN_BY = (("id",), ("key",), ("id", "key"))


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message, which is the same however often it is sent."""

    order: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Figures:
    """Counts of one load run."""

    sessions: int
    seconds: float = 0.0
    settle_seconds: float = 0.0
    kills: int = 0
    messages: int = 0
    messages_a_second: float = 0.0
    # Requests, of which a message may need several, or get several that it does not need.
    sent: int = 0
    replays: int = 0
    cut: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    turns: dict[str, int] = field(default_factory=dict)
    taken_over: int = 0
    claims_left: int = 0

    def lines(self) -> list[str]:
        """Return the figures as a line for people."""
        turns = ", ".join(f"{count} {state}" for state, count in sorted(self.turns.items()))
        decisions = ", ".join(f"{count} {name}" for name, count in sorted(self.decisions.items()))
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return [
            f"{self.seconds:.0f} s, 2 hubs, {self.sessions} sessions, {self.kills} kill -9",
            f"messages   {self.messages}, {self.messages_a_second:.0f} a second, in {self.sent} requests",
            f"answers    {statuses}, of which {self.replays} replayed; {self.cut} cut off",
            f"turns      {sum(self.turns.values())} ({turns}); {self.taken_over} took several attempts",
            f"decisions  {decisions}",
            f"all over   {self.settle_seconds:.1f} s later; {self.claims_left} claims were left by the dead",
        ]


class Load:
    """One run."""

    def __init__(self, database_url: str, folder: Path, *, sessions: int, seed: int = 0) -> None:
        self.figures = Figures(sessions)
        self._url = database_url
        self._folder = folder
        self._seed = seed
        self._sent: dict[str, list[str]] = defaultdict(list)
        self._responses: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def run(self, seconds: float) -> Figures:
        """Run the load, then check the invariants. Raises `AssertionError` if one is broken."""
        thought = max(self.figures.sessions * THOUGHT_SECONDS_EACH, THOUGHT_SECONDS_MIN)
        with Hubs(self._url, self._folder, thought_seconds_max=thought, seed=self._seed) as hubs:
            asyncio.run(self._run(hubs, seconds))
            self.figures.claims_left = asyncio.run(invariants.check_claims(self._url))
            self._check_invariants(hubs.world)
        assert not hubs.complaints, "\n".join(hubs.complaints)
        return self.figures

    async def _run(self, hubs: Hubs, seconds: float) -> None:
        figures, start = self.figures, time.monotonic()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=2 * figures.sessions)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client, asyncio.TaskGroup() as group:
            hubs.kill()
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(seconds, over.set)
            for number in range(figures.sessions):
                group.create_task(Session(f"s{number}", hubs, client, self, self._seed).talk(over))
            await over.wait()
            figures.seconds = time.monotonic() - start
            figures.messages_a_second = sum(map(len, self._sent.values())) / figures.seconds
            await asyncio.to_thread(hubs.spare)
            figures.kills = hubs.kills
        figures.settle_seconds = time.monotonic() - start - figures.seconds

    def record_stored(self, session: str, message: SentMessage) -> None:
        """Record that a hub has stored the message."""
        self._sent[session].append(message.order)

    def record_response(self, message: SentMessage, body: dict[str, Any]) -> None:
        """Record the response to the message."""
        orders = [invariants.order_of(one["content"]) for one in body["messages"]]
        assert message.order in orders, f"{message.order} was answered with the turn of {orders}"
        self.figures.replays += message.order in self._responses
        self._responses[message.order].add((body["turn_id"], json.dumps(body["response"], sort_keys=True)))

    def _check_invariants(self, world: Path) -> None:
        figures = self.figures
        figures.messages = sum(map(len, self._sent.values()))
        with connected_to(self._url) as database:
            assert invariants.unfinished(database) == 0
            figures.turns, figures.taken_over = invariants.turns(database)
            figures.decisions = invariants.decisions(database)
            found = invariants.beats(database)
        assert set(figures.statuses) <= {200, 409, 503}, figures.statuses
        invariants.check_sessions(found, self._sent)
        invariants.check_answers(found, self._responses)
        invariants.check_world(found, world)


class Session:
    """One session. It sends its next message when a hub has stored or answered the last one."""

    def __init__(self, name: str, hubs: Hubs, client: httpx.AsyncClient, load: Load, seed: int) -> None:
        self._name = name
        self._hubs = hubs
        self._client = client
        self._load = load
        self._chance = random.Random(f"{seed} {name}")
        self._channel = self._chance.choice(CHANNELS)
        self._last_url = ""

    async def talk(self, over: asyncio.Event) -> None:
        """Send messages until the time is over, and wait for the responses to the last ones."""
        recent: list[SentMessage] = []
        for number in itertools.count():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._chance.uniform(0, PAUSE_SECONDS_MAX))
            if over.is_set():
                break
            message = self._message(number)
            await self._send_by(message, self._chance.choice(WAYS))
            recent = [*recent[-2:], message]
            if self._chance.random() < ONCE_MORE:
                await self._send(self._chance.choice(recent))
        for message in recent:
            await self._until(message, answered=True)

    def _message(self, number: int) -> SentMessage:
        order = f"{self._name}-{number}"
        instead = " instead" if number and self._chance.random() < INSTEAD else ""
        body: dict[str, Any] = {
            "message": f"{self._chance.choice(ACTS)} {order}{instead}",
            "session_key": self._name,
            "channel": self._channel,
            "metadata": {"mood": self._chance.choice(MOODS)},
        }
        headers = {}
        known_by = self._chance.choice(KNOWN_BY)
        if "id" in known_by:
            body["message_id"] = order
        if "key" in known_by:
            headers["Idempotency-Key"] = f"key-{order}"
        return SentMessage(order, body, headers)

    async def _send_by(self, message: SentMessage, way: str) -> None:
        stored = False
        match way:
            case "twice":
                stored = any(await asyncio.gather(self._send(message), self._send(message)))
            case "hurried":
                stored = bool(await self._send(message, wait=5, seconds=self._chance.uniform(*HURRY_SECONDS)))
            case _:
                pass
        if not stored or way == "patient":
            await self._until(message, answered=way == "patient")
        self._load.record_stored(self._name, message)

    async def _until(self, message: SentMessage, *, answered: bool) -> str:
        """Send it until a hub has stored it, or has answered it."""

        async def ask() -> str | None:
            status = await self._send(message, wait=5 if answered else 0)
            if status is None:
                await asyncio.sleep(RETRY_SECONDS)
            return None if answered and status != "complete" else status

        what = f"{message.order} was never {'answered' if answered else 'stored'}"
        return await soon(ask, what, seconds=WAIT_SECONDS_MAX)

    def _hub(self) -> str:
        """Return the URL of a hub, mostly not of the last one, so that another hub interrupts the turn."""
        urls = self._hubs.urls
        others = [url for url in urls if url != self._last_url]
        self._last_url = self._chance.choice(others if others and self._chance.random() < OTHER_HUB else urls)
        return self._last_url

    async def _send(self, message: SentMessage, wait: int = 0, seconds: float = ANSWER_SECONDS_MAX) -> str | None:
        """Return the hub's response, or None if it is unknown whether the hub has the message."""
        figures = self._load.figures
        figures.sent += 1
        headers = {**message.headers, "Prefer": f"wait={wait}"} if wait else message.headers
        try:
            answer = await self._client.post(f"{self._hub()}/chat", json=message.body, headers=headers, timeout=seconds)
        except httpx.TransportError:
            figures.cut += 1
            return None
        figures.statuses[answer.status_code] += 1
        if answer.status_code == 409:
            # Of its key: it is stored, and not answered yet.
            assert "content-location" in answer.headers, answer.text
            return "processing"
        if answer.status_code != 200:
            return None
        body = answer.json()
        assert body["status"] in {"complete", "processing", "superseded"}, f"{message.order}: {body}"
        if body["status"] == "complete":
            self._load.record_response(message, body)
        return str(body["status"])
