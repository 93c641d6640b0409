"""`once_tool`: a plain function that keeps its signature and name, and has its effect once."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import enum
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from onceward import Ledger, errors
from onceward.core.verdict import Verdict, committed
from onceward.ledger.run import current_claim
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore
from onceward.tools import once_tool


class Bank:
    """The outside world, with a sync and an async way to refund."""

    def __init__(self, ledger: Ledger, **options: Any) -> None:
        self.refunds: list[str] = []
        self.raises: BaseException | None = None
        self.result: Any = None
        options = {"effect": "irreversible", "key_fields": ["order_id"], "scope": "chat-1", **options}

        @once_tool(ledger, **options)
        def refund(order_id: str, amount: int = 5, trace: str = "") -> dict[str, str]:
            """Give the money back."""
            return self._refund(order_id)

        @once_tool(ledger, **options)
        async def refund_async(order_id: str, amount: int = 5, trace: str = "") -> dict[str, str]:
            """Give the money back."""
            await asyncio.sleep(0)
            return self._refund(order_id)

        self.refund = refund
        self.refund_async = refund_async

    def _refund(self, order_id: str) -> dict[str, str]:
        self.refunds.append(order_id)
        if self.raises is not None:
            raise self.raises
        found: dict[str, str] = self.result or {"refunded": order_id}
        return found

    def call(self, way: str, *args: Any, **named: Any) -> Any:
        if way == "sync":
            return self.refund(*args, **named)

        async def call() -> Any:
            return await self.refund_async(*args, **named)

        return asyncio.run(call())


both = pytest.mark.parametrize("way", ["sync", "async"])


@both
def test_a_repeated_call_gets_the_first_result(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger)

    first, again = bank.call(way, "42", trace="a"), bank.call(way, order_id="42", amount=5, trace="a")

    assert (first["status"], again["status"]) == ("done", "replayed")
    assert first["result"] == again["result"] == {"refunded": "42"}
    assert bank.refunds == ["42"]


@both
def test_other_arguments_under_the_same_key_are_refused(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger, volatile=["trace"])
    bank.call(way, "42", trace="a")

    assert bank.call(way, "42", trace="b")["status"] == "replayed"
    assert bank.call(way, "42", 9)["code"] == "key-reused"
    assert bank.refunds == ["42"]


@both
def test_invalid_arguments_are_reported_to_the_model(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger)

    found = [bank.call(way), bank.call(way, "1", wrong=1), bank.call(way, order_id=3)]

    assert [one["status"] for one in found] == ["refused"] * 3
    assert bank.refunds == []


@both
def test_an_exception_after_the_effect_leaves_it_unknown(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger)
    bank.raises = OSError("connection lost")

    first, again = bank.call(way, "42"), bank.call(way, "42")

    assert [first["status"], again["status"]] == ["unknown", "unknown"]
    assert "connection lost" in first["detail"]
    assert bank.refunds == ["42"]


@both
def test_a_store_that_is_down_runs_nothing_and_leaves_the_outcome_open(way: str) -> None:
    store = FaultyStore(MemoryStore())
    with Ledger(store, wait_seconds=0, patience_seconds=0) as ledger:
        bank = Bank(ledger, effect="idempotent")
        with store.unavailable():
            found = bank.call(way, "42")

    assert (found["status"], found["may_retry"], found["code"]) == ("unknown", True, "store-unavailable")
    assert bank.refunds == []


@both
def test_unwrap_returns_the_bare_value(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger, unwrap=True)

    assert bank.call(way, "42") == bank.call(way, "42") == {"refunded": "42"}
    assert bank.refunds == ["42"]


@both
def test_unwrap_raises_for_a_call_without_a_value(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger, unwrap=True)
    bank.raises = OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        bank.call(way, "42")
    with pytest.raises(errors.InDoubt):
        bank.call(way, "42")
    with pytest.raises(errors.KeyReused):
        bank.call(way, "42", 9)
    with pytest.raises(errors.InvalidInput):
        bank.call(way)
    assert bank.refunds == ["42"]


def test_unwrap_returns_a_value_that_cannot_be_stored_to_its_own_caller(ledger: Ledger) -> None:
    bank = Bank(ledger, unwrap=True)
    bank.result = object()

    assert bank.refund("42") is bank.result
    with pytest.raises(errors.OutcomeNotKept):
        bank.refund("42")
    assert bank.refunds == ["42"]


@both
def test_a_decorated_function_looks_like_the_function(ledger: Ledger, way: str) -> None:
    bank = Bank(ledger)
    function: Callable[..., Any] = bank.refund if way == "sync" else bank.refund_async

    assert function.__doc__ == "Give the money back."
    assert function.__name__ == ("refund" if way == "sync" else "refund_async")
    assert list(inspect.signature(function).parameters) == ["order_id", "amount", "trace"]
    assert get_type_hints(function) == {"order_id": str, "amount": int, "trace": str, "return": dict[str, Any]}
    assert inspect.iscoroutinefunction(function) == (way == "async")
    assert get_type_hints(Bank(ledger, unwrap=True).refund)["return"] == dict[str, str]


def test_the_function_gets_the_values_of_its_caller(ledger: Ledger) -> None:
    @dataclasses.dataclass
    class Money:
        amount: decimal.Decimal

    class Reason(enum.Enum):
        LATE = "late"

    seen: list[object] = []

    @once_tool(ledger, effect="irreversible", scope="chat-1")
    def pay(money: Money, reason: Reason = Reason.LATE) -> None:
        seen.extend((money, reason))

    statuses = [pay(Money(decimal.Decimal(5))), pay(money=Money(decimal.Decimal(5)), reason=Reason.LATE)]

    assert [one["status"] for one in statuses] == ["done", "replayed"]
    assert seen == [Money(decimal.Decimal(5)), Reason.LATE]


def test_the_scope_is_read_for_each_call(ledger: Ledger) -> None:
    chats = iter(["chat-1", "chat-2", "chat-1"])
    bank = Bank(ledger, scope=lambda: next(chats))

    assert [bank.refund("42")["status"] for _ in range(3)] == ["done", "done", "replayed"]


def test_principals_do_not_share_effects(ledger: Ledger) -> None:
    callers = iter(["alice", "bob", "alice"])
    bank = Bank(ledger, principal=lambda: next(callers))

    assert [bank.refund("42")["status"] for _ in range(3)] == ["done", "done", "replayed"]


@pytest.mark.parametrize("scope", [7, "", object(), lambda name: name])
def test_a_scope_that_is_not_a_string_is_refused_when_the_tool_is_declared(ledger: Ledger, scope: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="turn_group_id must be"):
        Bank(ledger, scope=scope)


@both
@pytest.mark.parametrize("scope", [lambda: 7, lambda: None, lambda: f"{object()!r}"])
def test_a_scope_function_that_returns_no_name_is_refused_before_the_effect(
    ledger: Ledger, way: str, scope: Any
) -> None:
    bank = Bank(ledger, scope=scope)

    with pytest.raises(errors.InvalidOption, match="turn_group_id"):
        bank.call(way, "42")
    assert bank.refunds == []


def test_a_tool_without_a_scope_is_refused(ledger: Ledger) -> None:
    with pytest.raises(errors.InvalidOption, match=r"refund needs scope="):
        Bank(ledger, scope=None)


@both
def test_the_ledger_may_be_a_function(ledger: Ledger, way: str) -> None:
    found: list[Any] = [ledger, ledger, None]
    bank = Bank(lambda: found.pop(0))  # type: ignore[arg-type]  # the harness passes it on

    assert [bank.call(way, "42")["status"] for _ in range(2)] == ["done", "replayed"]
    with pytest.raises(errors.InvalidOption, match="must return a Ledger, got None"):
        bank.call(way, "42")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effect": "maybe"}, "effect= must be one of"),
        ({"key_fields": "order_id"}, "must be a list"),
        ({"key_fields": ["order"]}, "its key names 'order'"),
        ({"context": "order_id"}, "context= must be a list"),
        ({"context": ["ctx"]}, "context= names 'ctx'"),
        ({"context": ["order_id"]}, "filled in by the framework"),
        ({"once": "always"}, "once= must be one of group, ever"),
        ({"once": "ever", "effect": "pure"}, "a pure tool is not recorded"),
        ({"retain_seconds": -1}, "must be a number of seconds"),
    ],
)
def test_wrong_options_are_refused_when_the_tool_is_declared(
    ledger: Ledger, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=message):
        Bank(ledger, **options)


@pytest.mark.parametrize("thing", [None, "sqlite:x.db", 7])
def test_only_a_ledger_is_a_ledger(thing: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="once_tool needs a Ledger"):
        Bank(thing)


@pytest.mark.parametrize("thing", [7, int, object()])
def test_only_a_function_can_be_decorated(ledger: Ledger, thing: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="once_tool decorates a function"):
        once_tool(ledger, effect="idempotent", scope="chat-1")(thing)


class Session:
    """An object without a JSON form, as frameworks pass them to tools."""


def test_a_named_context_is_passed_on_and_is_not_part_of_the_call(ledger: Ledger) -> None:
    seen: list[object] = []

    @once_tool(ledger, effect="irreversible", scope="chat-1", context=["session"])
    def pay(session: Session, amount: int) -> None:
        seen.append(session)

    one, other = Session(), Session()

    assert [pay(one, 5)["status"], pay(other, amount=5)["status"]] == ["done", "replayed"]
    assert seen == [one]
    assert list(inspect.signature(pay).parameters) == ["session", "amount"]


def test_an_argument_without_a_json_form_is_refused_before_the_effect(ledger: Ledger) -> None:
    seen: list[object] = []

    @once_tool(ledger, effect="irreversible", scope="chat-1")
    def pay(session: Session, amount: int) -> None:
        seen.append(session)

    with pytest.raises(errors.InvalidOption, match=r"'session' of pay .* name it in context=\['session'\]"):
        pay(Session(), 5)
    assert seen == []


def test_a_method_is_called_on_its_object(ledger: Ledger) -> None:
    class Shop:
        def __init__(self) -> None:
            self.paid: list[int] = []

        @once_tool(ledger, effect="irreversible", scope="chat-1")
        def pay(self, amount: int) -> None:
            self.paid.append(amount)

    shop = Shop()

    assert [shop.pay(5)["status"], shop.pay(amount=5)["status"]] == ["done", "replayed"]
    assert shop.paid == [5]


@both
def test_the_provider_gets_a_key_that_the_caller_does_not_see(ledger: Ledger, way: str) -> None:
    keys: list[str] = []

    def declared() -> Callable[..., Any]:
        if way == "sync":

            @once_tool(ledger, effect="idempotent", scope="chat-1", provider_key="key")
            def pay(amount: int, *, key: str) -> int:
                keys.append(key)
                return current_claim().attempt

            return pay

        @once_tool(ledger, effect="idempotent", scope="chat-1", provider_key="key")
        async def pay_async(amount: int, *, key: str) -> int:
            await asyncio.sleep(0)
            keys.append(key)
            return current_claim().attempt

        return lambda amount: asyncio.run(pay_async(amount))  # type: ignore[call-arg]  # once_tool adds the key

    pay_once = declared()

    assert pay_once(5)["result"] == 1
    assert pay_once(5)["receipt"]["provider_key"] == keys[0]
    assert len(keys) == 1


@both
@pytest.mark.parametrize("hook", ["sync", "async"])
def test_a_reconcile_hook_decides_a_doubt(ledger: Ledger, way: str, hook: str) -> None:
    def found(order_id: str) -> Verdict:
        return committed({"found": order_id})

    async def found_async(order_id: str) -> Verdict:
        await asyncio.sleep(0)
        return committed({"found": order_id})

    bank = Bank(ledger, reconcile=found if hook == "sync" else found_async)
    bank.raises = OSError("connection lost")

    assert bank.call(way, "42")["result"] == {"found": "42"}
    assert bank.refunds == ["42"]


@both
def test_an_undo_hook_frees_the_key(ledger: Ledger, way: str) -> None:
    undone: list[str] = []
    bank = Bank(ledger, effect="compensatable", undo=lambda order_id: undone.append(f"undo {order_id}"))
    bank.raises = OSError("connection lost")

    assert bank.call(way, "42")["status"] == "refused"
    bank.raises = None
    assert bank.call(way, "42")["status"] == "done"
    assert (undone, bank.refunds) == (["undo 42"], ["42", "42"])


def test_a_pure_tool_runs_each_time(ledger: Ledger) -> None:
    bank = Bank(ledger, effect="pure")

    assert [bank.refund("42")["status"] for _ in range(2)] == ["done", "done"]
    assert bank.refunds == ["42", "42"]


def test_a_plain_function_that_returns_a_coroutine_did_nothing(ledger: Ledger) -> None:
    async def later() -> None:
        await asyncio.sleep(0)

    bank = Bank(ledger)
    bank.result = later()

    found = bank.refund("42")

    assert (found["status"], found["may_retry"]) == ("refused", True)
    assert "declare it with async def" in found["detail"]


def test_a_blocking_tool_works_on_the_thread_of_an_event_loop(ledger: Ledger) -> None:
    bank = Bank(ledger, name="refund")

    async def main() -> list[str]:
        return [(await bank.refund_async("1"))["status"], bank.refund("1")["status"], bank.refund("2")["status"]]

    assert asyncio.run(main()) == ["done", "replayed", "done"]


def test_a_cancelled_call_is_in_doubt(ledger: Ledger) -> None:
    async def main() -> Any:
        started = asyncio.Event()

        @once_tool(ledger, effect="irreversible", scope="chat-1")
        async def pay(amount: int) -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(pay(5))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await pay(5)

    assert asyncio.run(main())["code"] == "in-doubt"


@both
def test_once_ever_has_one_effect_in_all_scopes(ledger: Ledger, way: str) -> None:
    chats = iter(["chat-1", "chat-2"])
    bank = Bank(ledger, once="ever", scope=lambda: next(chats))

    assert [bank.call(way, "42")["status"] for _ in range(2)] == ["done", "replayed"]
    assert Bank(ledger, once="ever", scope=None).call(way, "42")["status"] == "replayed"
    assert bank.refunds == ["42"]
