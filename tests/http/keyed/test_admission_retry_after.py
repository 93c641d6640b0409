"""`Retry-After` for a duplicate: as long as the first has run, and never beyond the end of its lease."""

from __future__ import annotations

import asyncio

import pytest
from tests.http.asgi_server import Call, protected, reply, run, send_request
from tests.http.wsgi_server import OpenRequest, app_sending
from tests.http.wsgi_server import send_request as ask_wsgi

from onceward.core.claim import Busy, Claim
from onceward.http import WSGIIdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.http.client.policy import RetryPolicy
from onceward.http.keyed.admission import retry_seconds
from onceward.http.keyed.options import LEASE_SECONDS
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

HELD = [(0.0, 1), (0.2, 1), (1.0, 1), (1.2, 2), (4.0, 4), (14.9, 15), (15.0, 15), (20.0, 10), (27.5, 3), (29.9, 1)]


@pytest.mark.parametrize(("seconds", "retry_after"), HELD)
def test_retry_after_grows_with_the_time_held_and_shrinks_with_the_lease(seconds: float, retry_after: int) -> None:
    async def app(_scope: object, receive: Receive, send: Send) -> None:
        await receive()
        started.set()
        await over.wait()
        await reply(send)

    async def main() -> None:
        clock = PinnedClock()
        with protected(app, MemoryStore(clock=clock)) as middleware:
            first = Call(middleware)
            await started.wait()
            clock.advance(seconds)

            duplicate = await send_request(middleware)

            assert (duplicate.status, duplicate.headers["retry-after"]) == (409, str(retry_after))
            over.set()
            await first.task

    started, over = asyncio.Event(), asyncio.Event()
    run(main())


def test_the_time_held_is_that_of_this_attempt_not_of_the_first_one() -> None:
    clock = PinnedClock()
    with Ledger(MemoryStore(clock=clock), lease_seconds=LEASE_SECONDS) as ledger:
        first = ledger.blocking.begin("s", "k", repeatable=True)
        assert isinstance(first, Claim)
        assert ledger.blocking.fail(first)
        clock.advance(15)
        assert isinstance(ledger.blocking.begin("s", "k", repeatable=True), Claim)
        clock.advance(2)
        found = ledger.blocking.begin("s", "k", repeatable=True)

    assert isinstance(found, Busy)
    assert retry_seconds(found) == 2


def test_retry_after_is_the_same_under_wsgi() -> None:
    clock = PinnedClock()
    middleware = WSGIIdempotencyMiddleware(
        app_sending([b"a", b"b"], kind="stream"), MemoryStore(clock=clock), metrics=False
    )
    first = OpenRequest(middleware)
    clock.advance(4.2)

    duplicate = ask_wsgi(middleware)

    assert (duplicate.status, duplicate.headers["retry-after"]) == (409, "5")
    first.take_all()
    middleware.close()


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_a_client_with_default_options_outlasts_the_lease_of_a_dead_server(jitter: float) -> None:
    policy, seconds, tries = RetryPolicy(), 0.0, 1
    while seconds < LEASE_SECONDS:
        retry_after = max(1, -(-min(seconds, LEASE_SECONDS - seconds) // 1))
        pause = policy.pause(tries, retry_after, policy.deadline_seconds - seconds, jitter)
        assert pause is not None, f"it gave up after {seconds} seconds and {tries} tries"
        seconds, tries = seconds + pause, tries + 1

    assert seconds < LEASE_SECONDS + policy.longest_pause_seconds + 1
    assert policy.deadline_seconds - seconds > LEASE_SECONDS, "there is time left to run"
