"""Events of other processes behind a pooler, where LISTEN does not work: the hub polls, and logs that once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing

import pytest
from tests.backends import Servers
from tests.hub.events.feed_server import FeedServer, client, new, write
from tests.hub.events.test_notifications import NEVER, wait_until_caught_up
from tests.servers.pgbouncer import Pgbouncer

from onceward.hub.db.engine import Database, open_database
from onceward.hub.events import notifications


def test_events_of_other_processes_arrive_behind_a_pooler(
    servers: Servers, postgres_template: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the pooler was restarted, and the connection that polls was opened again."""
    caplog.set_level(logging.INFO, "onceward.events.hints")
    monkeypatch.setattr(notifications, "_REOPEN_SECONDS", 0.0)
    server_url = servers.postgres.create_database(postgres_template)

    async def follow(server: FeedServer, other: Database) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            written = write(other, new(1))
            assert await one.events(1) == written
            pooler.stop()
            pooler.start()
            written = write(other, new(1))
            assert await one.events(1) == written
            # Only the connection that was opened again can notice this one.
            written = write(other, new(1))
            assert await one.events(1) == written

    with (
        Pgbouncer(servers.postgres, pool_size=2) as pooler,
        closing(open_database(url := pooler.url(server_url))) as database,
        closing(open_database(url)) as other,
        FeedServer(database, poll_seconds=NEVER) as server,
    ):
        asyncio.run(follow(server, other))

    logged = [record for record in caplog.records if "event_notifications_polled" in record.getMessage()]
    assert len(logged) == 1
