"""pydantic-ai: results, retries, approvals and conversations of tools that run once."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastmcp import FastMCP
from pydantic import BaseModel, BeforeValidator
from pydantic_ai import Agent, ApprovalRequired, BinaryImage, CallDeferred, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ToolFailed, UsageLimitExceeded
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from onceward import Ledger, errors
from onceward.core.verdict import committed
from onceward.integrations.pydantic_ai import OnceToolset
from onceward.tools import ToolRules

REFUND: dict[str, Any] = {"effect": "irreversible", "key_fields": ["order_id"]}


class Chat:
    """An agent whose model makes the given calls, one after the other, and then ends."""

    def __init__(
        self, ledger: Ledger, toolset: AbstractToolset[Any], rule: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.rules = {"refund": rule or REFUND}
        self.toolset = OnceToolset(toolset, ledger, self.rules, **options)

    def run(self, *calls: dict[str, Any], name: str = "refund", **options: Any) -> Any:
        planned = iter(calls)
        ids = itertools.count()

        def model(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            for one in planned:
                return ModelResponse(parts=[ToolCallPart(name, one, tool_call_id=f"call-{next(ids)}")])
            return ModelResponse(parts=[TextPart("done")])

        agent: Agent[Any, Any] = Agent(
            FunctionModel(model), toolsets=[self.toolset], output_type=[str, DeferredToolRequests], retries=5
        )
        options = {"user_prompt": "refund it", "conversation_id": "chat-1", **options}
        return asyncio.run(agent.run(**options))

    def parts(self, *calls: dict[str, Any], **options: Any) -> list[Any]:
        found = self.run(*calls, **options).new_messages()
        return [part for one in found for part in one.parts if isinstance(part, ToolReturnPart)]

    def call(self, *calls: dict[str, Any], **options: Any) -> list[Any]:
        return [one.content for one in self.parts(*calls, **options)]


class Bank:
    """A tool that counts its effects, and then returns or raises what the test wants."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.result: Any = None

    def toolset(self, **options: Any) -> FunctionToolset[Any]:
        def refund(order_id: str, amount: int = 5) -> Any:  # noqa: ARG001
            """Give the money back."""
            self.refunds.append(order_id)
            if isinstance(self.result, BaseException):
                raise self.result
            return self.result

        return FunctionToolset([refund], **options)


@pytest.fixture
def bank() -> Bank:
    return Bank()


class Address(BaseModel):
    city: str
    tags: set[str]


def test_equal_arguments_are_one_call_whatever_their_python_objects(ledger: Ledger) -> None:
    seen: list[Any] = []

    def refund(day: datetime.date, to: Address, amount: float = 5) -> str:
        seen.append((day, to, amount))
        return to.city

    chat = Chat(ledger, FunctionToolset([refund]), {"effect": "irreversible"})
    to = {"city": "Bern", "tags": ["a", "b", "c", "d"]}
    same = {"amount": 5.0, "to": {"tags": ["d", "c", "b", "a"], "city": "Bern"}, "day": "2026-11-01"}

    found = chat.call({"day": "2026-11-01", "to": to}, same, {**same, "day": "2026-11-02"})

    assert [one["status"] for one in found] == ["done", "replayed", "done"]
    assert [day.day for day, _, _ in seen] == [1, 2]


