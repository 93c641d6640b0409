"""A response under WSGI is recorded while the server takes it, whatever application, server and store do."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest
from tests.http.wsgi_server import (
    BODIES,
    EVENTS,
    TEXT,
    CountingApp,
    DjangoLikeBody,
    Environ,
    OpenRequest,
    Start,
    app_sending,
    length,
    send_request,
)

from onceward.errors import InvalidOption
from onceward.http import WSGIIdempotencyMiddleware, idempotency
from onceward.http.request.buffered_body import MEMORY_BYTES_MAX
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

STOCK: dict[str, bytes] = {}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(MemoryStore()) as ledger:
        yield ledger


# Bodies, and whether they have their declared length.


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("headers", [TEXT, length(6)], ids=["unsaid", "said"])
@pytest.mark.parametrize("pieces", [[b"coffee"], [b"cof", b"", b"fee"], [b"", b"coffee", b""]])
def test_a_body_of_any_kind_is_replayed(
    ledger: Ledger, kind: str, headers: list[tuple[str, str]], pieces: list[bytes]
) -> None:
    shop = app_sending(pieces, headers, kind)
    app = WSGIIdempotencyMiddleware(shop, ledger)
    first, second = send_request(app), send_request(app)

    assert (first.body, first.replayed) == (b"coffee", False)
    assert (second.body, second.replayed) == (b"coffee", True)
    assert shop.runs == shop.closed == 1


def test_a_response_without_a_body_is_replayed(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(app_sending([], [], status="204 No Content"), ledger)
    first, second = send_request(app), send_request(app)

    assert (first.line, first.body) == (second.line, second.body) == ("204 No Content", b"")
    assert second.replayed


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    "pieces", [[b"cof"], [b"coffees"], [b"cof", b"fees"], []], ids=["short", "long", "long-in-two", "empty"]
)
def test_a_body_with_a_wrong_content_length_is_passed_on_and_never_stored(
    ledger: Ledger, kind: str, pieces: list[bytes]
) -> None:
    shop = app_sending(pieces, length(6), kind)
    app = WSGIIdempotencyMiddleware(shop, ledger)
    first, second = send_request(app), send_request(app)

    assert first.body == second.body == b"".join(pieces)
    assert not second.replayed
    assert shop.runs == shop.closed == 2


@pytest.mark.parametrize("kind", ["list", "tuple", "django"])
def test_a_complete_body_is_measured_before_it_is_stored(ledger: Ledger, kind: str) -> None:
    shop = app_sending([b"coffee", b"!"], length(6), kind)
    app = WSGIIdempotencyMiddleware(shop, ledger)

    assert send_request(app).body == b"coffee!"
    assert not send_request(app).replayed


def test_bytes_beyond_the_content_length_are_left_to_the_server(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(app_sending([b"coffee", b"!"], length(6), "stream"), ledger)

    assert send_request(app).pieces == [b"coffee", b"!"]
    assert send_request(app).body == b"coffee"


# Bytes written with `write()`, and calls with `exc_info`.


def test_written_bytes_come_before_returned_bytes(ledger: Ledger) -> None:
    def handler(_: int, __: Environ, start_response: Start) -> Iterable[bytes]:
        write = start_response("200 OK", list(TEXT))
        write(b"a")
        write(b"b")

        def rest() -> Iterator[bytes]:
            write(b"c")
            yield b"d"
            write(b"e")

        return rest()

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)

    assert send_request(app).body == b"abcde"
    assert send_request(app).body == b"abcde"
    assert send_request(app).replayed


@pytest.mark.parametrize("headers", [TEXT, length(10), EVENTS], ids=["unsaid", "said", "events"])
def test_an_error_page_replaces_a_response_that_was_not_sent(ledger: Ledger, headers: list[tuple[str, str]]) -> None:
    def handler(_: int, __: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(headers))
        try:
            if headers is EVENTS:
                yield b"data: not a whole ev"
            STOCK["tea"]
        except LookupError:
            start_response("404 Not Found", length(7), sys.exc_info())
        yield b"no tea!"

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    first, second = send_request(app), send_request(app)

    assert (first.status, first.body) == (second.status, second.body) == (404, b"no tea!")
    assert second.replayed


def test_an_error_page_after_bytes_were_sent_raises_the_error(ledger: Ledger) -> None:
    def handler(run: int, _: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"t"
        try:
            if run == 1:
                STOCK["tea"]
        except LookupError:
            start_response("404 Not Found", list(TEXT), sys.exc_info())
        yield b"ea"

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    first = OpenRequest(app)
    with pytest.raises(LookupError):
        first.take_all()

    assert (first.got.status, first.got.body) == (200, b"t")
    assert send_request(app).body == b"tea"


# Exceptions of the application.


def in_call(run: int, _: Environ, start_response: Start) -> Iterable[bytes]:
    if run == 1:
        raise LookupError("no such tea")
    start_response("200 OK", list(TEXT))
    return [b"tea"]


def in_call_after_start(run: int, _: Environ, start_response: Start) -> Iterable[bytes]:
    start_response("200 OK", list(TEXT))
    if run == 1:
        raise LookupError("no such tea")
    return [b"tea"]


def before_a_piece(run: int, environ: Environ, start_response: Start) -> Iterator[bytes]:
    yield from in_call_after_start(run, environ, start_response)


def after_a_piece(run: int, _: Environ, start_response: Start) -> Iterator[bytes]:
    start_response("200 OK", list(TEXT))
    yield b"t"
    if run == 1:
        raise LookupError("no such tea")
    yield b"ea"


@pytest.mark.parametrize("handler", [in_call, in_call_after_start, before_a_piece, after_a_piece])
@pytest.mark.parametrize(("on_crash", "status"), [("repeat", 200), ("hold", 409)])
def test_a_handler_that_raised_runs_again_or_is_in_doubt(
    ledger: Ledger, handler: Callable[[int, Environ, Start], Iterable[bytes]], on_crash: str, status: int
) -> None:
    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger, on_crash=on_crash)
    with pytest.raises(LookupError):
        send_request(app)
    second = send_request(app)

    assert second.status == status
    assert (second.body == b"tea") is (status == 200)


def test_a_handler_that_raises_after_its_response_was_settled_keeps_it(ledger: Ledger) -> None:
    def handler(_: int, __: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", length(3))
        yield b"tea"
        raise LookupError("no such tea")

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    first = OpenRequest(app)
    with pytest.raises(LookupError):
        first.take_all()

    assert first.got.body == b"tea"
    assert send_request(app).replayed


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_worker_that_is_stopped_leaves_the_key_free(ledger: Ledger, error: BaseException) -> None:
    def handler(run: int, _: Environ, start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", list(TEXT))
        if run == 1:
            raise error
        return [b"tea"]

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    with pytest.raises(type(error)):
        send_request(app)

    assert send_request(app).body == b"tea"


def test_a_body_without_a_start_is_an_error(ledger: Ledger) -> None:
    app = WSGIIdempotencyMiddleware(CountingApp(lambda _, __, ___: [b"tea"]), ledger)
    with pytest.raises(InvalidOption, match="before it called start_response"):
        send_request(app)


# The client goes away.


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
@pytest.mark.parametrize("headers", [TEXT, length(27), EVENTS], ids=["unsaid", "said", "events"])
def test_a_response_whose_client_left_is_recorded(ledger: Ledger, headers: list[tuple[str, str]], taken: int) -> None:
    shop = app_sending([b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"], headers, "stream")
    app = WSGIIdempotencyMiddleware(shop, ledger)
    first = OpenRequest(app)
    for _ in range(taken):
        first.take()
    first.close()

    assert shop.runs == shop.closed == 1
    second = send_request(app)
    assert re.findall(rb"data: (.)\n\n", second.body) == [b"1", b"2", b"3"]
    assert second.body.startswith(first.got.body)
    assert second.replayed


@pytest.mark.parametrize("taken", [0, 1])
def test_a_stream_without_a_client_ends_in_time_and_quietly(ledger: Ledger, taken: int) -> None:
    def handler(run: int, _: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"tea"
        while run == 1:
            yield b", and more tea"

    shop = CountingApp(handler)
    app = WSGIIdempotencyMiddleware(shop, ledger, max_stream_seconds=0)
    first = OpenRequest(app)
    for _ in range(taken):
        first.take()
    first.close()

    assert shop.closed == 1
    assert send_request(app).body == b"tea", "nobody knows what became of it: it runs again"


def test_a_settled_response_that_never_ends_is_not_followed_forever(ledger: Ledger) -> None:
    def handler(_: int, __: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", length(3))
        while True:
            yield b"tea"

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger, max_stream_seconds=0)
    first = OpenRequest(app)
    first.take()
    first.close()

    assert send_request(app).body == b"tea"


def test_a_failing_close_leaves_nothing_behind(ledger: Ledger) -> None:
    class Failing(DjangoLikeBody):
        def close(self) -> None:
            raise LookupError("no such tea")

    def app(_: Environ, start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", list(TEXT))
        return Failing([b"tea"])

    guarded = WSGIIdempotencyMiddleware(app, ledger)
    body = bytes(2 * MEMORY_BYTES_MAX)
    first = OpenRequest(guarded, body=body)
    with pytest.raises(LookupError):
        first.take_all()

    assert first.environ["wsgi.input"].closed
    assert send_request(guarded, body=body).replayed


# Streams, and the stored part of them.


def test_a_compressed_event_stream_is_not_parsed(ledger: Ledger) -> None:
    packed = gzip.compress(b"data: 1\n\n" * 3) + b"\n\n" + gzip.compress(b"data: 2\n\n")
    headers = [*EVENTS, ("Content-Encoding", "gzip")]
    app = WSGIIdempotencyMiddleware(app_sending([packed[:30], packed[30:]], headers, "stream"), ledger)

    assert send_request(app).pieces == [packed[:30], packed[30:]]
    assert send_request(app).body == packed


def test_events_get_ids_to_resume_from_and_the_response_loses_its_length(ledger: Ledger) -> None:
    headers = [*EVENTS, ("Content-Length", "25")]
    app = WSGIIdempotencyMiddleware(app_sending([b"data: 1\n", b"\ndata: 2\n\ndata: 3"], headers, "stream"), ledger)
    first = send_request(app)

    assert first.body == b"id: 1.1\ndata: 1\n\nid: 1.2\ndata: 2\n\ndata: 3"
    assert "content-length" not in first.headers
    assert send_request(app).body == first.body
    assert send_request(app, environ={"HTTP_LAST_EVENT_ID": "1.1"}).body == b"id: 1.2\ndata: 2\n\ndata: 3"


@pytest.mark.parametrize("kind", BODIES)
def test_a_client_that_resumes_a_stream_that_runs_again_gets_an_interrupted_event_first(
    ledger: Ledger, kind: str
) -> None:
    app = WSGIIdempotencyMiddleware(app_sending([b"data: 1\n\n"], EVENTS, kind), ledger)
    first = send_request(app, environ={"HTTP_LAST_EVENT_ID": "7.3"})
    second = send_request(app, environ={"HTTP_LAST_EVENT_ID": "7.3"})

    assert first.body.startswith(b"event: interrupted\n")
    assert first.body.endswith(b"\n\nid: 1.1\ndata: 1\n\n")
    assert second.body == first.body
    assert send_request(app).body == b"id: 1.1\ndata: 1\n\n", "what was said to one is not recorded for others"


@pytest.mark.parametrize("kind", BODIES)
def test_a_response_that_is_too_large_is_not_stored_and_not_run_again(ledger: Ledger, kind: str) -> None:
    shop = app_sending([b"cof", b"fee"], TEXT, kind)
    app = WSGIIdempotencyMiddleware(shop, ledger, max_response_bytes=5)

    assert send_request(app).body == b"coffee"
    second = send_request(app)
    assert second.status == 409
    assert b"outcome-not-kept" in second.body
    assert shop.runs == 1


@pytest.mark.parametrize("sealed", [False, True])
def test_headers_that_are_too_large_are_passed_on_and_the_response_is_not_stored(
    ledger: Ledger, *, sealed: bool
) -> None:
    shop = app_sending([b"coffee"], [*TEXT, ("X-Long", "x" * 100_000)], "list")
    app = WSGIIdempotencyMiddleware(shop, ledger, encryption_keys=[bytes(32)] if sealed else ())

    first, second = send_request(app), send_request(app)

    assert (first.body, len(first.headers["x-long"])) == (b"coffee", 100_000)
    assert (second.status, b"outcome-not-kept" in second.body) == (409, True)
    assert shop.runs == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_response_that_its_handler_does_not_store_is_not_stored(ledger: Ledger, *, late: bool) -> None:
    def handler(_: int, environ: Environ, start_response: Start) -> Iterator[bytes]:
        if not late:
            idempotency(environ).no_store()
        start_response("200 OK", list(TEXT))
        yield b"cof"
        idempotency(environ).no_store()
        yield b"fee"

    shop = CountingApp(handler)
    app = WSGIIdempotencyMiddleware(shop, ledger)

    assert send_request(app).body == b"coffee"
    assert b"outcome-not-kept" in send_request(app).body
    assert shop.runs == 1


def test_a_long_body_is_recorded_in_parts(ledger: Ledger) -> None:
    pieces = [bytes([number]) * 50_000 for number in range(8)]
    app = WSGIIdempotencyMiddleware(app_sending(pieces, length(400_000), "stream"), ledger)

    assert send_request(app).body == b"".join(pieces)
    second = send_request(app)
    assert (second.body, second.headers["content-length"]) == (b"".join(pieces), "400000")
