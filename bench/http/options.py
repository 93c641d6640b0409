"""The overhead of each option of the middleware, beside the defaults: the middleware alone, in one process, in memory.

python -m bench.http.options              all rows, in alternating rounds; takes about half a minute
python -m bench.http.options --requests 200 --rounds 3

A new request has a new key; a replay has one that is settled. Only the middleware runs, without a server or a framework,
and the store is in memory: the difference between two rows is the option alone.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from bench.http.plain import Message, Runs, plain_app
from onceward.http import IdempotencyMiddleware, Rule, first_of, header, json_field, query
from onceward.http.webhooks import github, stripe
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

DEFAULT = "defaults"
ROWS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    'key=header("X-Key")': {"key": header("X-Key")},
    'key=query("key")': {"key": query("key")},
    'key=json_field("id")': {"rules": {"/payments": Rule(key=json_field("id"))}},
    "key=first_of(header, query)": {"key": first_of(header("X-None"), query("key"))},
    'compare="json"': {"compare": "json"},
    'compare="body"': {"compare": "body"},
    'scope="endpoint"': {"scope": "endpoint"},
    "echo=True": {"echo": True},
    'problem="acp_error"': {"problem": "acp_error"},
    'after_retention="refuse"': {"after_retention": "refuse"},
    "max_keys_per_principal=10**6": {"max_keys_per_principal": 10**6},
    'profile="acp"': {"profile": "acp"},
    "webhook=github()": {"rules": {"/payments": Rule(webhook=github())}},
    "webhook=stripe()": {"rules": {"/payments": Rule(webhook=stripe())}},
}
NEW, REPLAY = "new", "replay"
_numbers = itertools.count()


class Row:
    """One middleware with its options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.ledger = Ledger(MemoryStore())
        self.app = IdempotencyMiddleware(plain_app(Runs()), self.ledger, metrics=False, **options)

    async def seconds(self, requests: int, *, replay: bool) -> float:
        """Return the CPU seconds of one request, with the store's thread, as the mean of this number of them."""
        if replay:
            await self._send("settled")
        keys = ["settled"] * requests if replay else [f"k{next(_numbers)}" for _ in range(requests)]
        start = time.process_time()
        for key in keys:
            await self._send(key)
        return (time.process_time() - start) / requests

    async def _send(self, key: str) -> None:
        """Send a request that carries its key in all places; each middleware reads its own."""
        body = json.dumps(
            {"amount": 100, "currency": "EUR", "id": key, "items": [{"sku": "a", "quantity": 2}] * 5}
        ).encode()
        line = key.encode()
        scope = {
            "type": "http", "method": "POST", "path": "/payments", "raw_path": b"/payments",
            "query_string": b"key=" + line, "client": ("10.0.0.1", 1),
            "headers": [(b"host", b"shop"), (b"content-type", b"application/json"), (b"authorization", b"Bearer t"),
                        (b"idempotency-key", line), (b"x-key", line), (b"x-github-delivery", line)],
        }  # fmt: skip
        status = 0

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)

        await self.app(scope, receive, send)
        if status != 201:  # what the handler sends
            raise RuntimeError(f"the request got {status}")


async def measure(requests: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Measure all rows in turns, so that outside load affects all of them."""
    rows = {name: Row(options) for name, options in ROWS.items()}
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for kind in (NEW, REPLAY):
            for name, row in rows.items():
                seconds = await row.seconds(requests, replay=kind == REPLAY)
                if number:  # the first round warms up
                    found.setdefault((name, kind), []).append(seconds)
    for row in rows.values():
        row.ledger.close()
    return found


def table(found: Mapping[tuple[str, str], list[float]]) -> str:
    """Return the fastest round of each row as a Markdown table, with its ratio to the defaults."""
    lines = ["| option | new request | ratio | replay | ratio |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in ROWS:
        cells = []
        for kind in (NEW, REPLAY):
            own, default = min(found[name, kind]), min(found[DEFAULT, kind])
            cells += [f"{own * 1e6:.0f} µs", f"{own / default:.2f}"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |" if name != DEFAULT else f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render(requests: int, rounds: int) -> str:
    """Measure, and return the section of the results."""
    found = table(asyncio.run(measure(requests, rounds)))
    return (
        "### Options of the middleware\n\nCPU time of the middleware alone, in one process and in memory, without a server"
        f" or a framework: the fastest of {rounds} alternating rounds of {requests} requests. Ratios are to the"
        f" defaults.\n\n{found}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of each option of the middleware.")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each row in a round")
    parser.add_argument("--rounds", type=int, default=9, help="the number of rounds")
    options = parser.parse_args()
    print(render(options.requests, options.rounds))


if __name__ == "__main__":
    main()
