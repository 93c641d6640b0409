"""The store fails before, during and after the handler, and comes back: no false response and no second run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest
from tests.backends import Opener
from tests.faults.http.faulty_server import FaultyServer, expected
from tests.faults.http.raw_client import RawResponse
from tests.waiting import until

from onceward.core.claim import Begin, Move, Ref, Status, Verb
from onceward.core.outcome import Outcome
from onceward.http.keyed.operation import Operation
from onceward.store.write_id import write_id

KEY = "order-1"
# Short, so that a store that is down is found out soon.
STORE_SECONDS = 0.2
# A lease long enough that a worker which waits for its store is not replaced.
LEASE_SECONDS = 30.0
# Where nothing could be recorded, not even that it failed, a retry has to wait for the lease.
LEASE_SECONDS_TO_WAIT = 0.5


@pytest.fixture
def server(make_store: Opener) -> Iterator[FaultyServer]:
    with closing(FaultyServer(make_store(), store_seconds=STORE_SECONDS, lease_seconds=LEASE_SECONDS)) as server:
        yield server


@pytest.fixture
def forgotten(make_store: Opener) -> Iterator[FaultyServer]:
    """A server with short leases, for requests that were not recorded and are taken over after their lease."""
    with closing(
        FaultyServer(make_store(), store_seconds=STORE_SECONDS, lease_seconds=LEASE_SECONDS_TO_WAIT)
    ) as server:
        yield server


def assert_unavailable(answer: RawResponse) -> None:
    assert (answer.status, answer.problem, answer.retry_after) == (503, "unavailable", "5")


def request_until_decided(server: FaultyServer, path: str) -> RawResponse:
    """Retry while the response says that the key is in progress."""

    def send_request() -> RawResponse | None:
        answer = server.send_request(path, KEY, wait=5)
        return answer if answer.retry_after is None else None

    return until(send_request, f"{KEY} is never decided")


@contextmanager
def down_from(server: FaultyServer, moment: str) -> Iterator[None]:
    """Make the store unavailable from this point of the next request until the end of the block."""
    with ExitStack() as down:

        def go_down() -> None:
            down.enter_context(server.store.unavailable())

        if moment == "handler":
            server.during = lambda _: go_down()
        else:
            server.in_stream = lambda number: go_down() if number == int(moment) else None
        yield
        server.during = lambda _: None
        server.in_stream = lambda _: None


@pytest.mark.parametrize("path", ["/small", "/stream", "/hold"])
def test_before_the_handler_nothing_runs_and_the_client_is_told_when_to_retry(server: FaultyServer, path: str) -> None:
    with server.store.unavailable():
        refused = server.send_request(path, KEY)
    answer, again = server.send_request(path, KEY), server.send_request(path, KEY)

    assert_unavailable(refused)
    assert (answer.status, answer.replayed) == (201, False)
    assert (again.same, again.replayed) == (answer.same, True)
    assert len(server.runs) == 1


@pytest.mark.parametrize("path", ["/small", "/large", "/hold"])
def test_a_response_that_cannot_be_recorded_is_held_back_until_the_store_is_back(
    server: FaultyServer, path: str
) -> None:
    with down_from(server, "handler"):
        refused = server.send_request(path, KEY)
    answer, again = request_until_decided(server, path), server.send_request(path, KEY)

    assert_unavailable(refused)
    assert (answer.status, answer.replayed) == (201, True)
    assert answer.body == expected(path, server.runs[0].token)
    assert again.same == answer.same
    assert len(server.runs) == 1


@pytest.mark.parametrize("moment", ["0", "3", "11"])
def test_a_body_that_has_begun_is_cut_and_comes_whole_from_the_retry(forgotten: FaultyServer, moment: str) -> None:
    with down_from(forgotten, moment), pytest.raises(OSError, match=r"."):
        forgotten.send_request("/stream", KEY)
    answer, again = request_until_decided(forgotten, "/stream"), forgotten.send_request("/stream", KEY)

    assert answer.status == 201
    assert answer.body == expected("/stream", forgotten.runs[-1].token)
    assert (again.same, again.replayed) == (answer.same, True)
    assert len(forgotten.runs) <= 2


def test_a_cut_body_is_never_run_again_if_it_may_not_be_repeated(forgotten: FaultyServer) -> None:
    with down_from(forgotten, "3"), pytest.raises(OSError, match=r"."):
        forgotten.send_request("/hold-stream", KEY)
    answer = request_until_decided(forgotten, "/hold-stream")

    whole = (201, expected("/hold-stream", forgotten.runs[0].token))
    assert answer.same == whole or (answer.status, answer.problem) == (409, "in-doubt")
    assert len(forgotten.runs) == 1


def test_a_stored_body_that_cannot_be_read_now_is_read_later(server: FaultyServer) -> None:
    first = server.send_request("/large", KEY)
    server.store.lose_request("chunks")
    unread = server.send_request("/large", KEY)

    assert_unavailable(unread)
    assert server.send_request("/large", KEY).same == first.same
    assert len(server.runs) == 1


def test_a_worker_that_lost_its_claim_and_cannot_read_the_entry_responds_unavailable(server: FaultyServer) -> None:
    def lose(operation: Operation) -> None:
        take_over(server, operation)
        server.store.lose_request("read", 1000)

    server.during = lose
    refused = server.send_request("/small", KEY)
    server.store._orders.clear()
    server.during = lambda _: None

    answer = server.send_request("/small", KEY)

    assert_unavailable(refused)
    assert answer.same == (200, b"the other's")
    assert len(server.runs) == 1


def take_over(server: FaultyServer, operation: Operation) -> None:
    """Settle the request from another worker, as if this one had been silent for too long."""
    store = server.store._store
    assert operation.key is not None
    (found,) = store.scan(None, Status.IN_PROGRESS, "", 10).entries
    ref = Ref(found.scope, found.key)
    begin = Begin(
        *ref, write_id(), found.fingerprint, "elsewhere/1/2/3", repeatable=True,
        lease=10_000_000, retain=60_000_000, dead=found.version,
    )  # fmt: skip
    (claimed,) = store.commit([begin])
    assert claimed.entry is not None
    settle = Move(*ref, write_id(), Verb.SETTLE, claimed.entry.version, retain=60_000_000)
    (settled,) = store.commit([replace(settle, outcome=Outcome(200, "[]", b"the other's"))])
    assert settled.applied


def test_proceeding_without_the_store_runs_unprotected_and_keeps_nothing(make_store: Opener) -> None:
    options = {"store_seconds": STORE_SECONDS, "on_store_error": "proceed"}
    with closing(FaultyServer(make_store(), **options)) as server:
        with server.store.unavailable():
            unprotected = [server.send_request("/small", KEY) for _ in range(2)]
        answer, again = server.send_request("/small", KEY), server.send_request("/small", KEY)

        assert [one.status for one in unprotected] == [201, 201]
        assert unprotected[0].body != unprotected[1].body
        assert (answer.replayed, again.replayed) == (False, True)
        assert answer.body == again.body
        assert len(server.runs) == 3


def test_many_outages_leave_one_run_and_one_response_for_each_key(server: FaultyServer) -> None:
    keys = [f"order-{number}" for number in range(6)]
    for key in keys:
        with server.store.unavailable():
            assert_unavailable(server.send_request("/small", key))
    answers = [server.send_request("/small", key) for key in keys]

    assert [server.send_request("/small", key).same for key in keys] == [answer.same for answer in answers]
    assert server.counts() == dict.fromkeys(keys, 1)
