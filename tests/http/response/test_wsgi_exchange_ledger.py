"""A WSGI response and its claim: taken over, bound to a transaction, or with a store that is down."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from tests.http.wsgi_server import TEXT, App, CountingApp, Environ, OpenRequest, ReceivedResponse, Start, send_request
from tests.waiting import until

from onceward.errors import ClaimLost, StoreUnavailable
from onceward.http import WSGIIdempotencyMiddleware, idempotency
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.store.sqlite import SqliteStore
from onceward.testing import FaultyStore

WITH_LENGTH = [*TEXT, ("Content-Length", "3")]
BOUND = (201, [("Content-Type", "text/plain")], b"bound")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def ledger(store: FaultyStore) -> Iterator[Ledger]:
    with Ledger(store, patience_seconds=0) as ledger:
        yield ledger


def request_until(app: App, wanted: Callable[[ReceivedResponse], bool]) -> ReceivedResponse:
    """Retry until the response is this; what is recorded in the background appears soon."""

    def retry() -> ReceivedResponse | None:
        got = send_request(app)
        return got if wanted(got) else None

    return until(retry, "the answer never comes")


# The claim is taken over while the handler runs.


def overtaken(ledger: Ledger, environ: Environ, app: App) -> ReceivedResponse:
    """Let the claim of this request lapse, and a second request take it over."""
    binding = idempotency(environ)._binding
    assert binding is not None
    ledger.blocking.lapse(binding.claim)
    return send_request(app)


def whole(ledger: Ledger, headers: list[tuple[str, str]], status: str = "200 OK") -> App:
    """An application whose first run loses its claim before it returns anything; the second one has this status."""

    def handler(run: int, environ: Environ, start_response: Start) -> Iterable[bytes]:
        if run == 1:
            overtaken(ledger, environ, app)
        start_response("200 OK" if run == 1 else status, list(headers))
        return [b"no%d" % run]

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    return app


@pytest.mark.parametrize("headers", [TEXT, WITH_LENGTH], ids=["unsaid", "logged"])
def test_a_handler_that_lost_its_claim_before_sending_sends_the_recorded_response(
    ledger: Ledger, headers: list[tuple[str, str]]
) -> None:
    app = whole(ledger, headers)
    first, second = send_request(app), send_request(app)

    assert (first.body, first.replayed) == (b"no2", True)
    assert second.body == b"no2"


def test_a_handler_that_lost_its_claim_to_a_failed_one_tells_its_client_to_retry(ledger: Ledger) -> None:
    assert send_request(whole(ledger, TEXT, "500 Oh")).status == 409


def test_a_handler_that_lost_its_key_to_another_request_says_so(ledger: Ledger) -> None:
    def handler(run: int, environ: Environ, start_response: Start) -> Iterable[bytes]:
        if run == 1:
            binding = idempotency(environ)._binding
            assert binding is not None
            ledger.blocking.release(binding.claim)
            assert send_request(app, body=b"another").status == 200
        start_response("200 OK", list(TEXT))
        return [b"no%d" % run]

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)

    assert send_request(app).status == 422


def test_a_handler_that_lost_its_claim_and_its_client_sends_nothing(ledger: Ledger) -> None:
    app = whole(ledger, TEXT)
    first = OpenRequest(app)
    first.close()

    assert not first.got.line
    assert send_request(app).body == b"no2"


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("headers", [TEXT, WITH_LENGTH], ids=["unsaid", "logged"])
def test_a_handler_that_lost_its_claim_after_sending_is_cut(
    ledger: Ledger, headers: list[tuple[str, str]], after: int
) -> None:
    def handler(run: int, environ: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(headers))
        for number in range(3):
            if run == 1 and number == after:
                assert overtaken(ledger, environ, app).body == b"222"
            yield b"%d" % run

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    first = OpenRequest(app)
    with pytest.raises(ClaimLost):
        first.take_all()

    assert set(first.got.body) == {ord("1")}
    assert send_request(app).body == b"222"


# The store does not respond.


def losing(
    store: FaultyStore, headers: list[tuple[str, str]], pieces: list[bytes], word: str = "settle"
) -> CountingApp:
    def handler(run: int, _: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(headers))
        if run == 1:
            store.lose_request(word)
        yield from pieces

    return CountingApp(handler)


def test_a_response_that_cannot_be_settled_is_503_and_recorded_later(store: FaultyStore, ledger: Ledger) -> None:
    shop = losing(store, WITH_LENGTH, [b"tea"])
    app = WSGIIdempotencyMiddleware(shop, ledger)
    first = send_request(app)

    assert (first.status, first.headers["retry-after"]) == (503, "5")
    assert request_until(app, lambda got: got.replayed).body == b"tea"
    assert shop.runs == shop.closed == 1


@pytest.mark.parametrize("headers", [TEXT, WITH_LENGTH], ids=["unsaid", "logged"])
def test_a_response_in_progress_that_cannot_be_settled_is_cut_before_its_end(
    store: FaultyStore, ledger: Ledger, headers: list[tuple[str, str]]
) -> None:
    app = WSGIIdempotencyMiddleware(losing(store, headers, [b"t", b"e", b"a"]), ledger)
    first = OpenRequest(app)
    with pytest.raises(StoreUnavailable):
        first.take_all()

    assert first.got.status == 200
    assert len(first.got.body) < 3 or headers is TEXT
    assert send_request(app).body == b"tea"


def test_a_handler_that_raises_while_the_store_is_down_raises_its_own_error(
    store: FaultyStore, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: int, __: Environ, ___: Start) -> NoReturn:
        store.lose_request("fail")
        raise LookupError("no such tea")

    app = WSGIIdempotencyMiddleware(CountingApp(handler), ledger)
    with pytest.raises(LookupError):
        send_request(app)

    assert "request_outcome_not_recorded" in caplog.text


# The handler settles in its own transaction.


class TransactionHarness:
    """An application whose own database is the ledger's."""

    def __init__(self, path: Path, run: Callable[[TransactionHarness, Environ, Start], Iterable[bytes]]) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.ledger = Ledger(SqliteStore(path), patience_seconds=0)
        self.app = WSGIIdempotencyMiddleware(self._count, self.ledger)
        self.runs = 0
        self._run = run

    def _count(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        self.runs += 1
        return self._run(self, environ, start_response)

    def pay(self, environ: Environ) -> None:
        """Begin a transaction, and settle in it."""
        self.connection.execute("BEGIN IMMEDIATE")
        idempotency(environ).bind(self.connection).settle(BOUND)

    def close(self) -> None:
        self.connection.close()
        self.ledger.close()


class EndsTransaction:
    """A response whose transaction ends when it is closed."""

    def __init__(self, harness: TransactionHarness, word: str) -> None:
        self._harness = harness
        self._word = word
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"tea"])

    def close(self) -> None:
        self.closed += 1
        assert self.closed == 1, "a response is closed once"
        self._harness.connection.execute(self._word)


