"""OpenAI Agents: schemas, results, errors and conversations of function tools that run once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputImage,
    function_tool,
)
from agents.exceptions import ToolTimeoutError, UserError
from agents.tool_context import ToolContext
from pydantic import BaseModel
from tests.integrations.openai_model import FakeModel, calls, says, tool_outputs

from onceward import Ledger, errors
from onceward.core.verdict import committed
from onceward.integrations.openai_agents import once_function_tool
from onceward.tools import ToolRules

REFUND: dict[str, Any] = {"effect": "irreversible", "key_fields": ["order_id"]}


class Address(BaseModel):
    city: str


@dataclass
class Bank:
    """The outside world, and what the tool then returns or raises."""

    ledger: Ledger
    refunds: list[str]
    result: Any = "paid"

    def tool(self, **options: Any) -> FunctionTool:
        @once_function_tool(self.ledger, **{**REFUND, **options})
        def refund(order_id: str, amount: int = 5) -> Any:  # noqa: ARG001
            """Give the money back."""
            return self.pay(order_id)

        return refund

    def pay(self, order_id: str) -> Any:
        self.refunds.append(order_id)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def bank(ledger: Ledger) -> Bank:
    return Bank(ledger, [])


def outputs(tool: FunctionTool, *arguments: Any, group: str | None = "chat-1", context: Any = None) -> list[Any]:
    """Run an agent whose model makes these calls, one after the other. Return what the model sees."""
    planned = [calls(tool.name, one, f"call-{at}") for at, one in enumerate(arguments)]
    agent = Agent("shop", model=FakeModel(*planned, says("done")), tools=[tool])
    config = RunConfig(group_id=group, tracing_disabled=True)
    run = asyncio.run(Runner.run(agent, "refund it", context=context, run_config=config))
    return [*tool_outputs(run).values()]


def envelopes(tool: FunctionTool, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(one) for one in outputs(tool, *arguments, **options)]


def statuses(tool: FunctionTool, *arguments: Any, **options: Any) -> list[str]:
    return [one["status"] for one in envelopes(tool, *arguments, **options)]


CALL = {"order_id": "1"}


def described(ctx: RunContextWrapper[Any], order_id: str, day: date, to: Address, amount: int = 5) -> str:  # noqa: ARG001
    """Give the money back.

    Args:
        order_id: The order.
        day: The day of the payment.
    """
    return order_id


@pytest.mark.parametrize("unwrap", [False, True])
def test_the_model_sees_the_same_tool_as_without_onceward(ledger: Ledger, unwrap: bool) -> None:
    bare = function_tool(described)

    made = once_function_tool(ledger, unwrap=unwrap, **REFUND)(described)

    assert (made.name, made.description) == (bare.name, bare.description)
    assert made.params_json_schema == bare.params_json_schema
    assert "The day of the payment." in json.dumps(made.params_json_schema)


def test_a_tool_without_a_context_has_the_same_schema(bank: Bank) -> None:
    def refund(order_id: str, amount: int = 5) -> None: ...

    assert bank.tool().params_json_schema == function_tool(refund).params_json_schema


def test_a_tool_gets_its_context_and_validated_arguments(ledger: Ledger) -> None:
    seen: list[Any] = []

    @once_function_tool(ledger, effect="irreversible", name_override="pay_back", is_enabled=True)
    async def refund(ctx: RunContextWrapper[Any], day: date, to: Address, amount: int = 5) -> str:
        await asyncio.sleep(0)
        seen.append((ctx.context, day, to, amount))
        return to.city

    same = {"day": "2026-11-01", "to": {"city": "Bern"}}

    found = envelopes(refund, same, {**same, "amount": 5}, {**same, "day": "2026-11-02"}, context="deps")

    assert [one["status"] for one in found] == ["done", "replayed", "done"]
    assert found[0]["key"].startswith("pay_back:")
    assert seen[0] == ("deps", date(2026, 11, 1), Address(city="Bern"), 5)


@pytest.mark.parametrize(
    "result", ["paid", 7, None, {"a": 1}, [1, 2], (1, 2), {1: 2}, Address(city="Bern"), date(2026, 11, 1), [], "{}"]
)
def test_an_unwrapped_replay_shows_the_model_the_same_text(bank: Bank, result: Any) -> None:
    bank.result = result
    plain = function_tool(bank.pay, name_override="refund")

    first, again = outputs(bank.tool(unwrap=True), CALL, CALL)

    assert first == again == outputs(plain, CALL)[0]
    assert bank.refunds == ["1", "1"]


@pytest.mark.parametrize("unwrap", [False, True])
def test_an_image_stays_an_image(bank: Bank, unwrap: bool) -> None:
    bank.result = ToolOutputImage(file_id="file-7")

    first, again = outputs(bank.tool(unwrap=unwrap), CALL, CALL)

    assert first[-1] == again[-1] == {"type": "input_image", "file_id": "file-7"}
    if not unwrap:
        assert [json.loads(one[0]["text"])["status"] for one in (first, again)] == ["done", "replayed"]
    assert bank.refunds == ["1"]


def test_an_unwrapped_result_that_was_not_stored_is_an_envelope(bank: Bank) -> None:
    bank.result = "x" * (17 * 1024 * 1024)

    first, again = outputs(bank.tool(unwrap=True), CALL, CALL)

    assert first == bank.result
    assert json.loads(again)["code"] == "outcome-not-kept"


@pytest.mark.parametrize("unwrap", [False, True])
def test_the_value_with_which_a_person_resolves_a_doubt_is_the_result(bank: Bank, unwrap: bool) -> None:
    bank.result = OSError("connection lost")
    tool = bank.tool(unwrap=unwrap)
    outputs(tool, CALL)
    planned = ToolRules({"refund": REFUND}).plan("refund", {**CALL, "amount": 5}, scope="chat-1")
    doubt = bank.ledger.blocking.read(planned.scope, planned.key)
    assert doubt is not None
    bank.ledger.blocking.resolve(planned.scope, planned.key, doubt.version, committed("seen"), note="ann")

    (found,) = outputs(tool, CALL)

    assert (found if unwrap else json.loads(found)["result"]) == "seen"


@pytest.mark.parametrize("unwrap", [False, True])
def test_an_exception_never_becomes_an_invitation_to_try_again(bank: Bank, unwrap: bool) -> None:
    bank.result = OSError("connection lost")

    first, again = outputs(bank.tool(unwrap=unwrap), CALL, CALL)

    assert "try again" not in first
    assert [json.loads(one)["status"] for one in (first, again)] == ["unknown", "unknown"]
    assert bank.refunds == ["1"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_failure_error_function_writes_the_detail_and_not_the_status(bank: Bank, way: str) -> None:
    def hide(_ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"please try again ({type(error).__name__})"

    async def hide_async(ctx: RunContextWrapper[Any], error: Exception) -> str:
        await asyncio.sleep(0)
        return hide(ctx, error)

    bank.result = OSError("secret")

    (found,) = envelopes(bank.tool(failure_error_function=hide if way == "sync" else hide_async), CALL)

    assert (found["status"], found["detail"]) == ("unknown", "please try again (OSError)")


def test_without_a_failure_error_function_the_exception_ends_the_run_and_is_recorded(bank: Bank) -> None:
    bank.result = OSError("connection lost")
    tool = bank.tool(failure_error_function=None)

    with pytest.raises(UserError) as caught:
        outputs(tool, CALL)

    assert caught.value.__cause__ is bank.result
    assert statuses(tool, CALL) == ["unknown"]
    assert bank.refunds == ["1"]


def test_not_done_frees_the_key(bank: Bank) -> None:
    bank.result = errors.NotDone("no such order")
    tool = bank.tool()
    (refused,) = envelopes(tool, CALL)
    bank.result = "paid"

    assert (refused["status"], refused["detail"], refused["may_retry"]) == ("refused", "NotDone: no such order", True)
    assert statuses(tool, {**CALL, "amount": 6}) == ["done"]


def test_invalid_arguments_run_nothing_and_leave_no_doubt(bank: Bank) -> None:
    tool = bank.tool(failure_error_function=lambda _ctx, _error: "wrong arguments")

    assert outputs(tool, {"order_id": 1, "amount": "many"}) == ["wrong arguments"]
    assert bank.refunds == []
    assert statuses(tool, CALL) == ["done"]


def hanging_tool(bank: Bank, **options: Any) -> FunctionTool:
    @once_function_tool(bank.ledger, timeout=0.5, **REFUND, **options)
    async def refund(order_id: str) -> None:
        bank.refunds.append(order_id)
        await asyncio.Event().wait()

    return refund


@pytest.mark.parametrize("own", [False, True])
def test_a_timeout_is_reported_as_unknown(bank: Bank, own: bool) -> None:
    options: dict[str, Any] = {"timeout_error_function": lambda _ctx, _error: "too slow"} if own else {}

    first, again = envelopes(hanging_tool(bank, **options), CALL, CALL)

    assert (first["status"], again["status"], again["code"]) == ("unknown", "unknown", "in-doubt")
    assert first["detail"] == "too slow" if own else "timed out" in first["detail"]
    assert "does not repeat the effect" in first["how_to_check"]
    assert bank.refunds == ["1"]


def test_a_timeout_may_end_the_run(bank: Bank) -> None:
    with pytest.raises(ToolTimeoutError):
        outputs(hanging_tool(bank, timeout_behavior="raise_exception"), CALL)

    assert statuses(hanging_tool(bank), CALL) == ["unknown"]
    assert bank.refunds == ["1"]


def test_a_tool_that_cancels_itself_is_reported_as_unknown(bank: Bank) -> None:
    @once_function_tool(bank.ledger, **REFUND)
    async def refund(order_id: str) -> None:
        await asyncio.sleep(0)
        bank.refunds.append(order_id)
        raise asyncio.CancelledError

    first, again = envelopes(refund, CALL, CALL)

    assert (first["status"], again["status"]) == ("unknown", "unknown")
    assert bank.refunds == ["1"]


def test_a_run_without_a_group_is_refused(bank: Bank) -> None:
    with pytest.raises(UserError, match=r"the run has no group_id.*RunConfig\(group_id=") as caught:
        outputs(bank.tool(), CALL, group=None)

    assert isinstance(caught.value.__cause__, errors.InvalidOption)
    assert bank.refunds == []


def test_the_scope_and_the_principal_can_come_from_the_context(bank: Bank) -> None:
    def thread(ctx: ToolContext[Any]) -> str:
        return str(ctx.context["thread"])

    tool = bank.tool(scope=thread, principal=lambda ctx: ctx.context["user"])

    for one, user in (("t1", "ann"), ("t1", "ann"), ("t2", "ann"), ("t1", "bob")):
        outputs(tool, CALL, group=None, context={"thread": one, "user": user})

    assert len(bank.refunds) == 3


def test_an_approved_call_runs_once(bank: Bank) -> None:
    tool = bank.tool(needs_approval=True)
    agent = Agent("shop", model=FakeModel(calls("refund", CALL, "call-1"), says("done")), tools=[tool])
    config = RunConfig(group_id="chat-1", tracing_disabled=True)

    async def approve() -> Any:
        asked = await Runner.run(agent, "refund it", run_config=config)
        assert bank.refunds == []
        state = asked.to_state()
        state.approve(asked.interruptions[0])
        return await Runner.run(agent, state, run_config=config)

    run = asyncio.run(approve())

    assert run.final_output == "done"
    assert bank.refunds == ["1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": ""}, "at least one character"),
        ({"scope": 7}, "must be a string"),
        ({"key_fields": ["nothing"]}, "nothing"),
        ({"color": "red"}, "has the option 'color'"),
        ({"func": print}, "has the option 'func'"),
        ({"output_type": int}, "an output schema needs unwrap=True"),
        ({"ledger": 7}, "needs a Ledger"),
    ],
)
def test_wrong_options_are_refused_at_once(bank: Bank, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidOption, match=message):
        once_function_tool(**{"ledger": bank.ledger, **REFUND, **options})(described)


def test_only_functions_are_decorated(bank: Bank) -> None:
    with pytest.raises(errors.InvalidOption, match="decorates a function"):
        once_function_tool(bank.ledger, **REFUND)(Address)