def test_the_key_of_a_set_is_the_same_in_every_process() -> None:
    program = (
        "from onceward.integrations.pydantic_ai import _ordered;"
        "print(_ordered({'tags': {'a', 'b', 'c', 'd', 'e'}, 'ids': frozenset({3, 1, 2})}))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert printed == {"{'tags': ['a', 'b', 'c', 'd', 'e'], 'ids': [1, 2, 3]}\n"}


def test_an_argument_without_a_json_form_ends_the_run_before_the_effect(ledger: Ledger, bank: Bank) -> None:
    def refund(order_id: Annotated[Any, BeforeValidator(lambda _text: object())]) -> None:
        bank.refunds.append(order_id)

    chat = Chat(ledger, FunctionToolset([refund]))

    with pytest.raises(errors.InvalidOption, match="the argument 'order_id' of refund has no JSON form"):
        chat.run({"order_id": "1"})
    assert bank.refunds == []


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("paid", "paid"),
        (None, None),
        ([1, {"a": 2}], [1, {"a": 2}]),
        ((1, 2), [1, 2]),
        (Address(city="Bern", tags={"a"}), {"city": "Bern", "tags": ["a"]}),
        (datetime.date(2026, 11, 1), "2026-11-01"),
        ({"value": 1}, {"value": 1}),
    ],
)
def test_a_replay_shows_the_model_the_same_result(ledger: Ledger, bank: Bank, result: Any, shown: Any) -> None:
    bank.result = result
    plain = Chat(ledger, bank.toolset(), unwrap=True)
    call = {"order_id": "1"}

    first, again = plain.parts(call, call)
    enveloped = Chat(ledger, bank.toolset()).call(call, {"order_id": "2"})

    assert first.model_response_str() == again.model_response_str()
    assert [one["result"] for one in enveloped] == [shown, shown]
    assert bank.refunds == ["1", "2"]


def test_a_tool_return_keeps_its_content_and_metadata(ledger: Ledger, bank: Bank) -> None:
    image = BinaryImage(b"png", media_type="image/png")
    bank.result = ToolReturn("paid", content=["see", image], metadata={"invoice": 7})
    call = {"order_id": "1"}
    chat = Chat(ledger, bank.toolset())

    run = chat.run(call, call)

    parts = [part for one in run.new_messages() for part in one.parts]
    returns: list[Any] = [one for one in parts if isinstance(one, ToolReturnPart)]
    prompts = [one.content for one in parts if isinstance(one, UserPromptPart)][1:]
    assert [(one.content["status"], one.content["result"]) for one in returns] == [
        ("done", "paid"),
        ("replayed", "paid"),
    ]
    assert [one.metadata for one in returns] == [{"invoice": 7}] * 2
    assert prompts == [["see", image]] * 2


def test_files_stay_beside_the_envelope(ledger: Ledger, bank: Bank) -> None:
    image = BinaryImage(b"png", media_type="image/png")
    bank.result = ["receipt", image]
    call = {"order_id": "1"}

    found = Chat(ledger, bank.toolset()).call(call, call)

    assert [(one[0]["status"], one[0]["result"], one[1:]) for one in found] == [
        ("done", ["receipt"], [image]),
        ("replayed", ["receipt"], [image]),
    ]


def test_a_result_without_a_json_form_is_done_and_not_invented_later(ledger: Ledger, bank: Bank) -> None:
    bank.result = object()
    call = {"order_id": "1"}

    found = Chat(ledger, bank.toolset()).call(call, call)

    assert [(one["status"], one["result"]) for one in found] == [("done", None), ("replayed", None)]
    assert all("its result could not be stored" in one["detail"] for one in found)
    assert bank.refunds == ["1"]


def test_metadata_without_a_json_form_is_reported_as_lost(ledger: Ledger, bank: Bank) -> None:
    bank.result = ToolReturn("paid", metadata=object())
    call = {"order_id": "1"}

    first, again = Chat(ledger, bank.toolset(), unwrap=True).parts(call, call)

    assert (first.content, first.metadata) == ("paid", bank.result.metadata)
    assert again.content["result"] == "paid"
    assert "its metadata could not be stored" in again.content["detail"]


def test_the_value_with_which_a_person_resolves_a_doubt_is_the_result(ledger: Ledger, bank: Bank) -> None:
    bank.result = OSError("connection lost")
    call = {"order_id": "1"}
    chat = Chat(ledger, bank.toolset())
    chat.call(call)
    planned = ToolRules(chat.rules).plan("refund", {**call, "amount": 5}, scope="chat-1")
    doubt = ledger.blocking.read(planned.scope, planned.key)
    assert doubt is not None
    ledger.blocking.resolve(planned.scope, planned.key, doubt.version, committed({"refund": 7}), note="ann: seen")

    (found,) = chat.call(call)

    assert (found["status"], found["result"]) == ("replayed", {"refund": 7})


