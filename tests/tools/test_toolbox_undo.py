"""Compensatable tools: a call is undone once, and may then run again."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.conftest import LEASE_SECONDS
from tests.tools.tool_harness import ToolHarness

from onceward import Ledger, errors
from onceward.core.claim import Claim, Status
from onceward.testing import PinnedClock
from onceward.tools.envelope import CallStatus
from onceward.tools.tool import Tool, tool


class Hotel:
    """Books and cancels, and records the arguments."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.done: list[tuple[Any, ...]] = []
        self.rooms = 0

    @property
    def verbs(self) -> list[str]:
        return [one[0] for one in self.done]

    def book(self) -> Tool:
        @tool(effect="compensatable", key_fields=["night"], undo=self.cancel, provider_key="ref")
        async def book(night: str, guest: str = "ann", *, ref: str) -> dict[str, int]:
            self.rooms += 1
            self.done.append(("book", night, ref))
            if self.failures:
                raise self.failures.pop(0)
            return {"room": self.rooms}

        return book

    async def cancel(self, night: str, result: Any, ref: str) -> None:
        self.done.append(("cancel", night, ref, result))


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_a_call_is_undone_once_and_runs_again_as_the_next_generation(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())
    first = harness.call("book", night="1")

    undone = [harness.undo("book", night="1", generation=0) for _ in range(3)]
    again = [harness.call("book", night="1") for _ in range(2)]

    assert [one.status for one in undone] == [CallStatus.DONE, CallStatus.REPLAYED, CallStatus.REPLAYED]
    assert hotel.verbs == ["book", "cancel", "book"]
    assert [one.status for one in again] == [CallStatus.DONE, CallStatus.REPLAYED]
    assert [one.result for one in again] == [{"room": 2}] * 2
    assert again[0].key == first.key
    assert again[0].receipt is not None
    assert again[0].receipt["generation"] == 1


def test_the_undo_gets_the_result_and_the_key_of_its_call(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())
    harness.call("book", night="1")
    harness.undo("book", night="1")
    harness.call("book", night="1")
    harness.undo("book", night="1")

    refs = [one[2] for one in hotel.done]
    assert [one[3] for one in hotel.done if one[0] == "cancel"] == [{"room": 1}, {"room": 2}]
    assert refs[0] == refs[1] != refs[2] == refs[3]


def test_a_call_that_never_ran_is_not_undone(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())

    assert harness.undo("book", night="1").status is CallStatus.REFUSED
    assert hotel.done == []
    assert harness.call("book", night="1", guest="bob").status is CallStatus.DONE


def test_without_a_generation_the_latest_is_undone(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())
    harness.call("book", night="1")

    statuses = [harness.undo("book", night="1").status for _ in range(2)]

    assert statuses == [CallStatus.DONE, CallStatus.REFUSED]
    assert hotel.verbs == ["book", "cancel"]


def test_a_second_undo_of_an_old_generation_leaves_the_new_one_alone(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())
    harness.call("book", night="1")
    harness.undo("book", night="1")
    harness.call("book", night="1")

    assert harness.undo("book", night="1", generation=0).status is CallStatus.REPLAYED
    assert hotel.verbs == ["book", "cancel", "book"]


def test_an_exception_is_undone_at_once_and_the_call_may_be_corrected(ledger: Ledger) -> None:
    hotel = Hotel(TimeoutError("no answer"))
    harness = ToolHarness(ledger, hotel.book())

    failed = harness.call("book", night="1")
    corrected = harness.call("book", night="1", guest="bob")

    assert (failed.status, failed.may_retry) == (CallStatus.REFUSED, True)
    assert corrected.status is CallStatus.DONE
    assert hotel.verbs == ["book", "cancel", "book"]


def test_a_provider_never_gets_an_undone_key_again(ledger: Ledger) -> None:
    hotel = Hotel(TimeoutError("no answer"))
    harness = ToolHarness(ledger, hotel.book())
    harness.call("book", night="1")
    harness.call("book", night="1")

    booked, cancelled, again = (one[2] for one in hotel.done)
    assert booked == cancelled
    assert again != booked


