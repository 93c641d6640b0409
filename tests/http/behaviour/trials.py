"""Handlers that do what their request tells them, for every framework alike: wait, fail, stream, keep nothing.

The body of a request to a trial is its plan, a JSON object:

    turns       plans for the first, second, … run of this trial; the last one holds for all that follow
    reached     a point that is reported before the answer; `gate` waits there until the test opens it
    fail        raise instead of answering
    status      of the answer (200); `headers` are added to it
    text, size, empty     the body: a text, that many bytes of every value, nothing; otherwise a JSON object
    parts       the body is streamed: texts to send, and `{"gate": …}` and `{"fail": true}` on the way
    background  what happens after the answer: `{"gate": …, "fail": …}`
    no_store, keep_for    said to the operation

Every run counts in the world as the effect `trial` of its name, and makes a token of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from examples.demo.orders import parse
from examples.demo.shop import Shop
from examples.demo.world import World
from tests.waiting import until

from onceward.http import Rule

R = TypeVar("R")

# Declared beside the trial's handler in each framework; a trial under `/api/trials/<name>/…` has the rule of that name.
RULES: dict[str, Rule] = {
    "plain": Rule(),
    "required": Rule(required=True),
    "brief": Rule(retain_seconds=0.2),
    "hold": Rule(on_crash="hold"),
    "fields": Rule(fields=("order_id", "buyer.name")),
    "unkept": Rule(store=False),
    "small": Rule(max_body_bytes=1000),
    "short": Rule(max_response_bytes=100_000),
    "patient": Rule(wait_seconds=20.0),
    "hasty": Rule(lease_seconds=0.5),
    "digest": Rule(digest=True, max_body_bytes=1000),
}


class Gates:
    """Points in handlers that a test waits for, and gates that it opens; files, so that any process may."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reach(self, point: str) -> None:
        (self._folder / f"{point}.reached").touch()

    def pass_through(self, gate: str) -> None:
        """Report the gate as reached, and wait until it is open."""
        self.reach(gate)
        _wait_for(self._folder / f"{gate}.open")

    def wait_until_reached(self, point: str) -> None:
        _wait_for(self._folder / f"{point}.reached")

    def is_reached(self, point: str) -> bool:
        return (self._folder / f"{point}.reached").exists()

    def open(self, gate: str) -> None:
        (self._folder / f"{gate}.open").touch()


def _wait_for(file: Path) -> None:
    until(file.exists, f"nobody came to {file.name}")


@dataclass(frozen=True, slots=True)
class TrialResponse:
    """The response of a trial; a framework turns it into its own response."""

    status: int
    headers: dict[str, str]
    media_type: str
    body: bytes | Iterator[bytes]
    after: list[Callable[[], None]] = field(default_factory=list)


class TrialFailed(Exception):
    """The handler failed, as its plan says."""


@dataclass(frozen=True, slots=True)
class TrialHandlers:
    """The handlers of one application."""

    world: World
    gates: Gates
    shop: Shop

    def run(self, name: str, body: bytes, operation: Any) -> TrialResponse:
        plan = self._plan(name, body)
        run = self.world.happen("trial", name)
        if plan.get("no_store"):
            operation.no_store()
        if "keep_for" in plan:
            operation.keep_for(plan["keep_for"])
        self._go_through(plan)
        token = {"token": uuid4().hex, "run": run}
        seen = {"key": operation.key, "attempt": operation.attempt, "version": operation.version}
        return self._reply(plan, {**token, **seen})

    def run_bound(self, name: str, body: bytes, operation: Any, respond: Callable[[TrialResponse], R]) -> R:
        """A sale in the ledger's own database, with points before and after its response is settled."""
        plan = self._plan(name, body)
        self.world.happen("trial", name)
        with self.shop.transaction() as connection:
            bound = operation.bind(connection)
            self.shop.sell(connection, "trial", {"item": name, "amount": 1})
            response = respond(self._reply(plan, {"token": uuid4().hex}))
            self._go_through(plan.get("before_settle", {}))
            if not plan.get("forget"):
                bound.settle(response)
            self._go_through(plan.get("before_commit", {}))
        self._go_through(plan.get("after_commit", {}))
        return response

    def _plan(self, name: str, body: bytes) -> dict[str, Any]:
        plan: dict[str, Any] = parse(body)
        with suppress(KeyError):
            turns = plan["turns"]
            plan = turns[min(self.world.effects("trial", name), len(turns) - 1)]
        return plan

    def _go_through(self, step: dict[str, Any]) -> None:
        if "reached" in step:
            self.gates.reach(step["reached"])
        if "gate" in step:
            self.gates.pass_through(step["gate"])
        if step.get("fail"):
            raise TrialFailed("the handler failed, as it was told")

    def _reply(self, plan: dict[str, Any], content: dict[str, object]) -> TrialResponse:
        media_type = plan.get("media_type", "text/plain; charset=utf-8")
        body: bytes | Iterator[bytes]
        if "parts" in plan:
            body = self._stream(plan["parts"], str(content["token"]))
        elif "text" in plan:
            body = str(plan["text"]).encode()
        elif "size" in plan:
            media_type = "application/octet-stream"
            body = (str(content["token"]).encode() + bytes(range(256)) * (plan["size"] // 256 + 1))[: plan["size"]]
        elif plan.get("empty") or plan.get("status") == 204:
            body = b""
        else:
            media_type = "application/json"
            body = json.dumps(content).encode()
        after = [lambda: self._go_through(plan["background"])] if "background" in plan else []
        return TrialResponse(plan.get("status", 200), plan.get("headers", {}), media_type, body, after)

    def _stream(self, parts: list[Any], token: str) -> Iterator[bytes]:
        """Replace `%` by the run's token."""
        for part in parts:
            if isinstance(part, str):
                yield part.replace("%", token).encode()
            else:
                self._go_through(part)
