"""Rules for tools that a framework owns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from onceward import Ledger, errors
from onceward.core.verdict import Verdict, committed
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore
from onceward.tools import Envelope, ToolRules
from onceward.tools.call import Call, Gate, NullGate

REFUND: dict[str, Any] = {"effect": "irreversible", "key_fields": ["order_id"]}


class Framework:
    """A framework that calls its tools through rules, blocking or not."""

    def __init__(self, ledger: Ledger, rules: ToolRules, way: str) -> None:
        self.ledger = ledger
        self.rules = rules
        self.way = way
        self.ran: list[str] = []
        self.raises: BaseException | None = None

    def call(self, name: str = "refund", scope: str = "chat-1", /, **arguments: Any) -> Envelope:
        def handler() -> Any:
            self.ran.append(name)
            if self.raises is not None:
                raise self.raises
            return {"ran": len(self.ran)}

        async def handler_async() -> Any:
            await asyncio.sleep(0)
            return handler()

        if self.way == "sync":
            return self.rules.call_blocking(name, arguments, handler, ledger=self.ledger, scope=scope)
        return asyncio.run(self.rules.call(name, arguments, handler_async, ledger=self.ledger, scope=scope))


@pytest.fixture(params=["sync", "async"])
def framework(ledger: Ledger, request: pytest.FixtureRequest) -> Callable[..., Framework]:
    def made(rules: dict[str, Any] | None = None, **options: Any) -> Framework:
        return Framework(ledger, ToolRules(rules or {"refund": REFUND}, **options), request.param)

    return made


def test_a_repeated_call_gets_the_first_result(framework: Callable[..., Framework]) -> None:
    shop = framework()

    first, again = shop.call(order_id="1", amount=5), shop.call(order_id="1", amount=5)

    assert (first.status, again.status) == ("done", "replayed")
    assert first.result == again.result == {"ran": 1}
    assert shop.ran == ["refund"]


def test_scopes_keys_and_arguments_separate_calls(framework: Callable[..., Framework]) -> None:
    shop = framework()
    shop.call(order_id="1", amount=5)

    assert shop.call("refund", "chat-2", order_id="1", amount=5).status == "done"
    assert shop.call(order_id="2", amount=5).status == "done"
    assert shop.call(order_id="1", amount=6).code == "key-reused"
    assert shop.call(amount=6).code == "invalid-key"
    assert len(shop.ran) == 3


def test_an_exception_of_the_handler_leaves_the_effect_unknown(framework: Callable[..., Framework]) -> None:
    shop = framework({"refund": {**REFUND, "not_done": (ConnectionRefusedError,)}})

    shop.raises = ConnectionRefusedError("not reached")
    assert shop.call(order_id="1").status == "refused"
    shop.raises = OSError("connection lost")
    assert shop.call(order_id="1").status == "unknown"
    assert shop.call(order_id="1").code == "in-doubt"
    assert len(shop.ran) == 2


def test_a_reconcile_hook_gets_the_arguments_of_the_call(framework: Callable[..., Framework]) -> None:
    def reconcile(order_id: str, amount: int) -> Verdict:
        return committed([order_id, amount])

    shop = framework({"refund": {**REFUND, "reconcile": reconcile}})
    shop.raises = OSError("connection lost")

    assert shop.call(order_id="1", amount=5).result == ["1", 5]


def test_a_pure_tool_runs_each_time(framework: Callable[..., Framework]) -> None:
    shop = framework({"search": {"effect": "pure"}}, unlisted="refuse")

    assert [shop.call("search", query="x").status for _ in range(2)] == ["done", "done"]
    assert shop.rules.passes("search")
    assert shop.ran == ["search", "search"]


def test_tools_without_a_rule_pass_or_are_refused(framework: Callable[..., Framework]) -> None:
    shop = framework(unlisted="refuse")

    found = shop.call("delete", id=1)

    assert (found.status, found.code, shop.ran) == ("refused", "not-found", [])
    assert not shop.rules.passes("delete")
    assert not shop.rules.passes("refund")
    assert framework().rules.passes("delete")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_store_that_is_down_runs_nothing_and_leaves_the_outcome_open(way: str) -> None:
    store = FaultyStore(MemoryStore())
    with Ledger(store, wait_seconds=0, patience_seconds=0) as ledger:
        shop = Framework(ledger, ToolRules({"refund": {**REFUND, "effect": "idempotent"}}), way)
        with store.unavailable():
            found = shop.call(order_id="1")

    assert (found.status, found.code, found.may_retry, shop.ran) == ("unknown", "store-unavailable", True, [])


def test_the_envelope_reports_a_result_that_was_lost_after_the_effect() -> None:
    store = FaultyStore(MemoryStore())
    with Ledger(store, wait_seconds=0, patience_seconds=0) as ledger:
        shop = Framework(ledger, ToolRules({"refund": {**REFUND, "effect": "idempotent"}}), "sync")

        def handler() -> None:
            store.lose_request("settle", times=100)

        found = shop.rules.call_blocking("refund", {"order_id": "1"}, handler, ledger=ledger, scope="chat-1")

    assert (found.status, found.code) == ("unknown", "store-unavailable")
    assert "the effect has run, but its result could not be recorded" in found.detail


class ClosedGate(NullGate):
    """The gate of a run that was superseded."""

    async def fire(self, call: Call) -> None:
        raise errors.Superseded(f"{call.tool.name} was not called")


@pytest.mark.parametrize(
    ("gate", "is_down", "error"),
    [(ClosedGate(), False, errors.Superseded), (NullGate(), True, errors.StoreUnavailable)],
)
def test_a_turn_gets_the_errors_of_its_gate_and_of_the_ledger(
    gate: Gate, is_down: bool, error: type[errors.OncewardError]
) -> None:
    store = FaultyStore(MemoryStore())

    async def handler() -> None:
        raise AssertionError

    async def call(ledger: Ledger) -> Envelope:
        rules = ToolRules({"refund": REFUND})
        with store.unavailable() if is_down else contextlib.nullcontext():
            return await rules.call("refund", {"order_id": "1"}, handler, ledger=ledger, gate=gate, scope="chat-1")

    with Ledger(store, wait_seconds=0, patience_seconds=0) as ledger, pytest.raises(error):
        asyncio.run(call(ledger))


def test_a_scope_is_needed(framework: Callable[..., Framework]) -> None:
    shop = framework()

    with pytest.raises(errors.InvalidOption, match="turn_group_id"):
        shop.call("refund", "", order_id="1")
    assert shop.ran == []


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "rules must be a mapping"),
        ({"refund": "irreversible"}, "a rule must be a mapping of options"),
        ({"refund": {}}, "the rule of 'refund' has no effect; declare one of pure, idempotent"),
        ({"refund": {"effect": "maybe"}}, "the rule of 'refund' is not valid: effect= must be one of"),
        ({"refund": {"efect": "pure"}}, "the rule of 'refund' has the unknown option 'efect'; the options are effect,"),
        ({"refund": {**REFUND, "key_fields": "order_id"}}, "key_fields must be a list of argument names"),
        ({"refund": {**REFUND, "key_fields": [1]}}, "key_fields must be a list of argument names"),
        ({"refund": {**REFUND, "template": "order:{order_id}"}}, "both key_fields and a template"),
        ({"refund": {"effect": "idempotent", "template": 1}}, "template must be a string"),
        ({"refund": {**REFUND, "once": "twice"}}, "once= must be one of group, ever"),
        ({"refund": {**REFUND, "retain_seconds": "1h"}}, "must be a number of seconds"),
        ({"refund": {**REFUND, "effect": "compensatable"}}, "undo= is required"),
        ({"no name": REFUND}, "the name of a tool must be"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_name_of_its_tool(rules: Any, message: str) -> None:
    with pytest.raises(errors.InvalidOption, match=message):
        ToolRules(rules)


def test_unlisted_has_two_values() -> None:
    with pytest.raises(errors.InvalidOption, match="unlisted= must be 'pass' or 'refuse'"):
        ToolRules({}, unlisted="ask")  # type: ignore[arg-type]
