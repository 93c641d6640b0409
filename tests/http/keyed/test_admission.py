"""Admission of a request: results of the ledger, store errors, and the start of the purge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from onceward.core.claim import Busy, Claim, Found, InDoubt, Mismatch, Replay
from onceward.core.fingerprint import Digest
from onceward.core.outcome import Outcome
from onceward.errors import StoreUnavailable
from onceward.http import Rule
from onceward.http.keyed.admission import Admission, AdmissionResult, KeyedRequest
from onceward.http.keyed.principal import ANONYMOUS, KeyPrincipal, named
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore


class PurgeCountingStore(MemoryStore):
    """A store that reports when it is purged."""

    def __init__(self) -> None:
        super().__init__()
        self.swept = threading.Event()

    def purge(self, limit: int) -> int:
        self.swept.set()
        return super().purge(limit)


@pytest.fixture
def admissions() -> Iterator[list[Admission]]:
    made: list[Admission] = []
    yield made
    for admission in made:
        admission.ledger.close()


def keyed_request(
    admission: Admission, who: KeyPrincipal = ANONYMOUS, digest: str = "a" * 64, wait: float = 0.0, **rule: Any
) -> KeyedRequest:
    return KeyedRequest("k", who, Digest(digest), "POST /pay", admission.rule(Rule(**rule), "/pay"), wait)


def admit(admission: Admission, request: KeyedRequest) -> AdmissionResult | None:
    return asyncio.run(admission.admit(request))


def test_a_key_runs_once_and_later_requests_are_busy_refused_or_replayed() -> None:
    admission = Admission(MemoryStore(), {})
    with closing(admission.ledger):
        first = admit(admission, keyed_request(admission))
        assert isinstance(first, Claim)
        assert first.entry.endpoint == "POST /pay"
        assert first.entry.user_id == "anonymous"
        assert isinstance(admit(admission, keyed_request(admission)), Busy)
        assert isinstance(admit(admission, keyed_request(admission, digest="b" * 64)), Mismatch)
        assert isinstance(admit(admission, keyed_request(admission, named("ann"))), Claim), "a key belongs to its user"

        asyncio.run(admission.ledger.settle(first, Outcome(200, "[]", b"x")))

        assert isinstance(admit(admission, keyed_request(admission)), Replay)
        assert isinstance(admit(admission, keyed_request(admission, digest="b" * 64)), Mismatch)


@pytest.mark.parametrize(("on_crash", "kind"), [("repeat", Claim), ("hold", InDoubt)])
def test_an_unknown_outcome_is_repeated_or_in_doubt_by_the_rule(on_crash: str, kind: type[Found]) -> None:
    admission = Admission(MemoryStore(), {})
    with closing(admission.ledger):
        for verb in (admission.unknown, admission.failed):
            request = KeyedRequest(
                verb.__name__, ANONYMOUS, Digest("a" * 64), "", admission.rule(Rule(on_crash=on_crash), "/"), 0
            )
            claim = admit(admission, request)
            assert isinstance(claim, Claim)
            asyncio.run(verb(request, claim, "why"))

            assert isinstance(admit(admission, request), kind)


def test_a_waiting_duplicate_gets_the_outcome() -> None:
    admission = Admission(MemoryStore(), {})

    async def main() -> AdmissionResult | None:
        first = await admission.admit(keyed_request(admission))
        assert isinstance(first, Claim)
        waiting = asyncio.ensure_future(admission.admit(keyed_request(admission, wait=30.0)))
        await asyncio.sleep(0)
        await admission.ledger.settle(first, Outcome(200, "[]", b"x"))
        return await waiting

    with closing(admission.ledger):
        assert isinstance(asyncio.run(main()), Replay)


def test_a_waiting_duplicate_takes_over_when_the_first_one_fails() -> None:
    admission = Admission(MemoryStore(), {})

    async def main() -> AdmissionResult | None:
        first = await admission.admit(keyed_request(admission))
        assert isinstance(first, Claim)
        waiting = asyncio.ensure_future(admission.admit(keyed_request(admission, wait=30.0)))
        await asyncio.sleep(0)
        await admission.failed(keyed_request(admission), first, "why")
        return await waiting

    with closing(admission.ledger):
        assert isinstance(asyncio.run(main()), Claim)


def test_a_duplicate_waits_no_longer_than_requested() -> None:
    admission = Admission(MemoryStore(), {})
    with closing(admission.ledger):
        admit(admission, keyed_request(admission))

        assert isinstance(admit(admission, keyed_request(admission, wait=0.02)), Busy)


def test_on_a_store_error_the_request_is_refused_or_proceeds_as_configured() -> None:
    store = FaultyStore(MemoryStore())
    closed, opened = (
        Admission(store, {"store_seconds": 0}),
        Admission(store, {"store_seconds": 0, "on_store_error": "proceed"}),
    )
    with closing(closed.ledger), closing(opened.ledger), store.unavailable():
        with pytest.raises(StoreUnavailable):
            admit(closed, keyed_request(closed))
        assert admit(opened, keyed_request(opened)) is None


def test_the_purge_begins_with_the_first_request(admissions: list[Admission]) -> None:
    store = PurgeCountingStore()
    admission = Admission(store, {"purge_seconds": 3600})
    admissions.append(admission)
    assert not store.swept.is_set()

    admit(admission, keyed_request(admission))

    assert store.swept.wait(10)


def test_a_purge_that_is_switched_off_does_not_start(admissions: list[Admission]) -> None:
    store = PurgeCountingStore()
    admission = Admission(store, {"purge_seconds": 0})
    admissions.append(admission)

    admit(admission, keyed_request(admission))

    assert admission.ledger._dispatcher._purge_seconds == float("inf")
    assert not store.swept.is_set()


def test_the_log_says_once_that_keys_change_with_each_login(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(MemoryStore(), {})
    admission.warn_fleeting()
    admission.warn_fleeting()

    (record,) = caplog.records
    assert "principal=" in record.getMessage()


@pytest.mark.parametrize("verb", ["failed", "unknown"])
@pytest.mark.parametrize("on_crash", ["repeat", "hold"])
@pytest.mark.parametrize(("keys", "kept"), [([], "ValueError: card 4111 refused"), ([bytes(32)], "ValueError")])
def test_with_encryption_no_exception_text_stays_readable(
    admissions: list[Admission], verb: str, on_crash: str, keys: list[bytes], kept: str
) -> None:
    admission = Admission(MemoryStore(), {"encryption_keys": keys})
    admissions.append(admission)
    request = keyed_request(admission, on_crash=on_crash)
    claim = admit(admission, request)
    assert isinstance(claim, Claim)

    asyncio.run(getattr(admission, verb)(request, claim, "ValueError: card 4111 refused"))

    (entry,) = admission.ledger.blocking.scan().entries
    assert entry.note == ("" if (verb, on_crash) == ("unknown", "repeat") else kept)


def test_with_encryption_the_middlewares_own_failure_notes_stay_readable(
    admissions: list[Admission],
) -> None:
    admission = Admission(MemoryStore(), {"encryption_keys": [bytes(32)]})
    admissions.append(admission)
    request = keyed_request(admission)
    claim = admit(admission, request)
    assert isinstance(claim, Claim)

    asyncio.run(admission.failed(request, claim, "the bound transaction was rolled back"))

    (entry,) = admission.ledger.blocking.scan().entries
    assert entry.note == "the bound transaction was rolled back"
