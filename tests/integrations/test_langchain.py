"""LangChain and LangGraph: results, interrupts and commands of tools that run once for each thread."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from typing import Annotated, Any, cast

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import ValidationError

from onceward import Ledger, errors
from onceward.core.verdict import Committed
from onceward.integrations.langchain import OnceToolMiddleware, awrap_tool_call, wrap_tool_call
from onceward.tools import ToolRules

RULES: dict[str, Any] = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}


class State(MessagesState, total=False):
    refunded: Any


class Graph:
    """A graph with one `ToolNode`, called as a model would call it."""

    def __init__(self, ledger: Ledger | None, *tools: BaseTool, way: str = "sync", **options: Any) -> None:
        self.way = way
        self.thread: str | None = "thread-1"
        options = {"rules": RULES, **options}
        node = ToolNode(
            tools,
            wrap_tool_call=wrap_tool_call(ledger, **options),
            awrap_tool_call=awrap_tool_call(ledger, **options),
        )
        graph = StateGraph(State)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        self.graph: Any = graph.compile(checkpointer=InMemorySaver())

    def run(self, entry: Any) -> dict[str, Any]:
        config = {"configurable": {} if self.thread is None else {"thread_id": self.thread}}
        found: dict[str, Any] = (
            self.graph.invoke(entry, config) if self.way == "sync" else asyncio.run(self.graph.ainvoke(entry, config))
        )
        return found

    def state(self, *calls: dict[str, Any], name: str = "refund") -> dict[str, Any]:
        made = [{"name": name, "args": one, "id": f"call-{at}", "type": "tool_call"} for at, one in enumerate(calls)]
        return self.run({"messages": [AIMessage("", tool_calls=cast("Any", made))]})

    def message(self, name: str = "refund", /, **arguments: Any) -> ToolMessage:
        message = self.state(arguments, name=name)["messages"][-1]
        assert isinstance(message, ToolMessage)
        return message

    def call(self, name: str = "refund", /, **arguments: Any) -> dict[str, Any]:
        return envelope(self.message(name, **arguments))


def envelope(message: ToolMessage) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(cast("str", message.content)))


class Bank:
    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.result: Any = None
        self.raises: BaseException | None = None

    def pay(self, order_id: str) -> Any:
        self.refunds.append(order_id)
        if self.raises is not None:
            raise self.raises
        return {"refunded": order_id} if self.result is None else self.result

    def tool(self, **options: Any) -> BaseTool:
        def refund(order_id: str, amount: int = 5) -> Any:  # noqa: ARG001
            """Give the money back."""
            return self.pay(order_id)

        return StructuredTool.from_function(refund, **options)


@pytest.fixture
def bank() -> Bank:
    return Bank()


both = pytest.mark.parametrize("way", ["sync", "async"])


@both
def test_the_model_sees_the_envelope(ledger: Ledger, bank: Bank, way: str) -> None:
    graph = Graph(ledger, bank.tool(), way=way)

    first, again = graph.message(order_id="1"), graph.message(order_id="1")

    assert (envelope(first)["status"], envelope(again)["status"]) == ("done", "replayed")
    assert envelope(first)["result"] == envelope(again)["result"] == {"refunded": "1"}
    assert (first.status, first.name, first.tool_call_id) == ("success", "refund", "call-0")
    assert bank.refunds == ["1"]


@both
def test_unwrap_shows_the_result_of_the_tool(ledger: Ledger, bank: Bank, way: str) -> None:
    graph = Graph(ledger, bank.tool(), way=way, unwrap=True)

    first, again = graph.message(order_id="1"), graph.message(order_id="1")

    assert first.content == again.content == '{"refunded": "1"}'
    assert bank.refunds == ["1"]


@both
def test_unwrap_shows_the_envelope_of_a_call_without_a_result(ledger: Ledger, bank: Bank, way: str) -> None:
    bank.raises = OSError("connection lost")
    graph = Graph(ledger, bank.tool(), way=way, unwrap=True)

    first, again = graph.message(order_id="1"), graph.message(order_id="1")

    assert [envelope(first)["status"], envelope(again)["status"]] == ["unknown", "unknown"]
    assert (first.status, again.status) == ("error", "error")
    assert bank.refunds == ["1"]


def test_two_calls_in_one_message_have_one_effect(ledger: Ledger, bank: Bank) -> None:
    graph = Graph(ledger, bank.tool())

    messages = graph.state({"order_id": "1"}, {"order_id": "1"})["messages"][-2:]

    assert sorted(envelope(one)["status"] for one in messages) == ["done", "replayed"]
    assert [one.tool_call_id for one in messages] == ["call-0", "call-1"]
    assert bank.refunds == ["1"]


def test_defaults_and_types_of_the_schema_do_not_make_another_call(ledger: Ledger, bank: Bank) -> None:
    rules = {"refund": {"effect": "irreversible", "template": "{order_id}:{amount}"}}
    graph = Graph(ledger, bank.tool(), rules=rules)

    found = [graph.call(order_id="1"), graph.call(order_id="1", amount=5), graph.call(order_id="1", amount="5")]

    assert [one["status"] for one in found] == ["done", "replayed", "replayed"]
    assert {one["key"] for one in found} == {"refund:1:5:turn_group:thread-1"}


@both
def test_a_run_without_a_thread_is_refused_before_the_effect(ledger: Ledger, bank: Bank, way: str) -> None:
    graph = Graph(ledger, bank.tool(), way=way)
    graph.graph.checkpointer = None
    graph.thread = None

    with pytest.raises(errors.InvalidOption, match="the run has no thread_id"):
        graph.call(order_id="1")
    assert bank.refunds == []


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_graph_without_a_ledger_runs_only_in_turns(bank: Bank, way: str) -> None:
    graph = Graph(None, bank.tool(), way=way)

    with pytest.raises(errors.InvalidOption, match="no ledger and runs only in turns of the hub"):
        graph.call(order_id="1")
    assert bank.refunds == []


def test_a_scope_replaces_the_thread(ledger: Ledger, bank: Bank) -> None:
    groups = iter(["a", "b", "a"])
    graph = Graph(ledger, bank.tool(), scope=lambda: next(groups))

    assert [graph.call(order_id="1")["status"] for _ in range(3)] == ["done", "done", "replayed"]


def test_the_principal_may_depend_on_the_request(ledger: Ledger, bank: Bank) -> None:
    users = iter(["alice", "bob", "alice"])
    graph = Graph(ledger, bank.tool(), principal=lambda request: f"{request.tool_call['name']} by {next(users)}")

    assert [graph.call(order_id="1")["status"] for _ in range(3)] == ["done", "done", "replayed"]


@both
def test_a_tool_without_a_rule_passes_or_is_refused(ledger: Ledger, bank: Bank, way: str) -> None:
    passing = Graph(ledger, bank.tool(), way=way, rules={})
    refusing = Graph(ledger, bank.tool(), way=way, rules={}, unlisted="refuse")

    assert passing.message(order_id="1").content == '{"refunded": "1"}'
    assert refusing.call(order_id="1")["code"] == "not-found"
    assert bank.refunds == ["1"]


@both
def test_the_framework_explains_wrong_arguments_and_the_key_stays_free(ledger: Ledger, bank: Bank, way: str) -> None:
    graph = Graph(ledger, bank.tool(), way=way)

    wrong = graph.message(order_id="1", amount="many")

    assert wrong.status == "error"
    assert "amount: Input should be a valid integer" in cast("str", wrong.content)
    assert bank.refunds == []
    assert graph.call(order_id="1")["status"] == "done"


def test_an_error_that_the_tool_reports_as_a_message_leaves_the_effect_unknown(ledger: Ledger, bank: Bank) -> None:
    bank.raises = ToolException("the bank did not respond")
    refund = bank.tool()
    refund.handle_tool_error = True
    graph = Graph(ledger, refund)

    first, again = graph.call(order_id="1"), graph.call(order_id="1")

    assert [first["status"], again["status"]] == ["unknown", "unknown"]
    assert "the bank did not respond" in first["detail"]
    assert bank.refunds == ["1"]


@pytest.mark.parametrize("unwrap", [False, True])
def test_the_value_with_which_a_doubt_was_resolved_is_shown(ledger: Ledger, bank: Bank, *, unwrap: bool) -> None:
    bank.raises = OSError("connection lost")
    graph = Graph(ledger, bank.tool(), unwrap=unwrap)
    key = graph.call(order_id="1")["key"]
    asyncio.run(ledger.resolve("tool:local:local", key, 1, Committed({"paid": 7}), note="seen at the bank"))

    message = graph.message(order_id="1")

    assert message.status == "success"
    assert (envelope(message) if unwrap else envelope(message)["result"]) == {"paid": 7}
    assert bank.refunds == ["1"]


@both
@pytest.mark.parametrize("artifact", [{"pdf": "x"}, datetime.date(2026, 1, 1)])
def test_an_artifact_is_stored_or_reported_as_lost(ledger: Ledger, bank: Bank, way: str, artifact: object) -> None:
    bank.result = ("refunded", artifact)
    graph = Graph(ledger, bank.tool(response_format="content_and_artifact"), way=way)

    first, again = graph.message(order_id="1"), graph.message(order_id="1")

    assert first.artifact == artifact
    assert envelope(again)["result"] == "refunded"
    if isinstance(artifact, dict):
        assert (again.artifact, envelope(again)["detail"]) == (artifact, "")
    else:
        assert again.artifact is None
        assert "its artifact could not be stored" in envelope(again)["detail"]


def test_content_that_has_no_json_form_is_shown_once_and_then_reported_as_lost(ledger: Ledger, bank: Bank) -> None:
    bank.result = [{"type": "text", "text": "paid", "at": object()}]
    graph = Graph(ledger, bank.tool())
    graph.graph.checkpointer = None

    first, again = graph.message(order_id="1"), graph.call(order_id="1")

    assert first.content == bank.result
    assert (again["status"], again["result"]) == ("replayed", None)
    assert "its result could not be stored" in again["detail"]


def command_tool(bank: Bank) -> BaseTool:
    @tool("refund")
    def refund(order_id: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Give the money back."""
        return Command(update={"refunded": bank.pay(order_id), "messages": [ToolMessage("paid", tool_call_id=call_id)]})

    return refund