def at_once(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
    harness.pay(environ)
    harness.connection.execute("COMMIT")
    start_response("200 OK", list(WITH_LENGTH))
    return [b"tea"]


def in_stream(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
    harness.pay(environ)
    harness.connection.execute("COMMIT")
    start_response("200 OK", list(TEXT))
    return (piece for piece in (b"t", b"e", b"a"))


def when_closed(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
    harness.pay(environ)
    start_response("200 OK", list(WITH_LENGTH))
    return EndsTransaction(harness, "COMMIT")


def when_through(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterator[bytes]:
    harness.pay(environ)
    start_response("200 OK", list(WITH_LENGTH))
    yield b"tea"
    harness.connection.execute("COMMIT")


def and_raises(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
    at_once(harness, environ, start_response)
    raise LookupError("no such tea")


def and_raises_in_stream(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterator[bytes]:
    yield from and_raises(harness, environ, start_response)


@pytest.mark.parametrize("run", [at_once, in_stream, when_closed, when_through, and_raises, and_raises_in_stream])
def test_a_committed_response_is_sent(
    tmp_path: Path,
    run: Callable[[TransactionHarness, Environ, Start], Iterable[bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(TransactionHarness(tmp_path / "till.db", run)) as harness:
        first, second = send_request(harness.app), send_request(harness.app)

        assert (first.status, first.body, first.replayed) == (201, b"bound", False)
        assert (second.status, second.body, second.replayed) == (201, b"bound", True)
        assert harness.runs == 1
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.exc_info is not None for record in logged] == [True] * ("raises" in run.__name__)


def test_a_committed_response_without_a_client_is_stored_and_not_sent(tmp_path: Path) -> None:
    with closing(TransactionHarness(tmp_path / "till.db", and_raises)) as harness:
        first = OpenRequest(harness.app)
        first.close()

        assert not first.got.line
        assert send_request(harness.app).body == b"bound"


def test_a_response_committed_after_sending_began_is_completed_as_it_began(tmp_path: Path) -> None:
    def late(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", list(WITH_LENGTH))
        yield b"t"
        harness.pay(environ)
        harness.connection.execute("COMMIT")
        yield b"ea"

    with closing(TransactionHarness(tmp_path / "till.db", late)) as harness:
        assert send_request(harness.app).body == b"tea"
        assert send_request(harness.app).body == b"bound"


def test_a_rolled_back_response_is_503_and_runs_again(tmp_path: Path) -> None:
    def run(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
        harness.pay(environ)
        start_response("200 OK", list(WITH_LENGTH))
        return EndsTransaction(harness, "ROLLBACK" if harness.runs == 1 else "COMMIT")

    with closing(TransactionHarness(tmp_path / "till.db", run)) as harness:
        assert send_request(harness.app).status == 503
        assert request_until(harness.app, lambda got: got.status == 201).body == b"bound"
        assert harness.runs == 2


def test_a_transaction_left_open_is_503_and_its_own_end_decides(tmp_path: Path) -> None:
    def run(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterable[bytes]:
        harness.pay(environ)
        if harness.runs > 1:
            harness.connection.execute("COMMIT")
        start_response("200 OK", list(WITH_LENGTH))
        return [b"tea"]

    with closing(TransactionHarness(tmp_path / "till.db", run)) as harness:
        assert send_request(harness.app).status == 503
        harness.connection.execute("ROLLBACK")

        assert request_until(harness.app, lambda got: got.status == 201).body == b"bound"
        assert harness.runs == 2


def test_a_response_that_was_bound_but_not_settled_is_settled_outside_the_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(harness: TransactionHarness, environ: Environ, start_response: Start) -> Iterator[bytes]:
        harness.connection.execute("BEGIN IMMEDIATE")
        idempotency(environ).bind(harness.connection)
        start_response("200 OK", list(TEXT))
        yield b"t"
        yield b"ea"
        harness.connection.execute("COMMIT")

    with closing(TransactionHarness(tmp_path / "till.db", run)) as harness:
        first, second = send_request(harness.app), send_request(harness.app)

        assert (first.status, first.body) == (second.status, second.body) == (200, b"tea")
        assert second.replayed
    assert "bound_transaction_not_settled" in caplog.text
