"""A holder that is still at work when its lease is over, by pinned time: the recorded outcome never changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from onceward import Ledger, errors, verdict
from onceward.core.outcome import Outcome
from onceward.ledger.terms import EffectClass
from onceward.testing import PinnedClock

OpenLedger = Callable[[], Ledger]


@contextmanager
def late_holder(
    ledger: Ledger, clock: PinnedClock, effect: EffectClass, result: str = "late"
) -> Iterator[Callable[[], Future[str]]]:
    """A holder in the middle of its effect, whose lease has lapsed; calling it lets the effect return."""
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert go_on.wait(10)
        return result

    with ThreadPoolExecutor(1) as threads:
        future: Future[str] = threads.submit(ledger.blocking.run, "order 1", work, effect=effect)
        assert started.wait(10)
        clock.advance(ledger.lease_seconds)

        def finish() -> Future[str]:
            go_on.set()
            return future

        yield finish
        go_on.set()


@pytest.mark.parametrize("result", ["late", "late" * 50_000], ids=["small", "large"])
def test_a_late_holder_cannot_overwrite_the_outcome_and_returns_it(
    open_ledger: OpenLedger, clock: PinnedClock, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = open_ledger()

    with late_holder(open_ledger(), clock, "idempotent", result) as finish:
        taken_over = other.blocking.run("order 1", lambda: "taken over", effect="idempotent")
        late = finish().result()

    assert taken_over == late == "taken over"
    assert "late_result_discarded" in [record.msg for record in caplog.records]
    assert other.blocking.run("order 1", lambda: "again", effect="idempotent") == "taken over"


def test_a_late_holder_of_an_irreversible_effect_ends_the_doubt_itself(
    open_ledger: OpenLedger, clock: PinnedClock
) -> None:
    other = open_ledger()

    with late_holder(open_ledger(), clock, "irreversible") as finish:
        with pytest.raises(errors.InDoubt):
            other.blocking.run("order 1", lambda: "second", effect="irreversible")
        late = finish().result()

    assert late == "late"
    assert other.blocking.run("order 1", lambda: "second", effect="irreversible") == "late"


def test_a_late_result_that_is_large_ends_the_doubt_without_its_value(
    open_ledger: OpenLedger, clock: PinnedClock
) -> None:
    """Chunks can only be appended to a claim, and this one has ended; the effect is recorded without them."""
    other = open_ledger()

    with late_holder(open_ledger(), clock, "irreversible", "late" * 50_000) as finish:
        with pytest.raises(errors.InDoubt):
            other.blocking.run("order 1", lambda: "second", effect="irreversible")
        late = finish().result()

    assert late == "late" * 50_000
    with pytest.raises(errors.OutcomeNotKept):
        other.blocking.run("order 1", lambda: "second", effect="irreversible")


def test_a_late_holder_that_was_not_replaced_settles_normally(open_ledger: OpenLedger, clock: PinnedClock) -> None:
    with late_holder(open_ledger(), clock, "irreversible") as finish:
        assert finish().result() == "late"

    assert open_ledger().blocking.run("order 1", lambda: "second", effect="irreversible") == "late"


def test_a_late_holder_waits_for_the_caller_that_took_over(open_ledger: OpenLedger, clock: PinnedClock) -> None:
    other = open_ledger()

    with late_holder(open_ledger(), clock, "idempotent") as finish:

        def take_over() -> str:
            finish()
            return "taken over"

        taken_over = other.blocking.run("order 1", take_over, effect="idempotent")
        late = finish().result()

    assert taken_over == late == "taken over"


def test_a_late_holder_does_not_take_an_operators_verdict_for_its_own_result(
    open_ledger: OpenLedger, clock: PinnedClock
) -> None:
    other = open_ledger()

    with late_holder(open_ledger(), clock, "irreversible") as finish:
        with pytest.raises(errors.InDoubt) as doubt:
            other.blocking.run("order 1", lambda: "second", effect="irreversible")
        known = verdict.committed(Outcome())  # that it happened, and nothing more
        resolved = other.blocking.resolve("call", "order 1", doubt.value.version, known, note="by hand")
        late = finish()

    assert resolved
    assert isinstance(late.exception(), errors.OutcomeNotKept)