@both
def test_a_replayed_command_changes_the_state_and_answers_the_new_call(ledger: Ledger, bank: Bank, way: str) -> None:
    Graph(ledger, command_tool(bank), way=way).state({"order_id": "1"})
    arguments = {"order_id": "1"}
    planned: Any = [{"name": "refund", "args": arguments, "id": "call-9", "type": "tool_call"}]

    found = Graph(ledger, command_tool(bank), way=way).run({"messages": [AIMessage("", tool_calls=planned)]})

    message = found["messages"][-1]
    assert (found["refunded"], message.content, message.tool_call_id) == ({"refunded": "1"}, "paid", "call-9")
    assert bank.refunds == ["1"]


def test_a_command_that_cannot_be_stored_is_reported_as_lost(ledger: Ledger, bank: Bank) -> None:
    bank.result = datetime.date(2026, 1, 1)
    first = Graph(ledger, command_tool(bank), unwrap=True).state({"order_id": "1"})

    again = Graph(ledger, command_tool(bank), unwrap=True).state({"order_id": "1"})

    assert first["refunded"] == bank.result
    assert "refunded" not in again
    assert envelope(again["messages"][-1])["result"] == "paid"
    assert "changes to the state of the graph could not be stored" in envelope(again["messages"][-1])["detail"]
    assert bank.refunds == ["1"]


