"""Recorded streams: a duplicate joins, a reconnect resumes, a finished stream replays, a dead producer is reported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    SHARED,
    StartServer,
    everywhere,
    few,
    for_each,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.behaviour.demo_server import DemoServer, is_replay, new_name

EVENTS = "text/event-stream"
TRIES_MAX = 1000


class Reader:
    """A stream that is read while it arrives."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self._pieces = response.iter_text()

    def read_until(self, text: str) -> str:
        while text not in self.text:
            piece = next(self._pieces, None)
            assert piece is not None, f"the stream ended without {text!r}: {self.text}"
            self.text += piece
        return self.text

    def read_all(self) -> str:
        self.text += "".join(self._pieces)
        return self.text


@contextmanager
def streaming(server: DemoServer, name: str, key: str | None, plan: Any, last: str = "") -> Iterator[Reader]:
    """Ask for a stream. No piece waits until it is recorded, so a duplicate that is faster than the record is told to
    come again, and does.
    """
    headers = {"Authorization": "Bearer ada-token"}
    headers |= {"Idempotency-Key": key} if key else {}
    headers |= {"Last-Event-ID": last} if last else {}
    for _ in range(TRIES_MAX):
        with server.client.stream("POST", f"/api/trials/plain/{name}", headers=headers, json=plan) as response:
            if "retry-after" not in response.headers:
                yield Reader(response)
                return
    raise AssertionError("the running stream can never be joined")


def two_events(gate: str) -> dict[str, Any]:
    return {"media_type": EVENTS, "parts": ["data: one %\n\n", {"gate": gate}, "event: end\ndata: two %\n\n"]}


def ids(text: str) -> list[str]:
    return re.findall(r"^id: (\d+\.\d+)$", text, re.MULTILINE)


@on_the_diagonal
@pytest.mark.parametrize("media_type", ["text/plain; charset=utf-8", EVENTS])
def test_a_stream_without_a_key_is_untouched(server: DemoServer, media_type: str) -> None:
    name = new_name()
    plan = {"media_type": media_type, "parts": ["data: one\n\n", {"gate": name}, "data: two\n\n"]}

    with streaming(server, name, None, plan) as stream:
        stream.read_until("one")
        server.gates.open(name)
        stream.read_all()

    assert stream.text == "data: one\n\ndata: two\n\n"
    assert not is_replay(stream.response)


@on_the_diagonal
def test_the_first_byte_of_a_recorded_stream_is_not_delayed(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["one", {"gate": name}, "two"]}

    with streaming(server, name, key, plan) as stream:
        stream.read_until("one")
        server.gates.open(name)

        assert stream.read_all() == "onetwo"


@everywhere
def test_a_duplicate_joins_the_running_stream_from_its_beginning(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = two_events(name)

    with streaming(server, name, key, plan) as first:
        first.read_until("one")
        with streaming(server, name, key, plan) as joined:
            joined.read_until("one")
            server.gates.open(name)

            assert joined.read_all() == first.read_all()

    assert is_replay(joined.response)
    assert joined.response.headers["content-type"].startswith(EVENTS)
    assert "event: end" in joined.text
    assert len(set(ids(joined.text))) == 2
    assert server.runs(name) == 1


@everywhere
def test_a_reconnect_resumes_after_the_last_event(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = two_events(name)
    with streaming(server, name, key, plan) as first:
        last = ids(first.read_until("one") + first.read_until("\n\n"))[-1]
    server.gates.wait_until_reached(name)

    def resume() -> str:
        with streaming(server, name, key, plan, last) as resumed:
            return resumed.read_all()

    # Under WSGI nothing is sent before there is something to send, not even the head.
    with ThreadPoolExecutor(1) as pool:
        resumed = pool.submit(resume)
        server.gates.open(name)
        rest = resumed.result()

    assert "data: one" not in rest
    assert "data: two" in rest
    assert server.runs(name) == 1


@everywhere
def test_a_finished_stream_replays(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = two_events(name)
    server.gates.open(name)

    with streaming(server, name, key, plan) as first:
        first.read_all()
    with streaming(server, name, key, plan) as again:
        again.read_all()
    with streaming(server, name, key, plan, ids(first.text)[0]) as resumed:
        resumed.read_all()

    assert again.text == first.text
    assert is_replay(again.response)
    assert first.text.endswith(resumed.text)
    assert "one" not in resumed.text
    assert server.runs(name) == 1


@on_both_sides
def test_events_with_their_own_ids_resume_by_those_ids(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"media_type": EVENTS, "parts": ["id: a\ndata: one\n\n", "id: b\ndata: two\n\n", "id: c\ndata: three\n\n"]}

    with streaming(server, name, key, plan) as first:
        first.read_all()
    with streaming(server, name, key, plan, "b") as resumed:
        resumed.read_all()

    assert first.text == "id: a\ndata: one\n\nid: b\ndata: two\n\nid: c\ndata: three\n\n"
    assert resumed.text == "id: c\ndata: three\n\n"


@for_each(ASGI_AND_WSGI, SHARED)
def test_the_stream_of_a_dead_producer_ends_with_an_interrupted_event(
    start_server: StartServer, framework: str, store: str
) -> None:
    producer = start_server(framework, store)
    other = start_server(framework, producer.store)
    name, key = new_name(), new_name()
    plan = two_events(name)

    with streaming(producer, name, key, plan) as first:
        first.read_until("one")
        with streaming(other, name, key, plan) as joined:
            joined.read_until("one")
            producer.kill()
            joined.read_all()
        with pytest.raises(httpx.RemoteProtocolError):
            first.read_all()

    assert "event: interrupted" in joined.text
    assert "two" not in joined.text
    assert other.runs(name) == 0


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
def test_a_retry_of_an_interrupted_stream_runs_again_and_says_so(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    plan = two_events(name)
    with streaming(server, name, key, plan) as first:
        last = ids(first.read_until("one") + first.read_until("\n\n"))[-1]
        server.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            first.read_all()
    server.start()
    server.gates.open(name)

    with streaming(server, name, key, plan, last) as again:
        again.read_all()

    assert again.text.startswith("event: interrupted"), "the id was of the earlier attempt"
    assert "one" in again.text
    assert "two" in again.text
    assert set(ids(again.text)).isdisjoint(ids(first.text))
    assert server.runs(name) == 2


@on_the_diagonal
def test_the_story_stream_of_the_demo_runs_once(server: DemoServer) -> None:
    dweller, key = new_name(), new_name()

    tales = [server.post(f"/api/dwellers/{dweller}/tell", key) for _ in range(2)]

    assert tales[0].status_code == 200
    assert tales[0].headers["content-type"].startswith(EVENTS)
    assert tales[0].text == tales[1].text
    assert tales[0].text.count("event: word") == 7
    assert server.world.effects("tell", dweller) == 1
