"""Calls of a tool that only counts: as a bare function, through the toolbox, and with the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench import names
from bench.arena import Arena
from bench.contest import Contestant, Unable
from bench.load import SETTLED, Effects, Mode, Scenario, namer, with_tasks
from bench.peers.process import PeerProcess
from onceward import open_ledger
from onceward.ledger import Ledger
from onceward.turns import Toolbox

SCENARIOS = (Scenario(Mode.FRESH, 1), Scenario(Mode.REPLAY, 1))
PEERS = {
    names.DBOS_STEP: ("run_dbos",),
    names.DBOS_STEP_WAL: ("run_dbos", "wal"),
    names.LANGGRAPH: ("run_langgraph",),
    names.LANGGRAPH_FINISHED: ("run_langgraph", "finished"),
}


def contestants(ground: Arena, python: Path | None) -> Iterator[Contestant]:
    """Yield the contestants in the order of the table. Peers need `python`, the interpreter of their environment."""
    yield Bare()
    yield Tool(names.PURE_TOOL, "look_up", open_ledger(ground.place()))
    yield Tool(names.TOOL, "pay", open_ledger(ground.place()))
    if python is None:
        return
    for name, (module, *options) in PEERS.items():
        if name != names.DBOS_STEP_WAL or ground.store == names.SQLITE:
            yield PeerProcess(python, name, module, ground.place(), *options)


class Bare:
    """The function itself, awaited."""

    name = names.BARE_FUNCTION

    def __init__(self) -> None:
        self._effects = Effects()

    async def _call(self, _order_id: str) -> object:
        return self._effects()

    def warm(self) -> None: ...

    def rate(self, scenario: Scenario, seconds: float) -> float:
        if scenario.mode is Mode.REPLAY:
            raise Unable(_FORGETS)
        return _rate(self._call, self._effects, scenario, seconds)

    def close(self) -> None: ...


class Tool:
    """One of two tools of a toolbox: `pay` is idempotent with its order as the key, `look_up` is pure."""

    def __init__(self, name: str, tool: str, ledger: Ledger) -> None:
        self.name = name
        self._tool = tool
        self._ledger = ledger
        self._effects = Effects()
        self._toolbox = Toolbox()

        @self._toolbox.tool(effect="idempotent", key_fields=("order_id",))
        async def pay(order_id: str) -> object:  # noqa: ARG001  # part of the key
            return self._effects()

        @self._toolbox.tool(effect="pure")
        async def look_up(order_id: str) -> object:  # noqa: ARG001  # the same argument as `pay`
            return self._effects()

    async def _call(self, order_id: str) -> object:
        envelope = await self._toolbox.call(
            self._tool, {"order_id": order_id}, ledger=self._ledger, turn_group_id="grp_bench"
        )
        assert envelope.ok
        return envelope.result

    def warm(self) -> None:
        async def settle() -> None:
            await asyncio.gather(*[self._call(key) for key in SETTLED])

        self._effects.forget()
        asyncio.run(settle())
        self._effects.check(Mode.FRESH, len(SETTLED))

    def rate(self, scenario: Scenario, seconds: float) -> float:
        if scenario.mode is Mode.REPLAY and self.name == names.PURE_TOOL:
            raise Unable(_FORGETS)
        return _rate(self._call, self._effects, scenario, seconds)

    def close(self) -> None:
        self._ledger.close()


_FORGETS = "It stores nothing, so every call runs."


def _rate(call: Callable[[str], Awaitable[object]], effects: Effects, scenario: Scenario, seconds: float) -> float:
    effects.forget()
    load = asyncio.run(with_tasks(call, scenario.callers, seconds, namer(scenario.mode)))
    effects.check(scenario.mode, load.calls)
    return load.rate