@both
def test_an_interrupt_before_the_effect_leaves_no_doubt_and_the_resumed_run_has_the_effect(
    ledger: Ledger, bank: Bank, way: str
) -> None:
    @tool("refund")
    def refund(order_id: str) -> Any:
        """Give the money back."""
        return bank.pay(order_id) if interrupt("refund it?") == "yes" else "not approved"

    graph = Graph(ledger, refund, way=way)

    stopped = graph.state({"order_id": "1"})
    assert stopped["__interrupt__"][0].value == "refund it?"
    assert bank.refunds == []
    resumed = graph.run(Command(resume="yes"))

    assert envelope(resumed["messages"][-1])["status"] == "done"
    assert bank.refunds == ["1"]


def test_an_answer_that_the_interrupt_does_not_accept_can_be_given_again(ledger: Ledger, bank: Bank) -> None:
    @tool("refund")
    def refund(order_id: str) -> Any:
        """Give the money back."""
        interrupt("how much?", response_schema=int)
        return bank.pay(order_id)

    graph = Graph(ledger, refund)
    graph.state({"order_id": "1"})
    with pytest.raises(ValidationError):
        graph.run(Command(resume="much"))

    resumed = graph.run(Command(resume=5))

    assert envelope(resumed["messages"][-1])["status"] == "done"
    assert bank.refunds == ["1"]


def test_a_command_for_the_parent_graph_reaches_it(ledger: Ledger, bank: Bank) -> None:
    bank.raises = ParentCommand(Command(graph=Command.PARENT, goto="elsewhere"))
    graph = Graph(ledger, bank.tool())

    with pytest.raises(ParentCommand):
        graph.call(order_id="1")
    bank.raises = None
    assert graph.call(order_id="1")["status"] == "unknown"


class Model(FakeMessagesListChatModel):
    """A model with scripted answers."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002
        return self


def test_an_agent_that_plans_a_call_again_has_one_effect(ledger: Ledger, bank: Bank) -> None:
    plans: list[Any] = [
        AIMessage("", tool_calls=[{"name": "refund", "args": {"order_id": "1"}, "id": one, "type": "tool_call"}])
        for one in ("call-1", "call-2")
    ]
    model = Model(responses=[*plans, AIMessage("done")])
    agent: Any = create_agent(model, [bank.tool()], middleware=[OnceToolMiddleware(ledger, RULES)])

    messages = agent.invoke({"messages": [("user", "refund it")]}, {"configurable": {"thread_id": "thread-1"}})[
        "messages"
    ]

    statuses = [envelope(one)["status"] for one in messages if isinstance(one, ToolMessage)]
    assert statuses == ["done", "replayed"]
    assert bank.refunds == ["1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": {"refund": {}}}, "the rule of 'refund' has no effect"),
        ({"rules": RULES, "scope": 7}, "turn_group_id must be"),
        ({"rules": RULES, "unlisted": "ask"}, "unlisted= must be"),
        ({"rules": ToolRules(RULES), "unlisted": "refuse"}, "pass the option there"),
    ],
)
def test_wrong_options_are_refused_at_once(ledger: Ledger, options: dict[str, Any], message: str) -> None:
    makers: list[Callable[..., Any]] = [OnceToolMiddleware, wrap_tool_call, awrap_tool_call]
    for make in makers:
        with pytest.raises(errors.InvalidOption, match=message):
            make(ledger, **options)


def test_only_a_ledger_is_a_ledger() -> None:
    with pytest.raises(errors.InvalidOption, match="must be a Ledger"):
        OnceToolMiddleware(cast("Any", "sqlite:x.db"), RULES)
