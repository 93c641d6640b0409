"""The WSGI middleware around an application: accepted requests, refused requests, and duplicates."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from tests.http.wsgi_server import EVENTS, TEXT, App, Environ, OpenRequest, Start, send_request

from onceward.errors import ClaimLost, InvalidOption
from onceward.http import Rule, WSGIIdempotencyMiddleware, idempotency
from onceward.http.request.buffered_body import MEMORY_BYTES_MAX
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore


class Orders:
    """An application that counts its runs and echoes its request."""

    def __init__(self, headers: list[tuple[str, str]] = TEXT) -> None:
        self.runs = 0
        self.headers = headers
        self.environ: Environ = {}

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        self.runs += 1
        self.environ = environ
        start_response("201 Created", list(self.headers))
        return [b"run %d of " % self.runs, environ["wsgi.input"].read(-1)]


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(MemoryStore()) as ledger:
        yield ledger


def test_a_retry_gets_the_first_response_and_nothing_runs_again(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger)
    first, second = send_request(app, body=b"tea"), send_request(app, body=b"tea")

    assert (first.status, first.body, first.replayed) == (201, b"run 1 of tea", False)
    assert (second.line, second.body, second.replayed) == (first.line, first.body, True)


def test_an_expired_key_that_is_refused_gets_409_and_nothing_runs() -> None:
    orders, store = Orders(), MemoryStore()
    with Ledger(store) as ledger:
        app = WSGIIdempotencyMiddleware(orders, ledger)
        send_request(app, body=b"tea")
        refuse_from_now(store)

        again, other = send_request(app, body=b"tea"), send_request(app, body=b"coffee")

    assert (again.status, json.loads(again.body)["code"], other.status, orders.runs) == (409, "expired", 422, 1)


def refuse_from_now(store: MemoryStore) -> None:
    """Turn the settled entry into one whose retention is over and whose key is refused."""
    ((ref, entry),) = store._entries.items()
    store._entries[ref] = replace(entry, expires_at=1, refuse_until=2**60)


def test_the_middleware_twice_around_one_application_claims_once(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(WSGIIdempotencyMiddleware(orders, ledger), ledger)
    first, second = send_request(app, body=b"tea"), send_request(app, body=b"tea")

    assert (first.status, first.body) == (201, b"run 1 of tea")
    assert (second.body, second.replayed) == (b"run 1 of tea", True)
    assert idempotency(orders.environ).key == "k"


def test_a_request_derived_from_another_has_its_own_key(ledger: Ledger) -> None:
    orders = Orders()
    inner = WSGIIdempotencyMiddleware(orders, ledger)

    def outer(environ: Environ, start_response: Start) -> Iterable[bytes]:
        return inner({**environ, "HTTP_IDEMPOTENCY_KEY": "another"}, start_response)

    app = WSGIIdempotencyMiddleware(outer, ledger)
    send_request(app)

    assert send_request(inner, key="another").replayed
    assert orders.runs == 1


@pytest.mark.parametrize(("one", "other"), [("/a/\xff", "/a/\xfe"), ("/a/\xc3\xa4", "/a/\xe4")])
def test_paths_with_different_bytes_are_different_requests(ledger: Ledger, one: str, other: str) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger)
    send_request(app, one)

    assert send_request(app, other).status == 422
    assert send_request(app, one).replayed
    assert send_request(app, one[2:], environ={"SCRIPT_NAME": one[:2]}).replayed, (
        "where the application is mounted changes nothing"
    )


# The request's body.


class Broken(io.BytesIO):
    """A connection that breaks after half of the body."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError("gone")
        return data


def test_a_truncated_body_leaves_no_file_open(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger)
    size = 2 * MEMORY_BYTES_MAX
    with pytest.raises(ConnectionResetError):
        send_request(app, environ={"CONTENT_LENGTH": str(2 * size), "wsgi.input": Broken(bytes(size))})


def test_a_request_that_runs_unprotected_leaves_no_file_open() -> None:
    store, orders = FaultyStore(MemoryStore()), Orders()
    app = WSGIIdempotencyMiddleware(orders, store, on_store_error="proceed", store_seconds=0)
    body = bytes(2 * MEMORY_BYTES_MAX)
    with closing(app._admission.ledger), store.unavailable():
        got = send_request(app, body=body)

        assert (got.status, got.body) == (201, b"run 1 of " + body)
        assert orders.environ["wsgi.input"].closed