def abandon(harness: ToolHarness, clock: PinnedClock) -> None:
    """Claim the key of the call and do not renew it, like a process that was killed."""
    call = harness.plan("book", night="1")
    assert isinstance(harness.ledger.blocking.begin(call.scope, call.key, call.fingerprint, repeatable=True), Claim)
    clock.advance(LEASE_SECONDS + 1)


def test_a_vanished_holders_possible_effect_is_undone_before_the_call_runs(
    ledger: Ledger, clock: PinnedClock, hotel: Hotel
) -> None:
    harness = ToolHarness(ledger, hotel.book())
    abandon(harness, clock)

    assert harness.call("book", night="1").status is CallStatus.DONE

    assert hotel.verbs == ["cancel", "book"]
    call = harness.plan("book", night="1")
    entry = ledger.blocking.read(call.scope, call.key)
    assert entry is not None
    vanished = call.of_attempt(ledger, entry, 1)
    assert hotel.done[0] == ("cancel", "1", vanished.provider_key, None)
    assert hotel.done[1][2] != vanished.provider_key


def test_a_vanished_holders_possible_effect_can_be_undone_without_running_it(
    ledger: Ledger, clock: PinnedClock, hotel: Hotel
) -> None:
    harness = ToolHarness(ledger, hotel.book())
    abandon(harness, clock)

    assert harness.undo("book", night="1").status is CallStatus.REFUSED
    assert harness.undo("book", night="1").status is CallStatus.REFUSED
    assert hotel.verbs == ["cancel"]
    assert harness.call("book", night="1").status is CallStatus.DONE
    assert hotel.done[0][2] != hotel.done[1][2]


def test_a_running_call_is_not_undone(ledger: Ledger, hotel: Hotel) -> None:
    harness = ToolHarness(ledger, hotel.book())
    call = harness.plan("book", night="1")
    assert isinstance(ledger.blocking.begin(call.scope, call.key, call.fingerprint, repeatable=True), Claim)

    undone = harness.undo("book", night="1", wait_seconds=0)

    assert (undone.status, undone.may_retry) == (CallStatus.IN_PROGRESS, True)
    assert hotel.done == []


def failing(failures: list[BaseException], done: list[str]) -> Tool:
    def cancel() -> None:
        if failures:
            raise failures.pop(0)
        done.append("cancel")

    @tool(effect="compensatable", undo=cancel)
    def book(*, fail: bool = False) -> None:
        done.append("book")
        if fail:
            raise TimeoutError

    return book


def test_a_failed_undo_may_be_retried(ledger: Ledger) -> None:
    done: list[str] = []
    harness = ToolHarness(ledger, failing([ConnectionError("down")], done))
    harness.call("book")

    first, second = harness.undo("book"), harness.undo("book")

    assert (first.status, first.may_retry) == (CallStatus.UNKNOWN, True)
    assert second.status is CallStatus.DONE
    assert done == ["book", "cancel"]


def test_a_failed_undo_after_an_exception_leaves_the_call_unknown(ledger: Ledger) -> None:
    done: list[str] = []
    harness = ToolHarness(ledger, failing([ConnectionError("down")], done))

    envelope = harness.call("book", fail=True)

    assert (envelope.status, envelope.may_retry) == (CallStatus.UNKNOWN, False)
    assert "down" in envelope.detail
    call = harness.plan("book", fail=True)
    entry = ledger.blocking.read(call.scope, call.key)
    assert entry is not None
    assert entry.status is Status.IN_DOUBT


def test_generations_outlive_the_calls_that_they_distinguish(ledger: Ledger, hotel: Hotel, clock: PinnedClock) -> None:
    harness = ToolHarness(ledger, hotel.book())
    harness.call("book", night="1")
    harness.undo("book", night="1")
    clock.advance(23 * 3600)
    harness.call("book", night="1")
    clock.advance(2 * 3600)

    assert harness.call("book", night="1").status is CallStatus.REPLAYED
    assert hotel.verbs == ["book", "cancel", "book"]


def test_only_compensatable_tools_are_undone(ledger: Ledger) -> None:
    @tool(effect="idempotent")
    def act() -> None: ...

    with pytest.raises(errors.InvalidOption, match="compensatable"):
        ToolHarness(ledger, act).undo("act")
