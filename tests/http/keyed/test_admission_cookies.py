"""Admission of a caller with cookies: an entry that changes between two reads never matches all cookies by accident."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from tests.http.keyed.test_admission import keyed_request

from onceward.core.claim import Begin, Busy, Claim, Entry, Mismatch, Replay, Status, Write, WriteResult
from onceward.core.outcome import Outcome
from onceward.http.keyed.admission import Admission, AdmissionResult, KeyedRequest, PrincipalChanged
from onceward.http.keyed.principal import ANONYMOUS
from onceward.http.response.settlement import outcome_after_takeover
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

RETAIN_SECONDS = 60.0


class MeddledStore(MemoryStore):
    """Calls `meddle` once before the second begin, between two reads of one caller."""

    def __init__(self, clock: PinnedClock) -> None:
        super().__init__(clock=clock)
        self.meddle: Callable[[], None] | None = None
        self.begins = 0

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        if any(isinstance(write, Begin) for write in writes):
            self.begins += 1
            if self.meddle is not None and self.begins == 2:
                meddle, self.meddle = self.meddle, None
                meddle()
        return super().commit(writes)


class Case:
    """An admission whose store changes an entry at the worst moment."""

    def __init__(self) -> None:
        self.clock = PinnedClock()
        self.store = MeddledStore(self.clock)
        self.admission = Admission(self.store, {"purge_seconds": 0, "retain_seconds": RETAIN_SECONDS})

    def request(self, cookies: str, digest: str = "a" * 64, wait: float = 0.0) -> KeyedRequest:
        return keyed_request(self.admission, replace(ANONYMOUS, cookies=cookies), digest, wait)

    def admit(self, request: KeyedRequest) -> AdmissionResult | None:
        return asyncio.run(self.admission.admit(request))

    def claim(self, request: KeyedRequest) -> Claim:
        found = self.admit(request)
        assert isinstance(found, Claim)
        return found

    def settle(self, claim: Claim) -> None:
        asyncio.run(self.admission.ledger.settle(claim, Outcome(200, "[]", b"x"), RETAIN_SECONDS))

    def vanish(self) -> None:
        self.clock.advance(RETAIN_SECONDS + 1)

    def meddle(self, what: Callable[[], None]) -> None:
        self.store.begins, self.store.meddle = 0, what


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.admission.ledger.close()


def test_no_second_begin_is_sent_if_the_first_one_decides(case: Case) -> None:
    for request, kind in (
        (case.request("c1"), Claim),
        (case.request("c1"), Busy),
        (case.request("c1", "b" * 64), Mismatch),
        (case.request("c2"), PrincipalChanged),
        (case.request(""), PrincipalChanged),
        (case.request("c2", "b" * 64), PrincipalChanged),
    ):
        case.store.begins = 0

        assert isinstance(case.admit(request), kind)
        assert case.store.begins == 1


def test_an_entry_claimed_without_cookies_matches_all_cookies(case: Case) -> None:
    claim = case.claim(case.request(""))
    assert isinstance(case.admit(case.request("c1")), Busy)
    case.settle(claim)

    assert isinstance(case.admit(case.request("c1")), Replay)
    assert isinstance(case.admit(case.request("")), Replay)
    assert isinstance(case.admit(case.request("c1", "b" * 64)), Mismatch)


def test_without_cookie_matching_an_entry_with_cookies_is_another_request(case: Case) -> None:
    case.claim(case.request("c1"))

    assert isinstance(case.admit(keyed_request(case.admission, ANONYMOUS)), Mismatch)


def test_an_entry_that_vanishes_is_claimed_with_the_callers_own_cookies(case: Case) -> None:
    case.settle(case.claim(case.request("")))
    case.meddle(case.vanish)

    claim = case.claim(case.request("c1"))
    case.settle(claim)

    assert claim.entry.fingerprint == case.request("c1").whole_fingerprint
    assert isinstance(case.admit(case.request("c1")), Replay)
    assert isinstance(case.admit(case.request("")), PrincipalChanged)
    assert isinstance(case.admit(case.request("c2")), PrincipalChanged)


@pytest.mark.parametrize(("claimed_by", "kind"), [("c2", PrincipalChanged), ("c1", Busy)], ids=["another", "own"])
def test_an_entry_that_is_replaced_concurrently_is_judged_by_its_new_cookies(
    case: Case, claimed_by: str, kind: type[AdmissionResult]
) -> None:
    case.settle(case.claim(case.request("")))

    def replace_it() -> None:
        case.vanish()
        fingerprint = case.request(claimed_by).whole_fingerprint
        begin = Begin("onceward:http:anonymous", "k", "w", fingerprint, "?//1/", True, 10**9, 10**9)
        assert MemoryStore.commit(case.store, [begin])[0].applied

    case.meddle(replace_it)

    assert isinstance(case.admit(case.request("c1")), kind)


def test_a_failed_entry_without_cookies_is_taken_over_unchanged(case: Case) -> None:
    request = case.request("")
    asyncio.run(case.admission.failed(request, case.claim(request), "why"))

    claim = case.claim(case.request("c1"))

    assert claim.before is Status.FAILED
    assert claim.entry.fingerprint == request.fingerprint


def test_a_waiting_caller_with_cookies_gets_the_outcome_of_an_entry_without(case: Case) -> None:
    claim = case.claim(case.request(""))
    case.store.begins = 0

    async def main() -> AdmissionResult | None:
        waiting = asyncio.ensure_future(case.admission.admit(case.request("c1", wait=30.0)))
        while case.store.begins < 2:  # noqa: ASYNC110  # it is Busy by then, and waits
            await asyncio.sleep(0)
        await case.admission.ledger.settle(claim, Outcome(200, "[]", b"x"), RETAIN_SECONDS)
        return await waiting

    assert isinstance(asyncio.run(main()), Replay)


@pytest.mark.parametrize(
    ("holder", "code"), [("c2", "principal-changed"), ("", "outcome"), ("c1", "outcome")], ids=["other", "none", "own"]
)
def test_a_worker_that_lost_its_claim_gets_only_an_outcome_that_its_client_may_see(
    case: Case, holder: str, code: str
) -> None:
    case.settle(case.claim(case.request(holder)))

    found = asyncio.run(outcome_after_takeover(case.admission, case.request("c1")))

    assert ("outcome" if isinstance(found, Entry) else json.loads(found.body)["code"]) == code
