from __future__ import annotations

import datetime
import itertools
import uuid
from contextlib import ExitStack, closing
from email.utils import format_datetime

import httpx
import pytest
from tests.http.client.transports import TLS, RetryingClient
from tests.servers.scripted_http import Cut, Hold, ScriptedResponse, Step, bind, head, scripted, url_of

OK = ScriptedResponse(201, body=b"made")
NO_ANSWER = {
    "cut before the body is read": Cut(read_body=False),
    "cut after the request is read": Cut(),
    "not HTTP": Cut(b"what?\r\n\r\n"),
    "half a head": Cut(b"HTTP/1.1 201 Cre"),
    "half a body": Cut(head("HTTP/1.1 201 Created", "Content-Length: 4") + b"ma"),
    "half a chunk of JSON": Cut(
        head("HTTP/1.1 201 Created", "Content-Type: application/json; charset=utf-8", "Transfer-Encoding: chunked")
        + b"4\r\n[1"
    ),
    "no last chunk of a problem": Cut(
        head("HTTP/1.1 503 X", "Content-Type: application/problem+json", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n"
    ),
}


@pytest.mark.parametrize("step", NO_ANSWER.values(), ids=NO_ANSWER)
def test_a_request_without_a_response_is_sent_again_with_the_same_key_and_body(
    call: RetryingClient, step: Step
) -> None:
    with scripted(step, step, OK) as server:
        response = call("POST", f"{server.url}/orders?of=ada", content=b'{"order":42}')

    assert (response.status_code, response.content) == (201, b"made")
    assert response.extensions["tries"] == len(server.seen) == 3
    assert len(set(server.keys)) == 1
    assert uuid.UUID(server.seen[0].headers["idempotency-key"]).version == 4
    assert {seen.body for seen in server.seen} <= {b'{"order":42}', None}
    assert {(seen.method, seen.path) for seen in server.seen} == {("POST", "/orders?of=ada")}


def test_a_server_that_starts_late_gets_the_request(call: RetryingClient) -> None:
    with closing(bind()) as bound, ExitStack() as later:
        call.on_pause = lambda: call.pauses[1:] or later.enter_context(scripted(OK, bound=bound))
        response = call("PUT", url_of(bound), content=b"x")

    assert response.status_code == 201
    assert response.extensions["tries"] == 2


def test_a_proxy_that_cannot_reach_the_server_is_retried(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503), ScriptedResponse(503)) as proxy:
        if call.kind == "blocking":
            inner: object = httpx.HTTPTransport(proxy=proxy.url, verify=TLS)
        else:
            inner = httpx.AsyncHTTPTransport(proxy=proxy.url, verify=TLS)
        with pytest.raises(httpx.ProxyError):
            call("POST", "https://127.0.0.1:1/", retry={"inner": inner, "tries": 2})

    assert [(seen.method, seen.path) for seen in proxy.seen] == [("CONNECT", "127.0.0.1:1")] * 2


def test_a_silent_server_is_retried_after_the_callers_timeout(call: RetryingClient) -> None:
    with scripted(Hold(), OK) as server:
        response = call("POST", server.url, timeout=1.0)

    assert response.status_code == 201
    assert len(set(server.keys)) == 1


AGAIN: list[tuple[int, dict[str, str]]] = [(status, {}) for status in (425, 429, 500, 502, 503, 504, 507, 599)]
AGAIN += [(409, {"Retry-After": "1"}), (409, {"Retry-After": "0"}), (503, {"Retry-After": "soon"})]


@pytest.mark.parametrize(("status", "headers"), AGAIN)
def test_a_temporary_response_is_retried(call: RetryingClient, status: int, headers: dict[str, str]) -> None:
    with scripted(ScriptedResponse(status, headers), ScriptedResponse(status, headers), OK) as server:
        response = call("PATCH", server.url)

    assert response.status_code == 201
    assert len(server.seen) == 3
    assert len(set(server.keys)) == 1


FINAL: list[tuple[int, dict[str, str]]] = [
    (status, {}) for status in (200, 201, 204, 400, 401, 403, 404, 408, 409, 410, 412, 413, 422)
]
FINAL += [(409, {"Retry-After": "later"}), (422, {"Retry-After": "1"}), (202, {"Retry-After": "1"})]
FINAL += [(500, {"Idempotent-Replayed": "true"}), (409, {"Idempotent-Replayed": "true", "Retry-After": "1"})]