def test_a_model_retry_before_the_effect_lets_the_model_correct_its_call(ledger: Ledger) -> None:
    refunds: list[int] = []

    def refund(order_id: str, amount: int) -> str:  # noqa: ARG001
        if amount > 10:
            raise ModelRetry("at most 10")
        refunds.append(amount)
        return "paid"

    chat = Chat(ledger, FunctionToolset([refund]))

    retried, paid = chat.parts({"order_id": "1", "amount": 99}, {"order_id": "1", "amount": 9})

    assert "at most 10" in retried.model_response_str()
    assert "in-doubt" not in retried.model_response_str()
    assert paid.content["status"] == "done"
    assert refunds == [9]


def broken(_order_id: str) -> None:
    try:
        dict[str, int]()["payment"]
    except KeyError:
        raise ModelRetry("try again") from None


def failed(_order_id: str) -> None:
    raise ToolFailed("no such order")


@pytest.mark.parametrize(("fault", "text"), [(broken, "try again"), (failed, "no such order")])
def test_a_retry_that_follows_another_error_proves_nothing(
    ledger: Ledger, bank: Bank, fault: Callable[[str], None], text: str
) -> None:
    def refund(order_id: str) -> None:
        bank.refunds.append(order_id)
        fault(order_id)

    call = {"order_id": "1"}

    found = Chat(ledger, FunctionToolset([refund])).call(call, call)

    assert [(one["status"], one["code"]) for one in found] == [("unknown", "in-doubt")] * 2
    assert text in found[0]["detail"]
    assert bank.refunds == ["1"]


def test_a_rule_may_say_that_any_model_retry_is_proof(ledger: Ledger, bank: Bank) -> None:
    def refund(order_id: str) -> str:
        bank.refunds.append(order_id)
        if len(bank.refunds) == 1:
            broken(order_id)
        return "paid"

    chat = Chat(ledger, FunctionToolset([refund]), {**REFUND, "not_done": (ModelRetry,)})

    found = chat.call({"order_id": "1"}, {"order_id": "1"})

    assert [one["status"] for one in found] == ["refused", "done"]


def test_a_timeout_is_never_proof(ledger: Ledger, bank: Bank) -> None:
    async def refund(order_id: str) -> None:
        bank.refunds.append(order_id)
        await asyncio.Event().wait()

    chat = Chat(ledger, FunctionToolset([refund], timeout=0.5), {**REFUND, "not_done": (ModelRetry,)})

    found = chat.call({"order_id": "1"}, {"order_id": "1"})

    assert [one["status"] for one in found] == ["unknown", "unknown"]
    assert bank.refunds == ["1"]


def test_a_tool_of_an_mcp_server_runs_once_and_its_error_proves_nothing(ledger: Ledger, bank: Bank) -> None:
    server = FastMCP("shop")

    @server.tool
    def refund(order_id: str) -> str:
        bank.refunds.append(order_id)
        if order_id == "2":
            raise ValueError("connection lost")
        return f"paid {order_id}"

    chat = Chat(ledger, MCPToolset(server))

    found = chat.call({"order_id": "1"}, {"order_id": "1"}, {"order_id": "2"}, {"order_id": "2"})

    assert [(one["status"], one["result"]) for one in found] == [
        ("done", "paid 1"),
        ("replayed", "paid 1"),
        ("unknown", None),
        ("unknown", None),
    ]
    assert bank.refunds == ["1", "2"]


@pytest.mark.parametrize("interrupt", [ApprovalRequired, CallDeferred])
def test_a_deferred_call_reaches_the_agent_and_runs_after_its_approval(
    ledger: Ledger, bank: Bank, interrupt: type[Exception]
) -> None:
    def refund(ctx: RunContext[Any], order_id: str) -> str:
        if not ctx.tool_call_approved:
            raise interrupt
        bank.refunds.append(order_id)
        return "paid"

    chat = Chat(ledger, FunctionToolset([refund]))
    asked = chat.run({"order_id": "1"})
    waiting = asked.output.approvals or asked.output.calls
    answer = DeferredToolResults(approvals={waiting[0].tool_call_id: True})

    if interrupt is ApprovalRequired:
        (found,) = chat.call(
            user_prompt=None, message_history=asked.all_messages(), deferred_tool_results=answer, conversation_id=None
        )
        assert found["status"] == "done"
    assert [waiting[0].tool_name, bank.refunds] == ["refund", ["1"] if interrupt is ApprovalRequired else []]
    assert ledger.blocking.scan(status="in_doubt").entries == ()


