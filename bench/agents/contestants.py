"""A tool that only counts, with and without Onceward, in each framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agents import function_tool
from langchain_core.tools import StructuredTool
from pydantic_ai.toolsets import FunctionToolset

from bench import names
from bench.agents import frameworks
from bench.agents.frameworks import CONVERSATION, Caller
from bench.contest import Contestant, Unable
from bench.load import SETTLED, Effects, Mode, Scenario, namer, with_tasks
from bench.peers.process import PeerProcess
from onceward import Ledger, open_ledger
from onceward.integrations.langchain import awrap_tool_call
from onceward.integrations.openai_agents import once_function_tool
from onceward.integrations.pydantic_ai import OnceToolset
from onceward.tools import once_tool

SCENARIOS = (Scenario(Mode.FRESH, 1), Scenario(Mode.REPLAY, 1))
RULE: dict[str, Any] = {"effect": "irreversible", "key_fields": ["order_id"]}
# The frameworks in the order of the table, and the name of each for the process of a peer.
FRAMEWORKS = {
    names.NO_FRAMEWORK: "function",
    names.LANGCHAIN: "langchain",
    names.PYDANTIC_AI: "pydantic_ai",
    names.OPENAI_AGENTS: "openai_agents",
}


def contestants(place: Callable[[], str], python: Path | None) -> Iterator[Contestant]:
    """Yield the contestants in the order of the table. Peers need `python`, the interpreter of their environment."""
    for framework, module in FRAMEWORKS.items():
        yield AgentTool(framework, None)
        yield AgentTool(framework, open_ledger(place()))
        if python is not None:
            yield PeerProcess(python, who(framework, names.AGENT_ONCE), "run_agent_once", place(), module)


def who(framework: str, library: str) -> str:
    """Return the name of a contestant."""
    return f"{framework}, {library}"


class AgentTool:
    """The tool in one framework: bare, or with a ledger."""

    def __init__(self, framework: str, ledger: Ledger | None) -> None:
        self.name = who(framework, names.TOOL_ALONE if ledger is None else names.ONCEWARD)
        self._ledger = ledger
        self._effects = Effects()
        self._call = _caller(framework, self._effects, ledger)

    def warm(self) -> None:
        async def settle() -> None:
            for key in SETTLED:
                await self._call(key)

        if self._ledger is not None:
            self._effects.forget()
            asyncio.run(settle())
            self._effects.check(Mode.FRESH, len(SETTLED))

    def rate(self, scenario: Scenario, seconds: float) -> float:
        if scenario.mode is Mode.REPLAY and self._ledger is None:
            raise Unable("It stores nothing, so every call runs.")
        self._effects.forget()
        load = asyncio.run(with_tasks(self._call, scenario.callers, seconds, namer(scenario.mode)))
        self._effects.check(scenario.mode, load.calls)
        return load.rate

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def _caller(framework: str, effects: Effects, ledger: Ledger | None) -> Caller:
    async def pay(order_id: str) -> dict[str, object]:  # noqa: ARG001  # the key
        """Pay an order."""
        return effects()

    match FRAMEWORKS[framework]:
        case "langchain":
            tool = StructuredTool.from_function(coroutine=pay)
            wrappers = {} if ledger is None else {"awrap_tool_call": awrap_tool_call(ledger, {"pay": RULE})}
            return frameworks.langchain(tool, **wrappers)
        case "pydantic_ai":
            toolset: FunctionToolset[Any] = FunctionToolset([pay])
            return frameworks.pydantic_ai(toolset if ledger is None else OnceToolset(toolset, ledger, {"pay": RULE}))
        case "openai_agents":
            made = function_tool(pay) if ledger is None else once_function_tool(ledger, **RULE)(pay)
            return frameworks.openai_agents(made)
        case _:
            return pay if ledger is None else once_tool(ledger, scope=CONVERSATION, **RULE)(pay)
