"""Events of other processes behind a pooler, where nobody can listen: the hub polls, and says so once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing

import pytest
from tests.backends import Servers
from tests.hub.events.feed_server import FeedServer, client, new, write
from tests.hub.events.test_notifications import NEVER, caught_up

from onceward.hub.db.engine import Database, open_database


def test_events_of_other_processes_arrive_behind_a_pooler(
    servers: Servers, postgres_template: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward.events.hints")
    url = servers.pgbouncer.url(servers.postgres.create_database(postgres_template))

    async def follow(server: FeedServer, other: Database) -> None:
        for _ in range(2):
            async with client(server) as one:
                await caught_up(one)
                written = write(other, new(1))
                assert await one.events(1) == written

    with (
        closing(open_database(url)) as database,
        closing(open_database(url)) as other,
        FeedServer(database, poll_seconds=NEVER) as server,
    ):
        asyncio.run(follow(server, other))

    told = [record for record in caplog.records if "event_notifications_polled" in record.getMessage()]
    assert len(told) == 1