def test_an_error_that_ends_the_run_ends_it_and_leaves_the_call_in_doubt(ledger: Ledger, bank: Bank) -> None:
    bank.result = UsageLimitExceeded("too many tokens")
    chat = Chat(ledger, bank.toolset())

    with pytest.raises(UsageLimitExceeded, match="too many tokens"):
        chat.run({"order_id": "1"})
    (again,) = chat.call({"order_id": "1"})

    assert again["status"] == "unknown"
    assert bank.refunds == ["1"]


def test_a_run_without_a_conversation_is_refused(ledger: Ledger, bank: Bank) -> None:
    chat = Chat(ledger, bank.toolset())

    for missing in (None, "new"):
        with pytest.raises(errors.InvalidOption, match="the run has no conversation_id"):
            chat.run({"order_id": "1"}, conversation_id=missing)
    assert bank.refunds == []


def test_a_random_conversation_counts_from_its_second_run(ledger: Ledger, bank: Bank) -> None:
    bank.result = "paid"
    chat = Chat(ledger, bank.toolset())
    history = chat.run(conversation_id=None).all_messages()

    found = [chat.call({"order_id": "1"}, conversation_id=None, message_history=history)[0] for _ in range(2)]

    assert [one["status"] for one in found] == ["done", "replayed"]


def test_the_scope_and_the_principal_can_come_from_the_dependencies(ledger: Ledger, bank: Bank) -> None:
    chat = Chat(ledger, bank.toolset(), scope=lambda ctx: ctx.deps["thread"], principal=lambda ctx: ctx.deps["user"])

    for thread, user in (("t1", "ann"), ("t1", "ann"), ("t2", "ann"), ("t1", "bob")):
        chat.call({"order_id": "1"}, conversation_id=None, deps={"thread": thread, "user": user})

    assert len(bank.refunds) == 3


@pytest.mark.parametrize("scope", ["process-1", lambda: "process-1"])
def test_a_scope_needs_no_context(ledger: Ledger, bank: Bank, scope: Any) -> None:
    chat = Chat(ledger, bank.toolset(), scope=scope)

    chat.call({"order_id": "1"}, conversation_id="a")
    chat.call({"order_id": "1"}, conversation_id="b")

    assert bank.refunds == ["1"]


@pytest.mark.parametrize("scope", [lambda _ctx: None, lambda _ctx: "", lambda _ctx: 7])
def test_a_scope_that_is_not_a_text_ends_the_run_before_the_effect(ledger: Ledger, bank: Bank, scope: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="scope= must be a text"):
        Chat(ledger, bank.toolset(), scope=scope).run({"order_id": "1"})
    assert bank.refunds == []


def test_unlisted_and_pure_tools_run_each_time_and_can_be_refused(ledger: Ledger, bank: Bank) -> None:
    bank.result = "paid"
    call = {"order_id": "1"}
    unlisted = FunctionToolset([bank.toolset().tools["refund"]]).renamed({"pay": "refund"})

    passed = Chat(ledger, unlisted).call(call, call, name="pay")
    refused = Chat(ledger, unlisted, unlisted="refuse").call(call, name="pay")
    pure = Chat(ledger, bank.toolset(), {"effect": "pure"}).call(call)

    assert (passed, pure) == (["paid", "paid"], ["paid"])
    assert (refused[0]["status"], refused[0]["code"]) == ("refused", "not-found")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledger": "sqlite:///x.db"}, "ledger must be a Ledger"),
        ({"rules": {"refund": {}}}, "the rule of 'refund' has no effect"),
        ({"unlisted": "drop"}, "unlisted= must be"),
        ({"scope": ""}, "at least one character"),
        ({"scope": 7}, "must be a string"),
    ],
)
def test_wrong_options_are_refused_at_once(ledger: Ledger, bank: Bank, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidOption, match=message):
        OnceToolset(bank.toolset(), **{"ledger": ledger, "rules": {"refund": REFUND}, **options})
