"""Concurrent callers: one effect, one result, and no caller waits forever."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.backends import Opener
from tests.tools.tool_harness import ToolHarness
from tests.waiting import soon

from onceward import Ledger, current_claim
from onceward.core.claim import Status
from onceward.ledger.terms import EffectClass
from onceward.tools.call import Call
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.tool import Tool, tool


@pytest.fixture
def ledger(make_store: Opener) -> Iterator[Ledger]:
    with closing(Ledger(make_store(), wait_seconds=20)) as ledger:
        yield ledger


class Slow:
    """An effect that begins at once and ends when the test says so."""

    def __init__(self) -> None:
        self.began = 0
        self.may_end = asyncio.Event()

    def tool(self, effect: EffectClass = "irreversible") -> Tool:
        @tool(effect=effect, key_fields=["order_id"])
        async def refund(order_id: str, amount: int = 0) -> dict[str, int]:
            self.began += 1
            number = self.began
            await self.may_end.wait()
            return {"refund": number}

        return refund


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_racing_callers_share_one_effect_and_its_result(ledger: Ledger) -> None:
    async def race() -> tuple[int, list[Envelope]]:
        slow = Slow()
        harness = ToolHarness(ledger, slow.tool())
        callers = [asyncio.create_task(harness.call_async("refund", {"order_id": "1"})) for _ in range(8)]
        await soon(lambda: slow.began)
        slow.may_end.set()
        return slow.began, await asyncio.gather(*callers)

    began, envelopes = asyncio.run(race())

    assert began == 1
    assert sorted(one.status for one in envelopes) == ["done"] + ["replayed"] * 7
    assert [one.result for one in envelopes] == [{"refund": 1}] * 8


@pytest.mark.parametrize("arguments", [{"order_id": "1"}, {"order_id": "1", "amount": 9}], ids=["same", "other"])
def test_a_caller_whose_wait_times_out_learns_that_the_call_still_runs(
    ledger: Ledger, arguments: dict[str, object]
) -> None:
    async def race() -> tuple[Envelope, Envelope]:
        slow = Slow()
        harness = ToolHarness(ledger, slow.tool())
        first = asyncio.create_task(harness.call_async("refund", {"order_id": "1"}))
        await soon(lambda: slow.began)
        impatient = await harness.call_async("refund", arguments, wait_seconds=0)
        slow.may_end.set()
        return await first, impatient

    first, impatient = asyncio.run(race())

    assert first.status is CallStatus.DONE
    same = "amount" not in arguments
    assert impatient.status is (CallStatus.IN_PROGRESS if same else CallStatus.REFUSED)
    assert impatient.may_retry is same


@pytest.mark.parametrize("effect", ["irreversible", "idempotent"])
def test_the_effect_class_decides_what_a_cancelled_caller_leaves(ledger: Ledger, effect: EffectClass) -> None:
    slow_tool: list[Tool] = []

    async def cancel() -> None:
        slow = Slow()
        slow_tool.append(slow.tool(effect))
        caller = asyncio.create_task(ToolHarness(ledger, slow_tool[0]).call_async("refund", {"order_id": "1"}))
        await soon(lambda: slow.began)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(cancel())

    assert status_of(ledger, slow_tool[0]) is (Status.IN_DOUBT if effect == "irreversible" else Status.FAILED)


def status_of(ledger: Ledger, declared: Tool) -> Status:
    call = ToolHarness(ledger, declared).plan(declared.name, order_id="1")
    entry = ledger.blocking.read(call.scope, call.key)
    assert entry is not None
    return entry.status


class Blocking:
    """An effect in a thread, which cannot be cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.undone = False

    def tool(self, effect: EffectClass) -> Tool:
        undo = {"undo": self.undo} if effect == "compensatable" else {}

        @tool(effect=effect, key_fields=["order_id"], **undo)  # type: ignore[arg-type]
        def refund(order_id: str) -> int:
            self.began.set()
            assert self.may_end.wait(30)
            return current_claim().attempt

        return refund

    def undo(self) -> None:
        self.undone = True


@pytest.mark.parametrize("effect", ["irreversible", "compensatable", "idempotent"])
def test_a_cancelled_caller_waits_until_its_thread_has_ended(ledger: Ledger, effect: EffectClass) -> None:
    blocking = Blocking()
    refund = blocking.tool(effect)

    async def cancel() -> None:
        caller = asyncio.create_task(ToolHarness(ledger, refund).call_async("refund", {"order_id": "1"}))
        await soon(blocking.began.is_set)
        caller.cancel()
        await asyncio.wait([caller], timeout=0)
        assert not caller.done()
        blocking.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(cancel())

    assert status_of(ledger, refund) is Status.COMPLETED
    assert ToolHarness(ledger, refund).call("refund", order_id="1").result == 1
    assert not blocking.undone


def test_a_blocking_tool_does_not_delay_other_calls(ledger: Ledger) -> None:
    blocking, slow = Blocking(), tool(effect="idempotent", name="other")(lambda: "done meanwhile")

    async def both() -> Envelope:
        harness = ToolHarness(ledger, blocking.tool("irreversible"), slow)
        caller = asyncio.create_task(harness.call_async("refund", {"order_id": "1"}))
        await soon(blocking.began.is_set)
        found = await harness.call_async("other", {})
        blocking.may_end.set()
        await caller
        return found

    assert asyncio.run(both()).result == "done meanwhile"


class StoppingGate:
    """A gate that blocks forever: it neither allows nor refuses a call."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def fire(self, _call: Call) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def done(self, _call: Call, _envelope: Envelope) -> None: ...


def test_a_caller_cancelled_at_the_gate_has_done_nothing(ledger: Ledger) -> None:
    slow_tool: list[Tool] = []

    async def cancel() -> None:
        gate, slow = StoppingGate(), Slow()
        slow_tool.append(slow.tool())
        caller = asyncio.create_task(
            ToolHarness(ledger, slow_tool[0], gate=gate).call_async("refund", {"order_id": "1"})
        )
        await gate.asked.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        slow.may_end.set()
        corrected = await ToolHarness(ledger, slow_tool[0]).call_async("refund", {"order_id": "1", "amount": 7})
        assert (corrected.status, slow.began) == (CallStatus.DONE, 1)

    asyncio.run(cancel())