@pytest.mark.parametrize(("status", "headers"), FINAL)
def test_every_other_response_is_returned(call: RetryingClient, status: int, headers: dict[str, str]) -> None:
    with scripted(ScriptedResponse(status, headers, b"")) as server:
        response = call("POST", server.url)

    assert response.status_code == status
    assert len(server.seen) == 1
    assert call.pauses == []


def test_retry_after_sets_the_pause(call: RetryingClient) -> None:
    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    date = {
        "Date": format_datetime(now, usegmt=True),
        "Retry-After": format_datetime(now + datetime.timedelta(seconds=9), usegmt=True),
    }
    with scripted(ScriptedResponse(503, {"Retry-After": "7"}), ScriptedResponse(429, date), OK) as server:
        call("POST", server.url)

    assert len(call.pauses) == 2
    assert 7 <= call.pauses[0] <= 7.2
    assert 9 <= call.pauses[1] <= 9.4


def test_pauses_grow_and_are_random(call: RetryingClient) -> None:
    with scripted(*[Cut()] * 8) as server:
        call("POST", server.url)
        call("POST", server.url)

    first = call.pauses[:8]
    assert len(first) == 8
    assert all(pause <= min(5.0, 0.2 * 2**number) for number, pause in enumerate(first))
    assert len(set(first)) == 8


def test_after_the_last_attempt_the_last_response_is_returned(call: RetryingClient) -> None:
    with scripted(Cut(), ScriptedResponse(500), ScriptedResponse(503, body=b"busy")) as server:
        response = call("POST", server.url, retry={"tries": 3})

    assert (response.status_code, response.content) == (503, b"busy")
    assert len(server.seen) == 3


def test_after_the_last_attempt_the_last_error_is_raised_and_its_request_can_be_sent_again(
    call: RetryingClient,
) -> None:
    with scripted(ScriptedResponse(503), Cut(), OK) as server:
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            call("POST", server.url, content=b"x", retry={"tries": 2})
        response = call.during(lambda client: client.send(caught.value.request))

    assert response.status_code == 201
    assert len(set(server.keys)) == 1
    assert caught.value.__notes__ == [
        "Gave up after 2 tries. The request may have been carried out; to use the same key, send error.request again."
    ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_safe_request_is_retried_without_a_key(call: RetryingClient, method: str) -> None:
    with scripted(Cut(), ScriptedResponse(503, body=b""), ScriptedResponse(200, body=b"")) as server:
        response = call(method, server.url)

    assert response.status_code == 200
    assert server.keys == [None, None, None]


def test_a_delete_is_sent_once(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503), Cut()) as server:
        response = call("DELETE", server.url)
        with pytest.raises(httpx.RemoteProtocolError):
            call("DELETE", server.url)

    assert response.status_code == 503
    assert server.keys == [None, None]


def test_the_methods_that_get_keys_can_be_chosen(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503), OK, ScriptedResponse(503)) as server:
        removed = call("DELETE", server.url, retry={"methods": ["delete"]})
        posted = call("POST", server.url, retry={"methods": ["delete"]})

    assert (removed.status_code, posted.status_code) == (201, 503)
    first, second, third = server.keys
    assert first == second
    assert first is not None
    assert third is None


@pytest.mark.parametrize("with_length", [True, False])
def test_a_connection_is_reused_after_a_discarded_response(call: RetryingClient, with_length: bool) -> None:
    busy = ScriptedResponse(503, {"Content-Type": "text/html"}, b"busy" * 1000, with_length)
    with scripted(busy, busy, OK) as server:
        call("POST", server.url)

    assert [seen.connection for seen in server.seen] == [1, 1, 1]


def test_a_long_discarded_response_is_not_read_to_its_end(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503, body=b"x" * 3_000_000), OK) as server:
        response = call("POST", server.url)

    assert response.status_code == 201
    assert [seen.connection for seen in server.seen] == [1, 2]


def test_requests_of_one_client_have_separate_keys(call: RetryingClient) -> None:
    answers = itertools.chain.from_iterable((ScriptedResponse(503), OK) for _ in range(5))
    with scripted(*answers) as server:
        for _ in range(5):
            call("POST", server.url, json={"same": "body"})

    assert [server.keys.count(key) for key in dict.fromkeys(server.keys)] == [2] * 5
