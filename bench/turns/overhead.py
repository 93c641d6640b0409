"""Turns with an empty brain, and tool calls that do nothing, per second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from onceward.db.engine import Database
from onceward.ledger import Ledger
from onceward.turns import Brain, Context, Engine, LocalRunner, NullGate, Toolbox, TurnGateway, UserMessage, tool

SESSIONS = 64


@tool(effect="idempotent", key_fields=("order_id",))
async def nothing(order_id: str) -> str:
    """Does nothing, which costs nothing."""
    return order_id


@tool(effect="pure")
async def pure_nothing(order_id: str) -> str:
    """The same, without the ledger."""
    return order_id


async def _empty(_context: Context) -> str:
    return ""


def turns_per_second(database: Database, ledger: Ledger, seconds: float, sessions: int = SESSIONS) -> float:
    """Messages that are received, answered and recorded; each session sends its next one when it has its answer."""
    return asyncio.run(_turns(database, ledger, seconds, sessions))


async def _turns(database: Database, ledger: Ledger, seconds: float, sessions: int) -> float:
    waiting: dict[str, asyncio.Event] = {}

    def told(turn_id: str) -> None:
        waiting.setdefault(turn_id, asyncio.Event()).set()

    brain = Brain(_empty)
    engine = Engine(database, ledger, brain, told=told)
    runner = LocalRunner(engine, sweep_seconds=3600.0)
    gateway = TurnGateway(database, brain, runner)
    await runner.start()
    count = 0
    deadline = time.perf_counter() + seconds

    async def talk(session: int) -> None:
        nonlocal count
        number = 0
        while time.perf_counter() < deadline:
            number += 1
            received = await gateway.receive_message(
                UserMessage(content="x", session_key=f"s{session}", message_id=f"{session}-{number}-{deadline}")
            )
            await waiting.setdefault(received.turn_id, asyncio.Event()).wait()
            del waiting[received.turn_id]
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*map(talk, range(sessions)))
    took = time.perf_counter() - began
    await runner.stop(5.0)
    return count / took


def tool_calls_per_second(ledger: Ledger, seconds: float) -> dict[str, float]:
    """One caller: the bare function, a pure tool, a fresh call and a replay."""
    return asyncio.run(_tools(ledger, seconds))


async def _tools(ledger: Ledger, seconds: float) -> dict[str, float]:
    toolbox = Toolbox([nothing, pure_nothing])
    numbers = iter(range(10**9))
    group = f"g{time.time_ns()}"

    async def call(name: str, order_id: str) -> None:
        envelope = await toolbox.call(
            name,
            {"order_id": order_id},
            ledger=ledger,
            gate=NullGate(),
            tenant_id="t",
            principal="p",
            turn_group_id=group,
        )
        assert envelope.ok

    return {
        "bare function": await _rate(lambda: nothing.function("x"), seconds),
        "pure tool": await _rate(lambda: call("pure_nothing", "x"), seconds),
        "idempotent tool, fresh": await _rate(lambda: call("nothing", f"o{next(numbers)}"), seconds),
        "idempotent tool, replay": await _rate(lambda: call("nothing", "o0"), seconds),
    }


async def _rate(act: Callable[[], Awaitable[object]], seconds: float) -> float:
    count = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        await act()
        count += 1
    return count / took
