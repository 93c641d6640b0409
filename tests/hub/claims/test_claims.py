"""Resolving doubts, below the API and the command."""

from __future__ import annotations

import asyncio

import pytest

from onceward.http.stored.codec import ResponseCodec
from onceward.hub.claims.claims import resolve_claim
from onceward.ledger.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock
from onceward.tools import once_tool
from onceward.tools.tool import Once

YEAR_SECONDS = 365 * 86_400


@pytest.mark.parametrize(
    ("once", "scope", "key", "status"),
    [
        (Once.EVER, "ever:local:local", "refund:5", "replayed"),
        (Once.GROUP, "tool:local:local", "refund:5:turn_group:chat", "done"),
    ],
)
def test_a_resolved_call_that_happens_once_ever_never_runs_again(once: Once, scope: str, key: str, status: str) -> None:
    clock, runs = PinnedClock(), 0
    ledger = Ledger(MemoryStore(clock), wait_seconds=0)

    @once_tool(ledger, effect="irreversible", key_fields=["order"], scope="chat", once=once)
    async def refund(order: int) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise TimeoutError("the answer never came")
        return order

    async def scenario() -> str:
        await refund(5)
        await resolve_claim(
            ledger, ResponseCodec(frozenset()), "me", scope=scope, key=key, version=1, verdict="committed",
            reason="seen at the bank", value={"paid": 5},
        )  # fmt: skip
        clock.advance(10 * YEAR_SECONDS)
        await ledger.purge()
        again: dict[str, str] = await refund(5)
        return again["status"]

    with ledger:
        assert asyncio.run(scenario()) == status
