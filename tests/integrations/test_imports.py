"""`pip install 'onceward[mcp]'` is enough for the integration, and `pip install onceward` for the tools."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess

import pytest
from packaging.requirements import Requirement
from tests.forked_python import forked_python
from tests.test_examples import IMPORTS

# A prelude that makes `import sqlalchemy` fail, as in a process without the extras. The process is forked from one that has
# imported some packages: it forgets the blocked ones, and imports Onceward itself again.
BLOCK = """
import sys

for name in list(sys.modules):
    if name.split(".")[0] in {"onceward", *BLOCKED}:
        del sys.modules[name]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def needed_by(name: str, extra: str = "") -> set[str]:
    """The distributions that an installation of this one brings, by name."""
    found: set[str] = set()
    waiting = [(name, extra)]
    while waiting:
        one = waiting.pop()
        normal = re.sub(r"[-_.]+", "-", one[0]).lower()
        if f"{normal}[{one[1]}]" in found:
            continue
        found |= {normal, f"{normal}[{one[1]}]"}
        for text in importlib.metadata.requires(one[0]) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": one[1]}):
                try:
                    importlib.metadata.distribution(requirement.name)
                except importlib.metadata.PackageNotFoundError:
                    continue  # of another system
                waiting += [(requirement.name, more) for more in (*requirement.extras, "")]
    return {one for one in found if "[" not in one}


def modules_without(*installed: set[str]) -> set[str]:
    """The modules of everything that is installed here and that such an installation does not bring."""
    there = set[str]().union(*installed)
    return {
        module
        for module, distributions in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", one).lower() for one in distributions} & there
    }


# It reads the metadata of every installed package.
packages_distributions = functools.cache(importlib.metadata.packages_distributions)


def run(blocked: set[str], program: str) -> subprocess.CompletedProcess[str]:
    text = f"BLOCKED = {blocked!r}\n{BLOCK}\n{program}"
    return subprocess.run(
        [forked_python(*IMPORTS), "-c", text], capture_output=True, text=True, timeout=60, check=False
    )


PLAIN = needed_by("onceward")
WITH_MCP = PLAIN | needed_by("onceward", "mcp")
# The metadata of an installation may be older than these extras.
WITH_FASTMCP = PLAIN | needed_by("fastmcp")
WITH_LANGCHAIN = PLAIN | needed_by("langchain")
WITH_PYDANTIC_AI = PLAIN | needed_by("pydantic-ai-slim")
WITH_OPENAI_AGENTS = PLAIN | needed_by("openai-agents")

CALL = """
import asyncio
from onceward import open_ledger
from onceward.tools import Toolbox, functions, tool

@tool(effect="irreversible", template="order:{order_id}")
def refund(order_id: str) -> str:
    return f"refunded {order_id}"

toolbox = Toolbox([refund])
"""


@pytest.mark.parametrize("needless", ["sqlalchemy", "fastapi", "alembic", "structlog", "rich", "prometheus_client"])
def test_the_hub_extra_is_blocked(needless: str) -> None:
    assert needless in modules_without(WITH_MCP)


def test_tools_need_no_extra() -> None:
    done = run(
        modules_without(PLAIN),
        CALL
        + """
with open_ledger("memory:") as ledger:
    made = functions(toolbox, ledger, turn_group_id="g")
    print(asyncio.run(made["refund"](order_id="1"))["result"])
""",
    )

    assert (done.stdout, done.stderr) == ("refunded 1\n", "")


def test_mcp_needs_its_own_extra_and_no_other() -> None:
    done = run(
        modules_without(WITH_MCP),
        CALL
        + """
from mcp import Client
from onceward.integrations.mcp import mcp_server

async def main(ledger):
    async with Client(mcp_server(toolbox, ledger)) as client:
        result = await client.call_tool("refund", {"order_id": "1"})
        print(result.structured_content["result"])

with open_ledger("memory:") as ledger:
    asyncio.run(main(ledger))
""",
    )

    assert (done.stdout, done.stderr) == ("refunded 1\n", "")