def test_a_body_of_unknown_length_is_refused_where_its_end_cannot_be_seen(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger)
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(b"tea")}
    got = send_request(app, environ=chunked)

    assert got.status == 400
    assert b"Send Content-Length." in got.body
    assert orders.runs == 0
    assert send_request(app, environ={**chunked, "wsgi.input_terminated": True}).body == b"run 1 of tea"
    assert send_request(app, key="none", environ={"CONTENT_LENGTH": ""}).body == b"run 2 of ", "there is none"


# Duplicates that join a running stream.


class Paced:
    """A stream that sends its second piece on request."""

    def __init__(self, headers: list[tuple[str, str]], pieces: list[bytes]) -> None:
        self.headers = headers
        self.pieces = pieces
        self.recorded = threading.Event()
        self.go = threading.Event()

    def __call__(self, _: Environ, start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", list(self.headers))
        yield self.pieces[0]
        self.recorded.set()
        self.go.wait(30)
        yield from self.pieces[1:]


def started(app: App, stream: Paced) -> threading.Thread:
    """The first request, on a thread, with its first piece recorded."""
    first = OpenRequest(app)
    assert stream.pieces[0] in first.take()
    thread = threading.Thread(target=first.take_all)
    thread.start()
    assert stream.recorded.wait(30)
    return thread


def test_a_duplicate_of_a_silent_event_stream_is_told_to_retry(ledger: Ledger) -> None:
    stream = Paced(EVENTS, [b"data: 1\n\n", b"data: 2\n\n"])
    app = WSGIIdempotencyMiddleware(stream, ledger, max_stream_seconds=0.05)
    first = started(app, stream)
    try:
        got = send_request(app)
    finally:
        stream.go.set()
        first.join(30)

    assert b"data: 1\n\n" in got.body
    assert b"event: interrupted\n" in got.body
    assert b"sent no data for too long" in got.body
    assert b"data: 2\n\n" in send_request(app).body, "the stream itself goes on"


def test_a_duplicate_of_a_silent_download_is_cut(ledger: Ledger) -> None:
    stream = Paced(TEXT, [b"1", b"2"])
    app = WSGIIdempotencyMiddleware(stream, ledger, max_stream_seconds=0.05)
    first = started(app, stream)
    duplicate = OpenRequest(app)
    try:
        with pytest.raises(ClaimLost, match="no data arrived for too long"):
            duplicate.take_all()
    finally:
        stream.go.set()
        first.join(30)

    assert duplicate.got.body == b"1"
    assert send_request(app).body == b"12"


@pytest.mark.parametrize("how", ["prefer", "option"])
def test_a_waiting_duplicate_gets_the_response(ledger: Ledger, how: str) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(_: Environ, start_response: Start) -> Iterable[bytes]:
        entered.set()
        go.wait(30)
        start_response("200 OK", list(TEXT))
        return [b"tea"]

    app = WSGIIdempotencyMiddleware(slow, ledger, wait_seconds=30 if how == "option" else 0)
    asking = {"HTTP_PREFER": "respond-async, wait=30"} if how == "prefer" else {}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send_request, app)
        assert entered.wait(30)
        busy = send_request(app, environ={"HTTP_PREFER": "wait=0"})
        second = pool.submit(send_request, app, environ=asking)
        go.set()

        assert (busy.status, busy.headers["retry-after"]) == (409, "1")
        assert first.result(30).body == second.result(30).body == b"tea"
        assert second.result(30).replayed


# Accepted and refused requests.


@pytest.mark.parametrize(
    ("key", "environ"),
    [
        (None, {}),
        ("k", {"REQUEST_METHOD": "GET"}),
        ("k", {"PATH_INFO": "/health"}),
    ],
    ids=["no-key", "method", "path"],
)
def test_an_unchecked_request_is_passed_on_untouched(ledger: Ledger, key: str | None, environ: Environ) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, paths=["/api/"])
    path = {"PATH_INFO": "/api/orders", **environ}
    send_request(app, key=key, environ=path)
    send_request(app, key=key, environ=path)

    assert orders.runs == 2
    assert idempotency(orders.environ).key is None


def test_a_middleware_that_is_switched_off_does_nothing(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, enabled=False, required=True)
    send_request(app)
    send_request(app)

    assert orders.runs == 2


