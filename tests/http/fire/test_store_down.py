"""The store fails before, during and after the handler, and comes back: no false answer, no second run, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest
from tests.backends import Opener
from tests.http.fire.calls import Answer
from tests.http.fire.served import Served, expected
from tests.waiting import until

from onceward.core.claim import Begin, Move, Ref, Status, Verb
from onceward.core.outcome import Outcome
from onceward.http.operation import Operation
from onceward.store.write_id import write_id

KEY = "order-1"
# Short, so that a store that is down is found out soon.
PATIENCE = 0.2
# Nobody takes over what is only waiting for its store.
LEASE_SECONDS = 30.0
# Where nothing could be recorded, not even that it failed, a retry has to wait for the lease.
LEASE_SECONDS_TO_WAIT = 0.5


@pytest.fixture
def served(make_store: Opener) -> Iterator[Served]:
    with closing(Served(make_store(), store_seconds=PATIENCE, lease_seconds=LEASE_SECONDS)) as served:
        yield served


@pytest.fixture
def forgotten(make_store: Opener) -> Iterator[Served]:
    """For what is not recorded, and taken over when its lease is over."""
    with closing(Served(make_store(), store_seconds=PATIENCE, lease_seconds=LEASE_SECONDS_TO_WAIT)) as served:
        yield served


def assert_unavailable(answer: Answer) -> None:
    assert (answer.status, answer.problem, answer.retry_after) == (503, "unavailable", "5")


def ask_until_decided(served: Served, path: str) -> Answer:
    """Retry for as long as the key is said to be in work."""

    def ask() -> Answer | None:
        answer = served.ask(path, KEY, wait=5)
        return answer if answer.retry_after is None else None

    return until(ask, f"{KEY} is never decided")


@contextmanager
def down_from(served: Served, moment: str) -> Iterator[None]:
    """The store is down from this moment of the next request on, until the end of the block."""
    with ExitStack() as down:

        def go_down() -> None:
            down.enter_context(served.store.unavailable())

        if moment == "handler":
            served.during = lambda _: go_down()
        else:
            served.in_stream = lambda number: go_down() if number == int(moment) else None
        yield
        served.during = lambda _: None
        served.in_stream = lambda _: None


@pytest.mark.parametrize("path", ["/small", "/stream", "/hold"])
def test_before_the_handler_nothing_runs_and_the_client_is_told_when_to_come_again(served: Served, path: str) -> None:
    with served.store.unavailable():
        refused = served.ask(path, KEY)
    answer, again = served.ask(path, KEY), served.ask(path, KEY)

    assert_unavailable(refused)
    assert (answer.status, answer.replayed) == (201, False)
    assert (again.same, again.replayed) == (answer.same, True)
    assert len(served.runs) == 1


@pytest.mark.parametrize("path", ["/small", "/large", "/hold"])
def test_an_answer_that_cannot_be_recorded_is_held_back_and_recorded_when_the_store_is_back(
    served: Served, path: str
) -> None:
    with down_from(served, "handler"):
        refused = served.ask(path, KEY)
    answer, again = ask_until_decided(served, path), served.ask(path, KEY)

    assert_unavailable(refused)
    assert (answer.status, answer.replayed) == (201, True)
    assert answer.body == expected(path, served.runs[0].token)
    assert again.same == answer.same
    assert len(served.runs) == 1


@pytest.mark.parametrize("moment", ["0", "3", "11"])
def test_a_body_that_has_begun_is_cut_before_its_end_and_comes_whole_from_the_retry(
    forgotten: Served, moment: str
) -> None:
    with down_from(forgotten, moment), pytest.raises(OSError, match=r"."):
        forgotten.ask("/stream", KEY)
    answer, again = ask_until_decided(forgotten, "/stream"), forgotten.ask("/stream", KEY)

    assert answer.status == 201
    assert answer.body == expected("/stream", forgotten.runs[-1].token)
    assert (again.same, again.replayed) == (answer.same, True)
    assert len(forgotten.runs) <= 2


def test_a_body_that_was_cut_is_never_run_again_where_it_may_not_be(forgotten: Served) -> None:
    with down_from(forgotten, "3"), pytest.raises(OSError, match=r"."):
        forgotten.ask("/hold-stream", KEY)
    answer = ask_until_decided(forgotten, "/hold-stream")

    whole = (201, expected("/hold-stream", forgotten.runs[0].token))
    assert answer.same == whole or (answer.status, answer.problem) == (409, "in-doubt")
    assert len(forgotten.runs) == 1


def test_a_kept_body_that_cannot_be_read_now_is_read_later(served: Served) -> None:
    first = served.ask("/large", KEY)
    served.store.lose_request("chunks")
    unread = served.ask("/large", KEY)

    assert_unavailable(unread)
    assert served.ask("/large", KEY).same == first.same
    assert len(served.runs) == 1


def test_a_worker_that_lost_its_claim_and_cannot_ask_who_has_it_says_so(served: Served) -> None:
    def lose(operation: Operation) -> None:
        take_over(served, operation)
        served.store.lose_request("read", 1000)

    served.during = lose
    refused = served.ask("/small", KEY)
    served.store._orders.clear()
    served.during = lambda _: None

    answer = served.ask("/small", KEY)

    assert_unavailable(refused)
    assert answer.same == (200, b"the other's")
    assert len(served.runs) == 1


def take_over(served: Served, operation: Operation) -> None:
    """Another worker, as if this one had been silent for too long, runs the request to its end."""
    store = served.store._store
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
    options = {"store_seconds": PATIENCE, "on_store_error": "proceed"}
    with closing(Served(make_store(), **options)) as served:
        with served.store.unavailable():
            unprotected = [served.ask("/small", KEY) for _ in range(2)]
        answer, again = served.ask("/small", KEY), served.ask("/small", KEY)

        assert [one.status for one in unprotected] == [201, 201]
        assert unprotected[0].body != unprotected[1].body
        assert (answer.replayed, again.replayed) == (False, True)
        assert answer.body == again.body
        assert len(served.runs) == 3


def test_many_outages_leave_one_run_and_one_answer_for_each_key(served: Served) -> None:
    keys = [f"order-{number}" for number in range(6)]
    for key in keys:
        with served.store.unavailable():
            assert_unavailable(served.ask("/small", key))
    answers = [served.ask("/small", key) for key in keys]

    assert [served.ask("/small", key).same for key in keys] == [answer.same for answer in answers]
    assert served.counts() == dict.fromkeys(keys, 1)
