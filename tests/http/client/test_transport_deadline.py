from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Any

import httpx
import pytest
from tests.http.client.transports import RetryingClient
from tests.servers.scripted_http import Cut, Hold, ScriptedResponse, Trickle, bind, head, scripted, url_of

from onceward.http.client.policy import Timeouts

# Far beyond the deadlines below, far below the client's own timeouts.
SOON_SECONDS = 10.0


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503, {"Retry-After": "60"}, b"closed")) as server:
        response = call("POST", server.url, retry={"deadline_seconds": 60})

    assert (response.status_code, response.content) == (503, b"closed")
    assert call.pauses == []


def test_a_retry_after_just_before_the_deadline_is_waited_for(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503, {"Retry-After": "59"}), ScriptedResponse()) as server:
        # So close to the deadline that added jitter would exceed it.
        own = {"first_pause_seconds": 1000.0, "longest_pause_seconds": 1000.0}
        response = call("POST", server.url, retry={"deadline_seconds": 60, **own})

    assert response.status_code == 201


def test_no_pause_ends_after_the_deadline(call: RetryingClient) -> None:
    with closing(bind()) as nobody, pytest.raises(httpx.ConnectError) as caught:
        call("POST", url_of(nobody), retry={"deadline_seconds": 20, "tries": 1000})

    assert 10 < sum(call.pauses) < 20
    assert f"Gave up after {len(call.pauses) + 1} tries." in caught.value.__notes__[0]


def test_the_last_response_is_returned_at_the_deadline(call: RetryingClient) -> None:
    with scripted(*[ScriptedResponse(409, {"Retry-After": "1"}, b"running")] * 100) as server:
        response = call("POST", server.url, retry={"deadline_seconds": 20})

    assert (response.status_code, response.content) == (409, b"running")
    assert response.extensions["tries"] == len(server.seen) == len(call.pauses) + 1
    assert 10 < sum(call.pauses) < 20


def test_a_silent_server_is_abandoned_at_the_deadline(call: RetryingClient) -> None:
    call.real_time = True
    started = time.monotonic()
    with scripted(Hold()) as server, pytest.raises(httpx.ReadTimeout):
        call("POST", server.url, timeout=None, retry={"deadline_seconds": 0.3})

    assert 0.29 < time.monotonic() - started < SOON_SECONDS


@pytest.mark.parametrize(
    "step",
    [
        Trickle(head("HTTP/1.1 200 OK", "Content-Length: 100000"), b"x"),
        Trickle(head("HTTP/1.1 200 OK", "Content-Type: application/json", "Transfer-Encoding: chunked"), b"1\r\n \r\n"),
    ],
    ids=["with a length", "in chunks"],
)
def test_a_response_that_trickles_in_is_abandoned_at_the_deadline(call: RetryingClient, step: Trickle) -> None:
    call.real_time = True
    started = time.monotonic()
    with scripted(step) as server, pytest.raises(httpx.ReadTimeout, match="deadline"):
        call("POST", server.url, retry={"deadline_seconds": 0.3})

    assert 0.29 < time.monotonic() - started < SOON_SECONDS


def test_a_discarded_response_is_not_read_for_long(call: RetryingClient) -> None:
    call.real_time = True
    started = time.monotonic()
    busy = Hold(head("HTTP/1.1 503 Busy", "Content-Type: text/html", "Transfer-Encoding: chunked") + b"1\r\nx\r\n")
    with scripted(busy, ScriptedResponse()) as server:
        response = call("POST", server.url, timeout=None, retry={"first_pause_seconds": 0})

    assert response.status_code == 201
    assert time.monotonic() - started < SOON_SECONDS


class Watched(httpx.HTTPTransport):
    """Records the timeouts of each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, float | None]] = []
        self.live: list[Timeouts] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.live.append(request.extensions["timeout"])
        self.given.append(dict(request.extensions["timeout"]))
        return super().handle_request(request)


def test_no_timeout_of_an_attempt_is_longer_than_the_time_left() -> None:
    call = RetryingClient("blocking")
    inner = Watched()
    timeout = httpx.Timeout(15, read=None, connect=1)
    with scripted(
        ScriptedResponse(503, {"Retry-After": "8"}), ScriptedResponse(503, {"Retry-After": "8"}), ScriptedResponse()
    ) as server:
        call("POST", server.url, timeout=timeout, retry={"inner": inner, "deadline_seconds": 20})

    left = [20.0, 20 - call.pauses[0], 20 - sum(call.pauses)]
    for given, rest in zip(inner.given, left, strict=True):
        expected = {"connect": min(1, rest), "read": rest, "write": min(15, rest), "pool": min(15, rest)}
        assert given == pytest.approx(expected)
    assert inner.live[-1]["read"] is None, "who reads the answer has the caller's own timeouts"
    assert inner.live[-1]["pool"] == 15


def test_a_deadline_that_has_passed_is_a_short_timeout_not_none() -> None:
    timeouts = Timeouts({"read": 5.0}, lambda: 100.0, 90.0)

    assert 0 < (timeouts["read"] or 0) <= 0.001
    assert 0 < (timeouts["connect"] or 0) <= 0.001


EVENTS = head("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked") + b"6\r\ndata:1\r\n"


def test_a_stream_reaches_its_reader_before_it_ends(call: RetryingClient) -> None:
    def first_chunk(client: Any) -> Any:
        if call.kind == "awaited":
            return first_chunk_awaited(client)
        with client.stream("POST", server.url) as response:
            return next(response.iter_raw())

    async def first_chunk_awaited(client: httpx.AsyncClient) -> bytes:
        async with client.stream("POST", server.url) as response:
            return await anext(response.aiter_raw())

    with scripted(ScriptedResponse(503), Hold(EVENTS)) as server:
        chunk = call.during(first_chunk)

    assert chunk == b"data:1"


def test_a_stream_that_breaks_is_left_to_its_reader(call: RetryingClient) -> None:
    with scripted(Cut(EVENTS)) as server, pytest.raises(httpx.RemoteProtocolError):
        call("POST", server.url)

    assert len(server.seen) == 1


def test_a_call_cancelled_during_a_pause_is_not_sent_again() -> None:
    call = RetryingClient("awaited")
    call.real_time = True

    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=call.transport()) as client:
            task = asyncio.create_task(client.post(url))
            call.on_pause = task.cancel
            with pytest.raises(asyncio.CancelledError):
                await task

    with scripted(ScriptedResponse(503, {"Retry-After": "30"})) as server:
        asyncio.run(main(server.url))

    assert len(server.seen) == 1