def test_fastmcp_needs_its_own_extra_and_no_other() -> None:
    done = run(
        modules_without(WITH_FASTMCP),
        """
import asyncio
from fastmcp import FastMCP
from onceward import open_ledger
from onceward.integrations.fastmcp import OnceMiddleware

server = FastMCP("shop")

@server.tool
def refund(order_id: str) -> str:
    return f"refunded {order_id}"

with open_ledger("memory:") as ledger:
    server.add_middleware(OnceMiddleware(ledger, {"refund": {"effect": "irreversible"}}))
    print(asyncio.run(server.call_tool("refund", {"order_id": "1"})).content[0].text)
""",
    )

    assert (done.stdout, done.stderr) == ("refunded 1\n", "")


def test_the_proxy_needs_no_extra() -> None:
    done = run(
        modules_without(PLAIN), "from onceward.integrations.mcp_wrap import load_config, wrap; load_config(None)"
    )

    assert (done.stdout, done.stderr) == ("", "")


def test_langchain_needs_its_own_extra_and_no_other() -> None:
    done = run(
        modules_without(WITH_LANGCHAIN),
        """
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from onceward import open_ledger
from onceward.integrations.langchain import wrap_tool_call

@tool
def refund(order_id: str) -> str:
    "Give the money back."
    return f"refunded {order_id}"

with open_ledger("memory:") as ledger:
    rules = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([refund], wrap_tool_call=wrap_tool_call(ledger, rules, unwrap=True)))
    graph.set_entry_point("tools")
    call = {"name": "refund", "args": {"order_id": "1"}, "id": "call-1", "type": "tool_call"}
    state = graph.compile().invoke(
        {"messages": [AIMessage("", tool_calls=[call])]}, {"configurable": {"thread_id": "thread-1"}}
    )
    print(state["messages"][-1].content)
""",
    )

    assert (done.stdout, done.stderr) == ("refunded 1\n", "")


def test_pydantic_ai_needs_its_own_extra_and_no_other() -> None:
    done = run(
        modules_without(WITH_PYDANTIC_AI),
        """
import asyncio
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.models.test import TestModel
from onceward import open_ledger
from onceward.integrations.pydantic_ai import OnceToolset

def refund(order_id: str) -> str:
    return f"refunded {order_id}"

with open_ledger("memory:") as ledger:
    tools = OnceToolset(FunctionToolset([refund]), ledger, {"refund": {"effect": "irreversible"}}, unwrap=True)
    run = Agent(TestModel(), toolsets=[tools]).run("refund it", conversation_id="chat-1")
    print(asyncio.run(run).output)
""",
    )

    assert (done.stdout, done.stderr) == ('{"refund":"refunded a"}\n', "")


def test_openai_agents_need_their_own_extra_and_no_other() -> None:
    done = run(
        modules_without(WITH_OPENAI_AGENTS),
        """
import asyncio
from agents.tool_context import ToolContext
from onceward import open_ledger
from onceward.integrations.openai_agents import once_function_tool

with open_ledger("memory:") as ledger:
    @once_function_tool(ledger, effect="irreversible", scope="chat-1", unwrap=True)
    def refund(order_id: str) -> str:
        return f"refunded {order_id}"

    text = '{"order_id": "1"}'
    context = ToolContext(None, tool_name="refund", tool_call_id="call-1", tool_arguments=text)
    print(asyncio.run(refund.on_invoke_tool(context, text)))
""",
    )

    assert (done.stdout, done.stderr) == ("refunded 1\n", "")


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import onceward.integrations.langchain", "langchain"),
        ("import onceward.integrations.mcp", "mcp"),
        ("import onceward.integrations.fastmcp", "fastmcp"),
        ("import onceward.integrations.openai_agents", "openai-agents"),
        ("import onceward.integrations.pydantic_ai", "pydantic-ai"),
        ("from onceward.turns.adapters.mcp import mcp_server", "mcp"),
        ("from onceward.turns import Engine", "hub"),
    ],
)
def test_a_missing_extra_is_named(statement: str, extra: str) -> None:
    done = run(modules_without(PLAIN), statement)

    assert done.returncode == 1
    assert f"pip install 'onceward[{extra}]'" in done.stderr.splitlines()[-1]


def test_every_name_of_turns_is_imported_on_demand() -> None:
    names = "from onceward import turns; print([name for name in turns.__all__ if not hasattr(turns, name)])"
    done = run(
        set(), f"import onceward.tools.tool, onceward.hub.turns.execution.engine\n{names}\nprint(callable(turns.tool))"
    )

    assert (done.stdout, done.stderr) == ("[]\nTrue\n", "")
