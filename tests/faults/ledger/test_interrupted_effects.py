"""The effect did its work and then raised, in whatever way: an irreversible one never runs a second time unasked."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest

from onceward import Ledger, errors, verdict
from onceward.core.claim import Entry

INTERRUPTIONS = [RuntimeError, errors.StoreUnavailable, KeyboardInterrupt, SystemExit, asyncio.CancelledError]
interruptions = pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda kind: kind.__name__)


class Work:
    """An effect that is interrupted after its work, the first time it runs."""

    def __init__(self, interruption: type[BaseException]) -> None:
        self.runs = 0
        self._interruption = interruption

    def __call__(self) -> int:
        self.runs += 1
        if self.runs == 1:
            raise self._interruption("after the work")
        return self.runs


class Call(Protocol):
    def __call__(self, ledger: Ledger, work: Work, **options: Any) -> int: ...


def blocking(ledger: Ledger, work: Work, **options: Any) -> int:
    return ledger.blocking.run("order 1", work, **options)


def awaited(ledger: Ledger, work: Work, **options: Any) -> int:
    async def effect() -> int:
        await asyncio.sleep(0)
        return work()

    async def main() -> int:
        return await ledger.run("order 1", effect, **options)

    return asyncio.run(main())


@pytest.fixture(params=[blocking, awaited], ids=lambda way: way.__name__)
def call(request: pytest.FixtureRequest) -> Call:
    way: Call = request.param
    return way


@interruptions
def test_an_interrupted_irreversible_effect_is_in_doubt_and_not_run_again(
    ledger: Ledger, call: Call, interruption: type[BaseException]
) -> None:
    work = Work(interruption)

    with pytest.raises(interruption):
        call(ledger, work, effect="irreversible")

    for _ in range(2):
        with pytest.raises(errors.InDoubt):
            call(ledger, work, effect="irreversible")
    assert work.runs == 1


@interruptions
def test_an_interrupted_repeatable_effect_may_run_again(
    ledger: Ledger, call: Call, interruption: type[BaseException]
) -> None:
    work = Work(interruption)

    with pytest.raises(interruption):
        call(ledger, work, effect="idempotent")

    assert call(ledger, work, effect="idempotent") == 2
    assert call(ledger, work, effect="idempotent") == 2
    assert work.runs == 2


@interruptions
def test_an_interrupted_compensatable_effect_is_undone_once_and_may_run_again(
    ledger: Ledger, call: Call, interruption: type[BaseException]
) -> None:
    work = Work(interruption)
    undone: list[int] = []

    def undo() -> None:
        undone.append(work.runs)

    with pytest.raises(interruption):
        call(ledger, work, effect="compensatable", undo=undo)

    assert undone == [1]
    assert call(ledger, work, effect="compensatable", undo=undo) == 2
    assert undone == [1]


def test_an_undo_that_fails_leaves_the_effect_in_doubt(ledger: Ledger, call: Call) -> None:
    work = Work(RuntimeError)

    def undo() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(ledger, work, effect="compensatable", undo=undo)

    with pytest.raises(errors.InDoubt):
        call(ledger, work, effect="compensatable", undo=undo)
    assert work.runs == 1


def test_an_effect_that_says_it_did_nothing_may_run_again(ledger: Ledger, call: Call) -> None:
    work = Work(errors.NotDone)

    with pytest.raises(errors.NotDone):
        call(ledger, work, effect="irreversible")

    assert call(ledger, work, effect="irreversible") == 2


def test_exceptions_listed_as_harmless_let_the_effect_run_again(ledger: Ledger, call: Call) -> None:
    work = Work(ConnectionRefusedError)

    with pytest.raises(ConnectionRefusedError):
        call(ledger, work, effect="irreversible", not_done=(ConnectionRefusedError,))

    assert call(ledger, work, effect="irreversible", not_done=(ConnectionRefusedError,)) == 2


def test_a_reconcile_hook_with_evidence_ends_the_doubt_without_a_second_run(ledger: Ledger, call: Call) -> None:
    work = Work(RuntimeError)
    with pytest.raises(RuntimeError):
        call(ledger, work, effect="irreversible")

    def reconcile(entry: Entry) -> verdict.Verdict:
        assert entry.note == "RuntimeError: after the work"
        return verdict.committed(17)

    assert call(ledger, work, effect="irreversible", reconcile=reconcile) == 17
    assert call(ledger, work, effect="irreversible") == 17
    assert work.runs == 1


def test_only_a_final_reason_lets_an_effect_in_doubt_run_again(ledger: Ledger, call: Call) -> None:
    work = Work(RuntimeError)
    with pytest.raises(RuntimeError):
        call(ledger, work, effect="irreversible")

    with pytest.raises(errors.InDoubt):
        call(ledger, work, effect="irreversible", reconcile=lambda _: verdict.unknown)
    with pytest.raises(errors.InDoubt):
        call(ledger, work, effect="irreversible", reconcile=lambda _: verdict.pending, wait_seconds=0)
    with pytest.raises(errors.InvalidOption):
        call(ledger, work, effect="irreversible", reconcile=lambda _: verdict.not_committed("holder is dead"))  # type: ignore[arg-type]
    assert work.runs == 1

    fenced = verdict.not_committed(verdict.Final.FENCED)
    assert call(ledger, work, effect="irreversible", reconcile=lambda _: fenced) == 2
