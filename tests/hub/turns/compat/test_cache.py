"""The idempotency cache of the contract, on the ledger: its results and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import redis.asyncio
from tests.tools.tool_harness import ToolHarness

from onceward import Ledger, errors
from onceward.hub.turns.compat.beat import BeatIdempotencyManager
from onceward.hub.turns.compat.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock
from onceward.tools.observer import IdempotencyStatus
from onceward.tools.tool import tool

T = TypeVar("T")

STARTED = IdempotencyStatus.PROCESSING_STARTED
PROCESSING = IdempotencyStatus.DUPLICATE_PROCESSING
COMPLETED = IdempotencyStatus.DUPLICATE_COMPLETED
MISMATCH = IdempotencyStatus.FINGERPRINT_MISMATCH


def run_async(awaitable: Awaitable[T]) -> T:
    async def it() -> T:
        return await awaitable

    return asyncio.run(it())


@pytest.fixture
def cache(ledger: Ledger) -> IdempotencyCache:
    return IdempotencyCache(ledger)


@pytest.fixture
def check(cache: IdempotencyCache) -> Callable[..., IdempotencyCheckResult]:
    def check(fingerprint: str = "hello", key: str = "tenant:key") -> IdempotencyCheckResult:
        return run_async(cache.check_and_set(key, fingerprint))

    return check


Check = Callable[..., IdempotencyCheckResult]


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres", "redis"], indirect=True)
def test_a_duplicate_gets_the_stored_response(cache: IdempotencyCache, check: Check) -> None:
    first, running_concurrently = check(), check()
    run_async(cache.mark_complete("tenant:key", "hello", '{"status": "processing"}'))
    after = check()

    assert [first.status, running_concurrently.status, after.status] == [STARTED, PROCESSING, COMPLETED]
    assert after.cached_response == '{"status": "processing"}'


def test_other_content_under_the_same_key_is_a_mismatch_in_every_state(cache: IdempotencyCache, check: Check) -> None:
    check()
    processing = check("goodbye")
    run_async(cache.mark_complete("tenant:key", "hello", "response"))
    completed = check("goodbye")

    assert processing == completed == IdempotencyCheckResult(MISMATCH, stored_fingerprint="hello")


def test_the_statuses_are_the_words_of_the_contract() -> None:
    assert [one.value for one in IdempotencyStatus][:4] == [
        "processing_started",
        "duplicate_processing",
        "duplicate_completed",
        "fingerprint_mismatch",
    ]


@pytest.mark.parametrize("response", [{}, None, "", {"a": [1]}, "a:b:c", "x" * 200_000], ids=range(6))
def test_every_response_comes_back_unchanged_even_an_empty_one(
    cache: IdempotencyCache, check: Check, response: Any
) -> None:
    check()
    run_async(cache.mark_complete("tenant:key", "hello", response))

    found = check()

    assert found.status is COMPLETED
    assert found.cached_response == response


def test_a_failed_request_may_be_retried_even_with_other_content(cache: IdempotencyCache, check: Check) -> None:
    check()
    run_async(cache.mark_failed("tenant:key"))

    assert check("goodbye").status is STARTED


def test_a_completed_request_cannot_fail_any_more(cache: IdempotencyCache, check: Check) -> None:
    check()
    run_async(cache.mark_complete("tenant:key", "hello", "response"))

    run_async(cache.mark_failed("tenant:key"))

    assert check().status is COMPLETED


def test_another_process_may_finish_what_one_has_checked(ledger: Ledger, check: Check) -> None:
    check()
    check(key="tenant:other")

    workflow = IdempotencyCache(ledger)
    run_async(workflow.mark_complete("tenant:key", "hello", "response"))
    run_async(workflow.mark_failed("tenant:other"))

    assert check().cached_response == "response"
    assert check(key="tenant:other").status is STARTED


def test_a_response_may_be_stored_without_a_check(cache: IdempotencyCache, check: Check) -> None:
    run_async(cache.mark_complete("tenant:key", "hello", "response"))

    assert check().cached_response == "response"


def test_the_first_response_stands(cache: IdempotencyCache, ledger: Ledger, check: Check) -> None:
    check()
    run_async(cache.mark_complete("tenant:key", "hello", "first"))
    run_async(cache.mark_complete("tenant:key", "hello", "second"))
    run_async(IdempotencyCache(ledger).mark_complete("tenant:key", "hello", "third"))

    assert check().cached_response == "first"


def test_a_response_for_other_content_is_refused(cache: IdempotencyCache, check: Check) -> None:
    check()

    with pytest.raises(errors.KeyReused):
        run_async(cache.mark_complete("tenant:key", "goodbye", "response"))

    assert check().status is PROCESSING


def test_a_caller_that_takes_too_long_is_replaced_and_cannot_store_its_response(
    cache: IdempotencyCache, ledger: Ledger, check: Check, clock: PinnedClock
) -> None:
    check()
    clock.advance(299)
    assert check().status is PROCESSING
    clock.advance(2)
    assert run_async(IdempotencyCache(ledger).check_and_set("tenant:key", "hello")).status is STARTED

    with pytest.raises(errors.ClaimLost):
        run_async(cache.mark_complete("tenant:key", "hello", "late"))


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 24 * 3600), (timedelta(minutes=5), 300)], ids=["day", "given"])
def test_a_response_is_stored_for_its_retention(
    cache: IdempotencyCache, check: Check, clock: PinnedClock, ttl: timedelta | None, seconds: int
) -> None:
    check()
    run_async(cache.mark_complete("tenant:key", "hello", "response", ttl))
    clock.advance(seconds - 1)
    assert check().status is COMPLETED
    clock.advance(2)

    assert check().status is STARTED


def test_layers_and_principals_are_separate(cache: IdempotencyCache, ledger: Ledger, check: Check) -> None:
    key = "act:1:turn_group:group-1"
    check(key=key)

    @tool(effect="idempotent", template="{one}")
    def act(one: str) -> str:
        return one

    harness = ToolHarness(ledger, act)
    assert harness.call_as("act", {"one": "1"}, principal="local", tenant_id="").result == "1"
    assert run_async(cache.of_layer("beat").check_and_set(key, "hello")).status is STARTED
    assert run_async(IdempotencyCache(ledger, principal="bob").check_and_set(key, "hello")).status is STARTED


@pytest.mark.parametrize(
    "given", [redis.asyncio.Redis(), "redis://127.0.0.1", None, MemoryStore(), Ledger], ids=lambda one: repr(one)[:20]
)
def test_a_cache_without_a_ledger_is_refused_at_construction(given: Any) -> None:
    with pytest.raises(errors.InvalidOption, match=r"IdempotencyCache needs a Ledger, not \w+: open_ledger"):
        IdempotencyCache(given)


def test_a_beat_manager_without_a_cache_is_refused(ledger: Ledger) -> None:
    for given in (ledger, redis.asyncio.Redis(), None):
        with pytest.raises(
            errors.InvalidOption, match=r"BeatIdempotencyManager needs an IdempotencyCache\(ledger\), not "
        ):
            BeatIdempotencyManager(given)  # type: ignore[arg-type]  # what is refused
