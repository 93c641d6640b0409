"""With notifications, events arrive at once; without them, they arrive a little later."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text
from tests.hub.events.feed_server import Client, FeedServer, client, new, write
from tests.waiting import soon, until

from onceward.hub.db.engine import Database, open_database
from onceward.hub.events.log import Event, page
from onceward.hub.events.notifications import NoSource

# With this nothing but a notification is the reason to read the log.
NEVER = 600.0


async def wait_until_caught_up(one: Client) -> None:
    await one.hello()
    await one.receive_until("caught_up")


def test_a_notification_is_enough(database: Database) -> None:
    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            for number in range(1, 6):
                write(database, new(1))
                server.feed.notify()
                assert await one.events(1) == [number]

    with FeedServer(database, poll_seconds=NEVER, ask_database=False) as server:
        asyncio.run(follow(server))


def test_no_notification_is_needed(database: Database) -> None:
    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            for number in range(1, 4):
                write(database, new(1))
                assert await one.events(1) == [number]

    with FeedServer(database, poll_seconds=0.1, ask_database=False) as server:
        asyncio.run(follow(server))


def test_the_database_notifies_about_commits_of_other_processes(database: Database, database_url: str) -> None:
    async def follow(server: FeedServer, other: Database) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            for number in range(1, 6):
                write(other, new(1))
                assert await one.events(1) == [number]

    with closing(open_database(database_url)) as other, FeedServer(database, poll_seconds=NEVER) as server:
        asyncio.run(follow(server, other))


def test_notifications_start_again_with_the_next_follower(database: Database) -> None:
    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
        await soon(lambda: not server.feed.followers, "it is not forgotten")
        write(database, new(3))
        async with client(server) as one:
            await wait_until_caught_up(one)
            write(database, new(2))
            assert await one.events(2) == [4, 5]

    with FeedServer(database, poll_seconds=NEVER) as server:
        asyncio.run(follow(server))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_database_that_drops_every_connection_only_causes_delays(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connections in the pool, and the listening one."""
    caplog.set_level(logging.WARNING, "onceward.events")

    async def follow(server: FeedServer, other: Database) -> None:
        async with client(server) as live, client(server) as behind:
            await wait_until_caught_up(live)
            await behind.hello(after_event_id=0)
            for _ in range(3):
                with other.read() as tx:
                    tx.execute(text(_DROP_OTHERS))
                written = write(other, new(2))
                assert await live.events(2) == written
                assert await behind.events(2) == written

    with closing(open_database(database_url)) as other, FeedServer(database, poll_seconds=0.1) as server:
        asyncio.run(follow(server, other))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_dropped_listening_connection_is_opened_again(database: Database) -> None:
    def listening() -> list[int]:
        with database.read() as tx:
            return list(tx.execute(text(_LISTENING)).scalars())

    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            (before,) = await soon(listening, "it does not listen")
            with database.read() as tx:
                tx.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": before})
            (after,) = await soon(lambda: [pid for pid in listening() if pid != before], "it does not listen again")

            assert after != before

    with FeedServer(database, poll_seconds=0.1) as server:
        asyncio.run(follow(server))


_LISTENING = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'LISTEN onceward_events'
"""
_DROP_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_any_error_while_reading_is_logged_once_and_retried(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([ValueError("a bug"), ValueError("a bug")])

    def failing(*given: Any) -> list[Event]:
        for failure in failures:
            raise failure
        return page(*given)

    monkeypatch.setattr("onceward.hub.events.tail.page", failing)

    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            written = write(database, new(2))
            assert await one.events(2) == written

    def warnings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "onceward.events.tail"]

    with FeedServer(database) as server:
        asyncio.run(follow(server))
        until(lambda: len(warnings()) > 1, "a second word")  # events are sent before it is logged

    assert [record.getMessage() for record in warnings()] == [
        "event_log_read_failed reason='a bug' hint='new events arrive late'",
        "event_log_read_recovered",
    ]
    assert warnings()[0].exc_info is not None, "a bug is logged with its trace"


def test_a_process_with_thousands_of_files_is_still_woken(request: pytest.FixtureRequest) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4_096), hard), hard))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    one, other = socket.socketpair()
    with one, other, socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD, 2_000)) as high:
        other.send(b"x")
        NoSource().wait(high, NEVER)

        assert high.fileno() >= 2_000


def test_a_notification_from_any_thread_at_any_time_is_harmless(database: Database) -> None:
    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await wait_until_caught_up(one)
            written = write(database, new(50))
            assert await one.events(50) == written

    with FeedServer(database) as server:
        server.feed.notify()
        ended = threading.Event()

        def nag() -> None:
            while not ended.is_set():
                server.feed.notify()

        nagging = threading.Thread(target=nag)
        nagging.start()
        asyncio.run(follow(server))
        ended.set()
        nagging.join()
    server.feed.notify()
