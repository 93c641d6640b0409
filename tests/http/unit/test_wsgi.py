"""The WSGI middleware around an application: what it lets through, what it refuses, and what a duplicate gets."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from tests.http.unit.gateway import EVENTS, TEXT, App, Environ, Open, Start, ask

from onceward.errors import ClaimLost
from onceward.http import WSGIIdempotencyMiddleware, idempotency
from onceward.http.spool import MEMORY_BYTES_MAX
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore


class Orders:
    """An application that counts its runs and gives back what it was sent."""

    def __init__(self, headers: list[tuple[str, str]] = TEXT) -> None:
        self.runs = 0
        self.headers = headers
        self.environ: Environ = {}

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        self.runs += 1
        self.environ = environ
        start_response("201 Created", list(self.headers))
        return [b"run %d of " % self.runs, environ["wsgi.input"].read()]


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(MemoryStore()) as ledger:
        yield ledger


def test_a_retry_gets_the_first_answer_and_nothing_runs_again(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger)
    first, second = ask(app, body=b"tea"), ask(app, body=b"tea")

    assert (first.status, first.body, first.replayed) == (201, b"run 1 of tea", False)
    assert (second.line, second.body, second.replayed) == (first.line, first.body, True)


def test_the_middleware_twice_around_one_application_claims_once(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(WSGIIdempotencyMiddleware(orders, ledger), ledger)
    first, second = ask(app, body=b"tea"), ask(app, body=b"tea")

    assert (first.status, first.body) == (201, b"run 1 of tea")
    assert (second.body, second.replayed) == (b"run 1 of tea", True)
    assert idempotency(orders.environ).key == "k"


def test_a_request_made_out_of_another_has_a_key_of_its_own(ledger: Ledger) -> None:
    orders = Orders()
    inner = WSGIIdempotencyMiddleware(orders, ledger)

    def outer(environ: Environ, start_response: Start) -> Iterable[bytes]:
        return inner({**environ, "HTTP_IDEMPOTENCY_KEY": "another"}, start_response)

    app = WSGIIdempotencyMiddleware(outer, ledger)
    ask(app)

    assert ask(inner, key="another").replayed
    assert orders.runs == 1


@pytest.mark.parametrize(("one", "other"), [("/a/\xff", "/a/\xfe"), ("/a/\xc3\xa4", "/a/\xe4")])
def test_paths_of_other_bytes_are_other_requests(ledger: Ledger, one: str, other: str) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger)
    ask(app, one)

    assert ask(app, other).status == 422
    assert ask(app, one).replayed
    assert ask(app, one[2:], environ={"SCRIPT_NAME": one[:2]}).replayed, (
        "where the application is mounted changes nothing"
    )


# The request's body.


class Broken(io.BytesIO):
    """A connection that breaks when half of the body has come."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError("gone")
        return data


def test_a_body_that_breaks_off_leaves_no_file_open(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(Orders(), ledger)
    size = 2 * MEMORY_BYTES_MAX
    with pytest.raises(ConnectionResetError):
        ask(app, environ={"CONTENT_LENGTH": str(2 * size), "wsgi.input": Broken(bytes(size))})


def test_a_request_that_runs_unprotected_leaves_no_file_open() -> None:
    store, orders = FaultyStore(MemoryStore()), Orders()
    app = WSGIIdempotencyMiddleware(orders, store, on_store_error="proceed", store_seconds=0)
    body = bytes(2 * MEMORY_BYTES_MAX)
    with closing(app._guard.ledger), store.unavailable():
        got = ask(app, body=body)

        assert (got.status, got.body) == (201, b"run 1 of " + body)
        assert orders.environ["wsgi.input"].closed


def test_a_body_of_unknown_length_is_refused_where_its_end_cannot_be_seen(ledger: Ledger) -> None:
    orders = Orders()
    app = WSGIIdempotencyMiddleware(orders, ledger)
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(b"tea")}
    got = ask(app, environ=chunked)

    assert got.status == 400
    assert b"send Content-Length" in got.body
    assert orders.runs == 0
    assert ask(app, environ={**chunked, "wsgi.input_terminated": True}).body == b"run 1 of tea"


# Duplicates that join a running stream.


class Paced:
    """A stream that gives its second piece when it is told to."""

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
    first = Open(app)
    assert stream.pieces[0] in first.take()
    thread = threading.Thread(target=first.take_all)
    thread.start()
    assert stream.recorded.wait(30)
    return thread


def test_a_duplicate_of_a_silent_event_stream_is_told_to_come_again(ledger: Ledger) -> None:
    stream = Paced(EVENTS, [b"data: 1\n\n", b"data: 2\n\n"])
    app = WSGIIdempotencyMiddleware(stream, ledger, max_stream_seconds=0.05)
    first = started(app, stream)
    try:
        got = ask(app)
    finally:
        stream.go.set()
        first.join(30)

    assert b"data: 1\n\n" in got.body
    assert b"event: interrupted\n" in got.body
    assert b"silent" in got.body
    assert b"data: 2\n\n" in ask(app).body, "the stream itself goes on"


def test_a_duplicate_of_a_silent_download_is_cut(ledger: Ledger) -> None:
    stream = Paced(TEXT, [b"1", b"2"])
    app = WSGIIdempotencyMiddleware(stream, ledger, max_stream_seconds=0.05)
    first = started(app, stream)
    duplicate = Open(app)
    try:
        with pytest.raises(ClaimLost, match="silent"):
            duplicate.take_all()
    finally:
        stream.go.set()
        first.join(30)

    assert duplicate.got.body == b"1"
    assert ask(app).body == b"12"
