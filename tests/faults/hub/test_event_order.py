"""Followers of the log during writes get every event once, in the order of the ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from tests.backends import Servers
from tests.faults.hub.conftest import Site, Sites
from tests.faults.hub.followers import KINDS
from tests.faults.hub.writers import WRITERS, Append, append_in_turn, append_out_of_turn, write_all
from tests.faults.hub_database import event_ids, written

EVENTS_EACH = 25


@pytest.fixture
def somebody_elses_transaction(servers: Servers) -> Iterator[None]:
    """Keep a transaction with changes open in another database of the same PostgreSQL."""
    with psycopg.connect(servers.postgres.create_database()) as other:
        other.execute("CREATE TABLE elsewhere (id integer)")
        other.execute("INSERT INTO elsewhere VALUES (1)")
        yield
        other.rollback()


def followed(site: Site, how: Append) -> tuple[list[int], dict[str, list[int]]]:
    """Return the new events of eight writers, and the events that each kind of follower received."""
    topic = site.ada.topic()
    start = written(site.database)["last event"]
    with ExitStack() as stack:
        followers = [stack.enter_context(kind(site.port, site.token, start)) for kind in KINDS]
        ids = write_all(site.database_url, topic, EVENTS_EACH, how)
        # The last event, appended in turn: a follower that has it has passed all others.
        last = site.ada.post("/api/v1/topics", {"title": "the last"}).json["event_id"]
        given = {type(follower).__name__: follower.wait_for(last) for follower in followers}
    log = [event_id for event_id in event_ids(site.database) if event_id > start]
    assert sorted([*ids, last]) == log
    return log, given


@pytest.mark.usefixtures("somebody_elses_transaction")
def test_no_follower_misses_an_event_of_eight_writers_or_gets_one_twice(site: Site) -> None:
    log, given = followed(site, append_in_turn)

    assert len(log) == WRITERS * EVENTS_EACH + 1
    assert given == {kind.__name__: log for kind in KINDS}


def test_followers_do_miss_events_when_ids_are_drawn_out_of_turn(sites: Sites) -> None:
    """The test above detects this: without the lock, PostgreSQL commits in another order than it assigns ids."""
    log, given = followed(sites["postgresql"], append_out_of_turn)

    missed = {kind: len(log) - len(ids) for kind, ids in given.items()}
    assert any(missed.values()), "nobody missed anything"
    assert all(ids == sorted(set(ids)) for ids in given.values()), "what they were given is in order, once"
