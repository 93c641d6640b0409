"""Admitting a request: what the ledger says, what a store that fails means, and when the purge begins."""

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
from onceward.http.guard import Admitted, Asked, Guard
from onceward.http.principal import ANONYMOUS, Principal, named
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore


class SweptStore(MemoryStore):
    """Tells when it is purged."""

    def __init__(self) -> None:
        super().__init__()
        self.swept = threading.Event()

    def purge(self, limit: int) -> int:
        self.swept.set()
        return super().purge(limit)


@pytest.fixture
def guards() -> Iterator[list[Guard]]:
    made: list[Guard] = []
    yield made
    for guard in made:
        guard.ledger.close()


def asked(guard: Guard, who: Principal = ANONYMOUS, digest: str = "a" * 64, wait: float = 0.0, **rule: Any) -> Asked:
    return Asked("k", who, Digest(digest), "POST /pay", guard.rule(Rule(**rule), "/pay"), wait)


def admit(guard: Guard, request: Asked) -> Admitted | None:
    return asyncio.run(guard.admit(request))


def test_a_key_runs_once_and_what_follows_is_busy_refused_or_replayed() -> None:
    guard = Guard(MemoryStore(), {})
    with closing(guard.ledger):
        first = admit(guard, asked(guard))
        assert isinstance(first, Claim)
        assert first.entry.endpoint == "POST /pay"
        assert first.entry.user_id == "anonymous"
        assert isinstance(admit(guard, asked(guard)), Busy)
        assert isinstance(admit(guard, asked(guard, digest="b" * 64)), Mismatch)
        assert isinstance(admit(guard, asked(guard, named("ann"))), Claim), "a key belongs to its user"

        asyncio.run(guard.ledger.settle(first, Outcome(200, "[]", b"x")))

        assert isinstance(admit(guard, asked(guard)), Replay)
        assert isinstance(admit(guard, asked(guard, digest="b" * 64)), Mismatch)


@pytest.mark.parametrize(("on_crash", "kind"), [("repeat", Claim), ("hold", InDoubt)])
def test_what_nobody_knows_is_repeated_or_in_doubt_as_the_rule_says(on_crash: str, kind: type[Found]) -> None:
    guard = Guard(MemoryStore(), {})
    with closing(guard.ledger):
        for verb in (guard.unknown, guard.failed):
            request = Asked(verb.__name__, ANONYMOUS, Digest("a" * 64), "", guard.rule(Rule(on_crash=on_crash), "/"), 0)
            claim = admit(guard, request)
            assert isinstance(claim, Claim)
            asyncio.run(verb(request, claim, "why"))

            assert isinstance(admit(guard, request), kind)


def test_a_duplicate_that_waits_gets_the_outcome_when_it_is_there() -> None:
    guard = Guard(MemoryStore(), {})

    async def main() -> Admitted | None:
        first = await guard.admit(asked(guard))
        assert isinstance(first, Claim)
        waiting = asyncio.ensure_future(guard.admit(asked(guard, wait=30.0)))
        await asyncio.sleep(0)
        await guard.ledger.settle(first, Outcome(200, "[]", b"x"))
        return await waiting

    with closing(guard.ledger):
        assert isinstance(asyncio.run(main()), Replay)


def test_a_duplicate_that_waits_takes_over_when_the_first_one_fails() -> None:
    guard = Guard(MemoryStore(), {})

    async def main() -> Admitted | None:
        first = await guard.admit(asked(guard))
        assert isinstance(first, Claim)
        waiting = asyncio.ensure_future(guard.admit(asked(guard, wait=30.0)))
        await asyncio.sleep(0)
        await guard.failed(asked(guard), first, "why")
        return await waiting

    with closing(guard.ledger):
        assert isinstance(asyncio.run(main()), Claim)


def test_a_duplicate_waits_no_longer_than_it_said() -> None:
    guard = Guard(MemoryStore(), {})
    with closing(guard.ledger):
        admit(guard, asked(guard))

        assert isinstance(admit(guard, asked(guard, wait=0.02)), Busy)


def test_a_store_that_fails_refuses_or_proceeds_as_it_was_told() -> None:
    store = FaultyStore(MemoryStore())
    closed, opened = Guard(store, {"store_seconds": 0}), Guard(store, {"store_seconds": 0, "on_store_error": "proceed"})
    with closing(closed.ledger), closing(opened.ledger), store.unavailable():
        with pytest.raises(StoreUnavailable):
            admit(closed, asked(closed))
        assert admit(opened, asked(opened)) is None


def test_the_purge_begins_with_the_first_request(guards: list[Guard]) -> None:
    store = SweptStore()
    guard = Guard(store, {"purge_seconds": 3600})
    guards.append(guard)
    assert not store.swept.is_set()

    admit(guard, asked(guard))

    assert store.swept.wait(10)


def test_there_is_no_purge_where_none_is_wanted(guards: list[Guard]) -> None:
    store = SweptStore()
    guard = Guard(store, {"purge_seconds": 0})
    guards.append(guard)

    admit(guard, asked(guard))

    assert guard.ledger.line._purge_seconds == float("inf")
    assert not store.swept.is_set()


def test_that_keys_change_with_each_login_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(MemoryStore(), {})
    guard.tell_fleeting()
    guard.tell_fleeting()

    (record,) = caplog.records
    assert "principal=" in record.getMessage()


@pytest.mark.parametrize("verb", ["failed", "unknown"])
@pytest.mark.parametrize("on_crash", ["repeat", "hold"])
@pytest.mark.parametrize(("keys", "kept"), [([], "ValueError: card 4111 refused"), ([bytes(32)], "ValueError")])
def test_beside_sealed_responses_no_text_of_an_exception_stays_readable(
    guards: list[Guard], verb: str, on_crash: str, keys: list[bytes], kept: str
) -> None:
    guard = Guard(MemoryStore(), {"encryption_keys": keys})
    guards.append(guard)
    request = asked(guard, on_crash=on_crash)
    claim = admit(guard, request)
    assert isinstance(claim, Claim)

    asyncio.run(getattr(guard, verb)(request, claim, "ValueError: card 4111 refused"))

    (entry,) = guard.ledger.blocking.scan().entries
    assert entry.note == ("" if (verb, on_crash) == ("unknown", "repeat") else kept)


def test_what_the_middleware_itself_says_of_a_failure_is_kept_beside_sealed_responses(guards: list[Guard]) -> None:
    guard = Guard(MemoryStore(), {"encryption_keys": [bytes(32)]})
    guards.append(guard)
    request = asked(guard)
    claim = admit(guard, request)
    assert isinstance(claim, Claim)

    asyncio.run(guard.failed(request, claim, "the bound transaction was rolled back"))

    (entry,) = guard.ledger.blocking.scan().entries
    assert entry.note == "the bound transaction was rolled back"
