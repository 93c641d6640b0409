"""A duplicate joins a body that another process is still sending, and that process fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.http.faulty_server import FaultyServer
from tests.faults.http.raw_client import RawResponse
from tests.waiting import until

from onceward.core.claim import Begin, Ref, Status
from onceward.store import Store
from onceward.store.open import open_store
from onceward.store.write_id import write_id

KEY = "order-1"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[FaultyServer, FaultyServer]]:
    """Two servers that share only a file."""
    url = f"sqlite:///{tmp_path}/keys.db"
    options: dict[str, Any] = {"store_seconds": 0.3, "lease_seconds": 30.0}
    with (
        closing(FaultyServer(open_store(url), **options)) as one,
        closing(FaultyServer(open_store(url), **options)) as other,
    ):
        yield one, other


def test_a_sized_body_ends_for_a_duplicate_only_when_it_is_settled(two: tuple[FaultyServer, FaultyServer]) -> None:
    """The whole body is stored and was read by the duplicate when another server takes over the claim."""
    producer, other = two
    joined: list[Future[RawResponse]] = []
    with ThreadPoolExecutor(1) as elsewhere:

        def lose_the_claim_once_joined() -> None:
            joined.append(elsewhere.submit(other.send_request, "/large", KEY))
            until(lambda: other.store.points.count("after-chunks") >= 3, "nobody reads the body")
            take_over(producer.store._store)

        producer.store.at("before-settle", lose_the_claim_once_joined)
        first = producer.send_request("/large", KEY)
        again = other.send_request("/large", KEY)

        assert (first.status, first.problem) == (409, "conflict")
        assert (again.status, again.replayed) == (201, False)
        assert isinstance(joined[0].exception(), OSError), "what was read is nobody's answer"


def test_a_duplicate_between_two_producers_is_told_to_retry(
    two: tuple[FaultyServer, FaultyServer],
) -> None:
    producer, other = two
    answers: list[RawResponse] = []

    def join() -> None:
        """Send a duplicate that finds a response to join, which is gone when it reads it."""
        other.store.at("before-chunks", lambda: take_over(other.store._store))
        answers.append(other.send_request("/large", KEY))

    producer.store.at("before-settle", join)
    answers.append(producer.send_request("/large", KEY))

    for answer in answers:
        assert (answer.status, answer.problem, answer.retry_after) == (409, "conflict", "1")
    assert other.send_request("/large", KEY).status == 201


def take_over(store: Store) -> None:
    """Another worker takes over, as if the producer had been silent for too long, and stalls as well."""
    (found,) = store.scan(None, Status.IN_PROGRESS, "", 10).entries
    begin = Begin(*Ref(found.scope, found.key), write_id(), found.fingerprint, "elsewhere/1/2/3", True, 1, 10**9)
    (answer,) = store.commit([replace(begin, dead=found.version)])
    assert answer.applied
