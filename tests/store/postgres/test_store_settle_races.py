"""Rows that change, or are unlocked, while PostgreSQL settles others of the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from tests.backends import Servers
from tests.store.postgres.blocked_batch import LOCK, held_up, submitted_until_it_waits

from onceward.core.claim import Begin, Status, Verb, Write, WriteResult
from onceward.store.postgres import PostgresStore
from onceward.testing.caller import SCOPE, begin, entry_of, move


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.emptied_database()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        yield store


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def once(key: str) -> Begin:
    return replace(begin(key), repeatable=False)


def test_a_row_changed_while_a_batch_settles_others_is_judged_by_its_new_state(
    store: PostgresStore, url: str, pool: ThreadPoolExecutor
) -> None:
    """It changes between the start of the statement and its lock, while the statement changes its first row."""
    first, second = (entry_of(result, applied=True) for result in store.commit([once("a"), once("b")]))
    with held_up(url, "a") as gate, closing(PostgresStore(url)) as theirs:
        ends: list[Write] = [move(Verb.SETTLE, first.version, "a"), move(Verb.SETTLE, second.version, "b")]
        batch = submitted_until_it_waits(pool, store, gate, ends)
        dead = theirs.commit([replace(once("b"), dead=second.version)])[0]
        gate.execute("SELECT pg_advisory_unlock(7)")
        results = batch.result(10)

    assert entry_of(dead, applied=True).status is Status.IN_DOUBT
    assert [(result.applied, result.locked, result.before) for result in results] == [
        (True, False, Status.IN_PROGRESS),
        (True, False, Status.IN_DOUBT),
    ]


def test_a_row_unlocked_while_a_batch_settles_others_is_settled_too(
    store: PostgresStore, url: str, pool: ThreadPoolExecutor
) -> None:
    """The unlocked row is the only one in the claim cache."""
    first, second = (entry_of(result, applied=True) for result in store.commit([once("a"), once("b")]))
    store._cache.update_one((SCOPE, "b"), WriteResult(False, None, 0))  # forgets it
    with psycopg.connect(url) as other, held_up(url, "b") as gate:
        other.execute(LOCK, ("a",))
        ends: list[Write] = [move(Verb.SETTLE, first.version, "a"), move(Verb.SETTLE, second.version, "b")]
        batch = submitted_until_it_waits(pool, store, gate, ends)
        other.rollback()
        gate.execute("SELECT pg_advisory_unlock(7)")
        results = batch.result(10)

    assert [(result.applied, result.locked, result.before) for result in results] == [
        (True, False, Status.IN_PROGRESS),
        (True, False, Status.IN_PROGRESS),
    ]