def test_a_missing_or_malformed_key_is_refused(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, rules={"/pay": Rule(required=True)})
    refused = [
        send_request(app, "/pay", key=None),
        send_request(app, "/pay", key="two words"),
        send_request(app, "/pay", key="a,b"),
        send_request(app, "/pay", key="a", environ={"HTTP_X_IDEMPOTENCY_KEY": "b"}),
    ]

    assert [got.status for got in refused] == [400] * 4
    assert [[error["field"] for error in json.loads(got.body)["errors"]] for got in refused] == [
        ["Idempotency-Key"]
    ] * 4
    assert orders.runs == 0
    assert send_request(app, "/", key=None).status == 201
    assert send_request(app, "/pay", key='"a,b"').status == 201


@pytest.mark.parametrize(
    ("body", "environ", "status"),
    [
        (b"coffees", {}, 413),
        (b"coffees", {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}, 413),
        (b"tea", {"CONTENT_LENGTH": "5"}, 400),
        (b"tea", {"HTTP_CONTENT_DIGEST": f"sha-256=:{'A' * 43}=:"}, 400),
    ],
    ids=["too-large", "too-large-without-length", "short", "wrong-digest"],
)
def test_an_invalid_body_is_refused(ledger: Ledger, body: bytes, environ: Environ, status: int) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, rules={"/": Rule(max_body_bytes=6, digest=True)})

    assert send_request(app, body=body, environ=environ).status == status
    assert orders.runs == 0


def test_a_correct_digest_replaces_the_body(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger, rules={"/": Rule(digest=True)})
    digest = base64.b64encode(hashlib.sha256(b"tea").digest()).decode()
    environ = {"HTTP_REPR_DIGEST": f"sha-256=:{digest}:"}
    send_request(app, body=b"tea", environ=environ)

    assert send_request(app, body=b"tea", environ=environ).replayed


def test_another_request_under_the_same_key_is_refused(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger)
    send_request(app, body=b"tea")

    assert send_request(app, body=b"coffee").status == 422
    assert send_request(app, body=b"tea", environ={"QUERY_STRING": "sugar=1"}).status == 422
    assert send_request(app, body=b"tea", environ={"CONTENT_TYPE": "application/json"}).status == 422


def test_each_user_has_separate_keys(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger)
    users = [{"REMOTE_USER": "ann"}, {"REMOTE_USER": "bob"}, {"HTTP_AUTHORIZATION": "Bearer x"}, {}]
    bodies = [send_request(app, environ=user).body for user in users]

    assert [send_request(app, environ=user).body for user in users] == bodies
    assert orders.runs == 4
    assert caplog.text.count("give the middleware principal=") == 1


def test_the_principal_option_names_the_principal(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, principal=lambda environ: environ["HTTP_X_USER"])
    for user in ("ann", "bob", "ann"):
        send_request(app, environ={"HTTP_X_USER": user, "HTTP_AUTHORIZATION": str(orders.runs)})

    assert orders.runs == 2


def test_a_principal_that_must_be_awaited_is_refused(ledger: Ledger) -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            yield

    app = WSGIIdempotencyMiddleware(Orders(), ledger, principal=lambda _: Later())
    with pytest.raises(InvalidOption, match="must not be an async function under WSGI"):
        send_request(app)


def test_a_store_that_does_not_answer_is_503_and_nothing_runs() -> None:
    store, orders = FaultyStore(MemoryStore()), Orders()
    with Ledger(store, patience_seconds=0) as ledger:
        app = WSGIIdempotencyMiddleware(orders, ledger)
        with store.unavailable():
            assert send_request(app).status == 503
        assert orders.runs == 0

        body = bytes(2 * MEMORY_BYTES_MAX)
        send_request(app, body=body)
        store.lose_request("chunks")
        assert send_request(app, body=body).status == 503
        assert send_request(app, body=body).replayed


def test_a_response_that_can_no_longer_be_decrypted_counts_as_not_kept(ledger: Ledger) -> None:
    body = bytes(2 * MEMORY_BYTES_MAX)
    send_request(WSGIIdempotencyMiddleware(Orders(), ledger, encryption_keys=[bytes(32)]), body=body)
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger, encryption_keys=[b"1" * 32])
    got = send_request(app, body=body)

    assert got.status == 409
    assert b"outcome-not-kept" in got.body
    assert orders.runs == 0


def test_closing_the_middleware_closes_its_own_ledger() -> None:
    app = WSGIIdempotencyMiddleware(Orders(), "memory:")
    send_request(app)
    app.close()

    assert send_request(app).status == 201, "an application that starts again opens it again"
    app.close()
