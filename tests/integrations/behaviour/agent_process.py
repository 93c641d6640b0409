"""A worker process with one agent framework: it calls one tool as ordered, and reports what the model sees.

To add a framework, write a module with an `Adapter` (see `once_tool_adapter.py`), and add a line to `ADAPTERS` in
`agent_worker.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from onceward import Ledger
from onceward.store.sqlite import SqliteStore
from onceward.testing import FaultyStore

# More than the ledger stores: 16 MiB.
HUGE = 17 * 1024 * 1024
# Options of every adapter's tool: other notes do not make another call.
RULE: dict[str, Any] = {"effect": "irreversible", "key_fields": ["order_id"], "volatile": ["note"]}


class Adapter(Protocol):
    """One way to call the tool `refund(order_id: str, amount: int, note: str = "")` through a framework."""

    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        """Declare the tool with the options of `RULE`; its function calls `shop.refund` or `shop.refund_blocking`."""

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        """Call the tool as a model would, and return the envelope that the model sees."""


class Shop:
    """The outside world: each effect adds a line to a file. `mode` decides what happens after the effect."""

    def __init__(self, effects: Path) -> None:
        self.effects = effects
        self.mode = ""
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.released_thread = threading.Event()

    async def refund(self, order_id: str, amount: int) -> Any:
        self._happen(order_id)
        match self.mode:
            case "pause":
                await asyncio.to_thread(sys.stdin.readline)
            case "cancel":
                await self.released.wait()
        return self._result(order_id, amount)

    def refund_blocking(self, order_id: str, amount: int) -> Any:
        self._happen(order_id)
        match self.mode:
            case "pause":
                sys.stdin.readline()
            case "cancel":
                self.released_thread.wait()
        return self._result(order_id, amount)

    def release(self) -> None:
        self.released.set()
        self.released_thread.set()

    def _happen(self, order_id: str) -> None:
        with self.effects.open("a") as file:
            file.write(f"{order_id}\n")
        self.loop.call_soon_threadsafe(self.reached.set)
        if self.mode == "pause":
            report({"at": "effect"})

    def _result(self, order_id: str, amount: int) -> Any:
        match self.mode:
            case "raise":
                raise OSError("connection lost")
            case "huge":
                return "x" * HUGE
        return {"refunded": order_id, "amount": amount}


def report(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201  # reports go to the test


def run_worker(adapters: Mapping[str, type[Adapter]], name: str, database: str, effects: str) -> None:
    """Obey orders from the standard input until it ends."""
    asyncio.run(_follow_orders(adapters[name], database, Path(effects)))


async def _follow_orders(kind: type[Adapter], database: str, effects: Path) -> None:
    broken = FaultyStore(SqliteStore(database))
    with Ledger(SqliteStore(database), wait_seconds=20) as ledger, Ledger(broken, patience_seconds=0) as broken_ledger:
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            shop = Shop(effects)
            shop.mode = order["mode"]
            if shop.mode == "store down":
                with broken.unavailable():
                    report(await _call(kind(broken_ledger, shop), shop, order))
            else:
                report(await _call(kind(ledger, shop), shop, order))


async def _call(adapter: Adapter, shop: Shop, order: dict[str, Any]) -> dict[str, Any]:
    task = asyncio.create_task(adapter.call(order["arguments"], order["conversation"], order["call_id"]))
    if shop.mode == "cancel":
        await shop.reached.wait()
        task.cancel()
        if order["after_cancel"] == "replayed":
            shop.release()
    try:
        envelope = await task
    except asyncio.CancelledError:
        return {"status": "cancelled"}
    except Exception as error:  # noqa: BLE001  # for the test
        return {"status": "raised", "detail": f"{type(error).__name__}: {error}"}
    if len(str(envelope.get("result"))) >= HUGE:
        envelope["result"] = "huge"
    return envelope
