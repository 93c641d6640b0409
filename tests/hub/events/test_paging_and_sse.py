"""Pages of the log, and the SSE stream, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.hub.events.feed_server import FeedServer, new, whole_log, write
from tests.waiting import until

from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import now_text
from onceward.hub.events.log import delete_old_events


@pytest.fixture
def server(database: Database) -> Iterator[FeedServer]:
    with FeedServer(database) as server:
        yield server


@pytest.fixture
def http(server: FeedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=20) as http:
        yield http


# Pages.


def test_pages_follow_each_other_to_the_end(http: httpx.Client, database: Database) -> None:
    written = write(database, new(25))
    found: list[Any] = []
    page: dict[str, Any] = {"next_after": 0, "has_more": True}
    while page["has_more"]:
        page = http.get("/api/v1/events", params={"after": page["next_after"], "limit": 10}).json()
        found += page["events"]

    assert [event["event_id"] for event in found] == written
    assert found == [json.loads(event.json) for event in whole_log(database)]
    assert page["next_after"] == written[-1]


@pytest.mark.parametrize("limit", [10, 500])
def test_a_full_page_at_the_end_has_no_more(http: httpx.Client, database: Database, limit: int) -> None:
    written = write(database, new(limit))
    page = http.get("/api/v1/events", params={"limit": limit}).json()

    assert (len(page["events"]), page["has_more"], page["next_after"]) == (limit, False, written[-1])


def test_a_page_of_one_topic_skips_the_others(http: httpx.Client, database: Database) -> None:
    write(database, [*new(3, topic="t1"), *new(3, topic="t2"), *new(2, topic="t1"), *new(4, topic="t2")])
    first = http.get("/api/v1/events", params={"topic_id": "t1", "limit": 3}).json()
    second = http.get("/api/v1/events", params={"topic_id": "t1", "limit": 2, "after": 3}).json()
    none = http.get("/api/v1/events", params={"topic_id": "t3"}).json()

    assert ([event["event_id"] for event in first["events"]], first["next_after"], first["has_more"]) == (
        [1, 2, 3],
        3,
        True,
    )
    assert ([event["event_id"] for event in second["events"]], second["next_after"], second["has_more"]) == (
        [7, 8],
        12,
        False,
    )
    assert none == {"events": [], "next_after": 12, "has_more": False}


def test_an_empty_log_is_an_empty_page(http: httpx.Client) -> None:
    assert http.get("/api/v1/events").json() == {"events": [], "next_after": 0, "has_more": False}


def test_a_page_after_a_cursor_older_than_the_log_has_a_gap(http: httpx.Client, database: Database) -> None:
    write(database, new(10))
    with database.write() as tx:
        delete_old_events(tx, now_text(), limit=6)
    page = http.get("/api/v1/events", params={"after": 2, "limit": 2}).json()
    at_the_edge = http.get("/api/v1/events", params={"after": 6}).json()

    assert page["gap"] == {"after_event_id": 2, "oldest_event_id": 7}
    assert [event["event_id"] for event in page["events"]] == [7, 8]
    assert "gap" not in at_the_edge


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/events/stream"])
def test_an_invalid_parameter_is_400(http: httpx.Client, path: str) -> None:
    wrong = ["after=-1", "after=x", "after=1", f"after={10**30}", "topic_id=", "topic_id=a%00b"]
    if path == "/api/v1/events":
        wrong += ["limit=0", "limit=501"]
    for query in wrong:
        answer = http.get(f"{path}?{query}")

        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
        assert answer.json()["code"] == "badRequest"


# The stream.


def blocks(response: httpx.Response) -> Iterator[dict[str, str]]:
    block: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            field, _, value = line.partition(":")
            block[field] = value.removeprefix(" ")
        else:
            yield block
            block = {}


def test_a_stream_has_every_event_from_the_cursor_and_stays_open(
    server: FeedServer, http: httpx.Client, database: Database
) -> None:
    written = write(database, new(600))
    with http.stream("GET", "/api/v1/events/stream?after=2") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        received = blocks(response)
        assert next(received) == {"retry": "1000"}
        hello = next(received)
        replay = [next(received) for _ in range(598)]
        caught_up = next(received)
        write(database, new(1))
        server.feed.notify()
        live = next(received)

    assert (hello["event"], json.loads(hello["data"])["replay_until"]) == ("hello_ok", 600)
    assert [int(block["id"]) for block in replay] == written[2:]
    assert all(block.keys() == {"id", "data"} for block in replay)
    assert json.loads(replay[0]["data"]) == json.loads(whole_log(database)[2].json)
    assert (caught_up["event"], caught_up["id"]) == ("caught_up", "600")
    assert live["id"] == "601"


def test_the_last_event_id_wins_over_the_cursor(http: httpx.Client, database: Database) -> None:
    write(database, new(5))
    with http.stream("GET", "/api/v1/events/stream?after=1", headers={"Last-Event-ID": "3"}) as response:
        received = blocks(response)
        next(received)
        next(received)
        assert next(received)["id"] == "4"


def test_a_last_event_id_that_is_not_ours_is_400(http: httpx.Client, database: Database) -> None:
    write(database, new(5))
    for value in ("x", "-1", "1.0", "", "9" * 40, "6", "²"):
        answer = http.get("/api/v1/events/stream", headers=[(b"Last-Event-ID", value.encode())])

        assert answer.status_code == 400


def test_a_filtered_stream_reports_its_progress(http: httpx.Client, database: Database) -> None:
    write(database, [*new(2, topic="t1"), *new(3, topic="t2")])
    with http.stream("GET", "/api/v1/events/stream?after=0&topic_id=t1") as response:
        received = blocks(response)
        next(received)
        next(received)
        assert [next(received)["id"], next(received)["id"]] == ["1", "2"]
        # The browser resumes behind what was passed over.
        passed = next(received)
        assert passed["event"] in {"progress", "caught_up"}
        assert passed["id"] == "5"


def test_a_stream_behind_the_log_starts_with_a_gap(http: httpx.Client, database: Database) -> None:
    write(database, new(10))
    with database.write() as tx:
        delete_old_events(tx, now_text(), limit=6)
    with http.stream("GET", "/api/v1/events/stream?after=2") as response:
        received = blocks(response)
        next(received)
        hello = next(received)
        # A client that is cut off here resumes where it was, and hears of the gap then.
        assert (hello["event"], hello["id"]) == ("hello_ok", "2")
        gap = next(received)
        assert (gap["event"], gap["id"]) == ("gap", "6")
        assert json.loads(gap["data"]) == {"type": "gap", "after_event_id": 2, "oldest_event_id": 7}
        assert next(received)["id"] == "7"


def test_a_silent_stream_has_heartbeats_and_a_stop_ends_it_with_the_id_to_resume_from(database: Database) -> None:
    write(database, new(4))
    with (
        FeedServer(database, heartbeat_seconds=0.05) as server,
        httpx.stream("GET", f"{server.http}/api/v1/events/stream") as response,
    ):
        received = blocks(response)
        first = [next(received) for _ in range(5)]
        server.stop()
        *_, last = received

    assert first[3:] == [{"": "ping 4"}] * 2
    assert (last["event"], last["id"]) == ("error", "4")
    assert json.loads(last["data"])["code"] == "stopping"


def test_a_client_that_leaves_a_stream_is_removed(server: FeedServer, http: httpx.Client) -> None:
    with http.stream("GET", "/api/v1/events/stream") as response:
        received = blocks(response)
        # The retry pause is sent before the session enters the feed; a greeted client has entered it.
        assert [set(next(received)) for _ in range(2)] == [{"retry"}, {"event", "id", "data"}]
        assert server.feed.followers == 1

    until(lambda: not server.feed.followers, "it is not forgotten")
